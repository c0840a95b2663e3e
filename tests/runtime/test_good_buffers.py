"""Everything that is memory of the right size is taken: arrays, tensors, files, empty ones; the rest is allocated."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import numpy as np
import pytest
from runtime.given import ADD, TOUCH, VECTOR, compiled, kernel, vector

import superkernel as sk
from superkernel import Op
from superkernel.model.params import DTYPES

torch = pytest.importorskip("torch")

STAND_INS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
ITEMS = 6


@pytest.fixture(scope="module")
def copying() -> Iterator[sk.SuperKernel]:
    """Per dtype, x_dtype is copied to y_dtype; a scalar says how many bytes."""
    ops = []
    for dtype, (itemsize, _) in DTYPES.items():
        copy = kernel("copy", f"in:x:{dtype}[{ITEMS}]", "scalar:bytes", f"out:y:{dtype}[2,{ITEMS // 2}]")
        ops.append(Op(copy, [f"x_{dtype}", itemsize * ITEMS, f"y_{dtype}"]))
    with compiled(*ops) as k:
        yield k


def numbers(dtype: str) -> np.ndarray:
    raw = np.random.default_rng(0).integers(0, 2, (ITEMS, DTYPES[dtype][0]), np.uint8)
    return raw.view(STAND_INS.get(dtype, dtype)).reshape(ITEMS)


def tensor(dtype: str) -> Any:
    return torch.from_numpy(numbers(dtype).view(np.uint8).copy()).view(getattr(torch, dtype))


def test_every_dtype_as_an_array(copying: sk.SuperKernel) -> None:
    given = {f"x_{dtype}": numbers(dtype) for dtype in DTYPES}
    made = copying(given)
    assert set(made) == {f"y_{dtype}" for dtype in DTYPES}
    for dtype in DTYPES:
        out = made[f"y_{dtype}"]
        assert out.shape == (2, ITEMS // 2) and out.dtype.name == STAND_INS.get(dtype, dtype)
        assert out.tobytes() == given[f"x_{dtype}"].tobytes()


def test_every_dtype_as_a_tensor(copying: sk.SuperKernel) -> None:
    given = {f"x_{dtype}": tensor(dtype) for dtype in DTYPES}
    made = copying(given)
    for dtype in DTYPES:
        out = made[f"y_{dtype}"]
        assert out.dtype is getattr(torch, dtype) and tuple(out.shape) == (2, ITEMS // 2)
        assert torch.equal(out.reshape(-1).view(torch.uint8), given[f"x_{dtype}"].view(torch.uint8))


def test_the_bits_of_bfloat16_may_come_as_uint16_and_not_as_float16(copying: sk.SuperKernel) -> None:
    given = {f"x_{dtype}": numbers(dtype) for dtype in DTYPES}
    given["x_bfloat16"] = torch.full((ITEMS,), 1.5, dtype=torch.bfloat16).view(torch.uint16).numpy()
    made = copying(given)
    assert (torch.from_numpy(made["y_bfloat16"]).view(torch.bfloat16) == 1.5).all()
    given["x_bfloat16"] = np.ones(ITEMS, np.float16)
    with pytest.raises(sk.LaunchError, match="'x_bfloat16' has dtype float16"):
        copying(given)


@pytest.fixture(scope="module")
def adding() -> Iterator[sk.SuperKernel]:
    with compiled(Op(ADD, ["a", "b", "t"]), Op(ADD, ["t", "b", "c"], name="second")) as k:
        yield k


@pytest.mark.parametrize("shape", [(12,), (3, 4), (1, 12, 1), (2, 3, 2)])
def test_any_shape_of_the_right_size(adding: sk.SuperKernel, shape: tuple[int, ...]) -> None:
    assert (adding({"a": vector().reshape(shape), "b": vector(2)})["c"] == 5).all()
    assert (adding({"a": torch.ones(shape), "b": torch.full((12,), 2.0)})["c"] == 5).all()


def test_what_is_allocated_inside_is_returned_if_no_op_reads_it(adding: sk.SuperKernel) -> None:
    made = adding({"a": vector(), "b": vector(2)})
    assert sorted(made) == ["c"] and all(type(value) is np.ndarray for value in made.values())
    own = vector(0)
    assert adding({"a": vector(), "b": vector(2), "c": own}) == {}
    assert (own == 5).all()
    assert adding({"a": vector(), "b": vector(2), "c": own, "t": vector(0)}) == {}


def test_what_is_allocated_inside_is_a_tensor_if_a_tensor_was_passed(adding: sk.SuperKernel) -> None:
    for given in ({"a": torch.ones(12), "b": torch.ones(12)}, {"a": vector(), "b": torch.ones(12)}):
        made = adding(given)
        assert sorted(made) == ["c"] and all(isinstance(value, torch.Tensor) for value in made.values())
        assert (made["c"] == 3).all()


def test_each_launch_allocates_anew(adding: sk.SuperKernel) -> None:
    first = adding({"a": vector(), "b": vector(2)})
    second = adding({"a": vector(10), "b": vector(2)})
    assert (first["c"] == 5).all() and (second["c"] == 14).all()


def test_a_workspace_is_allocated_and_not_returned() -> None:
    scratch = kernel("touch", f"in:x:{VECTOR}", f"workspace:w:{VECTOR}")
    with compiled(Op(scratch, ["a", "w"])) as k:
        assert k({"a": vector()}) == {}


def test_names_that_are_only_read_may_be_one_memory(adding: sk.SuperKernel) -> None:
    memory = np.arange(18, dtype=np.float32)
    assert (adding({"a": memory[:12], "b": memory[6:]})["c"] == memory[:12] + 2 * memory[6:]).all()
    same = vector(2)
    assert (adding({"a": same, "b": same})["c"] == 6).all()


def test_neighbours_in_one_memory_do_not_overlap(adding: sk.SuperKernel) -> None:
    memory = np.ones(48, np.float32)
    adding({"a": memory[:12], "b": memory[12:24], "t": memory[36:], "c": memory[24:36]})
    assert (memory[:24] == 1).all() and (memory[24:36] == 3).all() and (memory[36:] == 2).all()


def test_a_read_only_array_that_is_only_read(adding: sk.SuperKernel) -> None:
    constant = vector(2)
    constant.flags.writeable = False
    assert (adding({"a": constant, "b": constant})["c"] == 6).all()


def test_memory_of_a_file(adding: sk.SuperKernel, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "numbers", np.float32, mode="w+", shape=(12,))
    adding({"a": vector(), "b": vector(2), "c": mapped})
    mapped.flush()
    assert (np.fromfile(tmp_path / "numbers", np.float32) == 5).all()


def test_a_name_that_is_updated_in_place() -> None:
    increase = kernel("increase", f"inout:x:{VECTOR}")
    with compiled(Op(increase, ["x"]), Op(ADD, ["x", "x", "y"]), Op(increase, ["x"], name="again")) as k:
        x = vector(1)
        made = k({"x": x})
        assert (x == 3).all() and (made["y"] == 4).all() and sorted(made) == ["y"]
        with pytest.raises(sk.LaunchError, match="'x' is read before any op writes it"):
            k({})


def test_buffers_without_an_element() -> None:
    empty = kernel("copy", "in:x:float32[0]", "scalar:bytes", "out:y:float32[3,0]")
    with compiled(Op(empty, ["x", 0, "y"])) as k:
        assert k({"x": np.empty(0, np.float32)})["y"].shape == (3, 0)
        assert tuple(k({"x": torch.empty(0)})["y"].shape) == (3, 0)
        assert tuple(k({"x": torch.empty(0, 5)})["y"].shape) == (3, 0)
        shared = np.empty(0, np.float32)
        k({"x": shared, "y": shared})  # no byte, so no overlap


def test_buffers_without_a_dimension() -> None:
    one = kernel("copy", "in:x:float64[]", "scalar:bytes", "out:y:float64[1]")
    with compiled(Op(one, ["x", 8, "y"])) as k:
        assert k({"x": np.array(2.5)})["y"] == [2.5]
        assert k({"x": torch.tensor(2.5, dtype=torch.float64)})["y"].tolist() == [2.5]
        target = np.array(0.0)
        k({"x": np.array([2.5]), "y": target})
        assert target == 2.5


def test_untyped_names_take_any_memory() -> None:
    with compiled(Op(TOUCH, ["a", "b"])) as k:
        structured = np.zeros(3, dtype=[("x", "i4"), ("y", "f8")])
        for value in (vector(), structured, np.zeros((0, 3)), torch.zeros(7, dtype=torch.int16), torch.ones(2, 3)):
            assert k({"a": value, "b": np.zeros(5)}) == {}


def test_parameters_subclasses_and_tensors_that_need_gradients(adding: sk.SuperKernel) -> None:
    class Named(torch.Tensor):
        pass

    weight = torch.nn.Parameter(torch.ones(12))
    for value in (weight, torch.ones(12, requires_grad=True), torch.ones(12).as_subclass(Named), weight.detach()):
        assert (adding({"a": value, "b": torch.full((12,), 2.0)})["c"] == 5).all()


def test_array_subclasses(adding: sk.SuperKernel) -> None:
    assert (adding({"a": vector().view(np.recarray), "b": vector(2)})["c"] == 5).all()


@pytest.mark.parametrize("wrap", [dict, MappingProxyType])
def test_any_mapping(adding: sk.SuperKernel, wrap: type[Mapping[str, Any]]) -> None:
    assert (adding(wrap({"a": vector(), "b": vector(2)}))["c"] == 5).all()  # type: ignore[call-arg]


def test_one_name_for_several_parameters_of_an_op() -> None:
    with compiled(Op(ADD, ["a", "a", "b"])) as k:
        assert (k({"a": vector(4)})["b"] == 8).all()


def test_a_launch_makes_at_most_nine_python_calls() -> None:
    """What a launch costs before it begins: every further call is measurable beside a small op."""
    calls: list[str] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    with compiled(Op(ADD, ["a", "b", "t"]), Op(ADD, ["t", "b", "c"])) as k:
        for names in ("abtc", "abc"):  # with memory for the inner name, and without
            buffers = {name: vector() for name in names}
            k(buffers)
            calls.clear()
            before = sys.getprofile()
            sys.setprofile(count)
            try:
                k(buffers)
            finally:
                sys.setprofile(before)
            assert len(calls) <= 9, calls
