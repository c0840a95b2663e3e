"""frontend.import_explain: frontend.explain, imported when it is needed; a sentence where torch is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import UnsupportedError
from .torch_versions import REQUIREMENT


def import_explain() -> Any:
    """The module."""
    try:
        return import_module(f"{__package__}.explain")
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise UnsupportedError(
            f"explain compiles a model of torch, and torch is not installed: pip install '{REQUIREMENT}'"
        ) from None
