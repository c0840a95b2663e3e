"""Planted changes that are no faults: what no check finds must be proven to change nothing, or have a reason here.

A change of something that orders is proven, by a walk over what the cores do or by equal code. The reasons are for
statements that order nothing: requests for code, declarations, checks of answers, cache lines, time stamps.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from targets.ascend.conformance.trace_order import check_order, flags_stay_below_the_limit
from targets.ascend.faults.plant import Fault, Line, lines_of
from targets.ascend.faults.run import emulations_of

from superkernel.targets.ascend.emulator.library import INCLUDE
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.plan import AscendPlan

SAME_ORDER = "every op, notify, request, reset and end still follows all that it must follow, in any timing"
DEBUGGING = "a debugging step that is added: no op of the scenario keeps a line in its cache"
SAME_CODE = "compiles to the same code for every class of the launch"
REPEATABLE = (
    *("preload", "tiling key", "block count", "check of the key", "check of the block count"),
    *("context of a call", "cache", "end of barriers", "count of time stamps", "dump"),
)
FLAGS = ("arrive", "signal", "wait", "class barrier", "join barriers", "call")
WORDS = ("await", "notify", "request", "reset")
CHECKS = ("check of the key", "check of the block count", "tiling key", "block count")
MOVES = ("behind the next", "at the begin", "at the end")
ORDERS = (*FLAGS, *WORDS, "drain")  # statements that order something
ORDER_CHANGES = ("removed", "twice", *MOVES)


def reason(plan: AscendPlan, emitted: EmittedKernel, fault: Fault) -> str | None:
    """Why a change changes nothing that a launch can tell; None: it does."""
    if _changes_order(fault):
        if _same_order(plan, fault):
            return SAME_ORDER
    else:
        for why, holds in RULES.items():
            if holds(emitted, fault):
                return why
        if plan.options.debug_dcci_all and fault.statement == "cache":
            return DEBUGGING
    return SAME_CODE if _same_code(emitted, fault) else None


def _changes_order(fault: Fault) -> bool:
    return fault.statement in ORDERS and (fault.change in ORDER_CHANGES or fault.change.startswith("on PIPE"))


def _same_order(plan: AscendPlan, fault: Fault) -> bool:
    """What a core does is the same in every timing. A walk over all signals, waits, drains and words, which knows
    nothing of the emulator's clocks, finds that all comes after what it must follow."""
    for emulation in emulations_of(plan, fault):
        if not flags_stay_below_the_limit(fault.emitted, emulation):
            return False
        try:
            check_order(fault.emitted, plan.graph, emulation)
        except AssertionError:
            return False
    return True


def _moves(fault: Fault, *kinds: str) -> bool:
    """Whether a statement of such a kind is moved, or changes places with the statement before it."""
    exchanged = fault.change == "behind the next" and fault.other in kinds
    return exchanged or (fault.change in MOVES and fault.statement in kinds)


def _context_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    return _moves(fault, "context of a call") and fault.other != "call"


def _repeated(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change == "twice" and fault.statement in REPEATABLE


def _preload_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    return _moves(fault, "preload")


def _more_preloaded(emitted: EmittedKernel, fault: Fault) -> bool:
    """`return` behind one case of a preload: the code of the next key is asked for as well; or a core without a block
    of the op asks."""
    if fault.statement == "preload" and fault.change in ("one block more", "every block", "both vector cores"):
        return True
    [number] = fault.lines if len(fault.lines) == 1 else (-1,)
    return fault.statement == "preload_..." and emitted.source.splitlines()[number].strip() == "return;"


def _declared_elsewhere(emitted: EmittedKernel, fault: Fault) -> bool:
    return _moves(fault, "launch type")


def _base_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    return _moves(fault, "sync base") and fault.other not in FLAGS


def _classes(lines: list[Line]) -> dict[int, str]:
    """Line -> the class that it is compiled for; empty: both."""
    found, of_class, opened = {}, "", -1
    for line in lines:
        if line.depth <= opened:
            of_class, opened = "", -1
        found[line.number] = of_class
        if begun := re.search(r"if constexpr \(on_(\w+)\) \{", line.text):
            of_class, opened = begun[1], line.depth
    return found


def _trapped_anyway(emitted: EmittedKernel, fault: Fault) -> bool:
    """check_, call_ and preload_ functions of a dynamic op all trap on an unknown key."""
    removed = fault.change == "removed" or fault.change in MOVES or fault.change == "a statement removed"
    of_key = fault.statement in ("check of the key", "check_...", "call_...", "preload_...")
    return removed and of_key and emitted.source.count("trap();") > 1


def _checks_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    return _moves(fault, *CHECKS)


def _one_copy(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change == "copy of another core" and "core %" not in emitted.source


def _first_op(emitted: EmittedKernel, fault: Fault) -> bool:
    """It was taken away from the front of the first call."""
    if fault.statement != "cache" or fault.change not in ("removed", *MOVES):
        return False
    lines = lines_of(emitted.source)
    classes = _classes(lines)
    own = {classes[number] for number in fault.lines}
    first = next(line.number for line in lines if line.statement == "call" and {classes[line.number]} & {"", *own})
    return any(number < first and "dcci(" in emitted.source.splitlines()[number] for number in fault.lines)


def _kind_is_published(emitted: EmittedKernel, fault: Fault) -> bool:
    """Ready for barriers with the other class, of which the op has none."""
    return fault.kind == "join barriers: other classes" and any("<true>" in text for text in fault.lines.values())


def _stamp_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    return _moves(fault, "time stamp")


RULES: Mapping[str, Callable[[EmittedKernel, Fault], bool]] = {
    "made twice, it does what it does once": _repeated,
    "asks for code earlier or later, and before the call": _preload_moved,
    "asks for more code than is called": _more_preloaded,
    "says what the launch is, wherever it stands": _declared_elsewhere,
    "no flag is touched in between": _base_moved,
    "a call is told what it was told": _context_moved,
    "other functions of the op trap on an unknown key": _trapped_anyway,
    "answers are read and checked before they are used": _checks_moved,
    "there is one copy": _one_copy,
    "a launch begins with empty caches: before the first op no line can be old": _first_op,
    "idle cores join by the kind of barrier that block 0 publishes": _kind_is_published,
    "marks nest as before, and an interval is longer or shorter": _stamp_moved,
}


def _same_code(emitted: EmittedKernel, fault: Fault) -> bool:
    """Compared byte for byte."""
    plain = fault.emitted.source.replace(fault.emitted.entry, emitted.entry)
    return all(_object(emitted.source, flags) == _object(plain, flags) for flags in emitted.defines.values())


@cache
def _object(source: str, flags: tuple[str, ...]) -> bytes:
    with TemporaryDirectory() as folder:
        text, made = Path(folder, "entry.cpp"), Path(folder, "entry.o")
        text.write_text(f'#line 1 "entry.cpp"\n{source}')
        command = ["g++", "-std=c++17", "-O1", "-g0", "-w", "-DSK_EMULATED", *flags, f"-I{INCLUDE}", "-c"]
        subprocess.run([*command, str(text), "-o", str(made)], check=True)
        return re.sub(rb"/tmp/[^\0]*", b"", made.read_bytes())
