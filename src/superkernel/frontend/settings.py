"""frontend.settings: the options and the mode given to torch.compile in; one frozen BackendSettings out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from ..configuration import config
from ..errors import OptionError, PlanError, nearest, shown
from ..model.dim import Dim
from ..model.options import OPTIONS, OptionRow, Options
from ..model.plain_values import checked_path, truth_value, whole_number
from ..plan import MOST_CORES
from ..targets import DEFAULT_TARGET, find_target, model_support_of
from ..targets.protocol import ModelSupport, Target

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Fuse(Enum):
    """Which ops become super kernels."""

    AUTO = "auto"  # marked ops if the compiled callable has any mark, else each graph is one scope
    MARKED = "marked"
    WHOLE = "whole"
    OFF = "off"


@dataclass(frozen=True)
class BucketedDimension:
    """A dimension of an argument of the model whose size is rounded up to a bucket."""

    argument: str  # its name in the signature of the model
    dimension: int
    dim: Dim

    def __str__(self) -> str:
        return f"argument {self.argument!r}, dimension {self.dimension} ({self.dim.name!r})"


@dataclass(frozen=True)
class BackendSettings:
    """What the user asked of the back end; `options` are the scope options of names that give none."""

    target: str = DEFAULT_TARGET
    cores: int | None = None
    cache: str | None = None
    dump: str | None = field(default_factory=lambda: config.dump)
    profit_gate: bool = True
    options: str = ""
    fuse: Fuse = Fuse.AUTO
    mode: str | None = None
    chip: str | None = None  # a name or a file, for a target that has several
    kernel_meta: str | None = None  # the folder of the operators' metadata, for a target whose operators come compiled
    buckets: tuple[BucketedDimension, ...] = ()

    @property
    def model_support(self) -> ModelSupport:
        return model_support_of(self.chosen_target)

    @property
    def chosen_target(self) -> Target:
        return find_target(self.target).for_chip(self.chip)

    @classmethod
    def parse(cls, options: Mapping[str, object] | None = None, mode: str | None = None) -> BackendSettings:
        """The settings in torch.compile's `options` and `mode`; every scope option may stand among the options."""
        if not isinstance(options, Mapping | None):
            raise OptionError(f"backend options cannot be {shown(options)}; allowed: a dict, or None")
        given = _by_name(options or {})
        if mode is not None:
            if "mode" in given:
                raise OptionError(f"backend option 'mode' is given twice, again as {shown(mode)}; allowed: once")
            given["mode"] = mode
        settings: dict[str, Any] = {name: _READERS[name](value) for name, value in given.items() if name in _READERS}
        scope = {name: value for name, value in given.items() if name not in _READERS}
        target = find_target(settings.get("target", DEFAULT_TARGET)).for_chip(settings.get("chip"))
        if settings.get("kernel_meta") is not None and model_support_of(target).operators is None:
            raise OptionError(
                f"backend option 'kernel_meta' has no meaning on target {target.name!r}: it compiles its kernels"
            )
        if settings.get("cores") is not None:
            try:
                target.planner.forced_cores(Options(), settings["cores"], target.name)
            except PlanError as reason:
                what = str(reason).partition(": ")[2]  # without the scope: there is none yet
                raise OptionError(f"backend option 'cores' on target {target.name!r}: {what}") from reason
        settings["options"] = _joined(settings.get("options", ""), scope)
        # A setting that reads as None was left to its default, and the default is not always None.
        return cls(**{name: value for name, value in settings.items() if value is not None})


def _by_name(options: Mapping[str, object]) -> dict[str, object]:
    given: dict[str, object] = {}
    for key, value in options.items():
        name = key.replace("-", "_") if isinstance(key, str) else ""
        if name not in _READERS and name not in _ROWS:
            known = [*_READERS, *(row.key for row in OPTIONS)]
            near = nearest(key.lower(), known) if isinstance(key, str) else ""
            raise OptionError(f"unknown backend option {shown(key)}{near}; known: {', '.join(known)}")
        if name in given:
            raise OptionError(f"backend option {key!r} is given twice, again as {shown(value)}; allowed: once")
        given[name] = value
    return given


def _joined(text: str, scope: Mapping[str, object]) -> str:
    """The default scope options: those in `text` and those given by their own names."""
    in_text = {piece.partition("=")[0].strip(' "').replace("-", "_") for piece in text.split(":")}
    values: dict[str, Any] = {}
    for name, value in scope.items():
        row = _ROWS[name]
        if name in in_text:
            raise OptionError(f"backend option {row.key!r} is given twice, also in options={text!r}; allowed: once")
        values[name] = row.read(value) if isinstance(value, str) else row.accept(value)
    texts = [_ROWS[name].show(value) for name, value in values.items() if value not in (None, ())]
    # Only now are both halves checked against each other.
    return str(Options.parse(":".join([str(Options.parse(text)), *texts])))


