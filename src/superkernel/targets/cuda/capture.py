"""targets.cuda.capture: `with sk.capture() as ops:` -> the Triton launches of its body as ops, with their buffers.

    with sk.capture() as ops:
        scale[(8,)](x, h, 2.0, BLOCK=256)
        add[(8,)](h, x, y, BLOCK=256)
    with sk.compile(ops, target="cuda") as k:
        k(ops.buffers)                        # without a GPU: k.emulate(ops.buffers)

Launches are recorded and not run: tensors keep their contents until the super kernel is launched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, overload

from ...errors import GraphError, UnsupportedError, nearest, shown
from ...model.op import Op
from .captured_buffers import CapturedBuffers
from .captured_launch import CapturedLaunch, record_launch, to_ops
from .triton_driver import RecordingDriver, TritonTarget, current_target, find_triton, parse_target

PureKernels = bool | Sequence[str]
_capturing = threading.local()
_patch_lock = threading.Lock()


class CapturedOps(Sequence[Op]):
    """The ops of a capture, complete when its `with` block has ended, and the tensors that they take."""

    def __init__(self) -> None:
        self._ops: tuple[Op, ...] = ()
        self.buffers: dict[str, Any] = {}  # name -> tensor

    @overload
    def __getitem__(self, index: int) -> Op: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Op]: ...
    def __getitem__(self, index: int | slice) -> Op | Sequence[Op]:
        return self._ops[index]

    def __len__(self) -> int:
        return len(self._ops)

    def __repr__(self) -> str:
        return f"<{len(self._ops)} captured ops, buffers {', '.join(self.buffers) or 'none'}>"

    def _complete(self, ops: Sequence[Op], buffers: dict[str, Any]) -> None:
        self._ops, self.buffers = tuple(ops), buffers


@dataclass
class _Recording:
    """What the launches of a thread have left so far."""

    target: TritonTarget
    driver: RecordingDriver | None  # None: Triton's own driver of the GPU that is there
    pure: frozenset[str] | None  # None: all kernels
    frame: FrameType | None  # of the `with` statement
    launches: list[CapturedLaunch]
    buffers: CapturedBuffers
    tuning: bool = False  # the autotuner times configurations: its launches run, and are not recorded


@contextmanager
def capture(target: str | None = None, *, pure: PureKernels = ()) -> Iterator[CapturedOps]:
    """Record the launches of Triton kernels in the body of the `with` statement, in this thread, instead of running.

    `target` names the architecture that kernels are compiled for, such as "sm_90a"; by default that of the current
    GPU, and sm_90a where there is none. `pure` names kernels (or True: all) that touch only their parameters, write all
    of their outputs and have no random effect: the plan may compute such an op several times, where that is faster.

    Tensors that share memory are one buffer, and a view of it a place in that buffer; buffers are called as the
    caller's variables, or t0, t1, ... Refused with UnsupportedError: what Triton's launcher would compute on the host
    for every launch (TMA descriptors, hooks of the autotuner), and operators of torch on tensors that a recorded launch
    uses, because they would run before it.
    """
    triton = find_triton()
    if getattr(_capturing, "recording", None) is not None:
        raise UnsupportedError("sk.capture: this thread is capturing already; captures cannot be nested")
    names = None if pure is True else frozenset(() if pure is False else _kernel_names(pure))
    here = current_target(triton)
    chosen = parse_target(target) if target is not None else here or parse_target("sm_90a")
    driver = None if here is not None and chosen == here else RecordingDriver(triton, chosen)
    frame = sys._getframe(2)  # below contextmanager's __enter__
    recording = _Recording(chosen, driver, names, frame, [], CapturedBuffers())
    captured = CapturedOps()
    _capturing.recording = recording
    try:
        with _patched(triton), _guarded_operators(recording):
            yield captured
    finally:
        _capturing.recording = None
        recording.frame = None
    if names and (unknown := names - {launch.kernel_name for launch in recording.launches}):
        known = sorted({launch.kernel_name for launch in recording.launches})
        name = min(unknown)
        raise GraphError(f"sk.capture: pure names {shown(name)}, which was not launched{nearest(name, known)}")
    captured._complete(to_ops(recording.launches, recording.pure), recording.buffers.tensors)


def _kernel_names(pure: Sequence[str]) -> Sequence[str]:
    if isinstance(pure, str):
        return [pure]
    if not isinstance(pure, Sequence) or not all(isinstance(name, str) for name in pure):
        raise GraphError(f"sk.capture: pure is True, or a list of names of kernels, not {shown(pure)}")
    return pure


_Run = Callable[..., Any]


@dataclass
class _Patches:
    """Triton's methods while captures run in any thread; the last capture puts them back."""

    count: int = 0
    launch: _Run | None = None
    tuned: _Run | None = None
    timed: _Run | None = None


