"""A rank of a measurement that says what it has measured so far, and goes on for too long: `-m slow_rank TASK`."""

from __future__ import annotations

import sys
import time

from superkernel.tools.bench.rank_launch import RankTask

if __name__ == "__main__":
    RankTask.read(sys.argv[1:]).reply({"checks": {}, "times": {}, "notes": ["begun"]}, "first: 0.1 s, 0 s in all")
    time.sleep(600)
