"""frontend.graphs: a graph from AOTAutograd -> parts by scope, each compiled: super kernels inside, Inductor outside."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..cache import cache_in, totals
from ..errors import OptionError, SuperKernelError, UnsupportedError
from ..options import Options, StrictScopeCheck
from . import inductor
from .joined import PartCallable, by_interpreter, join
from .marks import Mark, note_mark, read_marks, scope_options, source_line
from .partition import Part, example_inputs, partition
from .report import Report, ScopeReport, SegmentReport, UnfusibleReport, current, leave_traces
from .scopes import Compiled, Drafted, build, drafted, reported
from .settings import Fuse, Settings

_log = logging.getLogger("superkernel")
WHOLE = "graph"  # the name of the scope that nobody named


@dataclass
class GraphContext:
    """What the graphs of one compiled callable have in common."""

    settings: Settings
    root: object
    marked: bool  # the callable's code has a mark somewhere
    graphs: int = 0
    warned: set[str] = field(default_factory=set)

    def warn_once(self, text: str) -> None:
        if text not in self.warned:
            self.warned.add(text)
            _log.warning(text)


def compile_graph(context: GraphContext, module: GraphModule, inputs: Sequence[Any], **facts: Any) -> PartCallable:
    """Inductor's inner compiler, replaced: called for each inference, forward and backward graph."""
    before = totals.copy()
    report = current()
    first = len(report.scopes)
    with cache_in(context.settings.cache):
        made = _compile(context, module, facts, report)
    report.cache.update(totals - before)
    leave_traces(report, report.scopes[first:])
    return made


def _compile(context: GraphContext, module: GraphModule, facts: dict[str, Any], report: Report) -> PartCallable:
    context.graphs += 1
    report.graphs += 1
    kind = "inference" if facts.get("is_inference") else "backward" if facts.get("is_backward") else "forward"
    with_numbers(module)
    marks = read_marks(module.graph)
    options = scope_options(marks, context.settings.options)
    chosen = _choose(context, marks)
    names = dict.fromkeys(scope for node in marks if (scope := chosen(node)) is not None)
    parts = partition(module, chosen)
    scopes = {}
    for name in names:
        own = options.get(name) or Options.parse(context.settings.options)
        mine = [part for part in parts if part.scope == name]
        scopes[name] = _Scope(context, ScopeReport(name, str(own), f"{report.graphs} ({kind})"), own, mine)
        report.scopes.append(scopes[name].report)
    functions: list[PartCallable] = []
    built = {name: scope.compile(parts) for name, scope in scopes.items()}
    for part in parts:
        function = built[part.scope].get(part) if part.scope is not None else None
        if function is None:
            report.outside += len(part.nodes) if part.scope is None else 0
            function = outside(part, context, facts)
        functions.append(function)
    return join(module, parts, functions)


def _choose(context: GraphContext, marks: dict[Node, Mark | None]) -> Callable[[Node], str | None]:
    """Which scope each op is fused in."""
    named = any(mark is not None and mark.scope is not None for mark in marks.values())
    if named and context.root is not None:
        note_mark(context.root)
    fuse = context.settings.fuse
    marked = named or context.marked
    if fuse is Fuse.MARKED or (fuse in (Fuse.AUTO, Fuse.OFF) and marked):
        return lambda node: mark.scope if (mark := marks.get(node)) is not None else None
    return lambda node: WHOLE if node in marks and not _excluded(marks[node]) else None


def _excluded(mark: Mark | None) -> bool:
    return mark is not None and mark.scope is None


