"""targets.cpu: debug-check=1: every access that a sub-kernel did not declare is named; without one nothing changes."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured import sample
from targets.cpu.small import KERNELS, N, assert_same, compile_ops, numbers, small

import superkernel as sk
from superkernel import LaunchError, Op, Place, SubKernel, SuperKernel
from superkernel.cache import Cache
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.native.objects import compile_source
from superkernel.targets.native.toolchain import find_toolchain

pytestmark = pytest.mark.slow

SOURCE = KERNELS / "accesses.cpp"
ARRAY = f"int64[{N}]"
PARTS = (f"in:x:{ARRAY}@block", f"out:z:{ARRAY}@block", f"workspace:w:{ARRAY}@block", "scalar:mistake")
WHOLE = (f"in:x:{ARRAY}", f"out:z:{ARRAY}", f"in:w:{ARRAY}", "scalar:mistake")
NEXT = (f"in:x:{ARRAY}", f"out:z:{ARRAY}")


def kernel(name: str, params: tuple[str, ...] = PARTS, blocks: int = 2, **more: Any) -> SubKernel:
    flags = ["-O2", "-D_FORTIFY_SOURCE=2"]  # as some compilers have it unasked: memcpy becomes __memcpy_chk
    return SubKernel.from_source(SOURCE, name, block_dim=blocks, params=params, flags=flags, **more)


@cache
def checked(name: str = "part", cores: int = 2) -> SuperKernel:
    """The scalar is passed with the launch: one build serves all mistakes."""
    params = WHOLE if name == "early" else PARTS
    early = {"early_start": ["w"]} if name == "early" else {}
    ops = [
        Op(kernel("next", NEXT), ["a", "t"], name="before"),
        Op(kernel(name, params, **early), ["t", "z", "w", "mistake"], name="checked"),
        Op(kernel("next", NEXT), ["z", "u"], name="after"),
    ]
    return compile_ops(ops, "check", "debug-check=1", cores)


def launch(k: SuperKernel, mistake: int) -> dict[str, Any]:
    given = {**numbers("a", "w", "z"), "mistake": mistake}
    return {**given, **k(given)}


# number, size, offset, what; block 1 of 2 has bytes 192 to 384 of 384
MISTAKES = [
    (1, "reads 8 bytes at offset 384 of parameter 'x'", "outside of its 384 bytes"),
    (2, "reads 8 bytes at offset -8 of parameter 'x'", "outside of its 384 bytes"),
    (3, "reads 8 bytes at offset 184 of parameter 'x'", "outside of the part of this block, bytes 192 to 384"),
    (4, "writes 8 bytes at offset 208 of parameter 'x'", "which it only reads"),
    (5, "writes 8 bytes at offset 384 of parameter 'z'", "outside of its 384 bytes"),
    (6, "writes 8 bytes at offset 0 of parameter 'z'", "outside of the part of this block, bytes 192 to 384"),
    (9, "reads 24 bytes at offset 368 of parameter 'w'", "outside of its 384 bytes"),
    (10, "writes 17 bytes at offset 368 of parameter 'z'", "outside of its 384 bytes"),
    (11, "bytes at offset 384 of parameter 'z'", "outside of its 384 bytes"),
    (12, "writes 32 bytes at offset 360 of parameter 'z'", "outside of its 384 bytes"),
    (13, "writes 1 bytes at offset 384 of parameter 'z'", "outside of its 384 bytes"),
    (14, "writes 8 bytes at offset 192 of parameter 'x'", "which it only reads"),
    (16, "writes 32 bytes at offset 360 of parameter 'z'", "outside of its 384 bytes"),
]


@pytest.mark.parametrize("cores", (2, 1))
def test_a_launch_without_a_mistake_gives_the_same(cores: int) -> None:
    k = checked(cores=cores)
    for _ in range(3):
        result = launch(k, 0)
        t = numbers("a")["a"][::-1] + 1
        np.testing.assert_array_equal(result["z"], t + 1)
        np.testing.assert_array_equal(result["u"], (t + 1)[::-1] + 1)


@pytest.mark.parametrize("cores", sample((2, 1)))
@pytest.mark.parametrize(("mistake", "what", "why"), MISTAKES)
def test_every_mistake_is_named(mistake: int, what: str, why: str, cores: int) -> None:
    given = {**numbers("a", "w", "z"), "mistake": mistake}
    with pytest.raises(LaunchError) as raised:
        checked(cores=cores)(given)
    message = str(raised.value)
    assert message.startswith("super_kernel_scope 'check': op 'checked': debug-check: block 1 of 2 "), message
    assert what in message and why in message, message
    for name, array in numbers("a", "w", "z").items():
        np.testing.assert_array_equal(given[name], array)  # nothing was copied back
    launch(checked(cores=cores), 0)  # the next launch works


@pytest.mark.parametrize(("mistake", "did"), [(15, "reads"), (17, "reads"), (18, "writes")])
def test_far_away_from_every_buffer(mistake: int, did: str) -> None:
    """An index that is off by up to 2^31: the access is refused before it crashes."""
    with pytest.raises(
        LaunchError, match=rf"op 'checked': debug-check: block 1 of 2 {did} 8 bytes at offset -?\d+ of par"
    ):
        launch(checked(), mistake)
    launch(checked(), 0)


@pytest.mark.parametrize(("mistake", "parameter"), [(7, "z"), (8, "w")])
def test_what_the_op_has_not_written_must_not_be_read(mistake: int, parameter: str) -> None:
    with pytest.raises(LaunchError, match=rf"offset (24|216) of parameter '{parameter}' .*has not written before"):
        launch(checked("unwritten"), mistake)
    launch(checked("unwritten"), 0)


@pytest.mark.parametrize("cores", (2, 1))
@pytest.mark.parametrize(
    ("mistake", "what"),
    [
        (
            1,
            r"reads 8 bytes at offset \d+ of parameter 'x' .*before wait_previous\(\), and early_start does not name",
        ),
        (2, r"writes 8 bytes at offset \d+ of parameter 'z' .*before wait_previous\(\)"),
        (3, r"writes 8 bytes at offset \d+ of parameter 'z' .*after set_next\(\)"),
    ],
)
def test_accesses_before_the_wait_and_after_the_signal(mistake: int, what: str, cores: int) -> None:
    with pytest.raises(LaunchError, match=what):
        launch(checked("early", cores), mistake)
    launch(checked("early", cores), 0)


def test_a_part_of_a_buffer_ends_where_its_type_ends() -> None:
    """12 numbers at byte 80: the memory behind them is there, and belongs to another part."""
    short = kernel("next", (f"in:x:{ARRAY}", "out:z:int64[12]"), 1)
    ops = [Op(short, ["x", Place("m", 80)])]
    with compile_ops(ops, "places", "debug-check=1") as k, pytest.raises(LaunchError) as raised:
        k({**numbers("x"), "m": np.zeros(100, np.int64)})
    assert "op 'next': debug-check: block 0 of 1 writes 8 bytes at offset 96 of parameter 'z'" in str(raised.value)
    untyped = kernel("next", (f"in:x:{ARRAY}", "out:z"), 1)
    with compile_ops([Op(untyped, ["x", Place("m", 80)])], "places", "debug-check=1") as k:
        k({**numbers("x"), "m": np.zeros(58, np.int64)})
        with pytest.raises(LaunchError, match=r"offset 376 of parameter 'z' .*outside of its 376 bytes"):
            k({**numbers("x"), "m": np.zeros(57, np.int64)})


@pytest.fixture(scope="module")
def compiled() -> Path:
    return compile_source(SOURCE, (), find_toolchain(), Cache(), (INCLUDE,))


def test_what_cannot_be_checked_is_said(compiled: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = SubKernel.from_object(compiled, "part", block_dim=2, params=PARTS)
    ops = [Op(given, ["x", "z", "w", 6], name="object"), Op(kernel("next", NEXT), ["z", "u"])]
    sentence = "debug-check: sub-kernel 'part' is given as an object: its accesses are not checked"
    with caplog.at_level(logging.WARNING, "superkernel"):
        for _ in range(2):
            with compile_ops(ops, "objects", "debug-check=1") as k:
                assert sentence in str(k.plan) and list(k.executable.remarks) == [sentence]
                k(numbers("x", "w"))
    assert [record.getMessage() for record in caplog.records].count(sentence) <= 1
    with compile_ops(ops, "objects") as k:
        assert sentence not in str(k.plan)


@pytest.mark.parametrize(
    "options", sample(("stream-fusion=1:profiling=1", "", "early-start=0:split-mode=2", "debug-replay=1"))
)
def test_kernels_without_mistakes_run_under_every_option(options: str) -> None:
    ops = [
        Op(small("late", 4), ["a", "t", 10]),
        Op(small("early", 4, early_start=("w",)), ["t", "b", "u"]),
        Op(small("chain", 1), ["u", "v"]),
        Op(small("mix", 4), ["v", "a", "w"]),
        Op(small("fold", 3), ["v", "w"]),
        Op(small("total", 2), ["v", "p", "y"]),
    ]
    with compile_ops(ops, "sound", ":".join(filter(None, ["debug-check=1", options]))) as k:
        assert_same(k, numbers("a", "b"))


def test_replicated_ops_are_checked_in_their_copies() -> None:
    pure = kernel("next", NEXT, 1, pure=True)
    ops = [Op(pure, ["a", "t"]), Op(kernel("next", NEXT, 2), ["t", "u"]), Op(kernel("next", NEXT, 2), ["t", "v"])]
    with compile_ops(ops, "copied", "debug-check=1") as k:
        assert k.plan.copies
        result = k(numbers("a"))
        np.testing.assert_array_equal(result["u"], numbers("a")["a"] + 2)
        np.testing.assert_array_equal(result["v"], result["u"])


def test_a_dynamic_op_and_its_tiling_see_what_was_written() -> None:
    seen: list[int] = []

    def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
        seen.append(int(inputs["t"][0]))
        return (2, 2)

    dynamic = small("twice", 4, variants={2: "twice", 3: "thrice"})
    ops = [Op(small("late", 4), ["a", "t", 5]), Op(dynamic, ["t", "z"], task="dynamic", tiling=tiling)]
    with compile_ops(ops, "chosen", "debug-check=1:debug-watchdog=200") as k:
        given = numbers("a", "z")
        before = given["z"].copy()
        k(given)
        np.testing.assert_array_equal(given["z"], before + 2 * (9 * given["a"] + 4))
        assert seen == [9 * int(given["a"][0]) + 4]


def test_a_saved_kernel_checks_too(tmp_path: Path) -> None:
    checked().save(tmp_path / "saved")
    with sk.load(tmp_path / "saved") as k:
        with pytest.raises(
            LaunchError, match="debug-check: block 1 of 2 writes 8 bytes at offset 384 of parameter 'z'"
        ):
            launch(k, 5)
        launch(k, 0)