_patches = _Patches()


@contextmanager
def _patched(triton: Any) -> Iterator[None]:
    """Launches of threads that capture are recorded; those of others run as always."""
    function, tuner = triton.JITFunction, triton.Autotuner
    with _patch_lock:
        if not _patches.count:
            _patches.launch, _patches.tuned, _patches.timed = function.run, tuner.run, tuner._bench
            function.run, tuner.run, tuner._bench = _recorded_run, _tuned_run, _timed_run
        _patches.count += 1
    try:
        yield
    finally:
        with _patch_lock:
            _patches.count -= 1
            if not _patches.count:
                function.run, tuner.run, tuner._bench = _patches.launch, _patches.tuned, _patches.timed


def _recorded_run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    """In place of JITFunction.run: compiles as it does; what it would launch is recorded."""
    run = _patches.launch
    assert run is not None
    recording: _Recording | None = getattr(_capturing, "recording", None)
    if recording is None or recording.tuning:
        return run(function, *args, grid=grid, warmup=warmup, **kwargs)
    with _driver_of(recording):
        stream = _current_stream(recording)
        kernel = run(function, *args, grid=grid, warmup=True, **kwargs)
    if warmup or kernel is None:
        return kernel
    if hasattr(kernel, "result"):  # it is being compiled by another thread
        kernel = kernel.result()
    frames = _callers(recording.frame)
    recording.launches.append(record_launch(function, kernel, grid, args, kwargs, recording.buffers, frames, stream))
    return kernel


def _tuned_run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of Autotuner.run: configurations are timed where a GPU is; elsewhere the first one is taken."""
    run = _patches.tuned
    assert run is not None
    recording: _Recording | None = getattr(_capturing, "recording", None)
    if recording is None or recording.tuning:
        return run(tuner, *args, **kwargs)
    hooked = next((config for config in tuner.configs if config.pre_hook is not None), None)
    if hooked is not None:
        raise UnsupportedError(
            f"sk.capture: kernel {shown(tuner.base_fn.__name__)}: its configuration {hooked} has a pre_hook, Python "
            "code that runs before every launch; a super kernel cannot contain it: do that work in a kernel"
        )
    if recording.driver is None:
        return run(tuner, *args, **kwargs)
    chosen, kept = dict(tuner.cache), tuner.cache_results
    tuner.cache_results = False  # what was not timed is not remembered
    try:
        return run(tuner, *args, **kwargs)
    finally:
        tuner.cache, tuner.cache_results = chosen, kept


def _timed_run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of Autotuner._bench, the timing of one configuration."""
    timed = _patches.timed
    assert timed is not None
    recording: _Recording | None = getattr(_capturing, "recording", None)
    if recording is None:
        return timed(tuner, *args, **kwargs)
    if recording.driver is not None:
        return [0.0, 0.0, 0.0]  # no GPU of this architecture: all are equal, and the first is taken
    recording.tuning = True
    try:
        return timed(tuner, *args, **kwargs)
    finally:
        recording.tuning = False


@contextmanager
def _driver_of(recording: _Recording) -> Iterator[None]:
    if recording.driver is None:
        yield
        return
    with recording.driver.active():
        yield


def _current_stream(recording: _Recording) -> int:
    if recording.driver is not None:
        return 0
    import torch

    return int(torch.cuda.current_stream().cuda_stream)


def _callers(outermost: FrameType | None) -> list[FrameType]:
    """The frames from the `with` statement to the launch, without Triton's: the outermost names mean most."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and module.partition(".")[0] != "triton":
            frames.append(frame)
        if frame is outermost:
            break
        frame = frame.f_back
    return frames[::-1]


@contextmanager
def _guarded_operators(recording: _Recording) -> Iterator[None]:
    """Refuses operators of torch on tensors that recorded launches use; views of them are allowed."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class OperatorGuard(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not recording.tuning and not _is_view(func):
                _refuse_captured(func, (*args, *(kwargs or {}).values()), recording.buffers)
            return func(*args, **(kwargs or {}))

    with OperatorGuard():
        yield


def _is_view(operator: Any) -> bool:
    """Whether an operator only returns another view of its argument."""
    returned = [result.alias_info for result in operator._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _refuse_captured(operator: Any, arguments: Sequence[Any], buffers: CapturedBuffers) -> None:
    import torch

    flat = (value for given in arguments for value in (given if isinstance(given, list | tuple) else (given,)))
    for value in flat:
        name = buffers.name_of(value) if isinstance(value, torch.Tensor) else None
        if name is not None:
            raise UnsupportedError(
                f"sk.capture: {operator} is called on {shown(name)}, which a recorded launch uses: it would run now, "
                "before that launch. Do this work in a Triton kernel, or before or after the capture"
            )
