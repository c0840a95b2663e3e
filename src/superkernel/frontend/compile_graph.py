"""frontend.graphs: a graph of AOTAutograd -> parts by scope, each compiled: super kernels inside, Inductor outside."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..cache import cache_in, totals
from ..errors import BuildError, OptionError, SuperKernelError, UnsupportedError
from ..model.options import Options, StrictScopeCheck
from ..runtime.launch_events import Provenance
from .bypass_aot import direct
from .capture.fusibility import Misfit, misfit
from .capture.marks import Mark, note_mark, read_marks, scope_options, source_line
from .capture.partition import Part, example_inputs, is_free, partition
from .capture.rewrites import share_heads
from .compile_part import Compiled, Drafted, build, drafted, reported
from .lowering import inductor
from .lowering.inductor_hooks import report_launches
from .report import Report, ScopeReport, SegmentReport, UnfusibleReport, current, leave_traces
from .run_parts import PartCallable, by_interpreter, join
from .settings import Fuse, Settings

_log = logging.getLogger("superkernel")
WHOLE = "graph"  # the name of the scope that nobody named
_dumped: Counter[Path] = Counter()


@dataclass
class GraphContext:
    """What the graphs of one compiled callable have in common."""

    settings: Settings
    root: object
    marked: bool  # the callable's code has a mark somewhere
    warned: set[str] = field(default_factory=set)
    inputs: int = 0  # of the graph that Dynamo gave
    direct: Callable[..., Any] | None = None  # what Dynamo may call instead of AOTAutograd's wrappers

    def warn_once(self, text: str) -> None:
        if text not in self.warned:
            self.warned.add(text)
            _log.warning(text)


def compile_graph(context: GraphContext, module: GraphModule, inputs: Sequence[Any], **facts: Any) -> PartCallable:
    """Inductor's inner compiler, replaced: called for each inference, forward and backward graph."""
    before = totals.copy()
    report = current()
    first = len(report.scopes)
    with cache_in(context.settings.cache), _strides_kept():
        made = _compile(context, module, facts, report)
    report.cache.update(totals - before)
    leave_traces(report, report.scopes[first:])
    return made


def _compile(context: GraphContext, module: GraphModule, facts: dict[str, Any], report: Report) -> PartCallable:
    report.graphs += 1
    kind = "inference" if facts.get("is_inference") else "backward" if facts.get("is_backward") else "forward"
    with_numbers(module)
    share_heads(module.graph)
    marks = read_marks(module.graph)
    options = scope_options(marks, context.settings.options)
    named, scope_of = _choose(context, marks)
    misfits = {node: found for node in scope_of if (found := misfit(node)) is not None}
    scopes = {}
    for name in dict.fromkeys(scope_of.values()):
        own = options[name] if named else Options.parse(context.settings.options)
        page = ScopeReport(name, str(own), report.graphs, kind)
        out = {node: found for node, found in misfits.items() if scope_of[node] == name}
        scopes[name] = _Scope(context, page, own, out)
        report.scopes.append(page)
    for name, (owner, own) in _inner_scopes(module, marks, context.settings.options).items():
        page = ScopeReport(name, str(own), report.graphs, kind)
        _Scope(context, page, own, {}).lies_inside(owner)
        report.scopes.append(page)
    for name, scope in scopes.items():
        if scope.refuses_data(named):
            scope_of = {node: other for node, other in scope_of.items() if other != name}
    parts = partition(module, lambda node: scope_of.get(node) if node not in misfits else None)
    built: dict[Part, PartCallable] = {}
    for scope in scopes.values():
        built |= scope.compile(parts)
    functions: list[PartCallable] = []
    for part in parts:
        if part.scope is None:
            report.outside += sum(not is_free(node) for node in part.nodes)
        functions.append(built.get(part) or _outside(part, context, facts, scopes))
    if facts.get("is_inference"):
        context.direct = direct(module, parts, functions, context.inputs)
    return join(module, parts, functions)


