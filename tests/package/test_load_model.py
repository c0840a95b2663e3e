"""sk.load_model: calls with arrays of several libraries, states, contexts, submitted calls, and the end of a model."""

from __future__ import annotations

import array
import copy
import gc
import importlib.util
import inspect
import pickle
import shutil
import subprocess
import sys
import threading
import venv
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from handmade_package import WEIGHT, change_manifest, write_counter, write_handmade, write_sums

import superkernel as sk
from superkernel.errors import BuildError, LaunchError, OptionError
from superkernel.package.array_values import place_number
from superkernel.package.call_signature import call_signature
from superkernel.package.library import library_path
from superkernel.package.library_functions import ArrayType

X = np.arange(8, dtype=np.float32).reshape(2, 4)
Y = np.full((2, 4), 2, np.float32)
EXPECTED = X + Y * WEIGHT


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_handmade(tmp_path_factory.mktemp("package") / "hand.sk")


@pytest.fixture
def model(package: Path) -> Iterator[Any]:
    with sk.load_model(package) as opened:
        yield opened


def test_entries_are_attributes_and_forward_is_the_call(model: Any) -> None:
    for call in (model, model.forward, model.entries["forward"]):
        result = call(X, Y)
        assert type(result) is np.ndarray and result.dtype == np.float32
        np.testing.assert_array_equal(result, EXPECTED)
    first, second = model(X, Y), model(X, Y)
    assert not np.shares_memory(first, second)
    assert list(model.entries) == ["forward", "count", "rows", "both"]
    assert model.forward.__doc__ == "x + y * w"
    assert "x: float32[2, 4]" in repr(model.forward)
    assert dir(model).count("rows") == 1


def test_inputs_are_the_signature(model: Any, tmp_path: Path) -> None:
    with model.new_context() as context:
        for call in (model, model.forward, context):
            assert str(inspect.signature(call)) == "(x, y, *, out=None)"
    assert str(inspect.signature(model.count)) == "(step, *, out=None)"
    assert str(call_signature(["x", "out"])) == str(call_signature(["lambda"])) == "(*inputs, out=None)"
    assert str(call_signature([])) == "(*, out=None)"


def test_a_wrong_entry_names_the_nearest(model: Any) -> None:
    with pytest.raises(LaunchError, match=r"package 'hand' has no entry 'foward' \(did you mean 'forward'\?\)"):
        model.foward(X, Y)
    with pytest.raises(AttributeError):
        model.decode
    assert not hasattr(model, "decode")


def test_an_entry_takes_the_place_of_no_attribute(package: Path, tmp_path: Path) -> None:
    def rename(fields: dict[str, Any]) -> None:
        for entry, name in zip(fields["entries"], ("_entries", "close", "_handle"), strict=False):
            entry["name"] = name

    renamed = shutil.copytree(package, tmp_path / "renamed.sk")
    change_manifest(renamed, rename)
    with sk.load_model(renamed) as model:
        assert list(model.entries)[:3] == ["_entries", "close", "_handle"]
        np.testing.assert_array_equal(model.entries["_entries"](X, Y), EXPECTED)


def test_results_have_the_structure_that_the_manifest_tells(package: Path, tmp_path: Path) -> None:
    def structured(entry: str, returns: Any) -> Callable[[dict[str, Any]], None]:
        def change(fields: dict[str, Any]) -> None:
            next(each for each in fields["entries"] if each["name"] == entry)["returns"] = returns

        return change

    folder = shutil.copytree(package, tmp_path / "structured.sk")
    inner = {"record": [{"output": 1}, {"constant": None}], "keys": ["is_set", "rest"], "name": "Flags"}
    change_manifest(folder, structured("both", {"dict": [inner, {"list": [{"output": 0}]}], "keys": ["flags", 7]}))
    change_manifest(folder, structured("forward", {"tuple": [{"output": 0}]}))
    bits = np.array([0x3F80, 0], np.uint16)
    with sk.load_model(folder) as model:
        for returned in (model.both(bits), model.both(x=bits)):  # the prepared call, and the checked one
            assert list(returned) == ["flags", 7] and returned[7][0].tolist() == bits.tolist()
            flags = returned["flags"]
            assert flags.is_set.tolist() == flags["is_set"].tolist() == flags[0].tolist() == [True, False]
            assert type(flags).__name__ == "Flags" and flags.rest is None and flags.keys() == ("is_set", "rest")
        (only,) = model(X, Y)
        np.testing.assert_array_equal(only, EXPECTED)
    change_manifest(folder, structured("both", {"tuple": [{"output": 0}, {"output": 0}]}))
    with pytest.raises(BuildError, match=r"returns: this does not hold each of the 2 outputs once"):
        sk.load_model(folder)


