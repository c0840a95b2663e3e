"""bench.package_peers: a workload -> ways to run it: our package, eager, torch.compile, AOTInductor, and others.

ONNX Runtime and OpenVINO are used where they are installed. Every way gives its results as tensors, to be checked.
"""

from __future__ import annotations

import copy
import enum
import logging
import mmap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...frontend.export.export import export
from ...package.model import load_model
from .aot_loaders import load, working_loader
from .call_rate import RunFromC, Times, python_calls_at_rate
from .latency import TimedRunner
from .package_workloads import PackageWorkload
from .peers import EAGER, INDUCTOR, prepare
from .workloads import Workload

PACKAGE, AOT, AOT_FROZEN, ONNX, OPENVINO = "package", "AOTInductor", "AOTInductor frozen", "ONNX Runtime", "OpenVINO"
EMPTY_PYTHON, EMPTY_C = "empty Python function", "empty C function"
READ_BYTES = 256 << 10  # as much as a small model reads
READING = f"{READ_BYTES >> 10} KB read in C"
HUGE_PAGE = 2 << 20
CALLS_TO_SETTLE = 1200  # a package tries threads for some of its first thousand calls
AHEAD_OF_TIME = (AOT, AOT_FROZEN, ONNX, OPENVINO)  # the peers of the figures
NEEDED = {ONNX: ("onnx", "onnxscript", "onnxruntime"), OPENVINO: ("onnx", "onnxscript", "openvino")}


@dataclass(frozen=True)
class Prepared:
    """A runner, and what it computes: all outputs that eager has, in their order."""

    runner: TimedRunner
    results: Callable[[], Sequence[Tensor]]


def missing(peer: str) -> list[str]:
    """Modules that the peer needs and that are not installed."""
    return [name for name in NEEDED.get(peer, ()) if find_spec(name) is None]


def tensors_of(returned: Any) -> list[Tensor]:
    values = returned if isinstance(returned, tuple | list) else (returned,)
    return [value if isinstance(value, Tensor) else torch.from_numpy(value) for value in values]


def _copy(workload: Workload) -> torch.nn.Module:
    assert isinstance(workload.model, torch.nn.Module)
    return copy.deepcopy(workload.model).eval()


def set_threads(count: int) -> Callable[[], None]:
    return partial(torch.set_num_threads, count)


def prepare_package(workload: Workload, folder: Path, threads: int) -> Prepared:
    """Our package, called with numpy arrays."""
    if not (folder / "manifest.json").exists():
        export(_copy(workload), workload.inputs, folder)
    model = load_model(folder, threads=threads)
    arrays = tuple(value.numpy() for value in workload.inputs)
    runner = TimedRunner(PACKAGE, threads, lambda: model(*arrays), set_threads(1))
    return Prepared(runner, lambda: tensors_of(model(*arrays)))


class CalledFrom(enum.Enum):
    """How a package is called."""

    C = "package from C"
    PYTHON = "package"
    PYTHON_INTO = "package, out="  # writes into the same arrays each time, as peers do whose outputs are bound


class TimedPackage:
    """Our package, open only while it is timed: its threads may keep processors busy."""

    def __init__(self, workload: Workload, folder: Path, threads: int, wait: str, called_from: CalledFrom) -> None:
        self._open = partial(load_model, folder, threads=threads, wait=wait)
        self._inputs = tuple(value.numpy() for value in workload.inputs)
        self._run: RunFromC | None = None
        self._call: Callable[[], object] = self._once_from_c
        self.results: list[Tensor] = []  # of the last run before the model was closed
        self._called_from = called_from
        name = called_from.value + ("" if wait == "balanced" else f", wait={wait}")
        self.runner = TimedRunner(name, threads, self._once, self._enter, self._leave, self._at_rate)

    def _enter(self) -> None:
        torch.set_num_threads(1)
        model, inputs = self._open(), self._inputs
        self._run = RunFromC(model, inputs)
        outputs = tuple(np.empty_like(value) for value in self._run.results)
        self._call = {
            CalledFrom.C: self._once_from_c,
            CalledFrom.PYTHON: lambda: model(*inputs),
            CalledFrom.PYTHON_INTO: lambda: model(*inputs, out=outputs),
        }[self._called_from]
        self._run.back_to_back(CALLS_TO_SETTLE)

    def _leave(self) -> None:
        assert self._run is not None
        if self._called_from is not CalledFrom.C:
            self._run.results = list(tensors_of(self._call()))
        self.results = tensors_of(self._run.results)
        self._run.close()
        self._run = None

    def _once(self) -> None:
        self._call()

    def _once_from_c(self) -> None:
        assert self._run is not None
        self._run.back_to_back(1)

    def _at_rate(self, calls: int, rate: float, seconds: float) -> Times:
        assert self._run is not None
        if self._called_from is CalledFrom.C:
            return self._run.at_rate(calls, rate, seconds)
        return python_calls_at_rate(self._call, calls, rate, seconds)


