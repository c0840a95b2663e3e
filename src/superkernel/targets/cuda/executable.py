"""targets.cuda.executable: a built super kernel: PTX, task table and cubin; saved in a folder and restored from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import LaunchError
from ...model.subkernel import SubKernel
from .assemble import Resources, missing_assembler
from .emit import ENTRY
from .numbering import CodeOfKernel, CudaNumbering, SlotGrid
from .plan import CudaPlan
from .read_back import check_table
from .ring_shape import RingShape
from .slot_shape import SlotShape, aligned
from .task_layout import counters_offset
from .task_table import TaskTable, encode

_CUBIN, _SOURCE, _TABLE, _LAUNCH = "kernel.cubin", "source.ptx", "tasks.bin", "launch.json"


@dataclass(frozen=True)
class CudaExecutable:
    """What is launched, and what is emulated."""

    plan: CudaPlan
    ptx: str
    numbers: CudaNumbering
    table: TaskTable
    slot_shape: SlotShape
    value_room: int  # values of a launch: those of `sources`, the areas of copies and of scratch memory, then zeros
    cubin: Path | None  # None: no assembler was found
    resources: Resources | None
    commands: Sequence[str]
    architecture: str
    shares_table: bool = False  # table and values are copied to shared memory when a launch begins
    entry: str = ENTRY
    source_suffix: str = ".ptx"  # of the file that a dump writes

    @property
    def source(self) -> str:
        return f"{self.ptx}\n{self.table.listing}"

    @property
    def binary(self) -> Path:
        return self.cubin or Path(f"{self.plan.graph.name}.cubin")

    @property
    def remarks(self) -> tuple[str, ...]:
        if self.cubin is None:
            return (f"the super kernel was not assembled: {missing_assembler()}",)
        assert self.resources is not None
        return (f"{self.resources.registers} registers a thread, {self.shared_bytes} bytes of shared memory an SM",)

    # what a launch needs

    @property
    def shape(self) -> SlotGrid:
        return self.plan.shape

    @property
    def sms(self) -> int:
        return self.plan.shape.sms

    @property
    def slots(self) -> int:
        return self.slot_shape.slots

    @property
    def threads(self) -> int:
        """Of a slot."""
        return self.slot_shape.threads

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a launch."""
        words = self.numbers.shared_word_count
        if self.shares_table:
            return self.slot_shape.shared_with_table(words, self.table.copy_bytes)
        return self.slot_shape.total_shared(words)

    @property
    def shared_table_offset(self) -> int:
        """Where the copy of the task table begins in dynamic shared memory."""
        return aligned(self.slot_shape.total_shared(self.numbers.shared_word_count))

    @property
    def symbols(self) -> Mapping[str, bytes]:
        """Variables of the module -> what is written there after it is loaded."""
        return {"sk_tasks": self.table.data}

    @property
    def sources(self) -> tuple[str, ...]:
        return self.numbers.sources

    @property
    def state_bytes(self) -> int:
        return self.numbers.state_bytes

    @property
    def counters_offset(self) -> int:
        return counters_offset(self.plan.shape.cores)

    @property
    def stamp_room(self) -> int:
        return self.numbers.stamp_room

    @property
    def copies_bytes(self) -> int:
        return self.numbers.copies_bytes

    @property
    def scratch_bytes(self) -> int:
        return self.numbers.scratch_bytes

    @cached_property
    def task_steps(self) -> tuple[tuple[int, ...], ...]:
        """Per core, the step of the plan of each of its tasks."""
        return self.table.task_steps()

    @cached_property
    def stamp_steps(self) -> tuple[tuple[int, ...], ...]:
        """Per core, the step of the plan of each of its time stamps."""
        return tuple(tuple(self.numbers.stamped_steps(core)) for core in range(self.plan.shape.cores))

    # files

    def save(self, directory: Path) -> None:
        if self.cubin is not None:
            (directory / _CUBIN).write_bytes(self.cubin.read_bytes())
        (directory / _SOURCE).write_text(self.ptx)
        (directory / _TABLE).write_bytes(self.table.data)
        fields = {
            "slots": asdict(self.slot_shape),
            "value_room": self.value_room,
            "architecture": self.architecture,
            "shares_table": self.shares_table,
            "shared_room": self.numbers.shared_room,
            "resources": None if self.resources is None else asdict(self.resources),
            "codes": [asdict(self.numbers.codes[kernel]) for kernel in _kernels(self.plan)],
        }
        (directory / _LAUNCH).write_text(json.dumps(fields, indent=1) + "\n")


def _kernels(plan: CudaPlan) -> list[SubKernel]:
    return list(dict.fromkeys(node.kernel for node in plan.graph.nodes))


def restore(plan: CudaPlan, directory: Path) -> CudaExecutable:
    """What CudaExecutable.save wrote; its table must be that of the plan."""
    try:
        ptx, data = (directory / _SOURCE).read_text(), (directory / _TABLE).read_bytes()
        fields: dict[str, Any] = json.loads((directory / _LAUNCH).read_text())
        codes = [CodeOfKernel(**code) for code in fields["codes"]]
        ring = fields["slots"].pop("ring")
        slots = SlotShape(**fields["slots"], ring=None if ring is None else RingShape(**ring))
        known = dict(zip(_kernels(plan), codes, strict=True))
        numbers = CudaNumbering(plan, plan.shape, known, fields["shared_room"], plan.pace_ns)
        resources = None if fields["resources"] is None else Resources(**fields["resources"])
        value_room, architecture = int(fields["value_room"]), str(fields["architecture"])
        shares_table = bool(fields["shares_table"])
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise LaunchError(f"{directory} is no saved super kernel of the cuda target: {reason!r}") from reason
    table = encode(numbers, copied=shares_table)
    if table.data != data:
        raise LaunchError(f"{directory}: {_TABLE} is not what this version writes for its plan; compile it again")
    check_table(table.data, numbers, copied=shares_table)
    cubin = directory / _CUBIN
    found = cubin if cubin.is_file() else None
    return CudaExecutable(
        plan, ptx, numbers, table, slots, value_room, found, resources, (), architecture, shares_table
    )
