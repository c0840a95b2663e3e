"""targets.cuda.emit: the bodies of sub-kernels -> the PTX of a super kernel that walks a task table.

The text depends on the set of bodies and on the shape of the slots, not on the ops: kernels that differ in order,
arguments or grids share a binary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .emit_entry import entry_lines
from .emit_identity import identity_lines, place_again_lines
from .emit_staging import staging_lines
from .emit_steps import (
    dispatch_lines,
    end_lines,
    event_lines,
    meet_lines,
    other_lines,
    rank_lines,
    rank_sync_lines,
)
from .emit_stream import stream_lines
from .rewrite import KernelBody
from .slot_shape import SlotShape
from .task_layout import SLOT_ALIGNMENT, TASK_BYTES, WORD, CodeSection, SharedOffset, TaskFlag, TaskWord
from .virtual_ids import TABLE_LOAD

PtxVersion = tuple[int, int]
LEAST_VERSION: PtxVersion = (7, 8)  # with brx.idx, red.release, barriers per thread and large parameter blocks
CLUSTER_VERSION: PtxVersion = (8, 0)  # with the barrier of a cluster that releases and acquires
MOST_CONSTANT_TABLE = 60 * 1024  # bytes; a larger task table lies in global memory
_CONSTANT_BANK = 64 * 1024
MOST_VALUES = 4000  # 32,764 bytes of parameters at most
_VALUE_ROOMS = (32, 128, 500, 1000, 2000, MOST_VALUES)
ENTRY = "sk_main"
_SECTIONS = {
    CodeSection.END: "$sk_end",
    CodeSection.SYNC: "$sk_meet",
    CodeSection.AWAIT_EVENT: "$sk_await_event",
    CodeSection.NOTIFY: "$sk_notify",
    CodeSection.RESET_EVENT: "$sk_reset_event",
    CodeSection.FENCE: "$sk_fence",
    CodeSection.STAMP: "$sk_stamp",
    CodeSection.AWAIT_RANKS: "$sk_await_ranks",
    CodeSection.NOTIFY_RANKS: "$sk_notify_ranks",
}
_OF_RANKS = CodeSection.AWAIT_RANKS, CodeSection.NOTIFY_RANKS
_PREDICATES = "first", "p", "abort", "near", "shares"
_WORDS = (
    "tid", "thread", "slot", "sm", "core", "cores", "barrier", "narrow_barrier", "shared", "control", "slot_words",
    "kind", "next_kind", "table_word", "argument", "block", "launches", "counter", "seen_word", "arrivals", "target",
    "seen", "polls", "more_polls", "more", "more_count", "warm", "warm_too", "a", "b", "c", "d",
)  # fmt: skip
_LONGS = "table", "values", "state", "task", "address", "event", "host", "now", "since", "elapsed"


@dataclass(frozen=True)
class TextShape:
    """What of a super kernel decides its text, beside its bodies."""

    slots: SlotShape
    version: PtxVersion
    target: str  # "sm_90a"
    most_registers: int
    value_room: int  # values of a launch
    table_room: int  # bytes of the task table
    shares_table: bool = True  # the table is copied to shared memory, with its arguments, when a launch begins
    ranks: bool = False  # some op notifies other ranks, or waits for them


def table_room(nbytes: int) -> int:
    """The size that a task table is given: one of few, so that kernels of similar size share a binary."""
    room = MOST_CONSTANT_TABLE
    while room < nbytes + TASK_BYTES:  # a task behind the last one is asked for, but not used
        room *= 2
    return room


def value_room(count: int) -> int:
    """The number of values that a launch is given, likewise. More parameters cost more time of the host."""
    return next((room for room in _VALUE_ROOMS if room >= count), count)


def emit(bodies: Sequence[KernelBody], shape: TextShape) -> str:
    """The text of the super kernel."""
    constants = sum(body.constant_bytes for body in bodies)
    in_constant = shape.table_room <= MOST_CONSTANT_TABLE and shape.table_room + constants <= _CONSTANT_BANK
    space, load = (".const", "ld.const") if in_constant else (".global", "ld.global.nc")
    if shape.shares_table:
        space, load = ".global", "ld.shared"
    own = [_SECTIONS[section] if shape.ranks or section not in _OF_RANKS else "$sk_end" for section in CodeSection]
    sections = [*own, *(f"$sk_{body.name}" for body in bodies)]
    major, minor = shape.version
    ring = shape.slots.ring
    lines = [
        "//",
        "// Super kernel: each slot of an SM walks its list of tasks; a task runs the slot's blocks of an op.",
        f"// {shape.slots.slots} slots of {shape.slots.threads} threads per SM, {shape.slots.shared_bytes} bytes of "
        "shared memory each",
        *(f"// section {number}: {body.title}" for number, body in enumerate(bodies, len(CodeSection))),
        "//",
        f".version {major}.{minor}",
        f".target {shape.target}",
        ".address_size 64",
        "",
        f".visible {space} .align 64 .b8 sk_tasks[{shape.table_room}];  // written before the first launch",
        f".extern .shared .align {SLOT_ALIGNMENT} .b8 sk_shared_memory[];",
        *dict.fromkeys(line for body in bodies for line in body.declarations),
        "",
        f".visible .entry {ENTRY}(",
        "\t.param .u64 sk_state,",
        f"\t.param .align 8 .b8 sk_values[{8 * shape.value_room}]",
        ")",
        f".reqntid {shape.slots.block_threads}, 1, 1",
        f".maxnreg {shape.most_registers}",
        "{",
        *(f"\t.reg .{kind} {', '.join(f'%sk_{name}' for name in names)};" for kind, names in _registers()),
        "",
        *_indented(entry_lines(shape.slots, shape.shares_table)),
        "",
        *_indented(dispatch_lines(shape.slots, sections, shape.shares_table)),
        "",
        *(line for body in bodies for line in (*_indented(_body_lines(body, shape)), "")),
        *_indented(meet_lines(shape.slots)),
        "",
        *_indented(event_lines(shape.slots, shape.shares_table)),
        "",
        *_indented(other_lines(shape.slots, shape.shares_table)),
        "",
        *([*_indented(rank_sync_lines(shape.slots, shape.shares_table)), ""] if shape.ranks else []),
        *([*_indented(stream_lines(shape.slots, shape.shares_table)), ""] if shape.slots.streams else []),
        *([*_indented(staging_lines(shape.slots, ring, shape.shares_table)), ""] if ring is not None else []),
        *_indented(end_lines(shape.slots, shape.shares_table)),
        "}",
        "",
    ]
    return "\n".join(lines).replace(TABLE_LOAD, load)


def _registers() -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ("pred", _PREDICATES), ("b32", _WORDS), ("b64", _LONGS)


def _indented(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.startswith("$") and line.endswith(":") else f"\t{line}"


def _body_lines(body: KernelBody, shape: TextShape) -> Iterator[str]:
    """All blocks of an op that one core runs."""
    slots = shape.slots
    yield f"// ==== {body.title}"
    yield f"$sk_{body.name}:"
    if body.threads < slots.threads:
        yield f"setp.ge.u32 %sk_p, %sk_thread, {body.threads};"
        yield "@%sk_p bra $sk_meet;"
    if body.proxy_fence:
        yield f"{body.proxy_fence}  // what was stored before, asynchronous copies must see"
    yield from rank_lines()
    yield f"$sk_{body.name}_block:"
    yield from identity_lines(slots, shape.shares_table)
    yield f"{TABLE_LOAD}.u32 %sk_argument, [%sk_task+{WORD * TaskWord.ARGUMENTS}];"
    yield "{"
    yield from body.lines
    yield "}"
    yield f"$sk_{body.name}_done:"
    yield from body.after
    yield "bar.warp.sync 0xffffffff;"
    if body.mbarriers:
        yield from place_again_lines(slots)
        yield from _invalidate_lines(body)
    yield f"{TABLE_LOAD}.u32 %sk_kind, [%sk_task+{WORD * TaskWord.KIND}];"
    yield f"and.b32 %sk_a, %sk_kind, {TaskFlag.SINGLE.value};"
    yield "setp.ne.u32 %sk_p, %sk_a, 0;"
    yield "@%sk_p bra $sk_meet_there;"
    yield f"{TABLE_LOAD}.u32 %sk_a, [%sk_task+{WORD * TaskWord.WIDTH}];"
    yield f"{TABLE_LOAD}.u32 %sk_b, [%sk_task+{WORD * TaskWord.BLOCKS}];"
    yield "add.u32 %sk_block, %sk_block, %sk_a;"
    yield "setp.lt.u32 %sk_p, %sk_block, %sk_b;"
    if body.repeats_need_barrier:
        yield "@!%sk_p bra $sk_meet;"
        yield f"bar.sync {body.barrier}, {body.threads};"
        if body.proxy_fence:
            yield body.proxy_fence
        yield f"bra $sk_{body.name}_block;"
    else:
        yield f"@%sk_p bra $sk_{body.name}_block;"
        yield "bra $sk_meet;"


def _invalidate_lines(body: KernelBody) -> Iterator[str]:
    """The next block or task may use the memory of barrier objects for anything else."""
    yield "// barrier objects that the block left valid"
    yield f"bar.sync {body.barrier}, {body.threads};"
    for index in range(body.mbarriers):
        where = f"[%sk_slot_words+{SharedOffset.MBARRIERS + WORD * index}]"
        yield f"ld.shared.u32 %sk_a, {where};"
        yield "setp.ne.u32 %sk_p, %sk_a, 0;"
        yield "@!%sk_first bra " + f"$sk_{body.name}_valid_{index};"
        yield "@%sk_p mbarrier.inval.shared.b64 [%sk_a];"
        yield "mov.u32 %sk_a, 0;"
        yield f"st.shared.u32 {where}, %sk_a;"
        yield f"$sk_{body.name}_valid_{index}:"
    yield "bar.warp.sync 0xffffffff;"
