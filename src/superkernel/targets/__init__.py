"""targets: the table of targets: a name in, the target with its parts out."""

from __future__ import annotations

from importlib import import_module

from ..errors import OptionError, UnsupportedError, nearest, shown
from ..model.options import TARGETS
from .model_library import ModelLibrary
from .protocol import ModelSupport, Target

# name -> module with a TARGET
_MODULES = {
    "cpu": "superkernel.targets.cpu.target",
    "cuda": "superkernel.targets.cuda.target",
    "ascend": "superkernel.targets.ascend.target",
}
DEFAULT_TARGET = "cpu"  # runs everywhere
_MODEL_LIBRARY = "superkernel.targets.cpu.model_library"  # module with the LIBRARY of the target that packages are for


def find_target(name: str) -> Target:
    if not isinstance(name, str) or name not in TARGETS:
        raise OptionError(f"unknown target {shown(name)}{nearest(name, TARGETS)}; targets are {', '.join(TARGETS)}")
    if name not in _MODULES:
        raise UnsupportedError(f"target {shown(name)} is not part of this version; available: {', '.join(_MODULES)}")
    target: Target = import_module(_MODULES[name]).TARGET
    return target


def all_targets() -> tuple[Target, ...]:
    return tuple(map(find_target, _MODULES))


def has_target(name: str) -> bool:
    """Whether this version has the target."""
    return name in _MODULES


def model_support_of(target: Target) -> ModelSupport:
    if target.model_support is None:
        raise UnsupportedError(
            f"target {shown(target.name)} takes compiled sub-kernels only, through superkernel.compile"
        )
    return target.model_support


def model_library() -> ModelLibrary:
    """The C library that runs packages."""
    library: ModelLibrary = import_module(_MODEL_LIBRARY).LIBRARY
    return library
