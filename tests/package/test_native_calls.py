"""Calls by the builtin function of libsuperkernel: results and refusals are those of the function written in Python."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from handmade_package import WEIGHT, write_counter, write_handmade

import superkernel as sk
from superkernel.errors import LaunchError
from superkernel.package import native_calls, object_layouts, prepared_calls
from superkernel.package.checked_calls import EntryCalls
from superkernel.package.library_functions import LibraryFunctions
from superkernel.package.prepared_calls import prepare_call

pytestmark = pytest.mark.skipif(
    object_layouts.UNMET_PREMISE is not None, reason="objects of this interpreter are other ones"
)
X, Y = np.arange(8, dtype=np.float32).reshape(2, 4), np.full((2, 4), 2, np.float32)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_handmade(tmp_path_factory.mktemp("native") / "hand.sk")


@pytest.fixture
def model(package: Path) -> Iterator[Any]:
    with sk.load_model(package) as opened:
        yield opened


def test_arrays_in_their_order_are_checked_and_run_in_c(model: Any) -> None:
    assert isinstance(model.forward.function, BuiltinFunctionType)
    np.testing.assert_array_equal(model(X, Y), X + Y * WEIGHT)
    assert model(X, Y) is not model(X, Y)
    assert model(X, Y).flags.carray


def test_several_results_are_a_tuple(model: Any) -> None:
    bits = np.array([0, 3], np.uint16)
    same, is_set = model.both(bits)
    np.testing.assert_array_equal(same, bits)
    np.testing.assert_array_equal(is_set, bits != 0)


def test_a_full_bucket_and_a_part_of_it(model: Any) -> None:
    for rows in (8, 3, 8, 5, 3):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(model.rows(x), 2 * x)


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((2, 3), np.float32),
        np.zeros((8,), np.float32),
        np.zeros((2, 4), np.float64),
        np.zeros((2, 4), ">f4"),
        np.zeros((2, 8), np.float32)[:, ::2],
        np.zeros((4, 2), np.float32).T,
        np.frombuffer(bytes(33), np.uint8)[1:].view(np.float32).reshape(2, 4),
        None,
        "text",
    ],
    ids=["size", "rank", "dtype", "byte order", "strides", "transposed", "unaligned", "none", "text"],
)
def test_arguments_that_do_not_fit_get_the_sentence_of_the_slow_check(model: Any, other: Any) -> None:
    for arguments in ((other, Y), (X, other)):
        with pytest.raises(LaunchError, match=r"entry 'forward': input '[xy]'"):
            model(*arguments)
    with pytest.raises(LaunchError, match="input 'y' was not passed"):
        model(X)
    with pytest.raises(LaunchError, match="3 inputs were passed"):
        model(X, Y, Y)
    np.testing.assert_array_equal(model(X, Y), X + Y * WEIGHT)


def test_what_only_the_slow_check_takes_is_taken(model: Any) -> None:
    fixed = X.copy()
    fixed.flags.writeable = False
    out = np.zeros((2, 4), np.float32)
    expected = X + Y * WEIGHT
    np.testing.assert_array_equal(model(fixed, Y), expected)
    np.testing.assert_array_equal(model(x=X, y=Y), expected)
    np.testing.assert_array_equal(model(X, y=Y), expected)
    np.testing.assert_array_equal(model(memoryview(X), Y), expected)
    assert model(X, Y, out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_no_reference_is_lost_or_kept(model: Any) -> None:
    function = model.forward.function
    counted = (X, Y, function, True, False, None, np.ndarray, np.dtype(np.float32))
    returned = model(X, Y)
    gc.collect()  # what earlier tests have left refers to True and None
    before = [sys.getrefcount(value) for value in counted]
    for _ in range(1000):
        returned = model(X, Y)
        with pytest.raises(LaunchError):
            model(X)
    gc.collect()
    after = [sys.getrefcount(value) for value in counted]
    assert all(abs(now - then) < 100 for now, then in zip(after, before, strict=True)), (before, after)
    assert sys.getrefcount(returned) == 2


def call_made_in_c(model: Any, entry: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A call that the builtin function does not make itself fails."""

    def unexpected() -> None:
        raise AssertionError("the call was not made in C")

    with monkeypatch.context() as patch:
        patch.setattr(model._handle, "attempt", unexpected)
        return prepare_call(model.entries[entry]._calls)


