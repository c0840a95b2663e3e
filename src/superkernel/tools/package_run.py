"""tools.package_run: a package and .npy files -> calls of an entry, outputs as .npy files, and a summary of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from ..errors import OptionError, counted, nearest
from ..package.array_values import place_number
from ..package.model import load_model
from ..package.return_structure import flat_results
from .run_saved import check_file, load_array, read_number
from .timed_run import Array, TimedRun, check_folder, save_arrays, summarise_output


@dataclass(frozen=True)
class PackageRun(TimedRun):
    """What `superkernel package run` answers."""

    entry: str

    def to_dict(self) -> dict[str, Any]:
        return self.fields("calls", entry=self.entry)

    def __str__(self) -> str:
        return self.text(f"{self.name}.{self.entry}", "called", "calls")


@dataclass(frozen=True)
class CallRequest:
    """What a command asks of a package."""

    package: Path
    entry: str | None
    inputs: Sequence[str]  # NAME=FILE.npy, FILE.npy, NAME=NUMBER
    threads: int | None
    wait: str = "balanced"

    def load(self) -> Any:
        return load_model(self.package, threads=self.threads, wait=self.wait)


def run_package(request: CallRequest, output: Path | None, repeat: int) -> PackageRun:
    """Calls the entry `repeat` times. States go on from call to call."""
    check_folder(output)
    with request.load() as model:
        entry = chosen_entry(model, request.entry)
        values = read_values(entry, request.inputs)
        if missing := [kind for kind in entry.inputs if kind.name not in values]:
            listed = "\n".join(f"  --input {kind.name}=FILE.npy  ({kind.dtype}{list(kind.shape)})" for kind in missing)
            raise OptionError(f"{entry.name!r} needs {counted(len(missing), 'more input')}:\n{listed}")
        arguments = [values[kind.name] for kind in entry.inputs]
        times = []
        for _ in range(repeat):
            begin = perf_counter_ns()
            returned = entry(*arguments)
            times.append((perf_counter_ns() - begin) / 1e3)
        results = flat_results(entry.description.returns, returned)
        produced = {kind.name: value for kind, value in zip(entry.outputs, results, strict=True)}
        files = {} if output is None else save_arrays(produced, output)
        summaries = [
            summarise_output(kind.name, kind.dtype, produced[kind.name], files.get(kind.name)) for kind in entry.outputs
        ]
        return PackageRun(model.description.name, tuple(times), tuple(summaries), entry.name)


def chosen_entry(model: Any, name: str | None) -> Any:
    """The entry of that name; without a name the only one, or `forward`."""
    if name is not None:
        if name not in model.entries:
            hint = nearest(name, model.entries)
            raise OptionError(f"--entry {name}: there is no such entry{hint}; there are {', '.join(model.entries)}")
        return model.entries[name]
    if len(model.entries) == 1:
        return next(iter(model.entries.values()))
    if "forward" in model.entries:
        return model.entries["forward"]
    raise OptionError(f"the package has several entries: name one with --entry: {', '.join(model.entries)}")


def read_values(entry: Any, given: Sequence[str]) -> dict[str, Array]:
    """NAME=FILE.npy, FILE.npy with the name as its stem, or NAME=NUMBER for an input without dimensions.

    The only input of an entry takes any file.
    """
    kinds = {kind.name: kind for kind in entry.inputs}
    found: dict[str, Array] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or (name not in kinds and isfile(text)):
            name, value = Path(text).stem, text
            if len(kinds) == 1:
                (name,) = kinds
        if name not in kinds:
            raise OptionError(
                f"--input {text}: {entry.name!r} has no input {name!r}{nearest(name, kinds)}; "
                f"there are {', '.join(kinds) or 'none'}"
            )
        if name in found:
            raise OptionError(f"--input {text}: {name!r} was given before")
        number = read_number(value) if not kinds[name].shape else None
        if number is None:
            if kinds[name].shape:
                check_file(value, text, name, f"{kinds[name].dtype}{list(kinds[name].shape)}")
            found[name] = load_array(value, text)
            continue
        found[name] = place_number(kinds[name], number, f"--input {text}").memory
    return found
