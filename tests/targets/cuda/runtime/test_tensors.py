"""Tensors of a stand-in for torch: the short way of a call and of a prepared launch, and what the checks refuse."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from targets.cuda.runtime.fake_driver import ELEMENTS, FakeDriver, chain_image
from targets.cuda.runtime.test_launch import NO_INPUTS, add_twice

from superkernel.errors import LaunchError
from superkernel.runtime.prepared_launch import PreparedLaunch
from superkernel.targets import buffers as buffers_module
from superkernel.targets.cuda.runtime import arguments, sync_state, tensor_binder
from superkernel.targets.cuda.runtime.launch import CudaLoadedKernel
from superkernel.targets.cuda.runtime.launch_timing import TIMING


class Tensor:
    """Memory of the fake device, with what the run time asks of a tensor."""

    def __init__(self, shape: Any, dtype: Any = "torch.float32", device: Any = None) -> None:
        self.shape = shape if isinstance(shape, tuple) else (shape,)
        self.dtype, self.device = dtype, device or SimpleNamespace(type="cuda", index=0)
        self.layout: Any = "torch.strided"
        self.requires_grad = self.negated = self.strided = False
        kind = np.dtype(str(dtype).removeprefix("torch."))
        self._room = np.zeros(int(np.prod(self.shape)) * kind.itemsize + 512, np.uint8)
        self._first = -self._room.ctypes.data % 256
        self.nbytes = self._room.nbytes - 512

    @property
    def array(self) -> np.ndarray[Any, Any]:
        return self._room[self._first : self._first + self.nbytes].view(np.float32)

    def numel(self) -> int:
        return int(np.prod(self.shape))

    def data_ptr(self) -> int:
        return int(self._room.ctypes.data + self._first)

    def is_contiguous(self) -> bool:
        return not self.strided

    def is_neg(self) -> bool:
        return self.negated

    def is_conj(self) -> bool:
        return False

    def is_complex(self) -> bool:
        return False


class Parameter(Tensor):
    pass


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Enough of torch for launches on its current stream, which is the default stream."""
    stand_in = SimpleNamespace(
        Tensor=Tensor,
        nn=SimpleNamespace(Parameter=Parameter),
        float32="torch.float32",
        uint8="torch.uint8",
        strided="torch.strided",
        OutOfMemoryError=MemoryError,
        empty=Tensor,
        is_grad_enabled=lambda: True,
        cuda=SimpleNamespace(current_device=lambda: 0),
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda index: 0),
    )
    for module in (arguments, sync_state, tensor_binder):
        monkeypatch.setattr(module, "cuda_torch", lambda: stand_in)
    monkeypatch.setattr(buffers_module, "torch_or_none", lambda: stand_in)
    return stand_in


@pytest.fixture
def kernel(fake: FakeDriver, torch: SimpleNamespace, tmp_path: Path) -> CudaLoadedKernel:
    image = chain_image(tmp_path)
    fake.cores, fake.compute = image.cores, add_twice
    return CudaLoadedKernel(image)


def tensor(value: float = 0.0) -> Tensor:
    made = Tensor(ELEMENTS)
    made.array[:] = value
    return made


