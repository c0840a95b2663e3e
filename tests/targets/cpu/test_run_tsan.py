"""targets.cpu: ThreadSanitizer on the emitted entry, the run time and the sub-kernels, on plain threads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from measured import sample
from targets.cpu.small import KERNELS, REFERENCE, compile_ops, small

from superkernel import Op, SuperKernel, Tiling
from superkernel.cache import Cache
from superkernel.errors import BuildError
from superkernel.targets.cpu import emit, numbering
from superkernel.targets.cpu.build import HOST, INCLUDE, entry_name
from superkernel.targets.cpu.numbering import number
from superkernel.targets.cpu.target import CpuPrepared
from superkernel.targets.native.objects import CompileJob, compile_sources, unique_name
from superkernel.targets.native.toolchain import find_toolchain, run

pytestmark = pytest.mark.slow

FLAGS = ("-fsanitize=thread", "-O1", "-g", "-std=c++17", f"-I{INCLUDE}", f"-I{HOST}", "-DSK_TEST_DELAYS")
TILINGS = KERNELS / "tilings.cpp"
REPORT = "WARNING: ThreadSanitizer: data race"


@cache
def why_not() -> str:
    """The reason why ThreadSanitizer cannot be used here; empty if it can."""
    try:
        tools = find_toolchain()
        run(
            [*tools.cxx, "-fsanitize=thread", "-x", "c++", "-", "-o", "/dev/null"], what="a trial", text="int main() {}"
        )
    except BuildError:
        return "the compiler has no ThreadSanitizer (libtsan)"
    return ""


# Every op reads what other blocks of its producers wrote, so that no sync line is there for nothing.
SCENARIOS: dict[str, tuple[list[Op], str]] = {
    "a chain of barriers": (
        [
            Op(small("mix", 4), ["a", "b", "t"]),
            Op(small("fold", 4), ["a", "t"]),
            Op(small("mix", 4), ["b", "a", "u"]),
            Op(small("mix", 4), ["t", "u", "b"]),
        ],
        "early-start=0",
    ),
    "early start": (
        [
            Op(small("mix", 4), ["a", "b", "t"]),
            Op(small("early", 4), ["t", "b", "u"]),
            Op(small("hasty", 4), ["u", "t"]),
            Op(small("seldom", 6), ["t", "a"]),
            Op(small("early", 4, early_start=("w",)), ["a", "u", "b"]),
        ],
        "",
    ),
    "counters": (
        [
            Op(small("mix", 4), ["a", "b", "t"]),
            Op(small("early", 4), ["t", "b", "u"]),
            Op(small("mix", 4), ["t", "u", "a"]),
        ],
        "",
    ),
    "sync_all that idle cores feed": (
        [
            Op(small("mix", 4), ["a", "b", "t"]),
            Op(small("total", 2), ["t", "ws", "u"]),
            Op(small("total", 3), ["u", "ws", "a"]),
            Op(small("mix", 4), ["a", "u", "b"]),
        ],
        "feed-sync-all=1",
    ),
    "flags between lanes": (
        [
            Op(small("chain", 1), ["a", "p"], stream=1),
            Op(small("chain", 1), ["b", "q"], stream=2),
            Op(small("mix", 1), ["q", "p", "r"], stream=2),
            Op(small("chain", 1), ["p", "s"], stream=1),
            Op(small("mix", 1), ["s", "r", "t"], stream=1),
            Op(small("mix", 1), ["r", "t", "u"], stream=2),
            Op(small("mix", 2), ["t", "u", "a"], stream=1),
            Op(small("blend", 2), ["u", "a", "u", "b"], stream=2),
        ],
        "stream-fusion=1",
    ),
    "a dynamic op whose cores may have no block": (
        [
            Op(small("mix", 4), ["a", "u", "s"]),
            Op(small("early", 4, early_start=True), ["b", "b", "u"], task="dynamic", tiling=lambda inputs: (0, 1)),
            Op(small("mix", 4), ["b", "s", "v"]),
        ],
        "",
    ),
    "events and a dynamic op": (
        [
            Op(small("mix", 4), ["a", "b", "t"], send=["begun"]),
            Op(small("mix", 4), ["t", "b", "u"], recv=["go"]),
            Op(small("gather", 4), ["u", "ws", "a"], task="dynamic", tiling=lambda inputs: (0, 1)),
            Op(small("mix", 4), ["a", "u", "t"]),
        ],
        "feed-sync-all=1",
    ),
    "a tiling function in C": (
        [
            Op(small("mix", 4), ["a", "b", "t"]),
            Op(small("twice", 4), ["t", "u"], task="dynamic", tiling=Tiling.from_source(TILINGS, "all_blocks")),
            Op(small("mix", 4), ["u", "t", "a"]),
        ],
        "",
    ),
}


# A statement of a lane that orders its core with others, in both forms of emitted code.
_PLAIN = ("signal", "signal_early", "notify", "reset_event", "request", "meet_in", "meeting_over")
_WAITING = ("wait", "wait_all", "wait_inside", "wait_inside_all", "barrier")
_CHECKED = (*_WAITING, "feed", "end_call", "await_event", "compute_tiling")
_PLAIN_LINE = re.compile(rf"( *)(core\.(?:{'|'.join(_PLAIN)})\(.*)")
_CHECKED_LINE = re.compile(rf"( *)if \(!(core\.(?:{'|'.join(_CHECKED)})\(.*)")
_ROW = re.compile(rf"( *\{{Do::)({'|'.join([*_PLAIN, *_CHECKED, 'feed_idle'])}), (\d+)(, .*)")
_LEFT_OUT = """#include <cstdlib>
static const char* const given = getenv("LEFT_OUT");
static const unsigned long long left_out = given == nullptr ? 0 : strtoull(given, nullptr, 10);
"""


def switchable(source: str) -> tuple[str, list[str]]:
    """The source with every sync line of its lanes in a condition: bit `n` of LEFT_OUT leaves out line `n`."""
    lanes, mark, rest = source.partition("// the whole plan on one core")
    found: list[str] = []
    lines = []
    for line in lanes.split("\n"):
        kept = f"(left_out >> {len(found)} & 1) == 0"
        changed = line
        if plain := _PLAIN_LINE.fullmatch(line):
            changed = f"{plain[1]}if ({kept}) {plain[2]}"
        elif checked := _CHECKED_LINE.fullmatch(line):
            changed = f"{checked[1]}if ({kept} && !{checked[2]}"
        elif row := _ROW.fullmatch(line):
            changed = f"{row[1]}{row[2]}, int16_t({kept} ? {row[3]} : INT16_MAX){row[4]}"
        if changed != line:
            found.append(line.strip().partition("  //")[0])
        elif line == "}":
            found.append("")  # the end of a lane
        lines.append(changed)
    include = "#include <superkernel/entry.h>\n"
    return "\n".join(lines).replace(include, f"{include}{_LEFT_OUT}", 1) + mark + rest, found


def lines_left_out_together(found: list[str]) -> dict[str, int]:
    """Line -> the bits of it and of the lines that stand in for it.

    A mark that may be signalled early is signalled at its step at the latest: both lines go. Stamps only rise, so a
    signal says what those before it say: what the core signals next, before it waits for another, goes too.
    """
    groups: dict[str, int] = {}
    for at, line in enumerate(found):
        group = 1 << at
        if _is(line, "signal", "signal_early"):
            for after in range(at + 1, len(found)):
                if not found[after] or _is(
                    found[after], "wait", "wait_all", "wait_inside", "wait_inside_all", "barrier"
                ):
                    break
                group |= (1 << after) * _is(found[after], "signal", "signal_early")
            operands = re.findall(r"\d+", line)
            group |= sum(
                1 << before
                for before in range(at)
                if _is(found[before], "signal_early") and re.findall(r"\d+", found[before]) == operands
            )
        if line:
            groups[f"{at}: {line}"] = group
    return groups


def _is(line: str, *words: str) -> bool:
    return re.search(rf"\b(?:core\.|Do::)(?:{'|'.join(words)})\b", line) is not None


@dataclass(frozen=True)
class Program:
    """An entry with all it calls as a program of its own, under the sanitizer."""

    path: Path
    lines: list[str]  # that can be left out

    def run(self, left_out: int = 0) -> subprocess.CompletedProcess[str]:
        settings = {"LEFT_OUT": str(left_out), "LAUNCHES": "30"}
        if left_out:  # the first sign is enough
            settings |= {"WATCHDOG": "0.7", "TSAN_OPTIONS": "halt_on_error=1"}
        done = execute(settings, str(self.path))
        if "unexpected memory mapping" in done.stderr and shutil.which("setarch"):
            done = execute(settings, "setarch", "-R", str(self.path))  # less randomisation of the address space
        if "unexpected memory mapping" in done.stderr:
            pytest.skip(f"ThreadSanitizer does not start here: {done.stderr.splitlines()[0]}")
        return done


@cache
def program(scenario: str, form: str, folder: Path) -> Program:
    if reason := why_not():
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emit, "TABLES_FROM", 0 if form == "tables" else 10**9)
        patch.setattr(numbering, "COUNTER_FROM", 2 if scenario == "counters" else 64)
        ops, options = SCENARIOS[scenario]
        with compile_ops(ops, "raced", options, 4) as kernel:
            source, lines = switchable(kernel.source)
            return Program(build(kernel, source, folder), lines)


def build(kernel: SuperKernel, source: str, folder: Path) -> Path:
    plan, numbered = kernel.plan, number(kernel.plan)
    assert isinstance(kernel._prepared, CpuPrepared)
    slots = numbered.slot_sources(plan)
    launched = [
        entry_name(kernel.name),
        plan.cores,
        len(numbered.rendezvous),
        sum(node.asks_agent for node in kernel.graph.nodes),
        len(numbered.tilings),
        list(kernel.graph.buffers).index("u") if numbered.tilings else 0,
        len(kernel.graph.buffers),
        len(kernel.graph.events),
        len(numbered.counters),
        len(slots),
        "slots",
    ]
    facts = (
        '#include "tsan.h"\n'
        f"static const int32_t slots[] = {{{', '.join(map(str, slots))}}};\n"
        f"const LaunchedEntry launched = {{{', '.join(map(str, launched))}}};\n"
    )
    (folder / "entry.cpp").write_text(f"{source}\n{facts}")
    objects = [
        compile_part(folder / "entry.cpp", [f"-I{KERNELS}"], folder),
        *shared_objects(next(iter(kernel._prepared.compiled.values())).object),
        *(tiling_object(function.symbols[0][1], function.object) for function in kernel._prepared.tilings.values()),
    ]
    program = folder / "program"
    run([*find_toolchain().cxx, *FLAGS, *map(str, objects), "-lpthread", "-o", str(program)], what="linking")
    return program


def execute(settings: Mapping[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **settings}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env)


def compile_part(source: Path, flags: list[str], folder: Path) -> Path:
    made = folder / f"{source.stem}.o"
    run([*find_toolchain().cxx, *FLAGS, *flags, "-c", str(source), "-o", str(made)], what=f"compiling {source}")
    return made


def shared_objects(small_object: Path) -> list[Path]:
    """The run time, and the sub-kernels under the names by which emitted code calls them; kept for other processes."""
    renamed = [f"-D{symbol}={unique_name(symbol, small_object)}" for symbol in REFERENCE]
    parts = sorted(path for path in HOST.glob("*.cpp") if path.stem not in ("bind", "values"))  # what Python calls
    jobs = [CompileJob(part, FLAGS) for part in (*parts, KERNELS / "tsan.cpp")]
    jobs += [CompileJob(KERNELS / "small.cpp", (*FLAGS, *renamed))]
    return compile_sources(jobs, find_toolchain(), Cache(), (INCLUDE, HOST))


def tiling_object(symbol: str, plain_object: Path) -> Path:
    """tilings.cpp for the sanitizer, with a function under the name by which emitted code calls it."""
    job = CompileJob(TILINGS, (*FLAGS, f"-D{symbol}={unique_name(symbol, plain_object)}"))
    (found,) = compile_sources([job], find_toolchain(), Cache(), (INCLUDE, HOST))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sanitized")


def folder_of(folder: Path, scenario: str, form: str) -> Path:
    made = folder / f"{scenario} {form}"
    made.mkdir(exist_ok=True)
    return made


@pytest.mark.parametrize(
    "scenario",
    [
        "counters",
        *(
            pytest.param(name, marks=pytest.mark.conformance)
            for name in ("early start", "sync_all that idle cores feed")
        ),
    ],
)
def test_tables_are_free_of_races(scenario: str, folder: Path) -> None:
    """One scenario with each kind of row that waits. The rows call the functions that the lines call."""
    assert_free_of_races(program(scenario, "tables", folder_of(folder, scenario, "tables")).run())


def assert_free_of_races(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0 and done.stdout.startswith("launched"), done.stderr
    assert "ThreadSanitizer" not in done.stderr


# Needed only by cores that got no block of a call, and by launches that are stopped.
NOTHING_TO_END = re.compile(r"end_call")
CORES_WITHOUT_A_BLOCK = "a dynamic op whose cores may have no block"
SELDOM = ("a chain of barriers", "events and a dynamic op", "a tiling function in C")  # in make conformance


@pytest.mark.parametrize("scenario", sample(sorted(SCENARIOS, key=SELDOM.__contains__), len(SCENARIOS) - len(SELDOM)))
def test_lines_are_free_of_races_and_every_sync_line_that_is_left_out_is_noticed(scenario: str, folder: Path) -> None:
    """By a race that the sanitizer reports, by a launch that stalls or fails, or by other results."""
    sanitized = program(scenario, "lines", folder_of(folder, scenario, "lines"))
    sound = sanitized.run()
    assert_free_of_races(sound)
    groups = {
        line: left_out
        for line, left_out in lines_left_out_together(sanitized.lines).items()
        if scenario == CORES_WITHOUT_A_BLOCK or not NOTHING_TO_END.search(line)
    }
    with ThreadPoolExecutor(8) as pool:  # most of them stall, which takes time and no processor
        runs = dict(zip(groups, pool.map(sanitized.run, groups.values()), strict=True))
    unseen = [
        line
        for line, done in runs.items()
        if REPORT not in done.stderr and done.returncode == 0 and done.stdout == sound.stdout
    ]
    assert unseen == []
