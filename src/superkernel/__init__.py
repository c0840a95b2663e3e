"""SuperKernel: compiled kernels in, one linked kernel out, launched once, with just the syncs its data needs."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors, scope
from .configuration import config
from .errors import BuildError, GraphError, LaunchError, OptionError, PlanError, SuperKernelError, UnsupportedError
from .frontend.registry import register_kernel
from .frontend.scope import super_kernel
from .model.dim import Dim
from .model.events import Event
from .model.op import Op, Place
from .model.options import Options
from .model.subkernel import SubKernel
from .model.tensor_arg import TensorArg
from .model.tiling import Tiling
from .package.model import load_model
from .runtime.compile import compile, load
from .runtime.connect_ranks import connect_ranks
from .runtime.emulate_ranks import emulate_ranks
from .runtime.super_kernel import SuperKernel
from .version import __version__ as __version__

if TYPE_CHECKING:
    from . import ops
    from .frontend.explain import explain
    from .frontend.export.export import export
    from .observe.recorder import profile
    from .targets.cuda.capture import capture

__all__ = [
    "BuildError",
    "Dim",
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
    "TensorArg",
    "Tiling",
    "UnsupportedError",
    "capture",
    "compile",
    "config",
    "connect_ranks",
    "emulate_ranks",
    "errors",
    "explain",
    "export",
    "load",
    "load_model",
    "ops",
    "profile",
    "register_kernel",
    "scope",
    "super_kernel",
]


if sys.modules.get("torch") is not None:  # torch.compiler.load_cache_artifacts must know the type of our entries
    from .frontend.cache_artifacts import register as _register_cache_artifacts

    _register_cache_artifacts()


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: what needs torch, since the rest works without, and what few programs use."""
    if name == "explain":
        from .frontend.import_explain import import_explain

        return import_explain().explain
    if name == "export":
        from .frontend.import_explain import import_export

        return import_export().export
    if name == "profile":
        from .observe.recorder import profile

        return profile
    if name == "capture":
        from .targets.cuda.capture import capture

        return capture
    if name == "ops":
        return import_module(f"{__name__}.ops")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