@contextmanager
def _strides_kept() -> Iterator[None]:
    """Inductor tells AOTAutograd how outputs lie in memory; not those of parts, and ours lie as the graph says."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        yield
        return
    told, context.output_strides = context.output_strides, None
    try:
        yield
    finally:
        context.output_strides = told


def _choose(context: GraphContext, marks: Mapping[Node, Mark | None]) -> tuple[bool, dict[Node, str]]:
    """The scope of each op that is to be fused; and whether users named them, or each graph is one."""
    named = any(mark is not None and mark.scope is not None for mark in marks.values())
    if named and context.root is not None:
        note_mark(context.root)
    fuse = context.settings.fuse
    if fuse is Fuse.MARKED or (fuse is not Fuse.WHOLE and (named or context.marked)):
        return True, {node: mark.scope for node, mark in marks.items() if mark is not None and mark.scope is not None}
    return False, {node: WHOLE for node, mark in marks.items() if mark is None or mark.scope is not None}


def _inner_scopes(
    module: GraphModule, marks: Mapping[Node, Mark | None], default: str
) -> dict[str, tuple[str, Options]]:
    """Scopes that begin in a branch or body of a higher-order operator: name -> operator, options."""
    found: dict[str, tuple[str, Options]] = {}
    for node in module.graph.nodes:
        if not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        for used in node.all_input_nodes:
            inner = getattr(module, str(used.target), None) if used.op == "get_attr" else None
            if isinstance(inner, GraphModule):
                own = read_marks(inner.graph)
                around, options = marks[node], scope_options(own, default)
                outer = around.scope if around is not None else None
                found |= {name: (str(node.target), options[name]) for name in options if name != outer}
                found |= _inner_scopes(inner, own, default)
    return found


class _Scope:
    """All parts of one scope: drafted, checked together, then built."""

    def __init__(
        self, context: GraphContext, report: ScopeReport, options: Options, misfits: Mapping[Node, Misfit]
    ) -> None:
        self.context, self.report, self.options, self.misfits = context, report, options, misfits

    @property
    def _where(self) -> str:
        return f"super_kernel_scope {self.report.name!r}: "

    def refuses_data(self, named: bool) -> bool:
        """Sizes that depend on data are an error in a named scope; a graph that is a scope is left to Inductor."""
        found = [(node, out) for node, out in self.misfits.items() if out.depends_on_data and (out.sizes or not named)]
        if not found:
            return False
        node, out = found[0]
        told = str(UnfusibleReport(str(node.target), out.reason, lines([node])))
        if named:
            raise UnsupportedError(
                f"{self._where}{told}; a super kernel is compiled for one shape: give it a fixed size "
                "(torch._dynamo.mark_static for an input), or leave it out of the scope"
            )
        self._give_up(UnsupportedError(told))
        return True

    def lies_inside(self, owner: str) -> None:
        self._give_up(
            UnsupportedError(f"it lies inside of {owner}, a higher-order operator, which is left to Inductor")
        )

    def compile(self, everything: Sequence[Part]) -> dict[Part, PartCallable]:
        """A callable for each part of the scope that becomes super kernels."""
        parts = [part for part in everything if part.scope == self.report.name]
        drafts: dict[Part, Drafted] = {}
        for part in parts:
            try:
                drafts[part] = drafted(part, self.context.settings)
            except OptionError:
                raise
            except Exception as reason:  # the first of two fallback points: Inductor compiles what we cannot take
                self._give_up(reason)
        if not self._passes(drafts, self._broken_by(everything), len(drafts) < len(parts)):
            return {}
        made: dict[Part, PartCallable] = {}
        for part, draft in drafts.items():
            try:
                compiled = build(draft, self.report.name, self.options, self.context.settings)
            except OptionError:
                raise
            except Exception as reason:  # the second one: what we took does not build
                self._give_up(reason)
                continue
            made[part] = compiled.call
            self._add(compiled, part, everything)
        return made

    def _passes(self, drafts: Mapping[Part, Drafted], broken: Sequence[UnfusibleReport], lacks: bool) -> bool:
        """The strict check: whether the scope is fused, as far as it can be."""
        inside = [item for draft in drafts.values() for item in draft.unfusible]
        out = [UnfusibleReport(str(node.target), m.reason, lines([node])) for node, m in self.misfits.items()]
        self.report.unfusible += [*out, *(found for found, _ in inside)]
        strict = [*out, *(found for found, collective in inside if not collective), *broken]
        if strict and self.options.strict_scope_check is StrictScopeCheck.ABORT:
            raise UnsupportedError(f"{self._where}strict-scope-check=abort: {'; '.join(map(str, strict))}")
        if self.options.strict_scope_check is not StrictScopeCheck.BYPASS or not (strict or lacks):
            return True
        self.report.unfusible += broken
        for found in strict[:1]:
            told = "; ".join(map(str, strict))
            self.context.warn_once(f"{self._where}strict-scope-check=bypass: the scope is not fused: {told}")
            self.report.segments.append(SegmentReport((), False, f"strict-scope-check=bypass: {found}"))
        return False

    def _add(self, compiled: Compiled, part: Part, everything: Sequence[Part]) -> None:
        segments = reported(compiled, self.context.settings)
        for segment in segments:
            if not segment.reason:
                segment.reason = self._why_ended(part, everything)
        self.report.segments += segments
        unfusible = tuple(map(str, self.report.unfusible))
        for segment in segments:
            provenance: Provenance = segment.kernel.provenance
            provenance.scope, provenance.reason = self.report.name, segment.reason
            provenance.unfusible = unfusible
            provenance.origins = {op.name: op.origins for op in segment.ops}
        _dump(compiled, self.report, self.context.settings)

    def _broken_by(self, everything: Sequence[Part]) -> list[UnfusibleReport]:
        """The first op of each foreign part between the first and the last op of the scope."""
        mine = [at for at, part in enumerate(everything) if part.scope == self.report.name]
        found = []
        for part in everything[mine[0] : mine[-1]] if mine else []:
            node = next((node for node in part.nodes if not is_free(node) and node not in self.misfits), None)
            if part.scope != self.report.name and node is not None:
                owner = f"of scope {part.scope!r}" if part.scope else "outside of the scope"
                found.append(UnfusibleReport(str(node.target), f"an op {owner} lies between its ops", lines([node])))
        return found

    def _give_up(self, reason: Exception) -> None:
        """Not taken or not built: Inductor runs it, and says so once; a strict scope is refused."""
        kind = "" if isinstance(reason, SuperKernelError) else f"{type(reason).__name__}: "
        notes = "".join(f" ({note})" for note in getattr(reason, "__notes__", ()))
        told = f"{kind}{reason}{notes}".removeprefix(self._where)
        if self.options.strict_scope_check is StrictScopeCheck.ABORT:
            raise UnsupportedError(f"{self._where}strict-scope-check=abort: {told}") from reason
        self.context.warn_once(f"{self._where}runs unfused through Inductor: {told}")
        _log.debug("%srefused", self._where, exc_info=reason)
        self.report.segments.append(SegmentReport((), False, told))

    def _why_ended(self, part: Part, everything: Sequence[Part]) -> str:
        following = everything[everything.index(part) + 1 :]
        if not following:
            return "ended with the graph"
        nodes = following[0].nodes
        node = next((node for node in nodes if not is_free(node)), nodes[0])
        if node in self.misfits:
            return f"ended by {node.target}: {self.misfits[node].reason}"
        if all(other.scope != part.scope for other in following):
            return "ended with the scope"
        return f"ended by {node.target}, which lies outside of the scope"


def _outside(part: Part, context: GraphContext, facts: dict[str, Any], scopes: Mapping[str, _Scope]) -> PartCallable:
    """The same, reporting its launches while there are listeners; with the reason, where it lies in a scope."""
    scope = scopes.get(part.scope or "")
    reasons = [segment.reason for segment in scope.report.segments if not segment.fused] if scope else []
    made = outside(part, context, facts)
    return report_launches(made, "inductor", part.scope or "", reasons[-1] if reasons else "")  # type: ignore[no-any-return]


def outside(part: Part, context: GraphContext, facts: dict[str, Any]) -> PartCallable:
    """What is not fused: Inductor's code for it, or the ops themselves where there is nothing to compile."""
    if all(is_free(node) for node in part.nodes):
        return by_interpreter(part.module)
    kept = {name: facts[name] for name in ("is_inference", "is_backward", "graph_id") if name in facts}
    try:
        return inductor.stock(part.module, example_inputs(part), context.settings.mode, **kept)  # type: ignore[no-any-return]
    except inductor.NoCompiler as reason:
        context.warn_once(f"Inductor has no C++ compiler either, ops run one by one: {reason}")
        return by_interpreter(part.module)


def lines(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for node in nodes if (line := source_line(node)) is not None))


def with_numbers(module: GraphModule) -> None:
    """Sizes that were symbols while the graph was traced, and have one value by now, become that value."""
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


def _dump(compiled: Compiled, report: ScopeReport, settings: Settings) -> None:
    """Each part of each graph in a folder of its own: scope/1_inference, scope/2_backward, ..."""
    if settings.dump is None:
        return
    place = Path(settings.dump) / re.sub(r"[^\w-]", "_", report.name)
    _dumped[place] += 1
    folder = place / f"{_dumped[place]}_{report.kind}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        compiled.dump(folder)
    except OSError as reason:
        raise BuildError(f"super_kernel_scope {report.name!r}: cannot be dumped in {folder}: {reason}") from reason