def test_arrays_of_out_are_checked_and_written_in_c(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out, bits = np.zeros((2, 4), np.float32), np.array([0, 3], np.uint16)
    alone, pair = (out,), (np.zeros(2, np.uint16), np.zeros(2, bool))
    forward, both = (call_made_in_c(model, entry, monkeypatch) for entry in ("forward", "both"))
    for _ in range(3):  # the interpreter is kept from the second on
        out[:] = 0
        assert forward(X, Y, out=out) is out
        np.testing.assert_array_equal(out, X + Y * WEIGHT)
        assert forward(X, Y, out=alone) is alone
        assert both(bits, out=pair) is pair
    np.testing.assert_array_equal(pair[0], bits)
    np.testing.assert_array_equal(pair[1], bits != 0)
    with pytest.raises(AssertionError, match="not made in C"):
        forward(X, Y, out=[out])


def test_arrays_of_out_in_a_bucket(model: Any) -> None:
    for rows in (3, 3, 8, 8):
        x, out = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), np.zeros((rows, 3), np.float32)
        assert model.rows(x, out=out) is out
        np.testing.assert_array_equal(out, 2 * x)


def test_no_reference_to_arrays_of_out_is_lost_or_kept(model: Any) -> None:
    bits, pair = np.array([0, 3], np.uint16), (np.zeros(2, np.uint16), np.zeros(2, bool))
    out = np.zeros((2, 4), np.float32)
    counted = (X, Y, out, bits, pair, *pair)
    model.both(bits, out=pair)
    before = [sys.getrefcount(value) for value in counted]
    for _ in range(1000):
        model(X, Y, out=out)
        model.both(bits, out=pair)
        with pytest.raises(LaunchError):
            model(X, Y, out=X)
    assert [sys.getrefcount(value) for value in counted] == before


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        (X, "output 0 and input 0 overlap"),
        (X[:, :], "output 0 and input 0 overlap"),
        (np.zeros((2, 3), np.float32), "output 'output_0' has shape"),
        (np.zeros((2, 4), np.float64), "output 'output_0' has dtype float64"),
        (np.zeros((4, 2), np.float32).T, "output 'output_0' is not contiguous"),
        (np.broadcast_to(np.float32(1), (2, 4)), "output 'output_0' is not contiguous"),
        ((), "takes one array for each of the 1 outputs, not 0"),
        ((np.zeros((2, 4), np.float32),) * 2, "takes one array for each of the 1 outputs, not 2"),
        ("text", "output 'output_0'"),
    ],
    ids=["an input", "a view", "shape", "dtype", "transposed", "broadcast", "none", "two", "text"],
)
def test_arrays_of_out_that_do_not_fit_get_the_sentence_of_the_slow_check(model: Any, out: Any, sentence: str) -> None:
    before = X.copy()
    with pytest.raises(LaunchError, match=sentence):
        model(X, Y, out=out)
    np.testing.assert_array_equal(X, before)
    with pytest.raises(LaunchError, match="has no input 'outt'"):
        model(X, Y, outt=X)
    with pytest.raises(LaunchError, match="output 1 and output 0 overlap"):
        same = np.zeros(2, np.uint16)
        model.both(np.array([0, 3], np.uint16), out=(same, same.view(bool)[:2]))


@pytest.mark.parametrize("calls_before", [0, 3], ids=["first call", "the interpreter is kept"])
def test_a_context_in_use_is_refused_and_free_again_afterwards(model: Any, calls_before: int) -> None:
    for _ in range(calls_before):
        model(X, Y)
    with model._handle.lock:
        refused: list[BaseException] = []

        def call() -> None:
            try:
                model(X, Y)
            except LaunchError as reason:
                refused.append(reason)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert "another thread is running in this context" in str(refused[0])
    np.testing.assert_array_equal(model(X, Y), X + Y * WEIGHT)


def test_short_runs_take_the_lock_only_while_another_thread_may_have_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    lock = SimpleNamespace(acquire=lambda *_: not taken.append(1), release=lambda: None, locked=bool)
    held = ctypes.c_ubyte(0)
    monkeypatch.setattr(native_calls, "HELD_OFFSET", ctypes.addressof(held) - id(lock))
    with sk.load_model(package) as model:
        real, model._handle.lock = model._handle.lock, lock
        call = prepare_call(EntryCalls(model._handle, 0, model.forward.description))
        model._handle.lock = real
        for _ in range(1000):
            np.testing.assert_array_equal(call(X, Y), X + Y * WEIGHT)
        assert 0 < len(taken) < 500  # the first one, and those after a run that was interrupted for long
        held.value, before = 1, len(taken)
        for _ in range(10):
            np.testing.assert_array_equal(call(X, Y), X + Y * WEIGHT)
        assert len(taken) == before + 10


def test_a_lock_that_a_thread_waits_for_is_seen_as_held() -> None:
    lock = threading.Lock()
    held = ctypes.c_ubyte.from_address(id(lock) + (object_layouts.HELD_OFFSET or 0))
    assert not held.value
    lock.acquire()
    waiting = threading.Thread(target=lambda: lock.acquire() and lock.release())
    waiting.start()
    assert held.value
    lock.release()
    waiting.join()
    assert not held.value


