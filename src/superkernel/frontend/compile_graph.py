"""frontend.compile_graph: an AOTAutograd graph -> parts by scope: super kernels inside, Inductor outside of scopes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..cache import cache_in, totals
from ..model.options import Options
from .bypass_aot import direct_function
from .capture.bool_collectives import keep_bools
from .capture.complex_pairs import split_complex
from .capture.exchanged_states import keep_exchanged_values
from .capture.fusibility import why_unfusible
from .capture.marks import ScopeMark, read_marks, scope_options
from .capture.masked_writes import write_masked_by_where
from .capture.partition import GraphPart, example_inputs, is_free, partition
from .capture.rewrites import share_heads, use_int8_weights
from .capture.scope_detection import note_mark
from .compile_scope import ScopeCompiler
from .left_out_collectives import group_names, telling_ranks
from .lowering import find_lowering, inductor
from .lowering.inductor_hooks import report_launches
from .lowering.protocol import Lowering
from .report import CompileReport, current_report, log_scopes
from .run_parts import PartFunction, join_parts, op_by_op
from .scope_report import ScopeReport
from .settings import BackendSettings, Fuse

_log = logging.getLogger("superkernel")
WHOLE_GRAPH = "graph"  # the name of the scope of a graph without marks


@dataclass
class GraphContext:
    """What the graphs of one compiled callable share."""

    settings: BackendSettings
    root: object
    marked: bool  # the source of the callable has a mark
    warned: set[str] = field(default_factory=set)
    input_count: int = 0  # of the graph that Dynamo passed
    unwraps: bool = False  # an input or an output of that graph wraps tensors: see wrapped_inputs
    direct: Callable[..., Any] | None = None  # what Dynamo may call instead of AOTAutograd's wrappers

    @property
    def lowering(self) -> Lowering:
        return find_lowering(self.settings.model_support.kernel_language)

    @property
    def kept_operators(self) -> Collection[str]:
        """Operators that stay as they are: the lowering has something better than their decompositions."""
        return self.lowering.kept_operators(self.settings.model_support)

    def warn_once(self, text: str) -> None:
        if text not in self.warned:
            self.warned.add(text)
            _log.warning(text)


def compile_graph(context: GraphContext, module: GraphModule, inputs: Sequence[Any], **facts: Any) -> PartFunction:
    """Takes the place of Inductor's inner compiler: called for each inference, forward and backward graph."""
    before = totals.copy()
    report = current_report()
    first = len(report.scopes)
    with cache_in(context.settings.cache), _output_strides_unset():
        function = _compile(context, module, facts, report)
    report.cache.update(totals - before)
    log_scopes(report.scopes[first:])
    return function


def _compile(context: GraphContext, module: GraphModule, facts: dict[str, Any], report: CompileReport) -> PartFunction:
    report.graphs += 1
    kind = "inference" if facts.get("is_inference") else "backward" if facts.get("is_backward") else "forward"
    rewrite_graph(module, context.lowering)
    marks = read_marks(module.graph)
    options = scope_options(marks, context.settings.options)
    named, scope_of = _choose_scopes(context, marks)
    unfusible = {node: reason for node in scope_of if (reason := why_unfusible(node)) is not None}

    def compiler(name: str, scope: Options, nodes: Mapping[Node, Any]) -> ScopeCompiler:
        scope_report = ScopeReport(name, str(scope), report.graphs, kind)
        report.scopes.append(scope_report)
        return ScopeCompiler(
            context.settings, scope_report, scope, nodes, context.warn_once, partial(_compile_stock, context, facts)
        )

    scopes: dict[str, ScopeCompiler] = {}
    for name in dict.fromkeys(scope_of.values()):
        nodes = {node: reason for node, reason in unfusible.items() if scope_of[node] == name}
        scopes[name] = compiler(name, options[name] if named else Options.parse(context.settings.options), nodes)
    for name, (operator, scope) in _inner_scopes(module, marks, context.settings.options).items():
        compiler(name, scope, {}).lies_inside(operator)
    for name, scope_compiler in scopes.items():
        if scope_compiler.refuses_data_dependence(named):
            scope_of = {node: other for node, other in scope_of.items() if other != name}
    parts = partition(module, lambda node: scope_of.get(node) if node not in unfusible else None)
    fused: dict[GraphPart, PartFunction] = {}
    for scope_compiler in scopes.values():
        fused |= scope_compiler.compile(parts)
    functions: list[PartFunction] = []
    for part in parts:
        if part.scope is None:
            report.outside += sum(not is_free(node) for node in part.nodes)
        functions.append(fused.get(part) or _compile_outside(part, context, facts, scopes))
    if facts.get("is_inference") and not context.unwraps:
        context.direct = direct_function(module, parts, functions, context.input_count)
    return join_parts(module, parts, functions)


