"""targets.ascend.launch_shape: kernel types and block counts of the ops -> launch type and number of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import PlanError
from .chips import Chip
from .core_types import CUBE, CoreClass, KernelType, LaunchType, OpClass


@dataclass(frozen=True)
class LaunchShape:
    """One launch: `blocks` blocks of one shape, all resident at once."""

    type: LaunchType
    blocks: int

    @property
    def cubes(self) -> int:
        return self.blocks * self.type.cubes

    @property
    def vectors(self) -> int:
        return self.blocks * self.type.vectors

    @property
    def mixed(self) -> bool:
        return bool(self.cubes and self.vectors)

    @property
    def classes(self) -> tuple[CoreClass, ...]:
        return tuple(core_class for core_class in CoreClass if self.cores(core_class))

    def cores(self, core_class: CoreClass) -> int:
        return self.cubes if core_class is CUBE else self.vectors

    def __str__(self) -> str:
        return f"{self.type.macro}, {self.blocks} blocks: {self.cubes} cube and {self.vectors} vector cores"


@dataclass(frozen=True)
class OpSize:
    """What one op asks of the launch."""

    name: str
    type: KernelType
    blocks: int


def launch_of(ops: Sequence[OpSize], chip: Chip, cubes: int, vectors: int, where: str) -> LaunchShape:
    """The smallest launch that serves every op; `cubes` and `vectors` force numbers of cores, 0 derives them."""
    for op in ops:
        _check_op(op, chip, where)
    derived = _derived(ops)
    chosen = _forced(ops, derived, cubes, vectors, where) if cubes or vectors else derived
    if chosen.cubes > chip.cube_cores or chosen.vectors > chip.vector_cores:
        wanted = f"{chosen.cubes} cube and {chosen.vectors} vector cores ({chosen.type.macro})"
        have = f"chip {chip.name} has {chip.cube_cores} and {chip.vector_cores}"
        if cubes or vectors:
            asked = f"{_asked(cubes, vectors)} makes a launch of {wanted}, {have}: ask for fewer"
            raise PlanError(f"{where}{asked}, or name a larger chip")
        raise PlanError(f"{where}the ops together need {wanted}, {have}: lower block_dim, or name a larger chip")
    return chosen


def _check_op(op: OpSize, chip: Chip, where: str) -> None:
    cubes, vectors = op.type.cores(op.blocks)
    if cubes > chip.cube_cores or vectors > chip.vector_cores:
        raise PlanError(
            f"{where}op {op.name!r} ({op.type.value}) has {op.blocks} blocks, which need {cubes} cube and {vectors} "
            f"vector cores; chip {chip.name} has {chip.cube_cores} and {chip.vector_cores}: lower its block count"
        )


def _derived(ops: Sequence[OpSize]) -> LaunchShape:
    needs = [op.type.cores(op.blocks) for op in ops]
    cubes, vectors = max(c for c, _ in needs), max(v for _, v in needs)
    if not cubes:
        return LaunchShape(LaunchType.MIX_AIV_1_0, vectors)
    if not vectors:
        return LaunchShape(LaunchType.MIX_AIC_1_0, cubes)
    if vectors > cubes or any(op.type is KernelType.MIX_AIC_1_2 for op in ops):
        return LaunchShape(LaunchType.MIX_AIC_1_2, max(cubes, -(-vectors // 2)))
    return LaunchShape(LaunchType.MIX_AIC_1_1, cubes)


def _forced(ops: Sequence[OpSize], derived: LaunchShape, cubes: int, vectors: int, where: str) -> LaunchShape:
    """The launch with these numbers of cores; of several the one of the derived type."""
    shapes = []
    for kind in (derived.type, *LaunchType):
        for blocks in dict.fromkeys((cubes, vectors // kind.vectors if kind.vectors else 0)):
            shape = LaunchShape(kind, blocks)
            if blocks and cubes in (0, shape.cubes) and vectors in (0, shape.vectors):
                shapes.append(shape)
    reasons = [reason for shape in shapes if (reason := _unfit(ops, shape))]
    for shape in shapes:
        if not _unfit(ops, shape):
            return shape
    why = reasons[0] if reasons else "no launch has that many: cube to vector is 1:0, 0:1, 1:1 or 1:2"
    raise PlanError(f"{where}{_asked(cubes, vectors)}: {why}; derived from the ops: {derived}")


def _asked(cubes: int, vectors: int) -> str:
    return f"debug-aic-num={cubes}:debug-aiv-num={vectors}"


def _unfit(ops: Sequence[OpSize], launch: LaunchShape) -> str:
    """Why some op cannot run in this launch; empty: all can."""
    for op in ops:
        cubes, vectors = op.type.cores(op.blocks)
        if op.type is KernelType.MIX_AIC_1_2 and launch.type is not LaunchType.MIX_AIC_1_2:
            return f"op {op.name!r} is {op.type.value} and needs a 1:2 launch, not {launch.type.value}"
        if op.type.op_class is OpClass.MIX and op.blocks > launch.blocks:
            return f"op {op.name!r} needs {op.blocks} blocks, the launch has {launch.blocks}"
        if cubes > launch.cubes or vectors > launch.vectors:
            return (
                f"op {op.name!r} needs {cubes} cube and {vectors} vector cores, the launch has {launch.cubes} "
                f"and {launch.vectors}"
            )
    return ""
