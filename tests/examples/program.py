"""The programs under examples/: run as a user would, or loaded to call their parts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import superkernel as sk

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(program: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The program in a folder of its own, with this superkernel."""
    environment = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1])}
    command = [sys.executable, str(program), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def load(program: str) -> ModuleType:
    """The module of examples/`program`, whose name is no identifier."""
    spec = importlib.util.spec_from_file_location(f"example_{Path(program).stem}", EXAMPLES / program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for themselves there
    spec.loader.exec_module(module)
    return module
