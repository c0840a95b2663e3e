"""plan.staging: a graph and its placement -> the steps that copy inputs of later ops into the rings of their cores.

A ring is filled in the order of the ops of its core, from the beginning of the launch on: a copy reads its input before
the op begins, so that only inputs are staged that nothing can change meanwhile.
"""

from __future__ import annotations

from ..model.graph import Graph
from ..model.node import Node
from ..model.op import Place
from ..model.options import EarlyStart, Options
from ..model.params import Kind, Param
from ..model.staged_input import StagedInput
from ..model.subkernel import SubKernel
from .machine import Machine
from .placement import Placement
from .steps import Cores, StageWeights


def stage_steps(graph: Graph, placement: Placement, options: Options, machine: Machine) -> list[StageWeights]:
    """In issue order. One op alone fills its ring itself."""
    if not machine.stages or options.early_start is not EarlyStart.FULL:
        return []
    kernels = staged_kernels(graph)
    ops = [op for op in graph.order if graph.nodes[op].kernel in kernels]
    if len(ops) < 2 or not all(is_in_line(graph.nodes[op], placement.of[op]) for op in ops):
        return []
    return [StageWeights(placement.of[op], op, staged_argument(graph.nodes[op])[1].name) for op in ops]


def staged_kernels(graph: Graph) -> frozenset[SubKernel]:
    """Those that share the first one's ring, if the inputs of all their ops are constant.

    None where other agents take part: they may write an input until they signal.
    """
    if graph.events or graph.collectives:
        return frozenset()
    able = [node for node in graph.nodes if node.kernel.staged_input is not None]
    rings = {node.kernel: _ring(node.kernel.staged_input) for node in able if node.kernel.staged_input is not None}
    first = next(iter(rings.values()), None)
    changing = {node.kernel for node in able if not is_constant(graph, node)}
    return frozenset(kernel for kernel, ring in rings.items() if ring == first and kernel not in changing)


def _ring(staged: StagedInput) -> tuple[int, int, int]:
    return staged.slots, staged.slot_bytes, staged.arrivals


def staged_argument(node: Node) -> tuple[Param, Place]:
    """The input of an op that can be staged, and what is passed for it."""
    staged = node.kernel.staged_input
    assert staged is not None
    return next((param, place) for param, place in node.places() if param.name == staged.param)


def is_in_line(node: Node, cores: Cores) -> bool:
    """Whether core c runs block c - cores[0], and no other: it then knows its chunks by its number."""
    return node.blocks == len(cores) and cores == tuple(range(cores[0], cores[0] + len(cores)))


def is_constant(graph: Graph, node: Node) -> bool:
    """Whether the size of the input is known, and no op of the launch writes it."""
    param, place = staged_argument(node)
    return param.kind is Kind.IN and bool(param.nbytes) and not graph.buffers[place.name].written
