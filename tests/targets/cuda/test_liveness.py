"""targets.cuda.liveness and bfloat_pairs: registers that would live from task to task in the loop of a super kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from targets.cuda.written_kernels import PtxFolder

from superkernel.targets.cuda.basic_blocks import ControlFlowGraph, control_flow
from superkernel.targets.cuda.bfloat_pairs import BfloatPairs, find_bfloat_pairs
from superkernel.targets.cuda.liveness import places_to_clear, unwritten_registers
from superkernel.targets.cuda.reader import read_ptx_file
from superkernel.targets.cuda.rewrite import BodyShape, rewrite


class Entries:
    """Reads the entry that a text makes."""

    def __init__(self, folder: Path) -> None:
        self.files = PtxFolder(folder)

    def graph(self, code: str) -> ControlFlowGraph:
        kernel = self.files.kernel("k", code, ["in:x", "out:y", "scalar:n"])
        module = read_ptx_file(kernel.binary.path)
        self.module, self.entry = module, module.entry("k")
        assert self.entry is not None
        return control_flow(self.entry, module.origin)

    def body(self, code: str) -> list[str]:
        self.graph(code)
        assert self.entry is not None
        made = rewrite(self.entry, self.module, BodyShape((128, 1, 1), 0, True), "k", "k", (), {})
        return [line.strip() for line in made.lines]

    def cleared(self, code: str) -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
        first, before = places_to_clear(self.graph(code))
        return first, [(str(instruction), names) for instruction, names in before.items()]

    def pairs(self, code: str) -> BfloatPairs:
        return find_bfloat_pairs(self.graph(code))


@pytest.fixture
def entries(tmp_path: Path) -> Entries:
    return Entries(tmp_path)


LOAD = "setp.ne.u32 %p1, %r9, 0; @%p1 ld.global.u32 %r1, [%rd1]; add.u32 %r2, %r1, 1; st.global.u32 [%rd1], %r2;"
GUARDED = f"{LOAD} ret;"
DEFINED = "mov.u32 %r9, %tid.x; mov.u64 %rd1, 0;"


def test_a_guarded_load_is_cleared_right_before_it(entries: Entries) -> None:
    assert "%r1" in unwritten_registers(entries.graph(DEFINED + GUARDED))
    assert entries.cleared(DEFINED + GUARDED) == ((), [("@%p1 ld.global.u32 %r1, [%rd1];", ("%r1",))])
    lines = entries.body(DEFINED + GUARDED)
    assert lines[lines.index("@%p1 ld.global.u32 %r1, [%rd1];") - 1] == "mov.b32 %r1, 0;"


def test_in_a_loop_the_value_of_the_turn_before_is_kept(entries: Entries) -> None:
    """The register is cleared where the entry begins: a guarded load of a later turn may leave it as it was."""
    code = DEFINED + (f"$turn: {LOAD}add.u32 %r9, %r9, 1; setp.lt.u32 %p2, %r9, 9; @%p2 bra $turn; ret;")
    assert entries.cleared(code) == (("%r1",), [])
    lines = entries.body(code)
    assert lines.index("mov.b32 %r1, 0;") < lines.index("mov.u32 %r9, %sk_thread;")


def test_a_register_that_another_block_may_have_written_is_not_cleared_there(entries: Entries) -> None:
    code = DEFINED + (
        "setp.ne.u32 %p1, %r9, 0; @%p1 bra $other; mov.u32 %r1, 7; bra $load; $other: mov.u32 %r3, 1;"
        "$load: @%p1 ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1; ret;"
    )
    assert entries.cleared(code) == (("%r1",), [])


def test_what_every_path_writes_is_not_cleared(entries: Entries) -> None:
    code = DEFINED + "mov.u32 %r1, 0; @%p1 ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1; ret;"
    assert not {"%r1", "%r9", "%rd1"} & unwritten_registers(entries.graph(code))


PAIR = "ld.global.u32 %r1, [%rd1]; mov.b32 {%rs1, %rs2}, %r1;"
CONVERTED = "cvt.f32.bf16 %f1, %rs1; cvt.f32.bf16 %f2, %rs2;"


def test_a_pair_that_is_only_converted_needs_no_half_registers(entries: Entries) -> None:
    found = entries.pairs(DEFINED + PAIR + CONVERTED + "ret;")
    assert sorted(found.conversions.values()) == ["and.b32 %f2, %r1, 0xffff0000;", "shl.b32 %f1, %r1, 16;"]
    assert [str(instruction) for instruction in found.unpacked] == ["mov.b32 {%rs1, %rs2}, %r1;"]
    assert not any("{%rs1" in line for line in entries.body(DEFINED + PAIR + CONVERTED + "ret;"))


@pytest.mark.parametrize(
    ("between", "behind", "converted", "left_out"),
    [
        ("", "st.global.u16 [%rd1], %rs1;", 2, 0),  # a half is needed for something else
        ("add.u32 %r1, %r1, 1;", "", 0, 0),  # the pair has another value by then
        ("setp.ne.u32 %p1, %r9, 0; @%p1 bra $on; $on:", "", 0, 0),  # in another basic block
    ],
)
def test_other_pairs_stay_as_they_are(
    entries: Entries, between: str, behind: str, converted: int, left_out: int
) -> None:
    found = entries.pairs(DEFINED + PAIR + between + CONVERTED + behind + "ret;")
    assert (len(found.conversions), len(found.unpacked)) == (converted, left_out)


def test_halves_that_are_written_twice_stay(entries: Entries) -> None:
    found = entries.pairs(DEFINED + PAIR + "mov.b16 %rs1, 0;" + CONVERTED + "ret;")
    assert not found.unpacked
