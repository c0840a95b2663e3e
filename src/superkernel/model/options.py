"""options: an option text such as "early-start=2:profiling=1" comes in, one frozen, hashable Options goes out.

`OPTIONS` is the only table: keys, values, defaults, meaning and what each target does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, TypeVar

from superkernel.errors import OptionError, nearest, shown
from superkernel.model.option_values import (
    ALIGN,
    COPIES,
    CORES,
    FLAG,
    OP_TYPES,
    PREFETCH,
    SECONDS,
    TEXTS,
    Refused,
    ValueKind,
    closed,
)

T = TypeVar("T")
TARGETS = ("cpu", "cuda", "ascend")


class StrictScopeCheck(Enum):
    """What an unfusible op in a scope does when it must not simply split the scope."""

    BYPASS = "bypass"
    ABORT = "abort"


class EarlyStart(IntEnum):
    """How far arrive and wait are pulled apart between dependent ops."""

    OFF = 0
    FULL = 1
    OUTSIDE = 2


class WatchdogAction(Enum):
    """What the watchdog does about a sub-kernel that does not return."""

    REPORT = "report"
    EXIT = "exit"


class PreloadCode(Enum):
    """How far ahead instructions are prefetched."""

    PER_FUNC = "per-func"
    MAX = "max"
    NONE = "none"


class Support(Enum):
    """How a target supports an option."""

    YES = "yes"
    NO = "no"
    FENCE = "fence"
    FRONT_END = "front end"
    EMULATOR = "emulator"


@dataclass(frozen=True)
class TargetSupport:
    """One cell of the support table; the note says how, or why not."""

    level: Support
    note: str = ""


@dataclass(frozen=True)
class OptionRow:
    """One option: everything that is known about it, as data."""

    key: str
    kind: ValueKind
    default: str
    what: str
    support: Mapping[str, TargetSupport]
    optional: bool = False
    target_defaults: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def field(self) -> str:
        """The name of the Options field."""
        return self.key.replace("-", "_")

    @property
    def allowed(self) -> str:
        """The permitted values, in words."""
        return self.kind.allowed

    def read(self, text: str) -> object:
        """The value written as `text`."""
        try:
            return self.kind.accept(self.kind.read(text))
        except Refused as refused:
            raise self._error(text, refused) from None

    def accept(self, value: object) -> object:
        """`value` in its one form: True for 1, an enum member for its value, a tuple for a list."""
        if value is None and self.optional:
            return None
        try:
            return self.kind.accept(value)
        except Refused as refused:
            raise self._error(value, refused) from None

    def show(self, value: object) -> str:
        """`value` as `key=value`, as `read` takes it back."""
        return f"{self.key}={self.kind.show(value)}"

    def _error(self, value: object, refused: Refused) -> OptionError:
        because = f" ({refused})" if str(refused) else ""
        return OptionError(f"option {shown(self.key)} cannot be {shown(value)}{because}; allowed: {self.allowed}")


def _on(cpu: T, cuda: T, ascend: T) -> Mapping[str, T]:
    return MappingProxyType(dict(zip(TARGETS, (cpu, cuda, ascend), strict=True)))


_YES = TargetSupport(Support.YES)
_FENCE = TargetSupport(Support.FENCE)
_EVERYWHERE = _on(_YES, _YES, _YES)
_FRONT_END = _on(*[TargetSupport(Support.FRONT_END)] * 3)
_FENCE_OFF_ASCEND = _on(_FENCE, _FENCE, _YES)
_EMULATED_ON_ASCEND = _on(_YES, _YES, TargetSupport(Support.EMULATOR))  # on an NPU: as its run time allows, untried
_CHECKED = _on(_YES, TargetSupport(Support.EMULATOR), TargetSupport(Support.EMULATOR))
_FETCHED = TargetSupport(Support.NO, "a GPU fetches instructions by itself")
_ONE_BODY = TargetSupport(Support.NO, "the persistent kernel holds each sub-kernel's body once")
_ASSEMBLER = TargetSupport(Support.NO, "the assembler aligns the entry")
_MAX_OF_BOTH = TargetSupport(Support.YES, "cores = max of both")
_COPY_ENGINE = TargetSupport(Support.YES, "notify/wait with the copy engine")

# fmt: off
OPTIONS: tuple[OptionRow, ...] = (
    OptionRow("feed-sync-all", FLAG, "0", "An op that calls `sync_all` and has fewer blocks than the launch has cores "
              "is refused with `PlanError` (0), or the idle cores join its barriers (1).", _EVERYWHERE),
    OptionRow("stream-fusion", FLAG, "0", "All ops are in one stream (0), or ops of different streams or independent "
              "branches run side by side in one super kernel (1).", _EVERYWHERE),
    OptionRow("strict-scope-check", closed(*StrictScopeCheck), "unset", "An unfusible op in a scope splits the scope "
              "(unset), leaves the whole scope unfused with a warning (bypass), or raises an error that names the op "
              "(abort); collectives are not checked.", _FRONT_END, optional=True),
    OptionRow("early-start", closed(*EarlyStart), "1", "A full barrier separates dependent ops (0); or signal and "
              "wait are separate steps, and a sub-kernel may run its prologue before the wait and signal after its "
              "last store (1); or they are separate steps outside of sub-kernels only (2).", _EVERYWHERE),
    OptionRow("preload-code", closed(*PreloadCode), "per-func", "Instructions are prefetched one op ahead "
              "(per-func), for the whole kernel at entry (max), or not at all (none).", _on(_YES, _FETCHED, _YES)),
    OptionRow("split-mode", COPIES, "4 on ascend, else 1", "The number of copies of each sub-kernel's code; core `c` "
              "runs copy `c mod n`, which spreads instruction fetch.", _on(_YES, _ONE_BODY, _YES),
              optional=True, target_defaults=_on(cpu=1, cuda=1, ascend=4)),
    OptionRow("func-align", ALIGN, "512 on ascend, else 64", "The alignment of the entry function in bytes; 0: "
              "none.", _on(_YES, _ASSEMBLER, _YES),
              optional=True, target_defaults=_on(cpu=64, cuda=64, ascend=512)),
    OptionRow("prefetch-weights", PREFETCH, "0", "Prefetches the constant inputs of the next ops while this op runs "
              "or waits.", _on(_YES, _YES, _COPY_ENGINE)),
    OptionRow("profiling", FLAG, "0", "Records time stamps per core: whole kernel, every op, every notify, every "
              "wait; no cost when 0.", _EVERYWHERE),
    OptionRow("compile-options", TEXTS, "none", "Flags appended to the compiler call of the emitted source, as in "
              "`compile-options=-g`.", _EVERYWHERE),
    OptionRow("debug-sync-all", FLAG, "0", "Adds a barrier over all cores after every op.", _EVERYWHERE),
    OptionRow("debug-dcci-all", FLAG, "0", "Drains and flushes all data caches after every op.", _FENCE_OFF_ASCEND),
    OptionRow("dcci-before-kernel-start", OP_TYPES, "none", "Cache maintenance before ops of these types.",
              _FENCE_OFF_ASCEND),
    OptionRow("dcci-after-kernel-end", OP_TYPES, "none", "Cache maintenance after ops of these types.",
              _FENCE_OFF_ASCEND),
    OptionRow("dcci-disable-on-kernel", OP_TYPES, "none", "No cache maintenance around ops of these types; takes "
              "precedence over the other two.", _FENCE_OFF_ASCEND),
    OptionRow("debug-aic-num", CORES, "0", "The number of cube cores, not above the machine's and not below what "
              "the ops need; 0: derived.", _on(_MAX_OF_BOTH, _MAX_OF_BOTH, _YES)),
    OptionRow("debug-aiv-num", CORES, "0", "The number of vector cores, likewise; if both are given, cube to "
              "vector is 1:1 or 1:2.", _on(_MAX_OF_BOTH, _MAX_OF_BOTH, _YES)),
    OptionRow("debug-watchdog", SECONDS, "60", "Reports a launch that makes no progress for this many seconds: "
              "scope, op, and what each core was doing; stops it if its cores wait in the super kernel; 0: off.",
              _EMULATED_ON_ASCEND),
    OptionRow("debug-watchdog-action", closed(*WatchdogAction), "report", "If a sub-kernel does not return: repeat "
              "the report every period (report), or end the process with status 70 (exit).", _EMULATED_ON_ASCEND),
    OptionRow("debug-check", FLAG, "0", "Compares every access of sub-kernels with their declarations: in and out, "
              "`@block` parts, reads before the wait, bounds; slow; names op, parameter, block and offset.", _CHECKED),
    OptionRow("debug-replay", FLAG, "0", "Also runs every op alone, compares bit for bit and reports the first "
              "difference.", _EMULATED_ON_ASCEND),
)
# fmt: on

_ROWS: Mapping[str, OptionRow] = MappingProxyType({row.key: row for row in OPTIONS})


@dataclass(frozen=True)
class Options:
    """The options of one scope; every instance is valid, and `Options.parse(str(o)) == o`."""

    feed_sync_all: bool = False
    stream_fusion: bool = False
    strict_scope_check: StrictScopeCheck | None = None
    early_start: EarlyStart = EarlyStart.FULL
    preload_code: PreloadCode = PreloadCode.PER_FUNC
    split_mode: int | None = None
    func_align: int | None = None
    prefetch_weights: int = 0
    profiling: bool = False
    compile_options: tuple[str, ...] = ()
    debug_sync_all: bool = False
    debug_dcci_all: bool = False
    dcci_before_kernel_start: tuple[str, ...] = ()
    dcci_after_kernel_end: tuple[str, ...] = ()
    dcci_disable_on_kernel: tuple[str, ...] = ()
    debug_aic_num: int = 0
    debug_aiv_num: int = 0
    debug_watchdog: float = 60.0
    debug_watchdog_action: WatchdogAction = WatchdogAction.REPORT
    debug_check: bool = False
    debug_replay: bool = False

    def __post_init__(self) -> None:
        for row in OPTIONS:
            object.__setattr__(self, row.field, row.accept(getattr(self, row.field)))
        cube, vector = self.debug_aic_num, self.debug_aiv_num
        if cube and vector and vector not in (cube, 2 * cube):
            asked = f"debug-aic-num={cube}:debug-aiv-num={vector}"
            raise OptionError(f"options {asked} cannot go together; allowed: cube to vector 1:0, 0:1, 1:1 or 1:2")

    @classmethod
    def parse(cls, text: str | Options | None) -> Options:
        """The options written as `key=value` pairs joined by `:`; None is no opinion, Options pass through."""
        if isinstance(text, Options):
            return text
        if text is None:
            return cls()
        if not isinstance(text, str):
            raise OptionError(f"options cannot be {shown(text)}; allowed: a text of key=value pairs joined by ':'")
        given: dict[str, Any] = {}
        for piece in _unquoted(text).split(":"):
            if not piece.strip():
                continue
            row, value = _pair(piece)
            if row.field in given:
                raise OptionError(f"option {shown(row.key)} is given twice, again as {shown(value)}; allowed: once")
            given[row.field] = row.read(value)
        return cls(**given)

    def __str__(self) -> str:
        return ":".join(row.show(getattr(self, row.field)) for row in self._set())

    def for_target(self, target: str) -> Options:
        """These options with the target's own defaults where nothing was asked for."""
        _check_target(target)
        unset = [row for row in OPTIONS if row.target_defaults and getattr(self, row.field) is None]
        filled: dict[str, Any] = {row.field: row.target_defaults[target] for row in unset}
        return replace(self, **filled)

    def without_effect(self, target: str) -> tuple[str, ...]:
        """One sentence for every option that was set and that this target cannot follow."""
        _check_target(target)
        ignored = [row for row in self._set() if row.support[target].level is Support.NO]
        # The target's own default may come from for_target(); asking for it changes nothing either.
        return tuple(
            f"option {row.show(value)} has no effect on target {target}: {row.support[target].note}"
            for row, value in ((row, getattr(self, row.field)) for row in ignored)
            if value != row.target_defaults.get(target)
        )

    def _set(self) -> list[OptionRow]:
        return [row for row in OPTIONS if getattr(self, row.field) != getattr(Options, row.field)]


def _unquoted(text: str) -> str:
    text = text.strip()
    # Only pairs: a closing quote alone may belong to a value such as -DNAME="x".
    while len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1].strip()
    return text


def _pair(piece: str) -> tuple[OptionRow, str]:
    written, equals, value = (part.strip() for part in piece.partition("="))
    key = written.replace("_", "-")
    if not key:
        raise OptionError(f"option {shown(piece.strip())} has an empty key; allowed: {', '.join(_ROWS)}")
    if key not in _ROWS:
        near, known = nearest(key.lower(), _ROWS), ", ".join(_ROWS)
        raise OptionError(f"unknown option {shown(written)} with value {shown(value)}{near}; known: {known}")
    row = _ROWS[key]
    if not equals:
        raise OptionError(
            f"option {shown(key)} has no '=' and no value; allowed: {key}=value, where value is {row.allowed}"
        )
    return row, value


def _check_target(target: str) -> None:
    if target not in TARGETS:
        near = nearest(target, TARGETS) if isinstance(target, str) else ""
        raise OptionError(f"unknown target {shown(target)}{near}; known: {', '.join(TARGETS)}")
