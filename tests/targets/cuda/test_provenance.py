"""targets.cuda.provenance: which parameters an entry reads, writes and updates, on code that hides it."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superkernel.errors import BuildError
from superkernel.targets.cuda.basic_blocks import control_flow
from superkernel.targets.cuda.memory_operands import AccessKind
from superkernel.targets.cuda.provenance import ParameterAccesses, find_accesses
from superkernel.targets.cuda.reader import read_ptx
from superkernel.targets.cuda.spin_loops import Spin, find_spin_loops

HEAD = """.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 area[];
.global .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.global .align 4 .u32 state = 0;
.entry k(.param .u64 .ptr .global .align 1 k0, .param .u64 .ptr .global .align 1 k1,
 .param .u64 .ptr .global .align 1 k2, .param .u32 k3, .param .u64 k4) {
.reg .b32 %r<20>; .reg .b64 %rd<30>; .reg .pred %p<9>; .reg .f32 %f<9>; .reg .b16 %h<9>;
ld.param.u64 %rd0, [k0]; ld.param.u64 %rd1, [k1]; ld.param.u64 %rd2, [k2]; ld.param.u32 %r3, [k3];
ld.param.u64 %rd4, [k4];
mov.u32 %r0, %tid.x; mul.wide.u32 %rd9, %r0, 4;
"""


def accesses(body: str, *scalars: int) -> ParameterAccesses:
    module = read_ptx(f"{HEAD}\n{body}\nret;\n}}")
    (entry,) = module.entries
    return find_accesses(module, entry, control_flow(entry, "k.ptx"), scalars or (3, 4))


def spins(body: str) -> list[Spin]:
    module = read_ptx(f"{HEAD}\n{body}\nret;\n}}")
    return [loop.spin for loop in find_spin_loops(control_flow(module.entries[0], "k.ptx"))]


def kinds(found: ParameterAccesses) -> list[str]:
    return [found.kind_of(param) for param in range(3)]


def test_plain_loads_and_stores() -> None:
    found = accesses("""
        cvta.to.global.u64 %rd10, %rd0; add.s64 %rd11, %rd10, %rd9; ld.global.f32 %f1, [%rd11+16];
        mad.wide.u32 %rd12, %r0, 4, %rd1; st.global.v2.f32 [%rd12], {%f1, %f1};
        ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2];""")
    assert kinds(found) == ["in", "out", "in"] and not found.unknown and not found.undecided
    assert [(a.kind, a.nbytes) for a in found.accesses] == [
        (AccessKind.READ, 4),
        (AccessKind.WRITE, 8),
        (AccessKind.READ, 16),
    ]
    assert found.first[1].opcode == "st.global.v2.f32" and found.first[1].line == 16


def test_a_pointer_through_selp_may_be_either() -> None:
    found = accesses("setp.eq.u32 %p1, %r3, 0; selp.b64 %rd10, %rd0, %rd1, %p1; st.global.f32 [%rd10], %f1;")
    assert found.written == {0, 1} and found.undecided == {0, 1} and not found.unknown
    assert kinds(found) == ["inout", "inout", "in"]
    assert found.certain(0, AccessKind.WRITE) is None


def test_a_pointer_that_moves_in_a_loop() -> None:
    found = accesses("""
        mov.u64 %rd10, %rd0; mov.u64 %rd11, %rd1;
        again: ld.global.f32 %f1, [%rd10]; st.global.f32 [%rd11], %f1;
        add.s64 %rd10, %rd10, 128; add.s64 %rd11, %rd11, 128; add.s32 %r3, %r3, -1;
        setp.ne.s32 %p1, %r3, 0; @%p1 bra again;""")
    assert kinds(found) == ["in", "out", "in"]


def test_a_register_that_holds_one_pointer_after_the_other() -> None:
    found = accesses("""
        mov.u64 %rd10, %rd0; ld.global.f32 %f1, [%rd10];
        mov.u64 %rd10, %rd1; st.global.f32 [%rd10], %f1;""")
    assert kinds(found) == ["in", "out", "in"]


def test_pointers_that_two_paths_merge() -> None:
    found = accesses("""
        setp.eq.u32 %p1, %r3, 0; mov.u64 %rd10, %rd0; @%p1 bra join; mov.u64 %rd10, %rd1;
        join: st.global.f32 [%rd10], %f1; ld.global.f32 %f1, [%rd2];""")
    assert found.written == {0, 1} and found.read == {2} and kinds(found) == ["inout", "inout", "in"]


def test_a_guarded_move_keeps_what_was_there() -> None:
    found = accesses("setp.eq.u32 %p1, %r3, 0; mov.u64 %rd10, %rd0; @%p1 mov.u64 %rd10, %rd1; st.f32 [%rd10], %f1;")
    assert found.written == {0, 1}


def test_a_loop_exchanges_two_pointers() -> None:
    found = accesses("""
        mov.u64 %rd10, %rd0; mov.u64 %rd11, %rd1;
        again: ld.global.f32 %f1, [%rd10]; st.global.f32 [%rd11], %f1;
        mov.u64 %rd12, %rd10; mov.u64 %rd10, %rd11; mov.u64 %rd11, %rd12;
        setp.ne.s32 %p1, %r3, 0; @%p1 bra again;""")
    assert kinds(found) == ["inout", "inout", "in"]


def test_a_pointer_from_memory_is_unknown() -> None:
    found = accesses("ld.global.b64 %rd10, [%rd0]; add.s64 %rd11, %rd10, %rd9; st.global.f32 [%rd11], %f1;")
    (access,) = found.unknown
    assert access.line == 14 and not access.params and kinds(found) == ["inout", "inout", "inout"]


def test_an_index_from_memory_is_an_offset() -> None:
    found = accesses("""
        ld.global.b64 %rd10, [%rd0]; shl.b64 %rd11, %rd10, 2; add.s64 %rd12, %rd1, %rd11; ld.global.f32 %f1, [%rd12];
        add.s64 %rd13, %rd10, %rd2; st.global.f32 [%rd13], %f1;""")
    assert kinds(found) == ["in", "in", "out"] and not found.unknown


def test_halves_of_a_pointer_through_a_shuffle() -> None:
    found = accesses("""
        mov.b64 {%r1, %r2}, %rd1; shfl.sync.idx.b32 %r4|%p1, %r1, 0, 31, -1; shfl.sync.idx.b32 %r5, %r2, 0, 31, -1;
        mov.b64 %rd10, {%r4, %r5}; red.global.add.u32 [%rd10], 1;""")
    assert kinds(found) == ["in", "inout", "in"] and found.updated == {1}


def test_the_difference_of_two_pointers_stays_undecided() -> None:
    found = accesses("sub.s64 %rd10, %rd0, %rd1; add.s64 %rd11, %rd1, %rd10; st.global.f32 [%rd11], %f1;")
    assert found.written == {0, 1} and found.undecided == {0, 1}


def test_the_alignment_of_a_pointer_is_a_number() -> None:
    found = accesses("and.b64 %rd10, %rd0, 15; add.s64 %rd11, %rd1, %rd10; st.global.f32 [%rd11], %f1;")
    assert kinds(found) == ["in", "out", "in"]


def test_a_scalar_is_an_offset_where_there_is_a_pointer() -> None:
    found = accesses("add.s64 %rd10, %rd4, %rd1; st.global.f32 [%rd10], %f1;")
    assert kinds(found) == ["in", "out", "in"]
    alone = accesses("add.s64 %rd10, %rd4, %rd9; st.global.f32 [%rd10], %f1;")
    assert alone.unknown[0].scalars == {4}


def test_shared_local_and_table_memory_belong_to_no_parameter() -> None:
    found = accesses("""
        .local .align 8 .b8 depot[16]; mov.u64 %rd10, depot; cvta.local.u64 %rd11, %rd10; st.f32 [%rd11], %f1;
        mov.u64 %rd12, area; cvta.shared.u64 %rd13, %rd12; st.u32 [%rd13+4], %r0; st.shared.u32 [%r3], %r0;
        mov.u64 %rd14, table; ld.global.u32 %r4, [%rd14+4]; ld.global.u32 %r4, [table];""")
    assert [access.variables for access in found.accesses] == [("table",), ("table",)]
    assert not found.unknown and kinds(found) == ["in", "in", "in"]


def test_a_store_to_a_variable_of_the_module_is_reported() -> None:
    (access,) = accesses("st.global.u32 [state], %r0;").unknown
    assert access.variables == ("state",)


def test_registers_of_a_scope_hide_those_outside() -> None:
    found = accesses("""
        .reg .b64 place; mov.u64 place, %rd0;
        { .reg .b64 place; mov.u64 place, %rd1; st.global.f32 [place], %f1; }
        ld.global.f32 %f1, [place];""")
    assert kinds(found) == ["in", "out", "in"]


@pytest.mark.parametrize(
    ("text", "kind", "bulk", "floating"),
    [
        ("atom.global.gpu.acq_rel.add.u32 %r1, [%rd0], 1;", AccessKind.UPDATE, False, False),
        ("atom.global.add.f32 %f1, [%rd0], %f2;", AccessKind.UPDATE, False, True),
        ("red.relaxed.gpu.global.add.noftz.bf16x2 [%rd0], %r1;", AccessKind.UPDATE, False, True),
        ("cp.async.cg.shared.global [%r1], [%rd0], 16;", AccessKind.READ, False, False),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], %r2, [%r3];",
         AccessKind.READ, True, False),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], %r2;", AccessKind.WRITE, True, False),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0], [%r1], %r2;", AccessKind.UPDATE, True,
         True),
        ("discard.global.L2 [%rd0], 128;", AccessKind.WRITE, False, False),
    ],
)  # fmt: skip
def test_atomics_and_asynchronous_copies(text: str, kind: AccessKind, bulk: bool, floating: bool) -> None:
    (access,) = accesses(text).accesses
    assert (access.kind, access.bulk, access.floating) == (kind, bulk, floating) and access.params == {0}


@pytest.mark.parametrize(
    "text", ["prefetch.global.L2 [%rd0];", "cp.async.bulk.prefetch.L2.global [%rd0], 64;", "cp.async.wait_group 0;"]
)
def test_hints_are_no_accesses(text: str) -> None:
    assert not accesses(text).accesses


def test_a_compare_and_swap_loop_that_adds_floats_is_a_float_update() -> None:
    body = """
        ld.global.b32 %r1, [%rd0];
        again: mov.b32 %f1, %r1; add.rn.f32 %f2, %f1, 0f3F800000; mov.b32 %r2, %f2; mov.b32 %r4, %r1;
        atom.global.cas.b32 %r1, [%rd0], %r4, %r2; setp.ne.s32 %p1, %r1, %r4; @%p1 bra again;"""
    assert [access.floating for access in accesses(body).accesses] == [False, True]
    assert spins(body) == []  # some thread's exchange always succeeds


def test_branch_tables_and_unknown_labels() -> None:
    found = accesses("""
        brx.idx %r3, targets; targets: .branchtargets one, two;
        one: mov.u64 %rd10, %rd0; bra.uni end; two: mov.u64 %rd10, %rd1; end: st.global.f32 [%rd10], %f1;""")
    assert found.written == {0, 1}
    with pytest.raises(BuildError, match=r"k.ptx:14: the branch target 'nowhere' is not in the entry"):
        accesses("bra nowhere;")
    with pytest.raises(BuildError, match="a second label is called again"):
        accesses("again: again: ret;")


def test_code_that_no_path_reaches_accesses_nothing() -> None:
    assert not accesses("bra.uni end; st.global.f32 [%rd0], %f1; end:").accesses


@pytest.mark.parametrize(
    "poll",
    [
        "ld.acquire.gpu.global.u32 %r1, [%rd0];",
        "ld.volatile.global.u32 %r1, [%rd0];",
        "mov.b32 %r2, 0; atom.global.acquire.gpu.add.u32 %r1, [%rd0], %r2;",
        "atom.global.cas.b32 %r1, [%rd0], 1, 1;",
        "add.s64 %rd10, %rd0, 8; ld.relaxed.sys.global.u32 %r1, [%rd10];",
        "ld.acquire.gpu.global.u32 %r5, [%rd0]; st.shared.u32 [%r3], %r5; bar.sync 0; ld.shared.u32 %r1, [%r3];",
    ],
)
def test_a_loop_that_polls_waits_for_other_blocks(poll: str) -> None:
    assert spins(f"again: {poll} setp.eq.u32 %p1, %r1, 0; @%p1 bra again;") == [Spin.ALL_BLOCKS]


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra again;",  # an ordinary load in a loop
        "atom.global.add.u32 %r1, [%rd0], 1; setp.lt.u32 %p1, %r1, %r3; @%p1 bra again;",  # takes the next work item
        "ld.volatile.shared.u32 %r1, [%r3]; setp.eq.u32 %p1, %r1, 0; @%p1 bra again;",  # within the block
        "add.s64 %rd0, %rd0, 4; ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra again;",  # a list
        "ld.volatile.global.u32 %r1, [%rd0]; add.s32 %r3, %r3, -1; setp.ne.s32 %p1, %r3, 0; @%p1 bra again;",  # counted
    ],
)
def test_loops_that_do_not_wait_for_other_blocks(body: str) -> None:
    assert spins(f"again: {body}") == []


def test_decoupled_look_back_waits_for_lower_blocks() -> None:
    body = """
        mov.u32 %r5, %ctaid.x; add.s32 %r6, %r5, -1; setp.lt.s32 %p1, %r6, 0; @%p1 bra done;
        look: mul.wide.s32 %rd10, %r6, 8; add.s64 %rd11, %rd0, %rd10;
        poll: ld.acquire.gpu.global.u32 %r1, [%rd11]; setp.eq.u32 %p2, %r1, 0; @%p2 bra poll;
        setp.eq.u32 %p3, %r1, 2; @%p3 bra done; add.s32 %r6, %r6, -1; setp.ge.s32 %p4, %r6, 0; @%p4 bra look;
        done:"""
    assert spins(body) == [Spin.LOWER_BLOCKS]
    assert spins(body.replace("add.s32 %r6, %r6, -1", "add.s32 %r6, %r6, 1")) == [Spin.ALL_BLOCKS]
    assert spins(body.replace("%ctaid.x", "%tid.x")) == [Spin.ALL_BLOCKS]


def random_program(chance: random.Random) -> str:
    """Moves, sums, choices, exchanges through shared memory and jumps forwards and backwards between accesses."""
    registers = [f"%rd{number}" for number in range(10, 14)]
    sources = [*registers, "%rd0", "%rd1", "%rd2"]
    lines = [f"mov.u64 {register}, %rd{chance.randrange(3)};" for register in registers]
    for number in range(chance.randrange(3, 14)):
        to, first, second = chance.choice(registers), chance.choice(sources), chance.choice(sources)
        lines.append(
            chance.choice(
                [
                    f"mov.u64 {to}, {first};",
                    f"add.s64 {to}, {first}, %rd9;",
                    f"mad.wide.u32 {to}, %r0, 8, {first};",
                    f"setp.eq.u32 %p1, %r3, {number}; selp.b64 {to}, {first}, {second}, %p1;",
                    f"setp.eq.u32 %p1, %r3, {number}; @%p1 mov.u64 {to}, {first};",
                    f"st.shared.b64 [area], {first}; ld.shared.b64 {to}, [area];",
                    f"mov.b64 {{%r5, %r6}}, {first}; mov.b64 {to}, {{%r5, %r6}};",
                    f"label{number}: st.global.u32 [{first}], 0;",
                    f"ld.global.u32 %r7, [{first}];",
                ]
            )
        )
    places = sorted({int(found) for found in re.findall(r"label(\d+):", " ".join(lines))})
    for place in places:
        at = chance.randrange(len(registers), len(lines) + 1)
        lines.insert(at, f"setp.eq.u32 %p2, %r3, {place}; @%p2 bra label{place};")
    return "\n".join(lines)


def run(program: str, chance: random.Random) -> list[tuple[str, int]]:
    """What one thread does: the accesses by opcode and parameter. Every predicate is drawn; loops end after a while."""
    statements = [text.strip() for text in program.replace("\n", " ").split(";") if text.strip()]
    labels = {text.split(":")[0]: index for index, text in enumerate(statements) if text.startswith("label")}
    values = {f"%rd{number}": number for number in range(3)}
    memory, seen, at = 0, [], 0
    for _ in range(200):
        if at >= len(statements):
            break
        text = statements[at].split(": ")[-1]
        at += 1
        if text.startswith("@"):
            if not chance.randrange(2):
                continue
            text = text.split(maxsplit=1)[1]
        opcode, _, rest = text.partition(" ")
        operands = [operand.strip(" []") for operand in re.split(r",\s*(?![^{]*})", rest)]
        if opcode == "bra":
            at = labels[operands[0]]
        elif opcode in ("mov.u64", "add.s64"):
            values[operands[0]] = values[operands[1]]
        elif opcode == "mad.wide.u32":
            values[operands[0]] = values[operands[3]]
        elif opcode == "selp.b64":
            values[operands[0]] = values[operands[1 + chance.randrange(2)]]
        elif opcode == "mov.b64":
            values[operands[0]] = values[operands[1]]
        elif opcode == "st.shared.b64":
            memory = values[operands[1]]
        elif opcode == "ld.shared.b64":
            values[operands[0]] = memory
        elif opcode == "st.global.u32":
            seen.append((opcode, values[operands[0]]))
        elif opcode == "ld.global.u32":
            seen.append((opcode, values[operands[1]]))
    return seen


@given(st.integers(0, 2**32))
def test_no_access_of_a_run_is_missed(seed: int) -> None:
    """What a run of random code accesses is among what the analysis says: it may say too much, never too little."""
    chance = random.Random(seed)
    program = random_program(chance)
    found = accesses(program)
    for _ in range(5):
        for opcode, param in run(program, chance):
            assert param in (found.written if opcode.startswith("st") else found.read), program
