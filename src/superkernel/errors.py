"""errors: one class per kind of mistake, all under SuperKernelError; words for their messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_MOST_SHOWN = 300


class SuperKernelError(Exception):
    """The root: every error this package raises on purpose."""


class OptionError(SuperKernelError):
    """An option string or an option value that cannot be accepted."""


class GraphError(SuperKernelError):
    """Sub-kernels, parameters or ops that contradict themselves or each other."""


class PlanError(SuperKernelError):
    """Ops that cannot be ordered, placed or synchronised as asked."""


class BuildError(SuperKernelError):
    """A compiler, linker or object file that did not give what was needed."""

    def __init__(self, message: str, command: Sequence[str] = (), stderr: str = "") -> None:
        self.message = message
        self.command = tuple(command)
        self.stderr = stderr
        parts = [message]
        if command:
            parts.append("command: " + " ".join(command))
        if stderr.strip():
            parts.append(stderr.strip())
        super().__init__("\n".join(parts))


class LaunchError(SuperKernelError):
    """Arguments that were refused before a launch, or a launch that was stopped."""


class UnsupportedError(SuperKernelError):
    """Something that is right but that this target, machine or version cannot do."""


def nearest(word: object, known: Iterable[str]) -> str:
    """' (did you mean X?)' for the known word closest to `word`, or nothing."""
    if not isinstance(word, str) or len(word) > _MOST_SHOWN:
        return ""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def shown(value: object) -> str:
    """repr() of what a user passed, for a message: shortened, and the type where there is no repr()."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; a list in itself
        return f"this {type(value).__name__}, too long to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def counted(number: int, what: str, several: str = "") -> str:
    """A number and a noun, as "1 launch"; `several` where the plural is not the noun and an s."""
    return f"{number} {what if number == 1 else several or f'{what}s'}"
