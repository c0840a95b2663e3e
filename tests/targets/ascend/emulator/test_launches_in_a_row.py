"""Launches in a row: each begins with the words, areas and flags that the one before left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.ascend.device_lists import DeviceKernel, Entry, write_list

import superkernel as sk
from superkernel.errors import LaunchError
from superkernel.targets.ascend import TARGET
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.emulator import Emulation, Outside, emulate
from superkernel.targets.ascend.executable import AscendExecutable
from superkernel.targets.protocol import LaunchInputs

VEC = DeviceKernel("vec", KernelType.AIV_ONLY, 6, ("in:x", "out:y"))
CUBE = DeviceKernel("cube", KernelType.AIC_ONLY, 4, ("in:x", "inout:y"))
TILED = DeviceKernel("tiled", KernelType.AIV_ONLY, 6, ("in:x", "out:y"), keys=(1, 7))
MEETS = DeviceKernel("meets", KernelType.AIV_ONLY, 3, ("in:x", "out:y"), sync_all=True)
EVERYTHING = (
    Entry(VEC, ("a", "b"), send=(5,)),
    Entry(CUBE, ("b", "c"), recv=(6,)),
    Entry(TILED, ("c", "d")),
    Entry(MEETS, ("d", "e")),
)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sk.SuperKernel]:
    """Events both ways, a tiling, control words, time stamps, a buffer that is read and written."""
    options = "feed-sync-all=1:profiling=1:prefetch-weights=1"
    described = TARGET.read_ops(write_list(tmp_path_factory.mktemp("row"), EVERYTHING, options))
    with sk.compile(described.ops, "row", described.options, "ascend") as compiled:
        yield compiled


def launch(kernel: sk.SuperKernel, source: str, launches: int) -> Emulation:
    """The kernel with another text."""
    executable = kernel.executable
    assert isinstance(executable, AscendExecutable) and source != executable.source
    emitted = replace(executable.emitted, source=source)
    graph, options = executable.plan.graph, executable.plan.options
    return emulate(emitted, graph, {}, LaunchInputs({}, {}), seed=1, launches=launches, stand_ins=True, options=options)


def test_a_kernel_runs_again_and_again(kernel: sk.SuperKernel) -> None:
    c = np.arange(256, dtype=np.int32)
    once = kernel.emulate({"c": c.copy()}, seed=4)["e"]
    for seed in range(3):
        kernel.emulate({}, seed=seed, launches=3)
    again = c.copy()
    assert np.array_equal(kernel.emulate({"c": again}, seed=4, launches=2)["e"], once)
    kernel.emulate({"c": c}, seed=4)
    assert np.array_equal(again, c)  # what an op reads and writes is passed again to each launch


@pytest.mark.parametrize(
    ("ending", "word"), [("recv_6", "event 6"), ("lock", "the lock of op 'tiled_2'")], ids=["event", "lock"]
)
def test_a_word_that_is_not_reset_is_found_by_the_second_launch(kernel: sk.SuperKernel, ending: str, word: str) -> None:
    executable = kernel.executable
    assert isinstance(executable, AscendExecutable)
    [slot] = [slot.index for slot in executable.emitted.layout if slot.name.endswith(ending)]
    source = kernel.source.replace(f"sk_publish(word(slots, {slot}), 0);", ";")
    with pytest.raises(LaunchError, match=rf"launch 2: {word} is \d at the begin: the launch before did not reset it"):
        launch(kernel, source, 2)
    with pytest.raises(LaunchError, match=rf"{word} is \d at the end, a second launch would go wrong"):
        launch(kernel, source, 1)


def test_flags_that_are_left_set_are_found_by_the_second_launch(kernel: sk.SuperKernel) -> None:
    head, _, tail = kernel.source.rpartition("}")  # of the entry
    source = f"{head}if constexpr (on_vector) ffts_cross_core_sync(PIPE_MTE3, arrive_vectors);\n}}{tail}"
    with pytest.raises(LaunchError, match=r"launch 2: flags are set at the begin: the launch before left them so"):
        launch(kernel, source, 2)
    with pytest.raises(LaunchError, match=r"flags are left set at the end, a second launch would go wrong"):
        launch(kernel, source, 1)


def test_a_kernel_that_remembers_computes_something_else(tmp_path: Path) -> None:
    source = tmp_path / "counts.cpp"
    source.write_text(
        "#include <superkernel/host_kernel.h>\n"
        'extern "C" void counts(uint64_t first_slot) {\n'
        "    static int32_t launches = 0;\n"
        "    int32_t number = ++launches;\n"
        "    sk::buffer<int32_t>(first_slot, 0).copy_out(&number, 1);\n}\n"
    )
    counts = sk.SubKernel.from_source(source, "counts", block_dim=1, params=["out:y:int32[1]"], core="vector")
    with sk.compile([sk.Op(counts, ["y"])], "counting", target="ascend") as k:
        assert k.emulate({})["y"][0] == 1
        with pytest.raises(LaunchError, match="a second launch with the same buffers leaves other bytes in buffer 'y'"):
            k.emulate({}, launches=2)


@pytest.mark.parametrize("launches", [0, True, 1.5, "2", 1001])
def test_a_wrong_number_of_launches(kernel: sk.SuperKernel, launches: Any) -> None:
    with pytest.raises(LaunchError, match=r"launches is .*; a whole number from 1 to 1000 is needed"):
        kernel.emulate({}, launches=launches)


def test_events_that_the_host_sets_are_for_one_launch(tmp_path: Path) -> None:
    source = tmp_path / "waits.cpp"
    source.write_text(
        "#include <superkernel/host_kernel.h>\n"
        'extern "C" void waits(uint64_t first_slot) {\n'
        "    int32_t one = 1;\n    sk::buffer<int32_t>(first_slot, 0).copy_out(&one, 1);\n}\n"
    )
    waits = sk.SubKernel.from_source(source, "waits", block_dim=1, params=["out:y:int32[1]"], core="vector")
    ops = [sk.Op(waits, ["x"]), sk.Op(waits, ["y"], recv=["go"])]
    with sk.compile(ops, "waiting", target="ascend") as k:
        with pytest.raises(LaunchError, match=r"launches=2: the host sets event go .*outside=\[Outside\('go'\)\]"):
            k.emulate({}, launches=2, events={"go": sk.Event("go")})
        assert k.emulate({}, launches=2, outside=[Outside("go")])["y"][0] == 1
