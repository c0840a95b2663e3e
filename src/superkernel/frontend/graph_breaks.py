"""frontend.graph_breaks: what Dynamo recorded while it traced -> where and why it ended graphs, or made none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from torch._dynamo.utils import counters, graph_break_reasons

from .capture.source_lines import user_line

_UNIMPLEMENTED = "unimplemented"  # Dynamo's counter of what made it skip a function
_FIELD = re.compile(r"^  (Explanation|Hint): (.*(?:\n    .*)*)", re.MULTILINE)
_BRANCH = "generic_jump"  # Dynamo's word for a jump on a value that only the run knows
_NO_HINT = (  # hints that say nothing to do
    "This graph break is fundamental",
    "It may be possible to write Dynamo tracing rules",
    "This is likely to be a Dynamo bug",
    "This graph break may be difficult",
    "This graph break may have been caused",
)


# What to do with this back end, where it differs from what Dynamo says.
_HINTS = {
    "Attempted to wrap RNN, GRU, or LSTM": "call the model under torch.no_grad(): recurrent layers are traced there",
}


@dataclass(frozen=True)
class GraphBreak:
    """A place where Dynamo ended a graph; without a line, a function of which it made no graph."""

    reason: str
    explanation: str = ""
    hint: str = ""  # what Dynamo says to do
    line: str = ""  # "model.py:12: print(x)"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@contextmanager
def recording_graph_breaks(breaks: list[GraphBreak], skipped: list[GraphBreak]) -> Iterator[None]:
    """Adds the graph breaks of the body to `breaks`, and the reasons for functions without a graph to `skipped`."""
    first, before = len(graph_break_reasons), Counter(counters[_UNIMPLEMENTED])
    try:
        yield
    finally:
        if len(graph_break_reasons) < first:  # torch._dynamo.reset() was called inside
            first = 0
        found = [
            graph_break(recorded.reason, ((frame.filename, frame.lineno or 0) for frame in recorded.user_stack))
            for recorded in graph_break_reasons[first:]
        ]
        breaks += dict.fromkeys(found)
        skipped += [graph_break(message, ()) for message in Counter(counters[_UNIMPLEMENTED]) - before]


def graph_break(message: str, frames: Iterable[tuple[str, int]]) -> GraphBreak:
    """Dynamo's message: a title, then "Explanation: ..." and "Hint: ..." in lines of their own."""
    line = user_line(frames)
    place = "" if line is None else str(line)
    if message.startswith(_BRANCH):
        hint = "compute both sides and choose with torch.where, or use torch.cond"
        return GraphBreak("a branch depends on the value of a tensor", "", hint, place)
    fields = [(name, " ".join(text.split())) for name, text in _FIELD.findall(message)]
    explanation = next((text for name, text in fields if name == "Explanation"), "")
    hints = [text for name, text in fields if name == "Hint" and not text.startswith(_NO_HINT)]
    reason = message.partition("\n")[0].strip()
    return GraphBreak(reason, explanation, _HINTS.get(reason) or (hints[0] if hints else ""), place)
