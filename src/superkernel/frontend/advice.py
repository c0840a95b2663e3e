"""frontend.advice: what was compiled -> a verdict, launches before and after, the gain, splits with remedies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import counted
from .capture.fusibility import Cause, Unfusible
from .part_verdict import INDUCTOR
from .profit_gate import UNFUSED
from .scope_report import CompileFacts, ScopeReport, SegmentReport

_TRAINING = "forward", "backward"  # kinds of graphs with gradients

# What to do about an op that splits a scope, by what keeps it apart.
_REMEDIES = {
    Cause.NO_KERNEL: 'register a kernel, sk.register_kernel("{op}"), or move it before or after the scope',
    Cause.COLLECTIVE: "nothing: torch runs it; docs/collectives.md lists operators, dtypes and groups that are fused",
    Cause.HIGHER_ORDER: "move it before or after the scope, or write the branches with torch.where",
    Cause.DATA_DEPENDENT_NUMBER: "keep the value in a tensor (no .item()), or move the op out of the scope",
    Cause.DATA_DEPENDENT_SIZE: "give it a fixed size: torch._dynamo.mark_static for an input, torch.where for a mask",
    Cause.LIBRARY_FASTER: "nothing: it is faster this way; profit_gate=0 fuses it nevertheless",
    Cause.OUTSIDE_SCOPE: "move the op out of the middle of the scope, or into the scope",
}
_NO_GRADIENTS = "call the model under torch.no_grad() where no gradients are needed"
_UNCOMPILED = "read the reason; docs/torch.md lists what a scope may contain"


@dataclass(frozen=True)
class Split:
    """An op, or a graph, that adds launches, and what to do about it."""

    op: str
    reason: str
    line: str  # of the model; empty: not known
    count: int
    launches: int  # that it adds: its own, and those of super kernels that begin after it
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Gain:
    """Median times of what was launched both ways."""

    before_us: float  # unfused: every op a launch; or by stock Inductor
    after_us: float  # as super kernels
    measured: int  # segments; for Inductor, parts of graphs

    @property
    def factor(self) -> float:
        return self.before_us / self.after_us if self.after_us else 1.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"factor": self.factor}


@dataclass(frozen=True)
class Advice:
    """The first screen of a report; the costliest splits come first."""

    verdict: str
    launches_before: int  # of scopes, when every graph runs once: an op or an operator of torch each
    launches_after: int
    gain: Gain | None  # None: not measured
    against_inductor: Gain | None  # None: not compared
    splits: tuple[Split, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "launches": {"before": self.launches_before, "after": self.launches_after},
            "gain": None if self.gain is None else self.gain.to_dict(),
            "against_inductor": None if self.against_inductor is None else self.against_inductor.to_dict(),
            "splits": [split.to_dict() for split in self.splits],
        }


def advise(facts: CompileFacts) -> Advice:
    torch_calls = sum(len(_torch_calls(scope)) for scope in facts.scopes)
    before = sum(len(segment.ops) for segment in facts.segments) + torch_calls
    after = sum(map(_launches, facts.segments)) + torch_calls
    gain, against_inductor = _gain(facts.segments), _gain_over_inductor(facts.segments)
    return Advice(_verdict(facts, torch_calls), before, after, gain, against_inductor, tuple(_splits(facts)))


def _torch_calls(scope: ScopeReport) -> list[Unfusible]:
    """Operators of the scope that torch launches; what lies between its ops is not part of it."""
    return [found for found in scope.unfusible if found.cause is not Cause.OUTSIDE_SCOPE]


def _is_one_launch(segment: SegmentReport) -> bool:
    return segment.fused and segment.launches != UNFUSED


def _launches(segment: SegmentReport) -> int:
    return 1 if _is_one_launch(segment) else len(segment.ops)


def _gain(segments: Iterable[SegmentReport]) -> Gain | None:
    measured = [
        (segment.times_us[UNFUSED], segment.times_us[segment.launches])
        for segment in segments
        if UNFUSED in segment.times_us and segment.launches in segment.times_us
    ]
    return _sum(measured)


def _gain_over_inductor(segments: Iterable[SegmentReport]) -> Gain | None:
    verdicts = {id(segment.verdict): segment.verdict.times_us for segment in segments if segment.verdict is not None}
    compared = [times for times in verdicts.values() if INDUCTOR in times and len(times) > 1]
    ours = [min(us for name, us in times.items() if name != INDUCTOR) for times in compared]
    return _sum([(times[INDUCTOR], us) for times, us in zip(compared, ours, strict=True)])


def _sum(measured: Sequence[tuple[float, float]]) -> Gain | None:
    """`measured`: times before and after."""
    if not measured:
        return None
    return Gain(sum(before for before, _ in measured), sum(after for _, after in measured), len(measured))


def _verdict(facts: CompileFacts, torch_calls: int) -> str:
    segments = facts.segments
    kernels = sum(map(_is_one_launch, segments))
    if not facts.graphs:
        return f"nothing was compiled: {_why_no_graph(facts)}"
    if not segments and torch_calls:
        return "not fused: torch runs every op of the scopes"
    if not segments:
        return "nothing was fused: " + (facts.notes[0] if facts.notes else "no scope contains an op to launch")
    if not kernels:
        return f"not fused: {_why_not_fused(segments)}"
    left = [segment for segment in segments if not _is_one_launch(segment)]
    others = [
        f"{counted(torch_calls, 'operator')} of torch" if torch_calls else "",
        f"{counted(facts.outside, 'op')} outside of scopes" if facts.outside else "",
        f"{counted(len(left), 'segment')} not fused" if left else "",
    ]
    emulated = " (emulated)" if any(segment.emulated for segment in segments) else ""
    launched = ", ".join([f"{counted(kernels, 'super kernel')}{emulated}", *filter(None, others)])
    return f"{'partly fused' if any(others) else 'fused'}: {launched}"


def _why_no_graph(facts: CompileFacts) -> str:
    found = next(iter([*facts.skipped, *facts.graph_breaks]), None)
    if found is None and facts.is_script:
        return (
            "no model in this process. What the script starts in other processes is not seen; explain ranks in their "
            "own processes: torchrun --nproc-per-node 2 --local-ranks-filter 0 --no-python superkernel explain SCRIPT"
        )
    if found is None:
        return "Dynamo found no tensor operation in the model, or the model is excluded (torch.compiler.disable)"
    hint = f"; {found.hint}" if found.hint else ""
    explanation = f": {found.explanation.removesuffix('.')}" if found.explanation else ""
    return f"{found.reason}{explanation}{hint}"


def _why_not_fused(segments: Iterable[SegmentReport]) -> str:
    segment = next(iter(segments))
    if segment.fused:  # the profit gate launches its ops one by one
        return "launching op by op was measured to be faster here"
    return segment.reason


def _splits(facts: CompileFacts) -> list[Split]:
    """The costliest first; equal ones (the layers of a model) are one split with a count."""
    found: dict[tuple[str, str, str], Split] = {}
    for scope in facts.scopes:
        for split in _splits_of(scope):
            key = split.op, split.reason, split.remedy
            known = found.get(key)
            found[key] = (
                split
                if known is None
                else replace(known, count=known.count + split.count, launches=known.launches + split.launches)
            )
    training = _training_split(facts)
    splits = [*found.values(), *([] if training is None else [training])]
    return sorted(splits, key=lambda split: -split.launches)


def _splits_of(scope: ScopeReport) -> Iterator[Split]:
    for unfusible in _torch_calls(scope):
        yield _split(unfusible, 1, 1)
    for place, segment in enumerate(scope.segments, 1):
        obstacle = segment.obstacle
        if not segment.fused and not segment.ops and (obstacle is None or obstacle not in scope.unfusible):
            yield _whole_scope(scope, segment)
        elif obstacle is not None and place < len(scope.segments):
            is_foreign = obstacle.cause is Cause.OUTSIDE_SCOPE
            yield _split(obstacle, int(is_foreign), 1)  # an operator of the scope is counted above


def _whole_scope(scope: ScopeReport, segment: SegmentReport) -> Split:
    """A part of the scope of which nothing is fused."""
    if segment.obstacle is not None:
        return _split(segment.obstacle, 1, 1)
    return Split(f"scope {scope.name!r}", segment.reason, "", 1, 1, _UNCOMPILED)


def _split(unfusible: Unfusible, count: int, launches: int) -> Split:
    remedy = _REMEDIES[unfusible.cause].format(op=unfusible.op)
    line = unfusible.origins[0] if unfusible.origins else ""
    return Split(unfusible.op, unfusible.reason, line, count, launches, remedy)


def _training_split(facts: CompileFacts) -> Split | None:
    scopes = [scope for scope in facts.scopes if scope.kind in _TRAINING]
    graphs = {scope.number for scope in scopes}
    backward = [scope for scope in scopes if scope.kind == _TRAINING[1]]
    if not graphs:
        return None
    launches = sum(len(_torch_calls(scope)) + sum(map(_launches, scope.segments)) for scope in backward)
    reason = "inputs or weights need gradients: what the backward graph reads is stored"
    return Split(f"{counted(len(graphs), 'graph')} for training", reason, "", 1, launches, _NO_GRADIENTS)
