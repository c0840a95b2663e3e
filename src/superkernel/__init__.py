"""SuperKernel: compiled kernels in, one linked kernel out, launched once, with just the syncs its data needs."""

from . import errors
from .artefact import load
from .driver import compile
from .errors import (
    BuildError,
    GraphError,
    LaunchError,
    OptionError,
    PlanError,
    SuperKernelError,
    UnsupportedError,
)
from .events import Event
from .kernel import SuperKernel
from .options import Options
from .subkernel import Op, Place, SubKernel, Tiling

__version__ = "0.1.0"

__all__ = [
    "BuildError",
    "Event",
    "GraphError",
    "LaunchError",
    "Op",
    "OptionError",
    "Options",
    "Place",
    "PlanError",
    "SubKernel",
    "SuperKernel",
    "SuperKernelError",
    "Tiling",
    "UnsupportedError",
    "compile",
    "errors",
    "load",
]
