"""Golden files: the printed form of a scenario, compared with golden/<scenario>.expected beside its test.

After an intended change: SUPERKERNEL_UPDATE_GOLDEN=1 pytest tests/targets, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

UPDATE = "SUPERKERNEL_UPDATE_GOLDEN"


def compare(expected: Path, found: str) -> None:
    if os.environ.get(UPDATE):
        expected.parent.mkdir(exist_ok=True)
        expected.write_text(found)
    assert expected.is_file(), f"{expected} is missing: set {UPDATE}=1 to write it"
    assert found == expected.read_text(), f"{expected} differs; after an intended change set {UPDATE}=1"


def starting_at(text: str, line: str) -> str:
    """The text from the first line that starts like this; the text before it is common to many scenarios."""
    _, found, after = text.partition(f"\n{line}")
    assert found, f"no line starts with {line!r}"
    return line + after
