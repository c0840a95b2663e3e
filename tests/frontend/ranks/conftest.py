"""One set of ranks for all cases of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from frontend.ranks.cases import make_groups
from frontend.ranks.rank_processes import RankProcesses, rank_processes


@pytest.fixture(scope="module")
def pair() -> Iterator[RankProcesses]:
    """Two ranks, with groups of one rank and a second one of both."""
    with rank_processes(2) as ranks:
        ranks.call(make_groups, ["0", "1", "0,1"])
        yield ranks
