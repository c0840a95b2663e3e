"""targets.ascend.pairs: the table of pair codes: which classes wait for which when one op follows another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from .core_types import CUBE, VECTOR, CoreClass, OpClass


class Action(Enum):
    """What a core does in a sync. In a row of PAIRS cores act in the order of the values: each signals before it waits
    in its block."""

    WAIT_ALL = 0  # for all cores of its class
    SIGNAL = 1  # inside its block: a cube to its vectors, vectors to their cube
    WAIT_BLOCK = 2  # inside its block
    ARRIVE = 3  # at the flag of its class


@dataclass(frozen=True)
class Pair:
    """An op of one class after an op of another."""

    producer: OpClass
    consumer: OpClass

    @property
    def code(self) -> int:
        return self.producer.value << 2 | self.consumer.value

    def __str__(self) -> str:
        return f"{self.producer.word} to {self.consumer.word} (pair code {self.code})"


Row = Mapping[CoreClass, tuple[Action, ...]]
_ALL, _SIGNAL, _BLOCK = Action.WAIT_ALL, Action.SIGNAL, Action.WAIT_BLOCK
_C, _V, _M = OpClass.AIC, OpClass.AIV, OpClass.MIX

# Producer cores have arrived at the flag of their class; then cube cores and vector cores do this.
PAIRS: Mapping[Pair, Row] = MappingProxyType(
    {
        Pair(_C, _C): {CUBE: (_ALL,), VECTOR: ()},
        Pair(_C, _V): {CUBE: (_ALL, _SIGNAL), VECTOR: (_BLOCK,)},
        Pair(_C, _M): {CUBE: (_ALL, _SIGNAL), VECTOR: (_BLOCK,)},
        Pair(_V, _C): {CUBE: (_BLOCK,), VECTOR: (_ALL, _SIGNAL)},
        Pair(_V, _M): {CUBE: (_BLOCK,), VECTOR: (_ALL, _SIGNAL)},
        Pair(_V, _V): {CUBE: (), VECTOR: (_ALL,)},
        Pair(_M, _C): {CUBE: (_ALL, _BLOCK), VECTOR: (_ALL, _SIGNAL)},
        Pair(_M, _V): {CUBE: (_ALL, _SIGNAL), VECTOR: (_ALL, _BLOCK)},
        Pair(_M, _M): {CUBE: (_ALL, _SIGNAL, _BLOCK), VECTOR: (_ALL, _SIGNAL, _BLOCK)},
    }
)
# A barrier over everything launched. With both classes vectors meet through their cubes, and not at a flag of theirs.
ONE_CLASS_BARRIER: Row = MappingProxyType(dict.fromkeys(CoreClass, (Action.ARRIVE, _ALL)))
MIXED_BARRIER: Row = MappingProxyType({CUBE: (_BLOCK, Action.ARRIVE, _ALL, _SIGNAL), VECTOR: (_SIGNAL, _BLOCK)})
_OF_CLASSES = {op_class.classes: op_class for op_class in OpClass}

ClassNeed = tuple[CoreClass, CoreClass]  # what the first class has done must be known to the second


def barrier_of(classes: tuple[CoreClass, ...]) -> Row:
    """What each class does in a barrier over all cores of a launch of these classes."""
    return MIXED_BARRIER if len(classes) > 1 else ONE_CLASS_BARRIER


def pairs_for(needs: frozenset[ClassNeed]) -> tuple[Pair, ...]:
    """The rows that meet `needs`, and no more than that: one row, or one per class where no class needs the other."""
    crossing = {(a, b) for a, b in needs if a is not b}
    if not crossing:
        return tuple(Pair(_of(a), _of(a)) for a, _ in sorted(needs, key=lambda need: need[0].value))
    producer = _of(*(a for a, _ in needs))
    # a class that passes on what it knows has waited for itself already
    consumer = _of(*(b for a, b in crossing))
    return (Pair(producer, consumer),)


def pair_of(producers: frozenset[CoreClass], consumer: OpClass) -> Pair:
    """The row for an op that waits inside itself: it knows pair codes only."""
    return Pair(_of(*producers), consumer)


def _of(*classes: CoreClass) -> OpClass:
    return _OF_CLASSES[tuple(core_class for core_class in CoreClass if core_class in classes)]
