"""targets.cuda.virtual_ids: the special registers that a body reads -> what stands for them, and how it is computed.

The block is linear in a super kernel, and so is the thread in its slot; x, y and z are divided out of them only where
the code reads them and the grid or the block has more than one dimension.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from .ptx import Instruction, ThreadCount, special_registers
from .task_layout import WORD, TaskWord

TABLE_LOAD = "ld.sk_table"  # stands for a load from the task table, whatever memory that is in


class VirtualIds:
    """The names and the lines that the ids of one body need."""

    def __init__(self, instructions: Iterable[Instruction], threads: ThreadCount, flat_grid: bool) -> None:
        self.read = {register for i in instructions for register in special_registers(i)}
        self.names = {f"%ntid.{axis}": str(count) for axis, count in zip("xyz", threads, strict=True)}
        self.names["%nwarpid"] = str(-(-prod(threads) // 32))
        self.lines: list[str] = []
        self.registers: list[str] = []
        self._thread_ids(threads)
        self._block_ids(flat_grid)

    def _thread_ids(self, threads: ThreadCount) -> None:
        x, y, z = threads
        self._axes("tid", "%sk_thread", str(x), str(y), flat=y == z == 1)
        if "%warpid" in self.read:
            self._compute("%warpid", "shr.u32 {id}, %sk_thread, 5;")

    def _block_ids(self, flat: bool) -> None:
        if flat:
            if "%nctaid.x" in self.read:
                self._load("%nctaid.x", TaskWord.BLOCKS)
            self.names |= {"%nctaid.y": "1", "%nctaid.z": "1"}
            self._axes("ctaid", "%sk_block", "", "", flat=True)
            return
        wanted = {register for register in self.read if register.startswith(("%ctaid", "%nctaid"))}
        if wanted:
            self._load("%nctaid.x", TaskWord.GRID_X)
        if wanted & {"%ctaid.y", "%ctaid.z", "%nctaid.y", "%nctaid.z"}:
            self._load("%nctaid.y", TaskWord.GRID_Y)
        if "%nctaid.z" in wanted:
            self._load("%nctaid.z", TaskWord.BLOCKS)
            for axis in "xy":
                self.lines.append(f"div.u32 %sk_id_nctaid_z, %sk_id_nctaid_z, %sk_id_nctaid_{axis};")
        self._axes("ctaid", "%sk_block", "%sk_id_nctaid_x", "%sk_id_nctaid_y", flat=False)

    def _axes(self, register: str, linear: str, extent_x: str, extent_y: str, flat: bool) -> None:
        """x, y and z of a linear id."""
        x, y, z = (f"%{register}.{axis}" for axis in "xyz")
        if flat:
            self.names |= {x: linear, y: "0", z: "0"}
            return
        if x in self.read:
            self._compute(x, f"rem.u32 {{id}}, {linear}, {extent_x};")
        if {y, z} & self.read:
            self.lines.append(f"div.u32 %sk_quotient, {linear}, {extent_x};")
        if y in self.read:
            self._compute(y, f"rem.u32 {{id}}, %sk_quotient, {extent_y};")
        if z in self.read:
            self._compute(z, f"div.u32 {{id}}, %sk_quotient, {extent_y};")

    def _compute(self, register: str, line: str) -> None:
        name = f"%sk_id_{register[1:].replace('.', '_')}"
        self.names[register] = name
        self.registers.append(name)
        self.lines.append(line.format(id=name))

    def _load(self, register: str, word: TaskWord) -> None:
        self._compute(register, f"{TABLE_LOAD}.u32 {{id}}, [%sk_task+{WORD * word}];")
