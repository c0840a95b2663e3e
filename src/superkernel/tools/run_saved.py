"""tools.run_saved: a saved super kernel and .npy files -> launches, outputs as .npy files, and a summary of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import exists, isfile
from pathlib import Path
from time import perf_counter_ns
from tokenize import TokenError
from typing import Any

import numpy as np

from ..errors import OptionError, UnsupportedError, counted, nearest
from ..model.graph import Buffer, Graph
from ..runtime.compile import load
from ..runtime.super_kernel import SuperKernel
from ..targets.buffers import HOST_MEMORY
from .timed_run import Array, TimedRun, check_folder, save_arrays, summarise_output


@dataclass(frozen=True)
class SavedRun(TimedRun):
    """What `superkernel run` answers."""

    target: str
    cores: int

    def to_dict(self) -> dict[str, Any]:
        return self.fields("launches", target=self.target, cores=self.cores)

    def __str__(self) -> str:
        cores = f"on {counted(self.cores, 'core')}"
        return self.text(self.name, f"launched {cores}", f"launches {cores}")


def run_saved(directory: Path, inputs: Sequence[str], output: Path | None, repeat: int) -> SavedRun:
    """Launch the kernel `repeat` times, each time with the inputs as they were read."""
    check_folder(output)
    with load(directory) as kernel:
        graph = kernel.graph
        _check_launchable(kernel)
        read = read_inputs(graph, inputs)
        _check_complete(graph, read)
        memory = HOST_MEMORY if kernel.target.launcher is None else kernel.target.launcher.memory
        passed = {
            name: value if graph.buffers[name].scalar else memory.copy_in(value, graph.buffers[name])
            for name, value in read.items()
        }
        # a launch may write what it was given
        written = {name: value for name, value in read.items() if graph.buffers[name].written}
        times = []
        for turn in range(repeat):
            if turn:
                passed |= {name: memory.copy_in(value, graph.buffers[name]) for name, value in written.items()}
            begin = perf_counter_ns()
            returned = kernel(passed)
            kernel.synchronize()
            times.append((perf_counter_ns() - begin) / 1e3)
        found = returned | {name: passed[name] for name in written if graph.buffers[name].produced}
        produced = {name: memory.copy_out(value) for name, value in found.items()}
        files = {} if output is None else save_arrays(produced, output)
        outputs = [
            summarise_output(name, graph.buffers[name].dtype, value, files.get(name))
            for name, value in produced.items()
        ]
        return SavedRun(kernel.name, tuple(times), tuple(outputs), kernel.target.name, kernel.plan.cores)


def _check_launchable(kernel: SuperKernel) -> None:
    where = f"super_kernel_scope {kernel.name!r}: "
    for node in kernel.graph.nodes:
        if node.asks_agent:
            raise UnsupportedError(
                f"{where}op {node.name!r} is dynamic and a Python function chooses its tiling, which is not saved: "
                "launch it from Python, or give the op a compiled tiling"
            )
        for event in node.awaits:
            raise UnsupportedError(
                f"{where}op {node.name!r} waits for the external event {event}, which nothing sets here: "
                "launch it from Python"
            )


def read_inputs(graph: Graph, given: Sequence[str]) -> dict[str, Any]:
    """NAME=FILE.npy, FILE.npy with the name as its stem, or NAME=NUMBER for a scalar -> values by name."""
    found: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or (name not in graph.buffers and isfile(text)):
            name, value = Path(text).stem, text
        if name not in graph.buffers:
            hint = nearest(name, graph.buffers)
            raise OptionError(f"--input {text}: no op of {graph.name!r} uses the name {name!r}{hint}")
        if name in found:
            raise OptionError(f"--input {text}: {name!r} was given before")
        if not graph.buffers[name].scalar:
            check_file(value, text, name, _type(graph.buffers[name]))
            found[name] = load_array(value, text)
            continue
        number = read_number(value)
        found[name] = _load_scalar(value, text) if number is None else number
    return found


def read_number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def check_file(path: str, given: str, name: str, kind: str) -> None:
    """An OptionError where `path` is a number, which an array does not take."""
    if read_number(path) is not None and not exists(path):
        raise OptionError(f"--input {given}: {name!r} is an array ({kind}): give it as {name}=FILE.npy")


def load_array(path: str, given: str) -> Array:
    """The array of a .npy file, contiguous; an OptionError names `given`, the value of --input."""
    if exists(path) and not isfile(path):  # a pipe would block
        raise OptionError(f"--input {given}: {path} is no regular file")
    try:
        value = np.load(path, allow_pickle=False)
    except (OSError, MemoryError) as reason:
        raise OptionError(f"--input {given}: {path} cannot be read as .npy: {reason}") from reason
    except (
        ValueError,
        EOFError,
        SyntaxError,
        TokenError,
        TypeError,
        OverflowError,
    ) as reason:  # by what the header says
        raise OptionError(
            f"--input {given}: {path} cannot be read as .npy: it is no such file, or holds no numbers"
        ) from reason
    if not isinstance(value, np.ndarray):
        raise OptionError(f"--input {given}: {path} holds several arrays; save each as a .npy file of its own")
    return np.ascontiguousarray(value) if value.ndim else value


def _load_scalar(path: str, given: str) -> Any:
    value = load_array(path, given)
    if value.size != 1:
        raise OptionError(f"--input {given}: a scalar is one number, and {path} holds {value.size}")
    return value.reshape(()).item()


def _check_complete(graph: Graph, read: Mapping[str, Any]) -> None:
    missing = [buffer for name, buffer in graph.buffers.items() if name not in read and not buffer.can_allocate]
    if missing:
        listed = "\n".join(f"  --input {b.name}={'NUMBER' if b.scalar else 'FILE.npy'}  ({_type(b)})" for b in missing)
        raise OptionError(f"{graph.name!r} needs {counted(len(missing), 'more input')}:\n{listed}")


def _type(buffer: Buffer) -> str:
    if buffer.scalar:
        return f"a scalar, {buffer.dtype or 'int64'}"
    if buffer.dtype is None:
        return f"any dtype, at least {buffer.reach} bytes" if buffer.reach else "any dtype and shape"
    return buffer.dtype + (str(list(buffer.shape)) if buffer.shape is not None else ", any shape")
