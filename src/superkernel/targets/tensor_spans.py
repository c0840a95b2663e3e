"""targets.tensor_spans: the bytes that tensors cover, and whether written bytes are shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

OverlapCheck = Callable[[tuple[Any, ...]], bool]


@dataclass(frozen=True)
class TensorSpan:
    """The bytes of one tensor of a call, from its address on."""

    index: int  # in the arguments
    written: bool
    bytes: int


def overlap_check(spans: Sequence[TensorSpan]) -> OverlapCheck:
    """A function of tensors: whether the spans of two overlap, one of which is written."""
    covered = [span for span in spans if span.bytes]

    def check(tensors: tuple[Any, ...]) -> bool:
        reach = written_reach = 0
        for begin, span in sorted(
            ((tensors[span.index].data_ptr(), span) for span in covered), key=lambda pair: pair[0]
        ):
            if begin < written_reach or (span.written and begin < reach):
                return True
            reach = max(reach, begin + span.bytes)
            if span.written:
                written_reach = max(written_reach, begin + span.bytes)
        return False

    return check
