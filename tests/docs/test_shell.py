"""docs/shell.md: its table names every command of the shell, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from superkernel.tools.cli import app

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "shell.md").read_text()


def test_every_command_has_a_row() -> None:
    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert set(re.findall(r"^\| `superkernel (\w+)` \|", PAGE, re.MULTILINE)) == commands
