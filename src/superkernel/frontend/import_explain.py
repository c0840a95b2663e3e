"""frontend.import_explain: what compiles models of torch, imported when needed; a sentence where torch is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import UnsupportedError
from .torch_versions import REQUIREMENT


def import_explain() -> Any:
    """The module frontend.explain."""
    return _import("explain", "explain")


def import_export() -> Any:
    """The module frontend.export.export."""
    return _import("export", "export.export")


def _import(name: str, module: str) -> Any:
    try:
        return import_module(f"{__package__}.{module}")
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise UnsupportedError(
            f"{name} compiles a model of torch, and torch is not installed: pip install '{REQUIREMENT}'"
        ) from None
