"""configuration: environment variables, and values assigned in Python, in; the settings of this process out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .errors import OptionError, nearest, shown


@dataclass(frozen=True)
class Setting:
    """One setting of the process: an attribute of `superkernel.config` and an environment variable."""

    name: str
    variable: str
    default: str  # what an unset setting means
    allowed: str  # in words, for messages and for docs/configuration.md
    pattern: str  # the texts that may be assigned
    what: str


@dataclass(frozen=True)
class ReadVariable:
    """An environment variable of another program that this package reads as well."""

    variable: str
    what: str


SETTINGS = (
    Setting(
        "cache",
        "SUPERKERNEL_CACHE",
        "`superkernel` in `XDG_CACHE_HOME`, else in `~/.cache`",
        "a directory",
        r"[^\0]+",
        "Where compiled kernels are kept ([cache.md](cache.md)).",
    ),
    Setting(
        "cache_limit",
        "SUPERKERNEL_CACHE_LIMIT",
        "8G",
        "bytes, with K, M, G or T as in 2G; 0: no limit",
        r"\d{1,15}[KMGTkmgt]?",
        "How many bytes the cache may take; the least recently used entries are removed first.",
    ),
    Setting(
        "dump",
        "SUPERKERNEL_DUMP",
        "nothing is written",
        "a directory",
        r"[^\0]+",
        "Where `torch.compile` writes graph, generated program, plan, emitted source and commands of every segment.",
    ),
    Setting(
        "team",
        "SUPERKERNEL_TEAM",
        "auto",
        "auto, always, never",
        r"auto|always|never",
        "Whether a launch gets a team of threads. auto: unless the machine is crowded ([targets.md](targets.md)). "
        "always: a launch waits for its team. never: launches run on the calling thread where that is possible. "
        "Read when the first kernel is loaded.",
    ),
    Setting(
        "huge_pages",
        "SUPERKERNEL_HUGE_PAGES",
        "1",
        "0, 1",
        r"[01]",
        "1: weights of 2 MB and more are moved to huge pages at the first call. 0: memory stays as it is.",
    ),
)

READ_VARIABLES = (
    ReadVariable("CXX", "The C++ compiler, with flags if needed; otherwise `g++`, then `clang++`."),
    ReadVariable("CPATH, C_INCLUDE_PATH, CPLUS_INCLUDE_PATH", "Include folders of the compiler; part of cache keys."),
    ReadVariable("OMP_NUM_THREADS", "The most cores of a launch where torch is not loaded; with torch, its threads."),
    ReadVariable("RANK, WORLD_SIZE", "Set by `torchrun`: a profile of several ranks is written to a folder per rank."),
    ReadVariable("XDG_CACHE_HOME", "The user's cache directory."),
    ReadVariable("TORCH_LOGS", "`superkernel`: one line per scope; `+superkernel`: the whole report."),
    ReadVariable("TORCH_TRACE", "A directory: `tlparse` then shows report, plans and emitted sources."),
    ReadVariable("ATEN_CPU_CAPABILITY", "The instruction sets that torch and Inductor use; part of cache keys."),
    ReadVariable("ASCEND_HOME_PATH", "Where CANN is installed ([ascend.md](ascend.md))."),
    ReadVariable("ASCEND_RT_VISIBLE_DEVICES", "The NPUs that a process sees."),
    ReadVariable("CCE_FLAGS", "Include flags for CANN's compiler, instead of the folders of its installation."),
    ReadVariable("CUDA_HOME, CUDA_PATH", "Where `superkernel doctor` looks for `nvcc`."),
    ReadVariable("SUPERKERNEL_TEST_DELAYS", "For tests: a seed of random delays in every step of a launch."),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


class Configuration:
    """The settings of this process: what was assigned in Python, else the environment variable, else the default.

    An attribute is the text of its setting, or None where the default holds. Assigning None removes an assigned value.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "_assigned", dict[str, str]())

    def __getattr__(self, name: str) -> str | None:
        setting = _find(name)
        assigned: dict[str, str] = object.__getattribute__(self, "_assigned")
        return assigned.get(name) or os.environ.get(setting.variable, "").strip() or None

    def __setattr__(self, name: str, value: object) -> None:
        setting = _find(name)
        assigned: dict[str, str] = object.__getattribute__(self, "_assigned")
        if value is None:
            assigned.pop(name, None)
        else:
            assigned[name] = _checked(setting, value)

    def __dir__(self) -> list[str]:
        return [*_BY_NAME, "patch", "source", "to_dict"]

    def source(self, name: str) -> str:
        """Where the value of a setting comes from: assigned, its environment variable, or default."""
        setting = _find(name)
        if name in object.__getattribute__(self, "_assigned"):
            return "assigned"
        return "default" if getattr(self, name) is None else setting.variable

    @contextmanager
    def patch(self, **values: object) -> Iterator[None]:
        """Inside, the settings have these values; afterwards those that they had before. Not for one thread alone."""
        assigned: dict[str, str] = object.__getattribute__(self, "_assigned")
        before = dict(assigned)
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            assigned.clear()
            assigned.update(before)

    def to_dict(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in _BY_NAME}

    def __str__(self) -> str:
        """One line per setting: name, value, where it comes from."""
        width = max(map(len, _BY_NAME))
        rows = [(name, getattr(self, name) or setting.default, self.source(name)) for name, setting in _BY_NAME.items()]
        return "\n".join(f"{name:<{width}}  {value}  ({source})" for name, value, source in rows)


def _find(name: str) -> Setting:
    if name not in _BY_NAME:
        raise AttributeError(f"superkernel.config has no setting {name!r}{nearest(name, _BY_NAME)}")
    return _BY_NAME[name]


def _checked(setting: Setting, value: object) -> str:
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    text = str(value) if isinstance(value, int | str) else ""
    if not text.strip() or not re.fullmatch(setting.pattern, text):
        raise OptionError(
            f"superkernel.config.{setting.name} cannot be {shown(value)}; allowed: {setting.allowed}, "
            f"or None for {setting.variable}"
        )
    return text


config = Configuration()
