"""Planted changes that are no faults: what nobody finds must have a reason here, which the text shows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from targets.ascend.conformance.pairing import check_pairing
from targets.ascend.faults.plant import Fault, Line, is_idle, lines_of
from targets.ascend.faults.run import steps_of

from superkernel.targets.ascend.emulator.library import INCLUDE
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.plan import AscendPlan

SAME_ORDER = "every op is told of all that it needs, by signals and waits in any timing"
DEBUGGING = "a debugging step that is added: no op of the scenario keeps a line in its cache"
SAME_CODE = "compiles to the same code for every class of the launch"
REPEATABLE = (
    *("preload", "drain", "await", "tiling key", "block count", "check of the key", "check of the block count"),
    *("context of a call", "cache", "end of barriers", "class barrier", "count of time stamps", "dump"),
)
FLAGS = ("arrive", "signal", "wait", "class barrier", "join barriers", "call")
CHECKS = ("check of the key", "check of the block count", "tiling key", "block count")
WAITS, TELLS = ("wait", "await"), ("arrive", "signal", "notify", "request", "reset")
MOVES = ("behind the next", "at the begin", "at the end")


def reason(plan: AscendPlan, emitted: EmittedKernel, fault: Fault) -> str | None:
    """Why a change changes nothing that a launch can tell; None: it does."""
    for why, holds in RULES.items():
        if holds(emitted, fault):
            return why
    if plan.options.debug_dcci_all and fault.statement == "cache":
        return DEBUGGING
    if _same_code(emitted, fault):
        return SAME_CODE
    return SAME_ORDER if _same_order(plan, fault) else None


def _same_order(plan: AscendPlan, fault: Fault) -> bool:
    """Flags are moved, and a walk over all signals and waits, which knows nothing of the emulator's clocks, finds that
    no op passes its wait point without being told of all that it needs."""
    if fault.change not in MOVES or fault.statement not in FLAGS or fault.emitted.tilings:
        return False
    try:
        check_pairing(fault.emitted, plan.graph, steps_of(plan, fault))
    except AssertionError:
        return False
    return True


def _context_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    pair = (fault.statement, fault.other)
    return fault.change in MOVES and "context of a call" in pair and "call" not in pair


def _repeated(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change == "twice" and fault.statement in REPEATABLE


def _preload_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change in MOVES and "preload" in (fault.statement, fault.other)


def _more_preloaded(emitted: EmittedKernel, fault: Fault) -> bool:
    """`return` behind one case of a preload: the code of the next key is asked for as well; or a core without a block
    of the op asks."""
    if fault.statement == "preload" and fault.change in ("one block more", "every block", "both vector cores"):
        return True
    [number] = fault.lines if len(fault.lines) == 1 else (-1,)
    return fault.statement == "preload_..." and emitted.source.splitlines()[number].strip() == "return;"


def _declared_elsewhere(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change in MOVES and "launch type" in (fault.statement, fault.other)


def _base_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    pair = (fault.statement, fault.other)
    return fault.change in MOVES and "sync base" in pair and not set(pair) & set(FLAGS)


def _drained_before(emitted: EmittedKernel, fault: Fault) -> bool:
    """No copy of this core can be in a pipe: since the last call stands a drain, or a wait for the flag of its class,
    at which it has arrived behind its copies; or there was no call."""
    if fault.statement not in ("arrive", "signal") or not fault.change.startswith("on PIPE"):
        return False
    [number] = fault.lines
    return _before(lines_of(emitted.source), number) != "call"


def _told_to_no_op(emitted: EmittedKernel, fault: Fault) -> bool:
    """Behind it, no op is called and nobody outside is told of stores; or it stands for a word that was
    seen, and none of the ops behind it needs one before it."""
    if fault.statement not in ("arrive", "signal") or not fault.change.startswith("on PIPE"):
        return False
    [number] = fault.lines
    behind = [line.statement for line in lines_of(emitted.source) if line.number > number]
    past_a_word = re.search("past the (lock|events) of", emitted.source.splitlines()[number - 1])
    return past_a_word is not None or not {"call", "notify", "request"} & set(behind)


def _before(lines: list[Line], number: int) -> str:
    """The last call, drain or wait for the own class on the way to a line. Lines of the other class, and of the other
    branch of an if, are not on the way."""
    classes = _classes(lines)
    depth = next(line.depth for line in lines if line.number == number)
    skipped = False
    for line in reversed([line for line in lines if line.number < number]):
        if {classes[line.number], classes[number]} == {"cube", "vector"}:
            continue
        depth = min(depth, line.depth)
        if line.depth == depth and line.text.strip().startswith("} else"):
            skipped = True
        elif skipped and line.depth == depth and "{" in line.text:
            skipped = False
        of_class = line.statement == "wait" and re.search(r"\((cube|vector)_flag\)", line.text)
        if not skipped and (line.statement in ("call", "drain", "class barrier") or of_class):
            return line.statement
    return ""


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


def _drain(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.statement == "drain" or (fault.change in MOVES and fault.other == "drain")


def _both_waits(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change in MOVES and fault.statement in WAITS and fault.other in WAITS


def _trapped_anyway(emitted: EmittedKernel, fault: Fault) -> bool:
    """check_, call_ and preload_ functions of a dynamic op all trap on an unknown key."""
    removed = fault.change == "removed" or fault.change in MOVES or fault.change == "a statement removed"
    of_key = fault.statement in ("check of the key", "check_...", "call_...", "preload_...")
    return removed and of_key and emitted.source.count("trap();") > 1


def _checks_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change in MOVES and (fault.statement in CHECKS or fault.other in CHECKS)


def _one_copy(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change == "copy of another core" and "core %" not in emitted.source


def _idle(emitted: EmittedKernel, fault: Fault) -> bool:
    """Both statements stand in the branch of cores without a block."""
    if fault.change not in MOVES or fault.statement not in FLAGS:
        return False
    lines = lines_of(emitted.source)
    return all(is_idle(lines, number) for number in fault.lines)


def _ordered_before(emitted: EmittedKernel, fault: Fault) -> bool:
    """Between the clearing of control words and the first op that is fed, the class meets anyway."""
    if fault.statement != "class barrier" or fault.change not in ("removed", *MOVES):
        return False
    lines = lines_of(emitted.source)
    first = next(line.number for line in lines if line.statement == "class barrier")
    fed = next(line.number for line in lines if line.statement in ("context of a call", "join barriers"))
    return any(line.statement == "wait" for line in lines if first < line.number < fed)


def _later(emitted: EmittedKernel, fault: Fault) -> bool:
    """Waits come earlier, or signals later: no order is lost, and what would hang hangs in every launch."""
    if fault.change == "at the begin":
        return fault.statement in WAITS
    if fault.change == "behind the next" and fault.statement == "call":
        return fault.other in WAITS
    return fault.change in MOVES and fault.statement in TELLS


def _first_op(emitted: EmittedKernel, fault: Fault) -> bool:
    """It was taken away from the front of the first call."""
    if fault.statement != "cache" or fault.change not in ("removed", *MOVES):
        return False
    lines = lines_of(emitted.source)
    classes = _classes(lines)
    own = {classes[number] for number in fault.lines}
    first = next(line.number for line in lines if line.statement == "call" and {classes[line.number]} & {"", *own})
    return any(number < first and "dcci(" in emitted.source.splitlines()[number] for number in fault.lines)


def _reset_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change in MOVES and fault.statement == "reset"


def _kind_is_published(emitted: EmittedKernel, fault: Fault) -> bool:
    """Ready for barriers with the other class, of which the op has none."""
    return fault.kind == "join barriers: other classes" and any("<true>" in text for text in fault.lines.values())


def _stamp_moved(emitted: EmittedKernel, fault: Fault) -> bool:
    return fault.change in MOVES and "time stamp" in (fault.statement, fault.other)


RULES: Mapping[str, Callable[[EmittedKernel, Fault], bool]] = {
    "made twice, it does what it does once": _repeated,
    "asks for code earlier or later, and before the call": _preload_moved,
    "asks for more code than is called": _more_preloaded,
    "says what the launch is, wherever it stands": _declared_elsewhere,
    "no flag is touched in between": _base_moved,
    "no copy of the core is under way: any pipe will do": _drained_before,
    "what it tells is that a word was seen: no op that reads copies of this core follows": _told_to_no_op,
    "copies are neither read nor told of before a signal in their pipe, or the end, orders them": _drain,
    "a call is told what it was told": _context_moved,
    "both flags are waited for before anything else": _both_waits,
    "other functions of the op trap on an unknown key": _trapped_anyway,
    "answers are read and checked before they are used": _checks_moved,
    "there is one copy": _one_copy,
    "a core without a block has stored nothing that it could tell of": _idle,
    "the class meets between the clearing of control words and the first op that is fed": _ordered_before,
    "waits earlier, or tells later: no order is lost, and what would hang would hang in every launch": _later,
    "a launch begins with empty caches: before the first op no line can be old": _first_op,
    "the word was seen, and this core has run the ops that it holds back": _reset_moved,
    "idle cores join by the kind of barrier that block 0 publishes": _kind_is_published,
    "marks nest as before, and an interval is longer or shorter": _stamp_moved,
}


def _same_code(emitted: EmittedKernel, fault: Fault) -> bool:
    """Compared byte for byte."""
    plain = fault.emitted.source.replace(fault.emitted.entry, emitted.entry)
    return all(_object(emitted.source, flags) == _object(plain, flags) for flags in emitted.defines.values())


def _object(source: str, flags: tuple[str, ...]) -> bytes:
    with TemporaryDirectory() as folder:
        text, made = Path(folder, "entry.cpp"), Path(folder, "entry.o")
        text.write_text(f'#line 1 "entry.cpp"\n{source}')
        command = ["g++", "-std=c++17", "-O1", "-g0", "-w", "-DSK_EMULATED", *flags, f"-I{INCLUDE}", "-c"]
        subprocess.run([*command, str(text), "-o", str(made)], check=True)
        return re.sub(rb"/tmp/[^\0]*", b"", made.read_bytes())
