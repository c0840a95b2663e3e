"""frontend.report_keys: ops, segments, scopes -> keys: equal for those that a report prints once."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from .listed_ops import ListedOp
from .scope_report import OpReport, ScopeReport, SegmentReport

_NUMBERS = re.compile(r"_?\d+")


def _without_numbers(name: str) -> str:
    return _NUMBERS.sub("", name)


def _exact_op(op: OpReport) -> Hashable:
    return _without_numbers(op.name), op.blocks, op.origins, None if op.listed is None else _listed(op.listed)


def _alike_op(op: OpReport) -> Hashable:
    """Generated kernels are alike: in identical layers they differ in what the compiler moved between layers."""
    return None if op.generated else (_without_numbers(op.name), op.blocks)


def _listed(listed: ListedOp) -> Hashable:
    params = tuple((param.kind, param.name, param.dtype, param.shape) for param in listed.params)
    order = listed.stream, len(listed.send), len(listed.recv)
    return listed.op_type, listed.core, params, str(listed.attributes), order, listed.metadata, listed.missing


@dataclass(frozen=True)
class KeyFunctions:
    """The keys of ops, and of what they are part of."""

    op: Callable[[OpReport], Hashable]

    def segment(self, segment: SegmentReport) -> Hashable:
        return segment.launches, segment.reason, tuple(map(self.op, segment.ops))

    def scope(self, scope: ScopeReport) -> Hashable:
        segments = tuple(map(self.segment, scope.segments))
        return _without_numbers(scope.name), scope.options, scope.kind, segments, tuple(scope.unfusible)


EXACT, ALIKE = KeyFunctions(_exact_op), KeyFunctions(_alike_op)