def test_several_entries_without_forward_must_be_named(tmp_path: Path) -> None:
    def rename(manifest: dict[str, Any]) -> None:
        manifest["entries"][0]["name"] = "prefill"

    with sk.load_model(write_handmade(tmp_path / "named.sk", rename)) as model:
        np.testing.assert_array_equal(model.prefill(X, Y), EXPECTED)
        for call in (model, model.submit):
            with pytest.raises(LaunchError, match="several entries: call one of prefill, count, rows, both"):
                call(X, Y)


class DlpackOnly:
    """An array of another library."""

    def __init__(self, values: np.ndarray[Any, Any], device: int = 1) -> None:
        self.values, self.device = values, device
        self.shape = values.shape

    def __dlpack__(self, **wanted: Any) -> Any:
        return self.values.__dlpack__(**wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


class ArrayOfStandard(DlpackOnly):
    """An array of another library that follows the array API standard."""

    def __array_namespace__(self) -> Any:
        return type("namespace", (), {"from_dlpack": staticmethod(lambda values: ArrayOfStandard(np.asarray(values)))})


class LostArray(DlpackOnly):
    """An array whose memory another array has taken over."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise RuntimeError("it was given away")


def test_arrays_of_other_libraries(model: Any) -> None:
    read_only = X.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(model(DlpackOnly(X), Y), EXPECTED)
    np.testing.assert_array_equal(model(read_only, memoryview(Y)), EXPECTED)
    returned = model(ArrayOfStandard(X), Y)
    assert type(returned) is ArrayOfStandard
    np.testing.assert_array_equal(returned.values, EXPECTED)
    np.testing.assert_array_equal(model.rows(np.asarray(array.array("f", [1, 2, 3])).reshape(1, 3)), [[2, 4, 6]])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_in_tensors_out(model: Any) -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    for _ in range(2):  # the second call takes the prepared path
        returned = model(x, y)
        assert type(returned) is torch.Tensor and torch.equal(returned, torch.from_numpy(EXPECTED))
    assert type(model(X, y)) is torch.Tensor and torch.equal(model(x, Y), torch.from_numpy(EXPECTED))
    bits, is_set = model.both(torch.tensor([1.0, 0.0], dtype=torch.bfloat16))
    again, _ = model.both(bits)
    assert again.dtype is torch.bfloat16 and again.tolist() == [1, 0] and is_set.tolist() == [True, False]
    out = torch.empty(2, 4)
    assert model(x, y, out=out) is out and torch.equal(out, torch.from_numpy(EXPECTED))
    for size in (3, 3, 3, 8, 8, 8):
        assert torch.equal(model.rows(torch.ones(size, 3)), torch.full((size, 3), 2.0))
    with pytest.raises(LaunchError, match="'x' is on device meta, the model runs on the cpu"):
        model(x.to("meta"), y)
    with pytest.raises(LaunchError, match="'x' is not contiguous"):
        model(torch.empty(4, 2).t(), y)
    with pytest.raises(LaunchError, match="'x' has dtype float64, the model takes float32"):
        model(x.double(), y)
    with pytest.raises(LaunchError, match="'x' is a lazy conjugate or negation"):
        model(torch._neg_view(x), y)
    with pytest.raises(LaunchError, match=r"'output_0' requires grad"):
        model(x, y, out=torch.empty(2, 4, requires_grad=True))
    with pytest.raises(LaunchError, match=r"'x' has layout torch\.sparse_coo"):
        model(x.to_sparse(), y)
    with pytest.raises(LaunchError, match="'x' has no memory of its own"):
        torch.func.vmap(lambda row: model(row, y))(torch.ones(3, 2, 4))
    with pytest.raises(LaunchError, match=r"'output_0' has layout torch\.sparse_coo"):
        model(x, y, out=x.to_sparse())
    with pytest.raises(LaunchError, match="'output_0' is not contiguous; pass another one, and copy from it"):
        model(x, y, out=torch.empty(4, 2).t())
    with pytest.raises(LaunchError, match="'x' is nested; a dense tensor is needed"):
        model(torch.nested.nested_tensor([x, x]), y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(X), r"input 'y' was not passed; it takes 2 inputs \(x, y\)"),
        (lambda m: m(), "input 'x' was not passed"),
        (lambda m: m(X, Y, Y), "3 inputs were passed; it takes 2"),
        (lambda m: m(X, x=X), "input 'x' was passed twice"),
        (lambda m: m(X, yy=Y), r"no input 'yy' \(did you mean 'y'\?\)"),
        (lambda m: m(X.astype(np.float64), Y), "'x' has dtype float64, the model takes float32"),
        (lambda m: m(X.astype(">f4"), Y), "byte order"),
        (lambda m: m(X, Y.T), r"'y' has shape \[4, 2\]|'y' is not contiguous"),
        (lambda m: m(X[:1], Y), r"'x' has shape \[1, 4\], the model takes \[2, 4\]"),
        (lambda m: m(X[:, ::-1], Y), "'x' is not contiguous"),
        (lambda m: m(np.zeros(33, np.uint8)[1:].view(np.float32).reshape(2, 4), Y), "multiple of its item size"),
        (lambda m: m([1.0], Y), "'x' is a list; pass a numpy array"),
        (lambda m: m(DlpackOnly(X, device=2), Y), "'x' is on device type 2 of DLPack"),
        (lambda m: m.count(1.5), "'step': 1.5 is no int64"),
        (lambda m: m.count(1 << 70), "is no int64"),
        (lambda m: m.count(np.uint64(1 << 63)), "is no int64"),
        (lambda m: m(LostArray(X), Y), "'x' cannot be taken by DLPack: it was given away"),
        (lambda m: m.both(np.zeros(2, np.float32)), r"the model takes bfloat16 \(its bits as uint16\)"),
        (
            lambda m: m.rows(np.zeros((9, 3), np.float32)),
            r"no shape fits x \[9, 3\].*\[batch <= 4, 3\]; x \[batch <= 8, 3\]",
        ),
        (lambda m: m.rows(np.zeros((0, 3), np.float32)), "no shape fits"),
        (lambda m: m(X, Y, out=np.empty(8, np.float32)), r"'output_0' has shape \[8\], the call gives \[2, 4\]"),
        (lambda m: m(X, Y, out=np.empty((2, 4))), "'output_0' has dtype float64, the model gives float32"),
        (
            lambda m: m(X, Y, out=np.empty((4, 2), np.float32).T),
            "'output_0' is not contiguous; pass another one, and copy from it after the call",
        ),
        (lambda m: m(X, Y, out=(X, Y)), "out= takes one array for each of the 1 outputs, not 2"),
        (lambda m: m.both(np.zeros(2, np.uint16), out=np.zeros(2, np.uint16)), "each of the 2 outputs, not a ndarray"),
    ],
)
def test_wrong_arguments_are_refused(model: Any, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message) as refused:
        call(model)
    assert "package 'hand': entry " in str(refused.value)
    np.testing.assert_array_equal(model(X, Y), EXPECTED)  # the next call works


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1e300, "float32"), (np.float64(-1e300), "float32"), (70000.0, "float16"), (np.int64(1 << 40), "int32"),
     (np.uint32(1 << 31), "int32"), (2**200, "float32"), (np.int64(1 << 24 | 1), "float32")],
)  # fmt: skip
def test_a_number_that_does_not_fit_its_input_is_refused(value: Any, dtype: str) -> None:
    with pytest.raises(LaunchError, match=f"here: .* is no {dtype}"), warnings.catch_warnings():
        warnings.simplefilter("error")
        place_number(ArrayType("x", dtype, ()), value, "here")


def test_a_number_that_fits_its_input_is_taken() -> None:
    for value, dtype in (
        (float("inf"), "float32"),
        (np.uint8(3), "int32"),
        (np.int64(1 << 24), "float32"),
        (0.1, "float16"),
    ):
        assert place_number(ArrayType("x", dtype, ()), value, "here").memory == np.dtype(dtype).type(value)


def test_calls_while_another_thread_imports_torch(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # as it is in the beginning
    np.testing.assert_array_equal(model(memoryview(X), Y), EXPECTED)
    np.testing.assert_array_equal(model(X, y=Y), EXPECTED)
    with pytest.raises(LaunchError, match="'x' is a list"):
        model([1.0], Y)


def test_results_are_on_the_cpu_whatever_the_default_device_of_torch_is(model: Any) -> None:
    torch = pytest.importorskip("torch")
    bits = torch.tensor([1.0, 0.0], dtype=torch.bfloat16)
    with torch.device("meta"):
        for returned in (model.both(x=bits), model.both(bits), model.both(bits)):
            assert returned[0].tolist() == [1, 0] and returned[1].tolist() == [True, False]


def test_autograd_does_not_use_a_tensor_that_a_call_has_written(model: Any) -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    for call in (lambda out: model(x=x, y=y, out=out), lambda out: model(x, y, out=out)):
        weight, out = torch.ones(2, 4, requires_grad=True), torch.ones(2, 4)
        product = (weight * out).sum()
        call(out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
        with torch.inference_mode():
            call(torch.empty(2, 4))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_a_shape_or_aligned_memory_are_refused(model: Any) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(LaunchError, match="entry 'rows': input 'x' is nested"):
        model.rows(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]))
    unaligned = torch.frombuffer(bytearray(33), dtype=torch.float32, offset=1).view(2, 4)
    y = torch.from_numpy(Y)
    model(y, y)
    for call in (lambda: model(x=unaligned, y=y), lambda: model(unaligned, y), lambda: model(y, y, out=unaligned)):
        with pytest.raises(
            LaunchError, match=r"^package 'hand': entry 'forward': (in|out)put '\w+' (does not begin|is not)"
        ):
            call()
    freed = torch.zeros(2, 4)
    freed.untyped_storage().resize_(0)
    with pytest.raises(LaunchError, match=r"^package 'hand': entry 'forward': output 'output_0' has no memory"):
        model(y, y, out=freed)


@pytest.mark.parametrize("shape", [(9, 9), (3.0, 3.0), "text", None], ids=["other", "floats", "text", "none"])
def test_a_shape_that_is_not_that_of_the_memory_is_not_looked_at(model: Any, shape: object) -> None:
    values = DlpackOnly(np.ones((3, 3), np.float32))
    values.shape = shape  # type: ignore[assignment]
    for _ in range(2):
        np.testing.assert_array_equal(model.rows(values), np.full((3, 3), 2))


def test_an_object_that_cannot_say_its_device_is_refused(model: Any) -> None:
    for failure in (LookupError("no device"), AttributeError("no device"), OSError("no device")):
        values = DlpackOnly(X)
        values.__dlpack_device__ = lambda: ()  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(LaunchError, match="'x' cannot be taken by DLPack: tuple index out of range"):
            model(values, Y)

        class Failing(DlpackOnly):
            def __dlpack__(self, failure: Exception = failure, **wanted: Any) -> Any:
                raise failure

        with pytest.raises(LaunchError, match=r"'x' cannot be taken by DLPack: .*no device"):
            model(Failing(X), Y)


def test_a_name_of_an_input_is_no_name_of_a_parameter(model: Any) -> None:
    for submit in (model.submit, model.forward.submit):
        with pytest.raises(LaunchError, match="no input 'self'"):
            submit(X, self=Y).result(600)


def test_outputs_are_written_in_place(model: Any) -> None:
    out = np.zeros((2, 4), np.float32)
    assert model(X, Y, out=out) is out
    np.testing.assert_array_equal(out, EXPECTED)
    given = (np.zeros(2, np.uint16), np.zeros(2, bool))
    assert model.both(x=np.array([1, 0], np.uint16), out=given) is given
    assert given[0].tolist() == [1, 0] and given[1].tolist() == [True, False]
    rows = np.zeros((3, 3), np.float32)
    model.rows(np.ones((3, 3), np.float32), out=rows)
    assert (rows == 2).all()
    read_only = np.zeros((2, 4), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(LaunchError, match="'output_0' is read-only"):
        model(X, Y, out=read_only)


def test_outputs_that_overlap_are_refused_and_nothing_is_written(model: Any) -> None:
    x = X.copy()
    with pytest.raises(LaunchError, match="output 0 and input 0 overlap"):
        model(x, Y, out=x)
    np.testing.assert_array_equal(x, X)
    room = np.zeros(3, np.uint16)
    with pytest.raises(LaunchError, match="output 1 and output 0 overlap"):
        model.both(np.ones(2, np.uint16), out=(room[:2], room[:1].view(bool)))
    assert not room.any()


def test_buckets_and_shapes(model: Any) -> None:
    assert repr(model.rows).endswith("-> doubled: float32[4, 3], or 1 other shape>")
    for size in (1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 4, 8):  # from the second call on, sizes take the prepared path
        rows = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
        np.testing.assert_array_equal(model.rows(rows), 2 * rows)
        out = np.zeros_like(rows)
        assert model.rows(rows, out=out) is out
        np.testing.assert_array_equal(out, 2 * rows)
    with pytest.raises(LaunchError, match=r"'doubled' has shape \[4, 3\], the call gives \[3, 3\]"):
        model.rows(np.ones((3, 3), np.float32), out=np.zeros((4, 3), np.float32))
    with pytest.raises(LaunchError, match="'x' has dtype float64"):
        model.rows(np.ones((3, 3)))


def test_states_belong_to_a_context(model: Any) -> None:
    assert model.states == ("counter",)
    assert model.count(1).tolist() == [11] and model.count(step=np.int64(2)).tolist() == [13]
    with model.new_context() as other:
        assert other.count(1).tolist() == [11] and model.count(1).tolist() == [14]
        other.copy_state(model)
        assert other.count(1).tolist() == [15]
    saved = model.save_state()
    model.reset()
    assert model.save_state()["counter"].tolist() == [10]
    model.load_state(saved)
    assert model.count(0).tolist() == [14]


def test_wrong_states_are_refused(model: Any, tmp_path: Path) -> None:
    counter = np.array([3])
    for values, message in (
        ({"conter": counter}, r"no state 'conter' \(did you mean 'counter'\?\)"),
        ({}, "the state 'counter' is missing"),
        ({"counter": np.array([3.0])}, "'counter' has dtype float64"),
        ({"counter": np.array([3, 4])}, r"'counter' has shape \[2\], the model keeps \[1\]"),
        ([counter], "pass a dict of arrays by name"),
    ):
        with pytest.raises(LaunchError, match=message):
            model.load_state(values)
    with pytest.raises(LaunchError, match="copy_state takes a context"):
        model.copy_state(model.forward)
    with sk.load_model(write_handmade(tmp_path / "other.sk")) as other, pytest.raises(LaunchError, match="package"):
        model.copy_state(other)
    assert model.count(0).tolist() == [10]


def test_two_threads_in_a_context_are_refused(model: Any) -> None:
    results = []
    with model._handle.lock:  # as a call that runs does
        for use in (
            lambda: model(X, Y),
            lambda: model.rows(np.ones((2, 3), np.float32)),
            model.reset,
            model.save_state,
        ):
            thread = threading.Thread(target=lambda use=use: results.append(_refusal(use)))
            thread.start()
            thread.join()
        assert _refusal(model.close) == "package 'hand': close() while a call is running"
    assert len(results) == 4 and all("another thread is running in this context" in text for text in results)
    np.testing.assert_array_equal(model(X, Y), EXPECTED)


def _refusal(use: Callable[[], Any]) -> str:
    with pytest.raises(LaunchError) as refused:
        use()
    return str(refused.value)


def test_contexts_run_in_threads_of_their_own(model: Any) -> None:
    contexts = [model.new_context() for _ in range(4)]
    totals = {}

    def count(number: int) -> None:
        for _ in range(200):
            total = contexts[number].count(number)
        totals[number] = int(total[0])

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == {number: 10 + 200 * number for number in range(4)}


def test_submitted_calls_run_in_their_order(model: Any) -> None:
    with model._handle.lock:
        futures = [model.count.submit(step) for step in (1, 2, 3)]
        wrong = model.submit(X)
        assert _refusal(model.close) == "package 'hand': close() while 4 submitted calls are not done"
    assert [future.result(600).tolist() for future in futures] == [[11], [13], [16]]
    with pytest.raises(LaunchError, match="'y' was not passed"):
        wrong.result(600)
    np.testing.assert_array_equal(model.submit(X, y=Y).result(600), EXPECTED)


def test_a_model_is_pickled_by_its_path(package: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(package, tmp_path / "moved.sk")
    with sk.load_model(moved, threads=1, wait="sleep") as model:
        model.count(1)
        text = pickle.dumps(model)
    with pickle.loads(text) as again:
        np.testing.assert_array_equal(again(X, Y), EXPECTED)
        assert again.count(1).tolist() == [11], "states are not pickled"
        assert again.path == moved
    shutil.rmtree(moved)
    with pytest.raises(BuildError, match=r"moved\.sk does not exist"):
        pickle.loads(text)


def test_a_part_of_a_model_is_not_pickled(model: Any) -> None:
    for part, what in ((model.forward, "entry"), (model.new_context(), "context")):
        for use in (pickle.dumps, copy.deepcopy):
            assert _refusal(lambda use=use, part=part: use(part)).startswith(
                f"package 'hand': its {what} can be neither pickled nor copied: pickle the model"
            )


def test_a_closed_model_refuses_calls(package: Path) -> None:
    model = sk.load_model(package)
    other = model.new_context()
    forward = model.forward
    model.close()
    model.close()
    for use in (
        lambda: model(X, Y),
        lambda: forward(X, Y),
        lambda: other(X, Y),
        lambda: model.submit(X, Y),
        model.reset,
        model.new_context,
    ):
        assert _refusal(use) == "package 'hand' is closed; load it again"
    assert "closed" in repr(model)


def test_a_context_closes_alone(model: Any) -> None:
    with model.new_context() as other:
        pass
    assert "is closed" in _refusal(lambda: other(X, Y))
    np.testing.assert_array_equal(model(X, Y), EXPECTED)


def test_an_unused_model_is_freed_and_an_entry_keeps_it(package: Path) -> None:
    model = sk.load_model(package)
    opened = weakref.ref(model._package)
    forward = model.forward
    del model
    np.testing.assert_array_equal(forward(X, Y), EXPECTED)
    del forward
    gc.collect()
    assert opened() is None


def test_a_context_that_is_garbage_is_closed_for_finalizers_that_have_it(package: Path, tmp_path: Path) -> None:
    found: list[str] = []

    class Caller:
        def __init__(self, model: Any) -> None:
            self.context, self.itself = model.new_context(), self
            self.calls = (lambda: self.context(X, Y), lambda: self.context(x=X, y=Y), self.context.reset)

        def __del__(self) -> None:
            with sk.load_model(counter) as other:  # may have the record of the context in libsuperkernel
                found.extend(_refusal(call) for call in (*self.calls, lambda: self.context.submit(X, Y)))
                assert other.save_state()["total"].tolist() == [0, 0, 0, 0]

    counter = write_counter(tmp_path / "counter.sk")
    with sk.load_model(package) as model:
        gc.collect()
        Caller(model)
        gc.collect()
        assert found == ["package 'hand' is closed; load it again"] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threads": 0}, "threads is 0; a number from 1"),
        ({"threads": "two"}, "threads is 'two'"),
        ({"wait": "spinn"}, r"wait is 'spinn' \(did you mean 'spin'\?\); there are balanced, spin, sleep"),
        ({"verify": "all"}, "verify is 'all'; it must be True or False"),
        ({"cpus": "0"}, "cpus is '0'; a list of processor numbers"),
        ({"cpus": [-1]}, "cpus: -1 is no number of a processor"),
    ],
)
def test_wrong_settings(package: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sk.load_model(package, **settings)


WITHOUT_TORCH = """
import importlib.util, os, pickle, sys
assert importlib.util.find_spec("torch") is None
import numpy as np
import superkernel as sk
package, needs_torch = sys.argv[1:]
try:
    sk.load_model(needs_torch)
except sk.UnsupportedError as error:
    assert str(error) == "package 'library' needs torch, which is not installed: topk has no kernel", error
else:
    raise SystemExit("a package that needs torch was loaded")
with sk.load_model(package, verify=True) as model:
    ones = np.ones((2, 4), np.float32)
    expected = ones + ones * np.arange(4)
    assert (model(ones, ones) == expected).all()
    given = np.empty_like(ones)
    assert model(ones, ones, out=given) is given and (given == expected).all()
    assert (model.submit(ones, ones).result() == expected).all()
    assert (pickle.loads(pickle.dumps(model))(ones, ones) == expected).all()
    child = os.fork()
    if child == 0:
        os._exit(0 if (model(ones, ones) == expected).all() and model.count(1) == 11 else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child of a fork"
    assert model.count(1) == 11
with sk.load_model(package) as left_open:
    pass
left_open = sk.load_model(package)  # until the process ends
print("done")
"""


def python_without_torch(folder: Path) -> str:
    """The interpreter of a new virtual environment that has numpy and this package alone."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for module in (np, sk):
        found = Path(str(module.__file__)).parent
        for path in (found, found.with_name(f"{found.name}.libs")):
            if path.is_dir():
                (site / path.name).symlink_to(path)
    return str(folder / "bin" / "python")


def test_torch_is_not_needed(package: Path, tmp_path: Path) -> None:
    def need_torch(manifest: dict[str, Any]) -> None:
        manifest["needs_torch"] = "topk has no kernel"

    needs_torch = write_handmade(tmp_path / "library.sk", need_torch)
    (needs_torch / "torch").mkdir()
    (needs_torch / "torch" / "forward.pt2").write_bytes(b"code of torch")
    write_sums(needs_torch)
    command = [python_without_torch(tmp_path / "venv"), "-I", "-c", WITHOUT_TORCH, str(package), str(needs_torch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_library_shows_the_process_no_symbol_but_its_own() -> None:
    """Torch, loaded later, would take a symbol of c10 from it."""
    from elftools.elf.elffile import ELFFile

    with library_path().open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        shown = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
    assert "sk_run" in shown and {name for name in shown if not name.startswith(("sk_", "SUPERKERNEL_"))} == set()


TORCH_AFTERWARDS = """
import sys
import superkernel as sk
model = sk.load_model(sys.argv[1])
assert "torch" not in sys.modules
import torch
try:
    torch.zeros(3).view(5)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.conformance
def test_torch_that_is_loaded_afterwards_raises_its_own_errors(package: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    command = [sys.executable, "-c", TORCH_AFTERWARDS, str(package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode, done.stdout) == (0, "shape '[5]' is invalid for input of size 3\n"), done.stderr
