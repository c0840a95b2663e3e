"""targets.cpu: faults planted in emitted code and in the run time: comparison with numpy, or the watchdog, finds each.

That is what makes the other tests worth something: a missing wait, signal, barrier or reset does not pass them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from targets.cpu.small import assert_same, compile_ops, differs, launched, numbers, planted, small, without

from superkernel import LaunchError, Op, SuperKernel
from superkernel.cache import Cache
from superkernel.targets.cpu import build
from superkernel.targets.cpu.build import HOST, INCLUDE
from superkernel.targets.cpu.runtime.launch import DELAYS
from superkernel.targets.native.objects import CompileJob, compile_sources
from superkernel.targets.native.toolchain import find_toolchain, run

pytestmark = pytest.mark.slow

LAUNCHES = 300
SPIN = 20_000


@pytest.fixture(autouse=True, scope="module")
def delays() -> Iterator[None]:
    """Every step of every launch may be late, by an amount that a seed decides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DELAYS, "7")
        yield


def three_ops(name: str, options: str = "", consumer: str = "mix") -> SuperKernel:
    """A producer with a late block, a consumer that reads across blocks, and one more."""
    args = {"mix": ["t", "b", "u"], "early": ["t", "b", "u"], "hasty": ["t", "u"]}[consumer]
    ops = [Op(small("late"), ["a", "t", SPIN]), Op(small(consumer), args), Op(small("mix"), ["u", "t", "v"])]
    return compile_ops(ops, name, f"{options}:debug-watchdog=20")


def test_the_delays_are_compiled_in_and_change_nothing() -> None:
    with three_ops("sane") as k:
        assert "-DSK_TEST_DELAYS" in "\n".join(k.executable.commands)
        assert_same(k, numbers("a", "b"), launches=LAUNCHES)


