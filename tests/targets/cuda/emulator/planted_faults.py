"""Faults planted in a built super kernel: in its task table, or in its PTX."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

from superkernel.targets.cuda.executable import CudaExecutable
from superkernel.targets.cuda.task_layout import (
    HEADER_BYTES,
    SECTION_MASK,
    TASK_BYTES,
    WORD,
    CodeSection,
    TaskFlag,
    TaskWord,
)

Words = list[int]
_WORDS = TASK_BYTES // WORD


def with_tasks(executable: CudaExecutable, change: Callable[[Words], bool], most: int = 1) -> CudaExecutable:
    """The executable with `change` applied to tasks until it has changed `most` of them; it says whether it did."""
    data = bytearray(executable.table.data)
    offsets = struct.unpack_from(f"<{executable.shape.cores}I", data, HEADER_BYTES)
    changed = 0
    for first in dict.fromkeys(offsets):
        offset = first
        while True:
            words = list(struct.unpack_from(f"<{_WORDS}I", data, offset))
            if words[TaskWord.KIND] & SECTION_MASK == CodeSection.END:
                break
            if changed < most and change(words):
                changed += 1
                struct.pack_into(f"<{_WORDS}I", data, offset, *words)
            offset += TASK_BYTES
    assert changed == most, "no task has what is to be changed"
    return replace(executable, table=replace(executable.table, data=bytes(data)))


def drop_wait(words: Words) -> bool:
    """A task no longer waits for what it reads."""
    waits = bool(words[TaskWord.KIND] & TaskFlag.WAITS)
    words[TaskWord.KIND] &= ~TaskFlag.WAITS.value
    return waits


def drop_near_wait(words: Words) -> bool:
    """A task does not wait at its wait point for what another slot of its SM computes."""
    waits = bool(words[TaskWord.KIND] & TaskFlag.WAITS_INSIDE and words[TaskWord.KIND] & TaskFlag.NEAR_WAIT)
    if waits:
        words[TaskWord.KIND] &= ~(TaskFlag.WAITS_INSIDE | TaskFlag.NEAR_WAIT).value
    return waits


def shorten_target(words: Words) -> bool:
    """A task waits for one arrival less than there are."""
    waits = words[TaskWord.KIND] & TaskFlag.WAITS and words[TaskWord.WAIT_ARRIVALS] > 1
    words[TaskWord.WAIT_ARRIVALS] -= bool(waits)
    return bool(waits)


def lose_arrival(words: Words) -> bool:
    """A core never says that it has finished."""
    signals = bool(words[TaskWord.KIND] & TaskFlag.SIGNALS)
    words[TaskWord.KIND] &= ~TaskFlag.SIGNALS.value
    return signals


def replaced(executable: CudaExecutable, old: str, new: str, count: int = -1) -> CudaExecutable:
    """The executable with a piece of its PTX exchanged."""
    assert old in executable.ptx, old
    return replace(executable, ptx=executable.ptx.replace(old, new, count))


def arrive_early(executable: CudaExecutable) -> CudaExecutable:
    """Cores arrive before the stores of their blocks in the place of after them: as if at launch_dependents."""
    raises = "red.release.gpu.global.add.u32 [%sk_address], %sk_b;"
    early = (
        f"ld.shared.u32 %sk_counter, [%sk_task+{WORD * TaskWord.SIGNAL_COUNTER}];",
        f"ld.shared.u32 %sk_b, [%sk_task+{WORD * TaskWord.SIGNAL_SHARE}];",
        "cvt.u64.u32 %sk_address, %sk_counter;",
        "add.u64 %sk_address, %sk_address, %sk_state;",
        f"@%sk_first {raises}",
    )
    assert raises in executable.ptx
    lines: list[str] = []
    for line in executable.ptx.replace(raises, "// arrived early").splitlines():
        if "st.global.u32" in line and "%sk_state" not in line:
            lines += early
        lines.append(line)
    return replace(executable, ptx="\n".join(lines))
