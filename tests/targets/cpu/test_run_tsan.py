"""targets.cpu: ThreadSanitizer on the emitted entry, the run time and the sub-kernels, on plain threads."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from targets.cpu.small import KERNELS, REFERENCE, compile_ops, small, without

from superkernel import Op, SuperKernel, Tiling
from superkernel.cache import Cache
from superkernel.errors import BuildError
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


SCENARIOS: dict[str, tuple[list[Op], str]] = {
    "a chain of barriers": (
        [
            Op(small("mix", 4), ["a", "b", "t"]),
            Op(small("fold", 4), ["t", "a"]),
            Op(small("mix", 4), ["t", "b", "u"]),
            Op(small("mix", 4), ["u", "t", "a"]),
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
            Op(small("chain", 1), ["b", "q"], stream=2, send=["q"]),
            Op(small("chain", 1), ["p", "r"], stream=1),
            Op(small("chain", 1), ["q", "s"], stream=1, recv=["q"]),
            Op(small("mix", 2), ["r", "s", "a"], stream=1),
            Op(small("mix", 2), ["a", "q", "b"], stream=2),
        ],
        "stream-fusion=1",
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


def sanitized(kernel: SuperKernel, source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The entry with all it calls as a program of its own, run under the sanitizer."""
    plan, numbered = kernel.plan, number(kernel.plan)
    assert isinstance(kernel._prepared, CpuPrepared)
    facts = {
        "ENTRY": entry_name(kernel.name),
        "CORES": plan.cores,
        "RENDEZVOUS": len(numbered.rendezvous),
        "TILINGS": sum(node.asks_agent for node in kernel.graph.nodes),
        "DYNAMIC": len(numbered.tilings),
        "BUFFERS": len(kernel.graph.buffers),
        "EVENTS": len(kernel.graph.events),
        "TILING_READS": list(kernel.graph.buffers).index("u") if numbered.tilings else 0,
        "SLOTS": ",".join(map(str, numbered.slot_sources(plan))),
    }
    (folder / "entry.cpp").write_text(source)
    objects = [
        compile_part(folder / "entry.cpp", [], folder),
        compile_part(KERNELS / "tsan.cpp", [f"-D{name}={fact}" for name, fact in facts.items()], folder),
        *shared_objects(next(iter(kernel._prepared.compiled.values())).object),
        *(tiling_object(function.symbols[0][1], function.object) for function in kernel._prepared.tilings.values()),
    ]
    program = folder / "program"
    run([*find_toolchain().cxx, *FLAGS, *map(str, objects), "-lpthread", "-o", str(program)], what="linking")
    done = execute(str(program))
    if "unexpected memory mapping" in done.stderr and shutil.which("setarch"):
        done = execute("setarch", "-R", str(program))  # more address space randomisation than the sanitizer can take
    return done


def execute(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def compile_part(source: Path, flags: list[str], folder: Path) -> Path:
    made = folder / f"{source.stem}.o"
    run([*find_toolchain().cxx, *FLAGS, *flags, "-c", str(source), "-o", str(made)], what=f"compiling {source}")
    return made


def shared_objects(small_object: Path) -> list[Path]:
    """The run time, and the sub-kernels under the names by which emitted code calls them; kept for other processes."""
    renamed = [f"-D{symbol}={unique_name(symbol, small_object)}" for symbol in REFERENCE]
    parts = ("agent", "formation", "launch", "report", "watchdog")
    jobs = [CompileJob(HOST / f"{part}.cpp", FLAGS) for part in parts]
    jobs += [CompileJob(KERNELS / "small.cpp", (*FLAGS, *renamed))]
    return compile_sources(jobs, find_toolchain(), Cache(), (INCLUDE, HOST))


def tiling_object(symbol: str, plain_object: Path) -> Path:
    """tilings.cpp for the sanitizer, with a function under the name by which emitted code calls it."""
    job = CompileJob(TILINGS, (*FLAGS, f"-D{symbol}={unique_name(symbol, plain_object)}"))
    (found,) = compile_sources([job], find_toolchain(), Cache(), (INCLUDE, HOST))
    return found


def sanitize(ops: list[Op], options: str, folder: Path, edit: Callable[[str], str]) -> subprocess.CompletedProcess[str]:
    if reason := why_not():
        pytest.skip(reason)
    with compile_ops(ops, "raced", options, 4) as k:
        done = sanitized(k, edit(k.source), folder)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip(f"ThreadSanitizer does not start here: {done.stderr.splitlines()[0]}")
    return done


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_race_is_reported(scenario: str, tmp_path: Path) -> None:
    done = sanitize(*SCENARIOS[scenario], tmp_path, lambda source: source)
    assert (done.returncode, done.stdout) == (0, "launched\n"), done.stderr
    assert "ThreadSanitizer" not in done.stderr


FAULTS = {
    "a dropped wait": ("early start", r"core\.wait_inside\("),
    "a removed barrier": ("a chain of barriers", r"core\.barrier\("),
    "a dropped flag": ("flags between lanes", r"core\.wait\("),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_race_is_reported(fault: str, tmp_path: Path) -> None:
    """The check above can fail."""
    scenario, pattern = FAULTS[fault]
    assert REPORT in sanitize(*SCENARIOS[scenario], tmp_path, without(pattern)).stderr
