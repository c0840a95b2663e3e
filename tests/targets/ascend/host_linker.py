"""The host's linker in place of the one for AI cores, whose emulation it does not know."""

from __future__ import annotations

from pathlib import Path

_LINKER = """#!/bin/sh
for word; do
    shift
    case "$word" in -m | aicorelinux) ;; *) set -- "$@" "$word" ;; esac
done
exec ld "$@"
"""


def install_linker(path: Path) -> None:
    path.write_text(_LINKER)
    path.chmod(0o755)