@contextmanager
def _output_strides_unset() -> Iterator[None]:
    """Inductor reports strides of outputs to AOTAutograd: not those of parts, and ours are those of the graph."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        yield
        return
    strides, context.output_strides = context.output_strides, None
    try:
        yield
    finally:
        context.output_strides = strides


def _choose_scopes(context: GraphContext, marks: Mapping[Node, ScopeMark | None]) -> tuple[bool, dict[Node, str]]:
    """Whether scopes are named by marks (else the graph is one scope), and the scope of each op to be fused."""
    named = any(mark is not None and mark.scope is not None for mark in marks.values())
    if named and context.root is not None:
        note_mark(context.root)
    fuse = context.settings.fuse
    if fuse is Fuse.MARKED or (fuse is not Fuse.WHOLE and (named or context.marked)):
        return True, {node: mark.scope for node, mark in marks.items() if mark is not None and mark.scope is not None}
    return False, {node: WHOLE_GRAPH for node, mark in marks.items() if mark is None or mark.scope is not None}


def _inner_scopes(
    module: GraphModule, marks: Mapping[Node, ScopeMark | None], default: str
) -> dict[str, tuple[str, Options]]:
    """Scopes that begin in a branch or body of a higher-order operator: name -> operator, options."""
    found: dict[str, tuple[str, Options]] = {}
    for node in module.graph.nodes:
        if not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        for used in node.all_input_nodes:
            body = getattr(module, str(used.target), None) if used.op == "get_attr" else None
            if isinstance(body, GraphModule):
                body_marks = read_marks(body.graph)
                mark, options = marks[node], scope_options(body_marks, default)
                outer = mark.scope if mark is not None else None
                found |= {name: (str(node.target), options[name]) for name in options if name != outer}
                found |= _inner_scopes(body, body_marks, default)
    return found


def _compile_outside(
    part: GraphPart, context: GraphContext, facts: dict[str, Any], scopes: Mapping[str, ScopeCompiler]
) -> PartFunction:
    """What is not fused: Inductor's code for it, or its ops where there is nothing to compile."""
    if all(is_free(node) for node in part.nodes):
        return op_by_op(part.module)
    scope = scopes.get(part.scope or "")
    reasons = [segment.reason for segment in scope.report.segments if not segment.fused] if scope else []
    reason = reasons[-1] if reasons else ""
    function = _compile_stock(context, facts, part, reason)
    names, collectives = group_names(part), context.settings.model_support.collectives
    return function if collectives is None or not names else telling_ranks(function, names, reason, collectives)


def _compile_stock(context: GraphContext, facts: dict[str, Any], part: GraphPart, reason: str) -> PartFunction:
    """Inductor's code for a part. While there are listeners, it reports its launches, with the reason."""
    inductor_facts = {name: facts[name] for name in ("is_inference", "is_backward", "graph_id") if name in facts}
    mode = context.settings.mode
    try:
        examples = example_inputs(part)
        module = context.lowering.for_inductor(part.module, examples)
        function: PartFunction = inductor.compile_stock(module, examples, mode, **inductor_facts)
    except inductor.NoCompiler as failure:
        context.warn_once(str(failure))
        return op_by_op(part.module)
    report_launches(function, context.lowering.kernel_prefix, "inductor", part.scope or "", reason)
    return function


def rewrite_graph(module: GraphModule, lowering: Lowering) -> None:
    """What every graph of AOTAutograd goes through before it is divided into parts."""
    replace_known_sizes(module)
    keep_exchanged_values(module.graph)
    write_masked_by_where(module.graph)
    split_complex(module.graph)
    keep_bools(module.graph)
    share_heads(module.graph, lowering.attention_operators)
    if lowering.has_int8_weights:
        use_int8_weights(module.graph)


def replace_known_sizes(module: GraphModule) -> None:
    """Sizes that were symbols while the graph was traced, and have one value now, become that value."""
    graph = module.graph
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and (number := value.node.maybe_as_int()) is not None:
            for user in [user for user in node.users if user.op != "output"]:
                known = {node: number}
                user.args, user.kwargs = torch.fx.map_arg(
                    (user.args, user.kwargs), lambda used, k=known: k.get(used, used)
                )
            if node.op != "placeholder" and not node.users:
                graph.erase_node(node)
