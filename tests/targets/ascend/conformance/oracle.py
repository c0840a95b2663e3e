"""What a case must compute: its ops one after the other, in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from targets.ascend.conformance.cases import LINE, LINES, Case, Use, tiling

from superkernel.model.graph import Graph

Array = np.ndarray[Any, Any]


def expected(case: Case, graph: Graph, given: Mapping[str, Array]) -> dict[str, Array]:
    """All buffers after the case, in the serial order of its graph."""
    buffers = {name: array.copy() for name, array in given.items()}
    for index in graph.order:
        use = case.uses[index]
        factor = 31
        if use.shape.dynamic:
            chosen = tiling(buffers, use.shape, use.first_input())
            if not chosen.blocks:
                continue
            factor = {1: 33, 5: 37, 2: 31}[chosen.key]
        _run(use, factor, buffers)
    return buffers


def _run(use: Use, factor: int, buffers: dict[str, Array]) -> None:
    shape, salt = use.shape, use.salt
    lines = np.arange(LINES)
    views = [buffers[name].reshape(LINES, LINE) for name in use.names]
    inputs = [view.copy() for view in views[: shape.ins]]
    total = np.full((LINES, LINE), salt, np.uint32)
    for k, view in enumerate(inputs):
        total = total * np.uint32(factor) + view[(lines * 5 + k * 7 + salt) % LINES]
    if shape.meets:
        first = inputs[0][(lines * 11 + salt) % LINES] if inputs else np.zeros((LINES, LINE), np.uint32)
        workspace = first * np.uint32(3) + lines[:, None].astype(np.uint32)
        total = total + workspace[(lines + salt) % LINES]
    for k in range(shape.outs):
        views[shape.ins + k][:] = total + np.uint32(k * 977)
    for view in views[shape.ins + shape.outs :]:
        view[:] = view * np.uint32(factor) + total
