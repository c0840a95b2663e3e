"""The programs under examples/: run as a user would, run in this process, or loaded to call their parts."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import superkernel as sk

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(program: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The program in a folder of its own, with this superkernel."""
    environment = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1])}
    command = [sys.executable, str(program), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def run_here(program: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The program in this process, which has imported torch: in a process of its own that takes seconds."""
    module, out, err = load(program), io.StringIO(), io.StringIO()
    with chdir(folder), patch.object(sys, "argv", [program, *words]), redirect_stdout(out), redirect_stderr(err):
        status = module.main()
    return subprocess.CompletedProcess([program, *words], status, out.getvalue(), err.getvalue())


def load(program: str) -> ModuleType:
    """The module of examples/`program`, whose name is no identifier."""
    spec = importlib.util.spec_from_file_location(f"example_{Path(program).stem}", EXAMPLES / program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for themselves there
    spec.loader.exec_module(module)
    return module