FAULTS: dict[str, tuple[str, str, str]] = {
    "a dropped wait": ("", "mix", r"core\.wait\("),
    "a dropped wait inside": ("", "early", r"core\.wait_inside\("),
    "a removed barrier": ("early-start=0", "mix", r"core\.barrier\("),
    "a dropped wait behind a hasty kernel": ("", "hasty", r"core\.wait_inside\("),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_results_give_away(fault: str) -> None:
    options, consumer, pattern = FAULTS[fault]
    with three_ops("faulty", options, consumer) as k:
        assert not differs(k, numbers("a", "b"), 20)
        with planted(k, without(pattern)) as faulty:
            assert differs(faulty, numbers("a", "b"), LAUNCHES)


def test_results_give_away_two_swapped_stamps() -> None:
    """The producer signals what only the op after it may: its consumer's consumer goes ahead too early."""

    def swap(source: str) -> str:
        first, second = re.findall(r"core\.signal\((\d+)\);", source)[:2]
        swapped = {first: second, second: first}
        return re.sub(r"core\.signal\((\d+)\);", lambda m: f"core.signal({swapped.get(m[1], m[1])});", source)

    mix, late, chain = small("mix"), small("late"), small("chain", 1)
    ops = [
        Op(chain, ["a", "s"], stream=1),
        Op(late, ["a", "t", SPIN], stream=1),
        Op(mix, ["s", "t", "u"], stream=1),
        Op(mix, ["t", "u", "v"], stream=1),
    ]
    with compile_ops(ops, "swapped", "debug-watchdog=5") as k, planted(k, swap) as faulty:
        assert not differs(k, numbers("a", "b"), 20)
        try:
            assert differs(faulty, numbers("a", "b"), LAUNCHES)
        except LaunchError as error:
            assert "stalled in waits" in str(error)


def test_a_launch_that_ends_gives_away_an_event_that_is_not_waited_for() -> None:
    ops = [Op(small("late"), ["a", "t", 10]), Op(small("mix"), ["t", "b", "u"], recv=["never"])]
    with compile_ops(ops, "gateless", "debug-watchdog=3") as k, planted(k, without(r"core\.await_event\(")) as faulty:
        with pytest.raises(LaunchError, match="wait for event never"):
            k(numbers("a", "b"))
        faulty(numbers("a", "b"))


def test_the_words_give_away_an_event_that_is_not_reset() -> None:
    ops = [Op(small("scale"), ["a", "t"]), Op(small("mix"), ["t", "a", "u"], recv=["go"])]
    with compile_ops(ops, "resetless") as k, planted(k, without(r"core\.reset_event\(")) as faulty:
        for kernel, left in ((k, False), (faulty, True)):
            kernel.events["go"].set()
            launched(kernel, kernel, numbers("a"))
            assert kernel.events["go"].is_set() == left


def test_the_second_launch_gives_away_a_run_time_that_does_not_reset(tmp_path: Path) -> None:
    """Stamps of the first launch would let every wait of the second one through."""
    host = host_without(tmp_path, r"running\.progress\[core\]\.stamp\.store\(0[^;]*;")
    with three_ops("unreset") as k, planted(k, lambda source: source, host) as faulty:
        assert not differs(k, numbers("a", "b"), 20)
        assert not differs(faulty, numbers("a", "b"), 1)
        assert differs(faulty, numbers("a", "b"), LAUNCHES)


STALLS: dict[str, tuple[list[Op], str, str]] = {
    "a dropped signal": (
        [Op(small("late"), ["a", "t", 10]), Op(small("mix"), ["t", "b", "u"])],
        "",
        r"core\.signal\(",
    ),
    "a core that is not fed": (
        [Op(small("mix"), ["a", "b", "t"]), Op(small("total", 1), ["t", "ws", "u"])],
        "feed-sync-all=1",
        r"core\.feed\(",
    ),
    "a core that misses a barrier": (
        [Op(small("mix"), ["a", "b", "t"]), Op(small("mix"), ["t", "a", "u"])],
        "early-start=0",
        r"core\.barrier\(",
    ),
    "a tiling that is never asked for": (
        [Op(small("twice", 2), ["a", "z"], task="dynamic", tiling=lambda inputs: (0, 2))],
        "",
        r"core\.request\(",
    ),
}


@pytest.mark.parametrize("fault", STALLS)
def test_the_watchdog_gives_away(fault: str) -> None:
    ops, options, pattern = STALLS[fault]
    edit = without(pattern)
    if "misses" in fault:
        edit = lambda source: edited(source, r"if \(!core\.barrier", "if (core.id() == 0 && !core.barrier")  # noqa: E731
    with compile_ops(ops, "mute", f"{options}:debug-watchdog=2") as k, planted(k, edit) as faulty:
        arrays = numbers("a", "b", "z")
        given = {name: arrays.get(name, np.zeros(48, np.int64)) for name in k.graph.buffers}
        k(given)
        with pytest.raises(LaunchError, match=r"super_kernel_scope 'mute': no progress .*stalled in waits"):
            faulty(given)
        k(given)


def test_replay_gives_away_a_dropped_wait_and_names_the_op() -> None:
    with three_ops("replayed", "debug-replay=1") as k:
        for _ in range(5):
            k(numbers("a", "b"))
        with planted(k, without(r"core\.wait\(")) as faulty:
            with pytest.raises(LaunchError) as told:
                for _ in range(LAUNCHES):
                    faulty(numbers("a", "b"))
            assert re.search(r"'replayed': debug-replay: op '(mix|mix_1)' is the first whose output", str(told.value))


def edited(text: str, pattern: str, replacement: str) -> str:
    changed = re.sub(pattern, replacement, text)
    assert changed != text, f"nothing matches {pattern}"
    return changed


def host_without(folder: Path, pattern: str) -> Path:
    """The host library without what matches in running_state.cpp."""
    changed, output, tools = folder / "running_state.cpp", folder / "host.so", find_toolchain()
    changed.write_text(edited((HOST / "running_state.cpp").read_text(), pattern, ""))
    sources = [changed, *(path for path in HOST.glob("*.cpp") if path.name != changed.name)]
    jobs = [CompileJob(path, build._HOST_FLAGS, keyed_by_text=True) for path in sources]  # the others are in the cache
    objects = compile_sources(jobs, tools, Cache(), (INCLUDE, HOST))
    run([*tools.cxx, "-shared", "-fPIC", *map(str, objects), "-lpthread", "-o", str(output)], what="a host library")
    return output
