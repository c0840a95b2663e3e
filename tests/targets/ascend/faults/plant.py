"""Faults in emitted text: the text of a kernel in, texts with one thing wrong out.

A statement is known by the primitive or helper that it uses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from superkernel.cache import digest
from superkernel.targets.ascend.kernel_description import EmittedKernel

FLAGS = ("cube_flag", "vector_flag", "vectors_to_cube_flag", "cube_to_vectors_flag")
SIGNALS = ("arrive_cubes", "arrive_vectors", "vectors_to_cube", "cube_to_vectors")
PIPES = ("PIPE_S", "PIPE_ALL", "PIPE_V", "PIPE_M", "PIPE_MTE2", "PIPE_MTE3", "PIPE_FIX")
TYPES = ("MIX_AIV_1_0", "MIX_AIC_1_0", "MIX_AIC_1_1", "MIX_AIC_1_2")
MOST_OF_A_KIND = 3  # in one kernel

# what a statement is -> how it is recognised; the first that matches counts
STATEMENTS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "launch type": r"KERNEL_TASK_TYPE_DEFAULT\(",
        "sync base": r"set_ffts_base_addr\(",
        "time stamp": r"sk_record\(",
        "count of time stamps": r"sk_store\(area",
        "cache": r"\bdcci\(",
        "preload": r"\bpreload(_\w+)?\(",
        "dump": r"sk_dump_begin\(",
        "context of a call": r"sk_(?:call|cann)_context\(",
        "end of barriers": r"sk_end_barriers\(",
        "join barriers": r"sk_join_barriers",
        "class barrier": r"sk_arrive_and_wait",
        "tiling key": r"key_\d+ = .*sk_fetch",
        "block count": r"blocks_\d+ = .*sk_fetch",
        "check of the key": r"\bcheck_\w+\(key",
        "check of the block count": r"blocks_\d+ > \d+\) trap",
        "await": r"sk_await\(",
        "request": r"sk_publish\(.*, 2\);",
        "notify": r"sk_publish\(.*, 1\);",
        "reset": r"sk_publish\(.*, 0\);",
        "arrive": r"ffts_cross_core_sync\(.*arrive_",
        "signal": r"ffts_cross_core_sync\(",
        "wait": r"wait_flag_dev\(",
        "drain": r"pipe_barrier\(",
        "call": r"^\s*(if \(.*\) )?(call_\w+\(|\w+\(\d+\);)",
    }.items()
}
EVERY_CORE = ("call", "arrive", "signal", "wait", "class barrier", "join barriers")
_DECLARATION = re.compile(
    r"^\s*(\[\[maybe_unused\]\] )?(const |constexpr |__gm__ |int64_t |uint64_t |extern |template|static |#)"
)
_GUARD = re.compile(r"^\s*(\} else )?if \((.*)\) (\{|.*;)$")
_BEGINS = ("// the entry", "// what the cube cores do", "// what the vector cores do")
_FUNCTION = re.compile(r"^static inline __aicore__ .*?(\w+)\(.*\) \{$")
_CONFIG = re.compile(rf"\b({'|'.join(SIGNALS)})\)")
_GUARD_CHANGES = (
    ("another leader", r"\b(vector|block) == 0\b", r"\1 == 1"),
    ("every core leads", r"\b(vector|block) == 0\b", "true"),
    ("one block more", r"\b(vector|block) < (\w+)", r"\1 < \2 + 1"),
    ("one block less", r"\b(vector|block) < (\w+)", r"\1 + 1 < \2"),
    ("every block", r"\b(vector|block) < (\w+)", "true"),
    ("both vector cores", r" && get_subblockid\(\) == 0", ""),
    ("both vector cores", r"^( *)if \(get_subblockid\(\) == 0\)", r"\1if (true)"),
    ("the other vector core", r"get_subblockid\(\) == 0", "get_subblockid() == 1"),
)


@dataclass(frozen=True)
class Fault:
    """One thing wrong in the text of a kernel."""

    scenario: str
    statement: str  # a key of STATEMENTS, or a helper
    change: str
    other: str  # the statement that it now stands behind, or before; else empty
    lines: Mapping[int, str]  # as they are now, by their index
    emitted: EmittedKernel

    @property
    def kind(self) -> str:
        return f"{self.statement}: {self.change}"

    def __str__(self) -> str:
        lines = "; ".join(f"line {number + 1}: {text.strip()}" for number, text in self.lines.items())
        return f"{self.scenario}: {self.kind} {self.other}| {lines}"


@dataclass(frozen=True)
class Line:
    number: int
    text: str
    statement: str  # a key of STATEMENTS, or empty
    depth: int  # braces that are open before it

    @property
    def whole(self) -> bool:
        return bool(self.statement) and self.text.rstrip().endswith(";")


@dataclass(frozen=True)
class Change:
    statement: str
    change: str
    lines: Mapping[int, str]
    other: str = ""


def lines_of(source: str) -> list[Line]:
    """The lines of entry and lanes."""
    texts = source.splitlines()
    first = next(i for i, text in enumerate(texts) if text.startswith(_BEGINS))
    found, depth = [], 0
    for number, text in enumerate(texts[first:], first):
        code = text.split("//")[0]
        found.append(Line(number, text, _statement(code), depth))
        depth += code.count("{") - code.count("}")
    return found


def _statement(code: str) -> str:
    if _DECLARATION.match(code):
        return ""
    return next((name for name, pattern in STATEMENTS.items() if pattern.search(code)), "")


def plant(scenario: str, emitted: EmittedKernel) -> Iterator[Fault]:
    """Every kind of fault, a few times each, in one kernel."""
    lines = lines_of(emitted.source)
    seen, counts = {emitted.source.rstrip("\n")}, Counter[tuple[str, str, str]]()
    for change in (*_of_statements(lines), *_moved(lines), *_returns(lines), *_of_helpers(emitted.source)):
        kind = (change.statement, change.change, change.other)
        texts = emitted.source.splitlines()
        for number, text in change.lines.items():
            texts[number] = text
        source = "\n".join(texts)
        if source not in seen and counts[kind] < MOST_OF_A_KIND:
            seen.add(source)
            counts[kind] += 1
            yield _fault(scenario, emitted, change, source)


def _fault(scenario: str, emitted: EmittedKernel, change: Change, source: str) -> Fault:
    """Compiled beside others, so under a name of its own."""
    suffix = f"_{digest(source)[:10]}"
    entry = emitted.entry + suffix
    broken = replace(emitted, name=emitted.name + suffix, entry=entry, source=source.replace(emitted.entry, entry))
    return Fault(scenario, change.statement, change.change, change.other, change.lines, broken)


def _of_statements(lines: list[Line]) -> Iterator[Change]:
    for line in lines:
        made = [*_guarded(line)]
        if line.statement:
            made += [*_doubled(line), *_operands(line), *_arguments(line)]
        for how, text in made:
            yield Change(line.statement or "guard", how, {line.number: text})


def _doubled(line: Line) -> Iterator[tuple[str, str]]:
    if line.whole:
        yield "removed", re.sub(r"\S.*$", ";", line.text)
        yield "twice", f"{line.text} {line.text.strip()}"


def _guarded(line: Line) -> Iterator[tuple[str, str]]:
    if _GUARD.match(line.text) and "constexpr" not in line.text:
        for how, pattern, new in _GUARD_CHANGES:
            yield how, re.sub(pattern, new, line.text)


def _operands(line: Line) -> Iterator[tuple[str, str]]:
    """Flags, modes, pipes, slots."""
    text = line.text
    for flag in FLAGS:
        yield "another flag", re.sub(r"wait_flag_dev\(\w+\)", f"wait_flag_dev({flag})", text)
    for signal in SIGNALS:
        yield "another flag", _CONFIG.sub(f"{signal})", text)
    yield "another mode", _CONFIG.sub(r"\1 ^ 2 << 4)", text)
    yield "unknown mode", _CONFIG.sub(r"\1 | 1 << 4)", text)
    for pipe in PIPES:
        yield f"on {pipe}", re.sub(r"PIPE_\w+", pipe, text)
    for step in (1, -1):
        yield "another slot", re.sub(r"(slots(?:, | \+ ))(\d+)", partial(_stepped, step), text)
        if line.statement == "call":
            yield "another slot", re.sub(r"(\(|, )(\d+)(?=\);)", partial(_stepped, step), text)


def _arguments(line: Line) -> Iterator[tuple[str, str]]:
    """What else a statement says."""
    text = line.text
    other_word = re.sub(r"(sk_control\(workspace, )(\d+)", partial(_stepped, 1), text)
    match line.statement:
        case "call" | "preload":
            yield "copy of another core", text.replace("(core", "(core + 1")
            if line.statement == "preload":
                for count in (0, 9):
                    yield f"of {count} lines", re.sub(r", \d+\);", f", {count});", text)
        case "launch type":
            for kind in TYPES:
                yield "another", re.sub(r"KERNEL_TYPE_\w+", f"KERNEL_TYPE_{kind}", text)
        case "notify" | "reset" | "request" | "await":
            for value in range(4):
                yield "another value", re.sub(r", \d+\);", f", {value});", text)
        case "time stamp":
            yield "another mark", re.sub(r"task \| (\d+)", lambda found: f"task | {int(found[1]) ^ 1}", text)
            yield "without the task", text.replace("task | ", "")
        case "context of a call":
            for place, how in enumerate(("another block count", "another pair code", "another arrival")):
                for step in (1, -1):
                    yield how, _argument(text, place, step)
            yield "another control word", other_word
            yield "no leader", re.sub(r"(vector|block) == 0 \? (sk_control\(.*\)) : 0", r"\2", text)
        case "end of barriers" | "join barriers":
            yield "another control word", other_word
            swapped = ("<true>", "<false>") if "<true>" in text else ("<false>", "<true>")
            yield "other classes", text.replace(*swapped)
        case "tiling key" | "block count":
            yield "another value", text.replace("= ", "= 1 + ", 1)
        case "check of the block count":
            for step in (1, -1):
                yield "another limit", re.sub(r"(> )(\d+)", partial(_stepped, step), text)
        case "cache":
            yield "one line only", text.replace("ENTIRE_DATA_CACHE", "SINGLE_CACHE_LINE")
            yield "another destination", text.replace("CACHELINE_OUT", "CACHELINE_UB")
        case "dump":
            yield "another part", text.replace("* place", "* (place + 1)")


def _stepped(step: int, found: re.Match[str]) -> str:
    return f"{found[1]}{max(0, int(found[2]) + step)}"


def _argument(text: str, place: int, step: int) -> str:
    """Another value for one of the arguments of a call."""
    head, _, rest = text.partition("(")
    arguments = rest.split(", ")
    if place >= len(arguments):
        return text
    arguments[place] = f"{arguments[place]} + {step}"
    return f"{head}({', '.join(arguments)}"


def _moved(lines: list[Line]) -> Iterator[Change]:
    """A statement exchanged with the next one of the same block, and taken to the begin or the end of it."""
    whole = [line for line in lines if line.whole]
    for one, other in pairwise(whole):
        if one.text != other.text and _same_block(lines, one, other):
            swapped = {one.number: other.text, other.number: one.text}
            yield Change(one.statement, "behind the next", swapped, other.statement)
    for one in whole:
        block = [line for line in whole if _same_block(lines, one, line)]
        first, last = block[0], block[-1]
        if one is not first:
            moved = {first.number: f"{one.text} {first.text.strip()}", one.number: ";"}
            yield Change(one.statement, "at the begin", moved, first.statement)
        if one is not last:
            moved = {last.number: f"{last.text} {one.text.strip()}", one.number: ";"}
            yield Change(one.statement, "at the end", moved, last.statement)


def _same_block(lines: list[Line], one: Line, other: Line) -> bool:
    first, last = sorted((one.number - lines[0].number, other.number - lines[0].number))
    return one.depth == other.depth and all(line.depth >= one.depth for line in lines[first : last + 1])


def _returns(lines: list[Line]) -> Iterator[Change]:
    for line in lines:
        if line.statement in EVERY_CORE and not line.text.lstrip().startswith("}"):
            text = line.text.strip()
            yield Change("return", f"before {line.statement}", {line.number: f"return; {text}"})
            block = "get_block_num() - 1" if is_idle(lines, line.number) else "0"
            alone = f"if (get_block_idx() == {block}) return; {text}"
            yield Change("return of one block", f"before {line.statement}", {line.number: alone})


def is_idle(lines: list[Line], number: int) -> bool:
    """Whether a line stands in the branch of cores without a block."""
    depth = next(line.depth for line in lines if line.number == number)
    for line in reversed([line for line in lines if line.number < number]):
        if line.depth == depth and "} else {" in line.text:
            return True
        if line.depth < depth and line.text.rstrip().endswith("{"):
            return False
    return False


def _of_helpers(source: str) -> Iterator[Change]:
    """Constants and small functions before the entry; not those for the device alone."""
    texts = source.splitlines()
    first = next(i for i, text in enumerate(texts) if text.startswith(_BEGINS))
    function, tests, device = "", 0, 0
    for number, text in enumerate(texts[:first]):
        tests += text.startswith("#if") - text.startswith("#endif")
        device = device or (tests if text.startswith("#ifndef SK_EMULATED") else 0)
        device = device if tests >= device else 0
        if device or text.startswith("#"):
            continue
        if found := _FUNCTION.match(text):
            function = re.sub(r"^(call|preload|check)_\w+$", r"\1_...", found[1])
        elif text == "}":
            function = ""
        for change, changed in _of_helper(text, function):
            yield Change(function or "constant", change, {number: changed})


def _of_helper(text: str, function: str) -> Iterator[tuple[str, str]]:
    if function and text.startswith("    ") and text.endswith(";"):
        gone = "return {};" if re.match(r" +return \S", text) else ";"
        yield "a statement removed", re.sub(r"\S.*$", gone, text)
    if function and "!=" in text:
        yield "another condition", text.replace("!=", "==", 1)
    if found := re.match(r"^(constexpr int32_t \w+_flag = )(\d+);", text):
        yield "another flag", f"{found[1]}{(int(found[2]) + 1) % 16};"
    if re.match(r"^constexpr uint64_t \w+ = 1 \|", text):
        yield "another mode", re.sub(r"\| ([02]) << 4", lambda found: f"| {2 - int(found[1])} << 4", text)
        yield "malformed", text.replace("= 1 |", "= 0 |")
    if found := re.match(r"^(constexpr uint64_t profiling_header = )(\d+)", text):
        yield "another place", f"{found[1]}{int(found[2]) - 1};"
