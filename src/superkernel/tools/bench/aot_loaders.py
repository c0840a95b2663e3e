"""bench.aot_loaders: a file that AOTInductor wrote -> a function that runs it, by a loader that works on this machine.

torch has two loaders. With some builds of torch the loader of packages ends the process with a segmentation fault, also
without this package; so each loader is tried in a process of its own before it is used.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch

Run = Callable[[list[torch.Tensor]], Any]
TRIAL_SECONDS = 60.0


class AotLoader(Enum):
    PACKAGE = "package"  # the one that aoti_load_package uses
    CONTAINER = "container"  # the one below it, which takes the shared object of the package


_assumed: list[AotLoader | None] = []  # what another process has found


def load(path: Path, loader: AotLoader) -> Run:
    """The fastest call that the loader has: inputs in a list, outputs in a list."""
    if loader is AotLoader.PACKAGE:
        package: Any = torch._inductor.aoti_load_package(str(path))
        return cast(Run, package.loader.run)
    folder = path.with_suffix(".files")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    (library,) = folder.rglob("*.wrapper.so")
    container: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    return cast(Run, container.run)


def working_loader() -> AotLoader | None:
    """The first loader that loads a layer of 8 numbers in a process of its own; None: none does."""
    return _assumed[0] if _assumed else _found_loader()


def assume_loader(loader: AotLoader | None) -> None:
    """What another process has found is not tried again."""
    _assumed[:] = [loader]


@cache
def _found_loader() -> AotLoader | None:
    layer, x = torch.nn.Linear(8, 8).eval(), torch.ones(1, 8)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder, "layer.pt2")
        torch._inductor.aoti_compile_and_package(torch.export.export(layer, (x,)), package_path=str(path))
        return next((loader for loader in AotLoader if _loads(loader, path)), None)


def _loads(loader: AotLoader, path: Path) -> bool:
    """Whether a process that loads the file ends well."""
    command = [sys.executable, "-m", "superkernel.tools.bench.aot_loaders", loader.value, str(path)]
    try:
        return not subprocess.run(command, capture_output=True, timeout=TRIAL_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    load(Path(sys.argv[2]), AotLoader(sys.argv[1]))
