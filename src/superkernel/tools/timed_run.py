"""tools.timed_run: times and outputs of calls -> what a command answers, as text and as JSON, and .npy files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import numpy as np

from ..errors import BuildError, OptionError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OutputSummary:
    """One array that the launches wrote."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: float | None  # of the numbers that are not NaN; None: there are none, or they are not real
    largest: float | None
    mean: float | None
    nan: int
    file: Path | None  # None: it was not saved

    def to_dict(self) -> dict[str, Any]:
        numbers = {"min": self.least, "max": self.largest, "mean": self.mean, "nan": self.nan}
        return {"dtype": self.dtype, "shape": list(self.shape), **numbers, "file": self.file and str(self.file)}

    def __str__(self) -> str:
        text = f"{self.name}: {self.dtype}{list(self.shape)}"
        if self.least is not None and self.largest is not None and self.mean is not None:
            text += f", from {self.least:g} to {self.largest:g}, mean {self.mean:g}"
        text += f", {self.nan} NaN" if self.nan else ""
        return f"{text} -> {self.file}" if self.file else text


@dataclass(frozen=True)
class TimedRun:
    """Calls with the same inputs, and what the last of them gave."""

    name: str
    times_us: tuple[float, ...]  # of each call
    outputs: tuple[OutputSummary, ...]

    def fields(self, counted: str, **facts: object) -> dict[str, Any]:
        """For JSON; `counted` is what a call is called."""
        times = {"median": median(self.times_us), "min": min(self.times_us), "max": max(self.times_us)}
        outputs = {output.name: output.to_dict() for output in self.outputs}
        return {"ok": True, "name": self.name, **facts, counted: len(self.times_us), "us": times, "outputs": outputs}

    def text(self, title: str, once: str, several: str) -> str:
        """`once`: what happened, if it happened once; `several`: what was counted."""
        times = self.times_us
        line = f"{title}: {once} in {times[0]:.1f} us"
        if len(times) > 1:
            spread = f"median {median(times):.1f} us (from {min(times):.1f} to {max(times):.1f})"
            line = f"{title}: {len(times)} {several}, {spread}"
        return "\n".join([line, *(f"  {output}" for output in self.outputs)])


def check_folder(folder: Path | None) -> None:
    """An OptionError where outputs cannot be saved there, before anything runs."""
    try:
        if folder is not None and folder.exists() and not folder.is_dir():
            raise OptionError(f"--output {folder} is not a folder")
    except OSError as reason:  # a name that is too long, or a folder that may not be searched
        raise OptionError(f"--output {folder} cannot be used: {reason.strerror}") from reason


def save_arrays(produced: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """A name that is no file name is written as in a URL."""
    files = {name: folder / f"{quote(name, safe=' ')}.npy" for name in produced}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in files.items():
            np.save(path, produced[name], allow_pickle=False)
    except OSError as reason:
        raise BuildError(f"cannot write --output {folder}: {reason}") from reason
    return files


def summarise_output(name: str, kept_dtype: str | None, value: Array, file: Path | None) -> OutputSummary:
    dtype = str(value.dtype)
    stored = kept_dtype is not None and kept_dtype != dtype  # numpy does not have the type
    label = f"{kept_dtype} as {dtype}" if stored else dtype
    if stored or value.dtype.kind not in "fiub":
        return OutputSummary(name, label, value.shape, None, None, None, 0, file)
    numbers = value.astype(np.float64).ravel()
    there = numbers[~np.isnan(numbers)]
    nan = int(numbers.size - there.size)
    if not there.size:
        return OutputSummary(name, label, value.shape, None, None, None, nan, file)
    with np.errstate(all="ignore"):
        least, largest, mean = (_finite(float(figure)) for figure in (there.min(), there.max(), there.mean()))
    return OutputSummary(name, label, value.shape, least, largest, mean, nan, file)


def _finite(number: float) -> float | None:
    """JSON has no infinity."""
    return number if math.isfinite(number) else None
