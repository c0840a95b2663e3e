"""targets.ascend.core_types: the closed sets of the target: core classes, kernel types, launch types."""

from __future__ import annotations

from enum import Enum

from ...errors import GraphError, nearest


class CoreClass(Enum):
    """The two kinds of AI cores. A block of a mixed launch has one cube core and one or two vector cores."""

    CUBE = "cube"
    VECTOR = "vector"

    __hash__ = object.__hash__  # a key of most tables here; members are single objects


CUBE, VECTOR = CoreClass.CUBE, CoreClass.VECTOR


class OpClass(Enum):
    """Which cores an op runs on; the value is its part of a pair code."""

    AIC = 0
    AIV = 1
    MIX = 2

    @property
    def classes(self) -> tuple[CoreClass, ...]:
        return _OF_CLASS[self.value]

    @property
    def leader(self) -> CoreClass:
        """The class whose block 0 touches the op's event words."""
        return CUBE if self is OpClass.AIC else VECTOR

    @property
    def word(self) -> str:
        return ("cube", "vector", "mix")[self.value]


_OF_CLASS: tuple[tuple[CoreClass, ...], ...] = ((CUBE,), (VECTOR,), (CUBE, VECTOR))  # by value


class KernelType(Enum):
    """What a sub-kernel was compiled as."""

    AIV_ONLY = "KERNEL_TYPE_AIV_ONLY"
    AIC_ONLY = "KERNEL_TYPE_AIC_ONLY"
    MIX_AIV_1_0 = "KERNEL_TYPE_MIX_AIV_1_0"
    MIX_AIC_1_0 = "KERNEL_TYPE_MIX_AIC_1_0"
    MIX_AIC_1_1 = "KERNEL_TYPE_MIX_AIC_1_1"
    MIX_AIC_1_2 = "KERNEL_TYPE_MIX_AIC_1_2"

    @property
    def op_class(self) -> OpClass:
        if "AIV" in self.name:
            return OpClass.AIV
        return OpClass.MIX if self.vectors_per_cube else OpClass.AIC

    @property
    def vectors_per_cube(self) -> int:
        """Vector cores beside each cube core, for a mixed type."""
        return {KernelType.MIX_AIC_1_1: 1, KernelType.MIX_AIC_1_2: 2}.get(self, 0)

    def cores(self, blocks: int) -> tuple[int, int]:
        """Cube and vector cores that `blocks` blocks need."""
        if self.op_class is OpClass.AIV:
            return 0, blocks
        return blocks, blocks * self.vectors_per_cube


def kernel_type(text: str, where: str) -> KernelType:
    known = [kind.value for kind in KernelType]
    if text not in known:
        raise GraphError(f"{where}unknown kernel type {text!r}{nearest(text, known)}; types are {', '.join(known)}")
    return KernelType(text)


class LaunchType(Enum):
    """How the cores of a launch are grouped; the value is its task ratio, cube to vector."""

    MIX_AIV_1_0 = "0:1"
    MIX_AIC_1_0 = "1:0"
    MIX_AIC_1_1 = "1:1"
    MIX_AIC_1_2 = "1:2"

    @property
    def cubes(self) -> int:
        """Cube cores of a block."""
        return 0 if self is LaunchType.MIX_AIV_1_0 else 1

    @property
    def vectors(self) -> int:
        """Vector cores of a block."""
        return {LaunchType.MIX_AIC_1_0: 0, LaunchType.MIX_AIC_1_2: 2}.get(self, 1)

    @property
    def macro(self) -> str:
        return f"KERNEL_TYPE_{self.name}"
