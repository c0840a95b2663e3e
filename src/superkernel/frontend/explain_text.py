"""frontend.explain_text: what was compiled -> one screen of advice, then the detail, as lines or as HTML."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import counted
from ..model import notebook_html
from .advice import Advice, Gain, Split, advise
from .explain_detail import detail_lines
from .fit_width import LEAST, short_place, wrapped
from .graph_breaks import GraphBreak
from .scope_report import CompileFacts

_MOST_SPLITS = 3
_MOST_BREAKS = 5


def report_lines(facts: CompileFacts, width: int) -> list[str]:
    """Lines of at most `width` columns."""
    width = max(width, LEAST)
    detail = detail_lines(facts.scopes, width)
    return [*first_screen(facts, width), *(["", *detail] if detail else [])]


def first_screen(facts: CompileFacts, width: int) -> list[str]:
    """Verdict, launches, gain, graph breaks, the costliest splits with what to do."""
    advice = advise(facts)
    texts = [*_facts(facts, advice), *_breaks(facts), *_splits(advice)]
    return [line for text in texts for line in wrapped(text, width)]


def _facts(facts: CompileFacts, advice: Advice) -> Iterator[str]:
    yield f"verdict: {advice.verdict}"
    if advice.launches_before:
        yield f"{_launches_title(facts)}: {advice.launches_before} -> {advice.launches_after}"
        yield f"measured: {_gain_text(advice.gain, facts)}"
        yield from _busy_warning(facts)
    if (gain := advice.against_inductor) is not None:
        ours = f"super kernels {gain.after_us:.1f} us: {gain.factor:.2f}x as fast"
        yield f"stock Inductor: {gain.before_us:.1f} us, {ours}"
    found = f"{counted(facts.graphs, 'graph')}, {counted(len(facts.scopes), 'scope')}"
    outside = f"{counted(facts.outside, 'op')} outside of scopes"
    outside_by = f" ({facts.outside_by})" if facts.outside_by else ""
    cache = f"{counted(facts.cache['hits'], 'hit')}, {counted(facts.cache['misses'], 'miss', 'misses')}"
    yield f"{found}; {outside}{outside_by}; cache: {cache}"
    yield from (f"note: {note}" for note in facts.notes)


def _launches_title(facts: CompileFacts) -> str:
    return "launches per call" if facts.graphs == 1 else f"launches of all {facts.graphs} graphs"


def _gain_text(gain: Gain | None, facts: CompileFacts) -> str:
    gated = [segment for segment in facts.segments if segment.gate is not None]
    if gain is None:
        return (
            "not yet: the first calls of the model measure" if gated else "no: every segment has one way to be launched"
        )
    part = f", in {gain.measured} of {len(facts.segments)} segments" if gain.measured < len(facts.segments) else ""
    return f"{gain.after_us:.1f} us, unfused {gain.before_us:.1f} us: {gain.factor:.2f}x as fast{part}"


def _busy_warning(facts: CompileFacts) -> Iterator[str]:
    """Times of a busy machine compare what other programs left to each alternative."""
    found = [segment.conditions for segment in facts.segments if segment.conditions is not None]
    if busy := [conditions for conditions in found if conditions.busy]:
        worst = max(busy, key=lambda conditions: conditions.load or 0.0)
        yield (
            f"warning: the machine was busy ({worst}): these times say little; when it is idle, run "
            "`superkernel cache clear --gate` and measure again"
        )


def _breaks(facts: CompileFacts) -> Iterator[str]:
    breaks = [found for found in facts.graph_breaks if found.line or facts.graphs]  # without graphs the verdict says it
    yield f"graph breaks: {len(breaks) or 'none'}"
    for found in breaks[:_MOST_BREAKS]:
        yield from _break_lines(found)
    if len(breaks) > _MOST_BREAKS:
        yield f"  and {len(breaks) - _MOST_BREAKS} more, in to_dict() and --json"


def _break_lines(found: GraphBreak) -> Iterator[str]:
    yield f"  {short_place(found.line) or 'an unknown line'}"
    yield f"    {found.reason}"
    if found.hint:
        yield f"    do: {found.hint}"


def _splits(advice: Advice) -> Iterator[str]:
    if not advice.splits:
        return
    more = f", the costliest {_MOST_SPLITS}" if len(advice.splits) > _MOST_SPLITS else ""
    yield f"splits: {sum(split.count for split in advice.splits)}{more}"
    for number, split in enumerate(advice.splits[:_MOST_SPLITS], 1):
        yield from _split_lines(number, split)


def _split_lines(number: int, split: Split) -> Iterator[str]:
    count = f" x {split.count}" if split.count > 1 else ""
    launches = "1 launch" if split.launches == 1 else f"{split.launches} launches"
    yield f"  {number}. {split.op}{count}, {launches} more: {split.reason}"
    if split.line:
        yield f"    {short_place(split.line)}"
    yield f"    do: {split.remedy}"


def html_page(facts: CompileFacts, width: int) -> str:
    """For notebooks: the verdict, what a reader should know, and the detail folded away."""
    advice = advise(facts)
    first, *others = _facts(facts, advice)
    lines = [*others, *_breaks(facts), *_splits(advice)]
    detail = detail_lines(facts.scopes, width)
    return notebook_html.page(
        notebook_html.heading(first),
        notebook_html.listing(line for text in lines for line in wrapped(text, width)),
        notebook_html.folded("segments and ops", notebook_html.listing(detail)) if detail else "",
    )