class _Scope:
    """All parts of one scope: drafted, checked together, then built."""

    def __init__(self, context: GraphContext, report: ScopeReport, options: Options, parts: Sequence[Part]) -> None:
        self.context, self.report, self.options, self.parts = context, report, options, parts

    @property
    def _where(self) -> str:
        return f"super_kernel_scope {self.report.name!r}: "

    def compile(self, everything: Sequence[Part]) -> dict[Part, PartCallable]:
        drafts: dict[Part, Drafted] = {}
        broken = self._broken_by(everything)
        for part in self.parts:
            try:
                drafts[part] = drafted(part, self.context.settings)
            except OptionError:
                raise
            except Exception as reason:  # the first of two fallback points: Inductor compiles what we cannot take
                self._give_up([part], reason)
        found = [item for draft in drafts.values() for item in draft.unfusible]
        self.report.unfusible += [u for u, _ in found]
        strict = [u for u, collective in found if not collective] + broken
        if strict and self.options.strict_scope_check is StrictScopeCheck.ABORT:
            raise UnsupportedError(f"{self._where}strict-scope-check=abort: {'; '.join(map(str, strict))}")
        if strict and self.options.strict_scope_check is StrictScopeCheck.BYPASS:
            told = f"{self._where}strict-scope-check=bypass: the scope is not fused: {'; '.join(map(str, strict))}"
            self.context.warn_once(told)
            self.report.unfusible += broken
            for part in drafts:
                self._add_unfused(part, f"strict-scope-check=bypass: {strict[0]}")
            return {}
        made: dict[Part, PartCallable] = {}
        for part, draft in drafts.items():
            try:
                compiled = build(draft, self.report.name, self.options, self.context.settings)
            except OptionError:
                raise
            except Exception as reason:  # the second one: what we took does not build
                self._give_up([part], reason)
                continue
            made[part] = compiled.call
            self._add(compiled, part, everything)
        return made

    def _add(self, compiled: Compiled, part: Part, everything: Sequence[Part]) -> None:
        segments = reported(compiled, self.context.settings)
        for segment in segments:
            if not segment.reason:
                segment.reason = _why_ended(part, everything)
        self.report.segments += segments
        _dump(compiled, self.report, self.context.settings)

    def _broken_by(self, everything: Sequence[Part]) -> list[UnfusibleReport]:
        """The first op of everything foreign between the first and the last op of the scope."""
        if len(self.parts) < 2:
            return []
        first, last = everything.index(self.parts[0]), everything.index(self.parts[-1])
        between = [part for part in everything[first:last] if part.scope != self.report.name]
        found = []
        for part in between:
            node = next((node for node in part.nodes if not is_free(node)), None)
            if node is not None:
                owner = f"of scope {part.scope!r}" if part.scope else "outside of the scope"
                found.append(UnfusibleReport(str(node.target), f"an op {owner} lies between its ops", lines([node])))
        return found

    def _give_up(self, parts: Sequence[Part], reason: Exception) -> None:
        """Not taken or not built: Inductor runs it, and says so once; a strict scope is refused."""
        told = f"{type(reason).__name__}: {reason}" if not isinstance(reason, SuperKernelError) else str(reason)
        strict = self.options.strict_scope_check
        if strict is StrictScopeCheck.ABORT:
            raise UnsupportedError(f"{self._where}strict-scope-check=abort: {told}") from reason
        self.context.warn_once(f"{self._where}runs unfused through Inductor: {told}")
        _log.debug("%srefused", self._where, exc_info=reason)
        for part in parts:
            self._add_unfused(part, told)

    def _add_unfused(self, part: Part, reason: str) -> None:
        self.report.segments.append(SegmentReport((), False, reason))


def _why_ended(part: Part, everything: Sequence[Part]) -> str:
    following = everything[everything.index(part) + 1 :]
    if not following:
        return "ended with the graph"
    if all(other.scope != part.scope for other in following):
        return "ended with the scope"
    node = following[0].nodes[0]
    return f"ended by {node.target}, which lies outside of the scope"


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


def is_free(node: Node) -> bool:
    """It computes nothing: another look at memory, or a choice from several results."""
    return getattr(node.target, "is_view", False) or node.target is operator.getitem


def lines(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for node in nodes if (line := source_line(node)) is not None))


def with_numbers(module: GraphModule) -> None:
    """Sizes that were symbols while the graph was traced, and have one value by now, become that value."""
    graph = module.graph
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and (number := value.node.maybe_as_int()) is not None:
            for user in list(node.users):
                if user.op != "output":
                    user.args = torch.fx.map_arg(user.args, lambda used: number if used is node else used)
                    user.kwargs = torch.fx.map_arg(user.kwargs, lambda used: number if used is node else used)
            if node.op != "placeholder" and not node.users:
                graph.erase_node(node)


def _dump(compiled: Compiled, report: ScopeReport, settings: Settings) -> None:
    if settings.dump is None:
        return
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in report.name)
    folder = Path(settings.dump) / plain / f"graph{report.graph.split()[0]}"
    folder.mkdir(parents=True, exist_ok=True)
    compiled.dump(folder)
