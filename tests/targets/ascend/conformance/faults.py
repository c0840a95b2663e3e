"""Faults planted in emitted text: one statement less, or one flag for another. Each must be caught by some seed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from targets.ascend.conformance.cases import Case
from targets.ascend.conformance.checks import Ready, check, prepare

from superkernel.cache import digest
from superkernel.errors import LaunchError
from superkernel.model.graph import Graph
from superkernel.targets.ascend.chips import Chip
from superkernel.targets.ascend.kernel_description import EmittedKernel

_SYNC_TITLE = re.compile(r"// (sync before \w+: .* \(pair code \d+\))")
SYNC = re.compile(r"^\s*(wait_flag_dev|ffts_cross_core_sync)\(.*\);$")
FLAGS = {
    "cube_flag": "vectors_to_cube_flag",
    "vector_flag": "cube_to_vectors_flag",
    "vectors_to_cube_flag": "cube_flag",
    "cube_to_vectors_flag": "vector_flag",
    "arrive_cubes": "cube_to_vectors",
    "arrive_vectors": "vectors_to_cube",
    "vectors_to_cube": "arrive_vectors",
    "cube_to_vectors": "arrive_cubes",
}


@dataclass(frozen=True)
class Fault:
    """A kernel whose text was changed in one line."""

    what: str
    case: Case
    emitted: EmittedKernel
    graph: Graph


def entry_lines(source: str) -> Iterator[tuple[int, str]]:
    """The lines of entry and lanes: what comes before them is shared by all steps."""
    lines = source.splitlines()
    begins = ("// the entry", "// what the cube cores do", "// what the vector cores do")
    first = next(i for i, line in enumerate(lines) if line.startswith(begins))
    yield from ((i, line) for i, line in enumerate(lines) if i > first)


def without_line(case: Case, emitted: EmittedKernel, graph: Graph, number: int) -> Fault:
    """The statement of a line left out."""
    line = emitted.source.splitlines()[number]
    return _changed(case, emitted, graph, number, ";", f"without line {number + 1}: {line.strip()}")


def with_other_text(case: Case, emitted: EmittedKernel, graph: Graph, old: str, new: str) -> list[Fault]:
    """One fault per line of the entry in which a pattern is found, with something else in its place."""
    found = []
    for number, line in entry_lines(emitted.source):
        changed = re.sub(old, new, line)
        if changed != line:
            what = f"{changed.strip()} in line {number + 1}"
            found.append(_changed(case, emitted, graph, number, changed, what))
    return found


def with_other_flag(case: Case, emitted: EmittedKernel, graph: Graph, number: int) -> Fault | None:
    """The flag of a line replaced by another one of the same core."""
    line = emitted.source.splitlines()[number]
    for old, new in FLAGS.items():
        # the emitted text has no constant for a flag that it does not use
        changed = re.sub(rf"\b{old}\b", str(_flag_value(emitted.chip, new)), line)
        if changed != line:
            return _changed(case, emitted, graph, number, changed, f"{new} for {old} in line {number + 1}")
    return None


def _flag_value(chip: Chip, constant: str) -> int:
    signals = {"vectors_to_cube": chip.vectors_to_cube_flag, "cube_to_vectors": chip.cube_to_vectors_flag}
    arrivals = {"arrive_cubes": chip.cube_flag, "arrive_vectors": chip.vector_flag}
    if constant in signals:
        return 1 | 2 << 4 | signals[constant] << 8
    return 1 | arrivals[constant] << 8 if constant in arrivals else int(getattr(chip, constant))


def without_syncs(case: Case, emitted: EmittedKernel, graph: Graph) -> list[Fault]:
    """One fault per sync of a pair: all its statements left out, and the arrivals they wait for.

    Nothing hangs then and no flag is left over: only an order that is not kept can tell.
    """
    parts: dict[str, list[int]] = {}
    waits, arrivals = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    title = None
    for number, line in entry_lines(emitted.source):
        if line.strip().startswith("//"):
            found = _SYNC_TITLE.search(line)
            title = found[1] if found else None
        elif SYNC.match(line):
            if title:
                parts.setdefault(title, []).append(number)
            for kind in ("cube", "vector"):
                if f"arrive_{kind}s" in line:
                    arrivals[kind].append(number)
                if f"wait_flag_dev({kind}_flag)" in line:
                    waits[kind].append(number)
    faults = []
    for title, numbers in parts.items():
        # flags count: the n-th wait of a class takes its n-th arrival
        met = [arrivals[kind][waits[kind].index(n)] for kind in waits for n in numbers if n in waits[kind]]
        gone = dict.fromkeys([*numbers, *met], ";")
        faults.append(_replaced(case, emitted, graph, gone, f"without {title}"))
    return faults


def with_calls_exchanged(case: Case, emitted: EmittedKernel, graph: Graph) -> Fault:
    """The first two ops, which have one sub-kernel, each called with the slots of the other."""
    first, second = emitted.ops[:2]
    functions = {f for variants in first.variants.values() for variant in variants for f in variant.functions}
    changes = {}
    for number, line in entry_lines(emitted.source):
        for old, new in ((first, second), (second, first)):
            for function in functions:
                if line.strip() == f"{function}({old.first_slot});":
                    changes[number] = f"{function}({new.first_slot});"
    return _replaced(case, emitted, graph, changes, "two calls exchanged")


def one_signal_early(case: Case, emitted: EmittedKernel, graph: Graph, kind: str) -> Fault:
    """One more arrival at the begin and one more wait at the end: all counts agree, and every wait takes the signal
    before the one that it was meant for."""
    lines = emitted.source.splitlines()
    begin = next(number for number, line in entry_lines(emitted.source) if "set_ffts_base_addr" in line)
    end = max(number for number, line in entry_lines(emitted.source) if line == "}")
    pipe = {"cube": "PIPE_FIX", "vector": "PIPE_MTE3"}[kind]
    only = f"if constexpr (on_{kind}) " if emitted.launch.mixed else ""
    changes = {
        begin: f"{lines[begin]} {only}ffts_cross_core_sync({pipe}, arrive_{kind}s);",
        end: f"    {only}wait_flag_dev({kind}_flag);\n}}",
    }
    return _replaced(case, emitted, graph, changes, f"one signal of {kind} cores early")


def _changed(case: Case, emitted: EmittedKernel, graph: Graph, number: int, line: str, what: str) -> Fault:
    return _replaced(case, emitted, graph, {number: line}, what)


def _replaced(case: Case, emitted: EmittedKernel, graph: Graph, changes: Mapping[int, str], what: str) -> Fault:
    """Compiled beside the others, so under a name of its own."""
    lines = emitted.source.splitlines()
    for number, line in changes.items():
        lines[number] = line
    suffix = f"_{digest(what)[:8]}"
    text = "\n".join(lines).replace(emitted.entry, emitted.entry + suffix)
    renamed = replace(emitted, name=emitted.name + suffix, entry=emitted.entry + suffix, source=text)
    return Fault(f"{case.name}: {what}", case, renamed, graph)


def uncaught(faults: Sequence[Fault], seeds: Sequence[int]) -> list[str]:
    """Faults with which every seed runs to its end, right values and all."""
    ready = prepare([(fault.case, fault.emitted, fault.graph) for fault in faults])
    return [fault.what for fault, one in zip(faults, ready, strict=True) if not caught(one, seeds)]


def caught(ready: Ready, seeds: Sequence[int]) -> str | None:
    """The first complaint, of the emulator or of a check."""
    for seed in seeds:
        try:
            check(ready, seed)
        except (LaunchError, AssertionError) as complaint:
            return str(complaint)
    return None