def test_calls_take_the_short_way_and_allocate_outputs(
    fake: FakeDriver, kernel: CudaLoadedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = tensor()
    kernel.launch({"x": tensor(1.0), "y": y}, NO_INPUTS)
    monkeypatch.setattr("superkernel.targets.cuda.runtime.launch.bind", None)  # from now on nothing needs it
    kernel.launch({"x": tensor(5.0), "y": y}, NO_INPUTS)
    assert (y.array == 7.0).all()
    outputs = kernel.launch({"x": tensor(2.0)}, NO_INPUTS)
    assert (outputs["y"].array == 4.0).all()
    assert len(fake.launches) == 3
    kernel.close()


def spoiled(what: Callable[[Tensor], None]) -> Tensor:
    made = tensor()
    what(made)
    return made


WRONG: dict[str, tuple[str, Callable[[Tensor], None], str]] = {
    "device": ("x", lambda t: setattr(t, "device", SimpleNamespace(type="cpu", index=None)), "takes tensors of cuda"),
    "other gpu": ("y", lambda t: setattr(t, "device", SimpleNamespace(type="cuda", index=1)), "'x' is on cuda:0 and"),
    "dtype": ("x", lambda t: setattr(t, "dtype", "torch.float64"), "has dtype float64"),
    "size": ("x", lambda t: setattr(t, "shape", (3,)), r"has shape \[3\]"),
    "strides": ("x", lambda t: setattr(t, "strided", True), "is not contiguous"),
    "layout": ("x", lambda t: setattr(t, "layout", "torch.sparse_coo"), "a dense tensor is needed"),
    "alignment": ("x", lambda t: setattr(t, "_first", t._first + 4), "no multiple of 16 bytes"),
    "gradient": ("y", lambda t: setattr(t, "requires_grad", True), "requires grad"),
    "negation": ("x", lambda t: setattr(t, "negated", True), "lazy conjugate or negation"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_tensor_is_refused(fake: FakeDriver, kernel: CudaLoadedKernel, what: str) -> None:
    name, spoil, words = WRONG[what]
    with pytest.raises(LaunchError, match=words):
        kernel.launch({"x": tensor(), "y": tensor(), name: spoiled(spoil)}, NO_INPUTS)
    assert not fake.launches


def test_names_and_overlaps_are_refused(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    x = tensor()
    for passed, words in [
        ({"x": x, "y": x}, "overlap in memory"),
        ({"x": x, "z": x}, "no op uses the name 'z'"),
        ({"x": x, "y": None}, "is a NoneType"),
        ({"y": x}, "'x' is read before any op writes it"),
    ]:
        with pytest.raises(LaunchError, match=words):
            kernel.launch(passed, NO_INPUTS)
    assert not fake.launches


def test_a_prepared_launch_starts_again_at_once(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    x, y = tensor(1.0), tensor()
    bound = kernel.bind({"x": x, "y": y}, NO_INPUTS)
    slow: list[object] = []

    def launch(*given: Any) -> None:
        slow.append(given)
        kernel.launch_bound(*given)

    go = PreparedLaunch(kernel.plan.graph, bound, NO_INPUTS, launch, bound.again)
    for _ in range(3):
        go()
    assert len(fake.launches) == 3 and len(slow) == 1  # the first fills in the areas of the stream
    go.update("x", tensor(6.0))
    go()
    assert (y.array == 8.0).all() and len(slow) == 1
    TIMING.switch(True)
    try:
        go()
    finally:
        TIMING.switch(False)
    assert len(slow) == 2 and kernel.last_launch()[1]
    x._first += 16
    go.update("x", x)
    x._first += 16  # as resize_ may do
    with pytest.raises(LaunchError, match="was resized, exchanged or freed"):
        go()
    kernel.close()
    x._first -= 16
    with pytest.raises(LaunchError, match="the kernel is closed"):
        go()


def test_an_inner_buffer_that_was_passed_keeps_its_value_and_costs_no_slow_call(
    fake: FakeDriver, kernel: CudaLoadedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("superkernel.targets.cuda.runtime.launch.bind", None)  # the slow way
    x, t, y = tensor(1.0), tensor(), tensor()
    kernel.launch({"x": x, "y": y}, NO_INPUTS)
    kernel.launch({"x": x, "t": t, "y": y}, NO_INPUTS)
    assert (t.array == 2.0).all()
    runs: list[object] = []
    monkeypatch.setattr(kernel, "_run", lambda *given: runs.append(given))
    kernel.launch({"x": tensor(3.0), "t": t, "y": y}, NO_INPUTS)  # as the launch before: nothing is filled in again
    assert (t.array == 4.0).all() and (y.array == 5.0).all() and not runs
    t.array[:] = 2.0
    kernel.launch({"x": tensor(9.0), "y": y}, NO_INPUTS)
    assert (t.array == 2.0).all() and (y.array == 11.0).all()
    kernel.close()


def test_two_devices_check_the_context_before_each_launch(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    y = tensor()
    kernel.launch({"x": tensor(1.0), "y": y}, NO_INPUTS)
    (device_kernel,) = kernel._kernels.values()
    device_kernel._checks_context = True
    fake.library.fake_leave_context()
    before = fake.get("cuLaunchKernelEx")
    kernel.launch({"x": tensor(2.0), "y": y}, NO_INPUTS)
    assert fake.get("cuLaunchKernelEx") == before + 1 and (y.array == 4.0).all()
    device_kernel._checks_context = False
    fake.library.fake_leave_context()
    kernel.launch({"x": tensor(3.0), "y": y}, NO_INPUTS)  # the first try says that there is no context
    assert fake.get("cuLaunchKernelEx") == before + 3 and (y.array == 5.0).all()
    kernel.close()


def test_a_launch_reads_what_the_driver_was_given(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    """Values are exchanged between two launches: each launch has its own."""
    seen: list[list[int]] = []
    fake.compute = lambda values, state: seen.append(list((ctypes.c_uint64 * 3).from_address(values)))
    tensors = [tensor() for _ in range(4)]
    kernel.launch({"x": tensors[0], "y": tensors[1]}, NO_INPUTS)
    kernel.launch({"x": tensors[2], "y": tensors[3]}, NO_INPUTS)
    expected = [[first.data_ptr(), second.data_ptr()] for first, second in (tensors[:2], tensors[2:])]
    assert [[values[0], values[2]] for values in seen] == expected and seen[0][1] == seen[1][1] != 0
    kernel.close()


def test_a_known_tensor_that_changed_in_place_is_checked_again(fake: FakeDriver, kernel: CudaLoadedKernel) -> None:
    x, y = tensor(1.0), tensor()
    for _ in range(2):
        kernel.launch({"x": x, "y": y}, NO_INPUTS)
    for name, change, words in [
        ("strided", True, "is not contiguous"),
        ("dtype", "torch.float64", "has dtype float64"),
        ("shape", (3,), r"has shape \[3\]"),
    ]:
        before = getattr(x, name)
        setattr(x, name, change)
        with pytest.raises(LaunchError, match=words):
            kernel.launch({"x": x, "y": y}, NO_INPUTS)
        setattr(x, name, before)
    y.requires_grad = True
    with pytest.raises(LaunchError, match="requires grad"):
        kernel.launch({"x": x, "y": y}, NO_INPUTS)
    y.requires_grad = False
    x._first += 16  # other memory
    x.array[:60] = 5.0
    kernel.launch({"x": x, "y": y}, NO_INPUTS)
    assert (y.array[:60] == 7.0).all() and len(fake.launches) == 3
    with pytest.raises(LaunchError, match="overlap in memory"):
        kernel.launch({"x": y, "y": y}, NO_INPUTS)
    kernel.close()


def test_a_tensor_that_is_gone_is_not_held(kernel: CudaLoadedKernel) -> None:
    x = tensor(1.0)
    kernel.launch({"x": x}, NO_INPUTS)
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    kernel.close()