def calls_of_the_machine() -> list[TimedRunner]:
    """What the interpreter and the machine have of their own, without a model."""
    room = mmap.mmap(-1, 2 * HUGE_PAGE)
    room.madvise(mmap.MADV_HUGEPAGE)
    begin = np.frombuffer(room, np.uint8)
    begin[:] = 1
    begin = begin[-begin.ctypes.data % HUGE_PAGE :][:READ_BYTES]
    nothing, reading = RunFromC(), RunFromC(inputs=[begin])
    return [
        TimedRunner(EMPTY_PYTHON, 1, lambda: None, set_threads(1)),
        *(
            TimedRunner(name, 1, partial(run.back_to_back, 1), set_threads(1), at_rate=run.at_rate)
            for name, run in ((EMPTY_C, nothing), (READING, reading))
        ),
    ]


def prepare_torch(workload: Workload, threads: int) -> list[Prepared]:
    """Eager, and torch.compile with its default back end."""
    torch.set_num_threads(threads)
    found = []
    for kind in (EAGER, INDUCTOR):
        call, _ = prepare(kind, workload.model, workload.inputs)
        runner = TimedRunner("torch.compile" if kind is INDUCTOR else kind.name, threads, call, set_threads(threads))
        found.append(Prepared(runner, partial(lambda call: tensors_of(call()), call)))
    return found


def write_ahead_of_time(workload: Workload, folder: Path, threads: int, frozen: bool) -> Path:
    """What AOTInductor compiles for so many threads."""
    torch.set_num_threads(threads)
    path = folder / f"{'frozen' if frozen else 'plain'}_{threads}.pt2"
    if not path.exists():
        torch._inductor.aoti_compile_and_package(
            torch.export.export(_copy(workload), workload.inputs),
            package_path=str(path),
            inductor_configs={"freezing": True} if frozen else None,
        )
    return path


def prepare_ahead_of_time(workload: Workload, folder: Path, threads: int, frozen: bool) -> Prepared | None:
    """AOTInductor, called through the loader itself: the wrapper around it takes longer than small models.

    None: torch's loaders crash on this machine.
    """
    loader = working_loader()
    if loader is None:
        return None
    run, inputs = load(write_ahead_of_time(workload, folder, threads, frozen), loader), list(workload.inputs)

    def call() -> Any:
        return run(inputs)

    runner = TimedRunner(AOT_FROZEN if frozen else AOT, threads, call, set_threads(threads))
    return Prepared(runner, lambda: tensors_of(call()))


def write_onnx(workload: Workload, path: Path) -> Path:
    if not path.exists():
        model, logger = _copy(workload), logging.getLogger("torch.onnx")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logger.setLevel(logging.ERROR)  # it warns that torchvision is not there
            torch.onnx.export(model, workload.inputs, str(path), dynamo=True, external_data=False, verbose=False)
    return path


def prepare_onnx(workload: Workload, path: Path, threads: int) -> Prepared:
    """ONNX Runtime with inputs and outputs bound once, which is its fastest call from Python."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(write_onnx(workload, path)), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    kept = [onnxruntime.OrtValue.ortvalue_from_numpy(value.numpy()) for value in workload.inputs]
    for slot, value in zip(session.get_inputs(), kept, strict=True):
        binding.bind_ortvalue_input(slot.name, value)
    for slot in session.get_outputs():
        binding.bind_output(slot.name)
    runner = TimedRunner(ONNX, threads, lambda: session.run_with_iobinding(binding), set_threads(1))

    def results() -> Sequence[Tensor]:
        session.run_with_iobinding(binding)
        return tensors_of(binding.copy_outputs_to_cpu())

    return Prepared(runner, results)


def prepare_openvino(workload: Workload, path: Path, threads: int) -> Prepared:
    """OpenVINO for latency, float32, with the inputs set once."""
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(str(write_onnx(workload, path))), "CPU", settings)
    request = compiled.create_infer_request()
    kept = [openvino.Tensor(value.numpy(), shared_memory=True) for value in workload.inputs]
    for index, value in enumerate(kept):
        request.set_input_tensor(index, value)
    count = len(compiled.outputs)

    def results() -> Sequence[Tensor]:
        request.infer()
        return tensors_of([request.get_output_tensor(index).data.copy() for index in range(count)])

    return Prepared(TimedRunner(OPENVINO, threads, request.infer, set_threads(1)), results)


def prepare_peers(item: PackageWorkload, folder: Path, threads: int) -> list[Prepared]:
    """Every other way to run a workload that is possible here, except AOTInductor with freezing."""
    return prepare_torch(item.workload, threads) + prepare_compilers_ahead(item, folder, threads)


def prepare_compilers_ahead(item: PackageWorkload, folder: Path, threads: int) -> list[Prepared]:
    """Those of the peers that compile ahead of time."""
    workload, stateless = item.workload, item.for_formats_without_states
    ahead_of_time = prepare_ahead_of_time(workload, folder, threads, frozen=False)
    found = [ahead_of_time] if ahead_of_time else []
    for peer, prepare_peer in ((ONNX, prepare_onnx), (OPENVINO, prepare_openvino)):
        if not missing(peer):
            found.append(prepare_peer(stateless, folder / "model.onnx", threads))
    return found