def _refused(name: str, value: object, allowed: str, near: str = "") -> OptionError:
    return OptionError(f"backend option {name!r} cannot be {shown(value)}{near}; allowed: {allowed}")


def _target(value: object) -> str:
    target = find_target(value)  # type: ignore[arg-type]  # refuses everything that is not the name of a target
    model_support_of(target)
    return target.name


def _cores(value: object) -> int | None:
    cores = whole_number(value)
    if value is None or (cores is not None and 1 <= cores <= MOST_CORES):
        return cores
    raise _refused("cores", value, f"an integer from 1 to {MOST_CORES}, or None for as many as the target has")


def _directory(name: str, default: str, value: object) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(path, str) or not path.strip():
        raise _refused(name, value, f"a directory, or None for {default}")
    checked_path(path, f"backend option {name!r}", OptionError)
    return path


def _kernel_meta(value: object) -> str | None:
    path = _directory("kernel_meta", "none", value)
    if path is not None and not os.path.isdir(path):
        raise _refused("kernel_meta", value, "an existing folder that holds the metadata of compiled operators")
    return path


def _chip(value: object) -> str | None:
    if value is None:
        return None
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(name, str) or not name.strip():
        raise _refused("chip", value, "the name of a chip, a file that describes one, or None")
    return name


def _profit_gate(value: object) -> bool:
    if (truth := truth_value(value)) is not None:
        return truth
    raise _refused("profit_gate", value, "0, 1, False, True")


def _options(value: object) -> str:
    if not isinstance(value, str):
        raise _refused("options", value, "a text of key=value pairs joined by ':'")
    return value


def _fuse(value: object) -> Fuse:
    if isinstance(value, Fuse):
        return value
    words = [member.value for member in Fuse]
    if not isinstance(value, str) or value not in words:
        raise _refused("fuse", value, ", ".join(words), nearest(value, words))
    return Fuse(value)


def _mode(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in MODES:
        near = nearest(value, MODES) if isinstance(value, str) else ""
        raise _refused("mode", value, f"{', '.join(MODES)}, None", near)
    return value


def _buckets(value: object) -> tuple[BucketedDimension, ...]:
    example = 'a dict such as {"x": {0: sk.Dim("batch", buckets=(1, 4, 16))}}'
    if value is None:
        return ()
    if not isinstance(value, Mapping) or not value:
        raise _refused("buckets", value, example)
    found: list[BucketedDimension] = []
    for argument, dimensions in value.items():
        if not isinstance(argument, str) or not argument.strip():
            raise OptionError(f"backend option 'buckets': {shown(argument)} is no name of an argument; give {example}")
        if not isinstance(dimensions, Mapping) or not dimensions:
            raise OptionError(
                f"backend option 'buckets': argument {argument!r} has {shown(dimensions)}; give {example}"
            )
        for dimension, dim in dimensions.items():
            index = whole_number(dimension)
            if index is None or index < 0:
                raise OptionError(
                    f"backend option 'buckets': argument {argument!r} has no dimension {shown(dimension)}; "
                    "dimensions are counted from 0"
                )
            if not isinstance(dim, Dim):
                raise OptionError(
                    f"backend option 'buckets': argument {argument!r}, dimension {index} is {shown(dim)}; "
                    'give a Dim, such as sk.Dim("batch", buckets=(1, 4, 16))'
                )
            same_name = next((other for other in found if other.dim.name == dim.name), None)
            if same_name is not None and same_name.dim != dim:
                raise OptionError(
                    f"backend option 'buckets': Dim {dim.name!r} has buckets {same_name.dim.buckets} for argument "
                    f"{same_name.argument!r} and {dim.buckets} for argument {argument!r}; give one Dim to both, or "
                    "two names"
                )
            if same_name is not None and same_name.argument == argument:
                raise OptionError(
                    f"backend option 'buckets': argument {argument!r} has Dim {dim.name!r} twice; give each dimension "
                    "a Dim with a name of its own"
                )
            found.append(BucketedDimension(argument, index, dim))
    return tuple(found)


_READERS: Mapping[str, Callable[[object], object]] = {
    "target": _target,
    "cores": _cores,
    "cache": partial(_directory, "cache", "the user's cache directory"),
    "dump": partial(_directory, "dump", "SUPERKERNEL_DUMP"),
    "kernel_meta": _kernel_meta,
    "chip": _chip,
    "profit_gate": _profit_gate,
    "options": _options,
    "fuse": _fuse,
    "mode": _mode,
    "buckets": _buckets,
}
_ROWS: Mapping[str, OptionRow] = {row.field: row for row in OPTIONS}
