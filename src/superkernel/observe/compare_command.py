"""observe.compare_command: the directories that the command compare is given -> its answer, as fields and as lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .compare_text import comparison_lines
from .rank_comparison import RankComparison, find_ranks, rank_folders
from .shell import ReadRate, compare_directories


def compared(
    directories: Sequence[Path], html: Path | None, trace: Path | None, read_rate: ReadRate
) -> tuple[dict[str, Any], list[str]]:
    """Two runs, or the ranks of one run: their folders, or the folder that has them."""
    folders = rank_folders(directories)
    if (ranks := find_ranks(folders)) is not None:
        if html is not None:
            raise OptionError("--html is a report on two runs; these are ranks of one run, which share a trace")
        return _compared_ranks(ranks, folders, trace)
    if len(folders) != 2 or trace is not None:
        what = "--trace belongs to ranks" if len(folders) == 2 else f"these are {len(folders)} profiles"
        raise OptionError(f"{what}: compare takes two runs, or different ranks of one run")
    comparison = compare_directories(folders[0], folders[1], html, read_rate)
    page = [f"report: {html}"] if html else []
    fields = {"ok": True, **comparison.to_dict(), "html": html and str(html)}
    return fields, [*comparison_lines(comparison), *page]


def _compared_ranks(
    ranks: RankComparison, folders: Sequence[Path], trace: Path | None
) -> tuple[dict[str, Any], list[str]]:
    parents = {folder.absolute().parent for folder in folders}
    if trace is None and len(parents) == 1:
        trace = parents.pop() / "trace.json"
    place = []
    if trace is not None:
        ranks.write_trace(trace)
        place.append(f"time line of all ranks: {trace}; open it in ui.perfetto.dev")
    return {"ok": True, **ranks.to_dict(), "trace": trace and str(trace)}, [*ranks.lines(), *place]