def test_no_call_runs_while_another_thread_holds_the_context(tmp_path: Path) -> None:
    with sk.load_model(write_counter(tmp_path / "counter.sk")) as model:
        step, stop = np.ones(4, np.float32), threading.Event()
        bad: list[object] = []
        held = 0

        def watch() -> None:
            nonlocal held
            library, address = model._handle.library, model._handle.address
            first, second = np.empty(4, np.float32), np.empty(4, np.float32)

            def read() -> None:
                for total in (first, second):  # only the interpreter
                    library.read_state(address, "total", total.ctypes.data, total.nbytes)

            while not stop.is_set():
                os.sched_yield()  # another thread gets the interpreter, and the context
                try:
                    model._handle.alone(read)
                    held += 1
                    if not np.array_equal(first, second):
                        bad.append((first.copy(), second.copy()))
                except LaunchError as reason:  # a call runs that has given the interpreter away
                    if "another thread is running in this context" not in str(reason):
                        bad.append(reason)

        watching = threading.Thread(target=watch)
        watching.start()
        done = 0
        try:
            while done < 3000 or held < 100:
                try:
                    total = model.add(step)
                except LaunchError as reason:
                    assert "another thread is running in this context" in str(reason)
                    continue
                done += 1
                assert total[0] == done
        finally:
            stop.set()
            watching.join()
        assert not bad, bad[:3]


def test_a_failed_run_raises_the_sentence_of_the_library_and_frees_the_context(package: Path) -> None:
    with sk.load_model(package) as model:
        function = model.forward.function
        library = model._handle.library
        assert library.python_call is not None
        shared = np.zeros(24, np.float32)
        x, y = shared[:8].reshape(2, 4), shared[8:16].reshape(2, 4)
        np.testing.assert_array_equal(function(x, y), np.zeros((2, 4)))
        library._destroy(model._handle.address)  # the library refuses a context that is gone
        with pytest.raises(LaunchError, match="context"):
            function(x, y)
        assert not model._handle.lock.locked()
        model._handle._release.detach()


def test_an_argument_that_changes_while_results_are_allocated_is_checked_again(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[np.ndarray[Any, Any]] = []

    def allocate(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        for array in changed:
            array.resize((1, 4), refcheck=False)  # as another thread may
        return np.empty(shape, dtype)

    monkeypatch.setattr(prepared_calls, "ALIGNED_FROM", 0)
    monkeypatch.setattr(prepared_calls, "empty_array", allocate)
    with sk.load_model(package) as model:
        np.testing.assert_array_equal(model(X, Y), X + Y * WEIGHT)
        x = X.copy()
        changed.append(x)
        with pytest.raises(LaunchError, match=r"'x' has shape \[1, 4\], the model takes \[2, 4\]"):
            model(x, Y)


def test_a_closed_model_refuses_and_the_function_outlives_it(package: Path) -> None:
    model = sk.load_model(package)
    function = model.forward.function
    model.close()
    with pytest.raises(LaunchError, match="is closed"):
        function(X, Y)
    kept = sk.load_model(package).forward.function
    gc.collect()
    np.testing.assert_array_equal(kept(X, Y), X + Y * WEIGHT)


@pytest.mark.parametrize("lacks", ["library", "layout"])
def test_without_the_builtin_function_calls_are_made_in_python(
    package: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    with sk.load_model(package) as model:
        library: LibraryFunctions = model._handle.library
    if lacks == "library":
        monkeypatch.setattr(library, "python_call", None)
    else:
        monkeypatch.setattr(native_calls, "UNMET_PREMISE", "there is one")
    with sk.load_model(package) as model:
        assert not isinstance(model.forward.function, BuiltinFunctionType)
        np.testing.assert_array_equal(model(X, Y), X + Y * WEIGHT)


def test_an_array_object_of_another_layout_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = object_layouts.ArrayObject._fields_

    class Moved(object_layouts.Structure):
        _fields_ = (fields[0], ("more", object_layouts.c_int64), *fields[1:])

    assert object_layouts.unmet_premise() is None
    monkeypatch.setattr(object_layouts, "ArrayObject", Moved)
    assert object_layouts.unmet_premise() == "arrays of numpy have the fields of that version"


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("BYTES_OFFSET", 40, "the contents of bytes"),
        ("TUPLE_OFFSET", 16, "the items of tuples"),
        ("_NUMPY_INTERFACE", 3, "the binary interface of numpy"),
        ("_FLAGS", {"writeable": 0x200}, "arrays of numpy"),
    ],
)
def test_a_premise_that_does_not_hold_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any, sentence: str
) -> None:
    monkeypatch.setattr(object_layouts, name, value)
    assert (object_layouts.unmet_premise() or "").startswith(sentence)


def test_an_interpreter_without_a_global_lock_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_layouts.sysconfig, "get_config_var", lambda name: 1)
    assert object_layouts.unmet_premise() == "the interpreter is CPython with a global lock"
