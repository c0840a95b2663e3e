"""What tests of pages share: code blocks, and the comparison of sample outputs, in which `...` stands for any text."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    """Language and text of the code blocks, in order; of all languages without a choice."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for block in found if not languages or block[0] in languages]


def shell_commands(text: str) -> list[list[str]]:
    """The words of each `superkernel` line of a shell block, without comments."""
    lines = (line.partition(" #")[0].split() for line in text.splitlines())
    return [line for line in lines if line[:1] == ["superkernel"]]


def check_output(sample: str, printed: str) -> None:
    """`printed` is the sample output of a page; `...` in the sample stands for any text, also over lines."""
    pattern = re.escape(sample.rstrip("\n")).replace(r"\.\.\.", r"(?:.|\n)*?")
    assert re.fullmatch(pattern, printed.rstrip("\n")), f"the page shows\n{sample}\nprinted is\n{printed}"
