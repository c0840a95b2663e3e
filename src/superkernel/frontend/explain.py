"""frontend.explain: a model and inputs -> what the back end makes of it, as a Report."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import GraphError, SuperKernelError, nearest
from .backend import superkernel
from .report import Report, collecting

_INPUTS = "example_inputs"


def explain(
    model: Callable[..., Any],
    *inputs: Any,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **keywords: Any,
) -> Report:
    """Compile `model` for these inputs and say what became of it.

    It is run once, on copies of the inputs, and the buffers of a module are put back as they were. Where gradients are
    wanted, the backward graph is compiled as well.
    """
    plain = _uncompiled(model)
    if not callable(plain):
        raise GraphError(f"explain needs a model or a function, not {model!r}")
    given = dict(options) if options is not None else None

    def backend(module: Any, examples: Any) -> Any:  # another function each time: nothing compiled earlier is found
        return superkernel(module, examples, mode=mode, options=given)

    own_inputs, own_keywords = _copies(inputs), _copies(keywords)
    limits = {"recompile_limit": 10_000, "accumulated_recompile_limit": 100_000}
    with (
        collecting() as report,
        torch.random.fork_rng([]),
        torch._dynamo.config.patch(limits),
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
        _buffers_kept(plain),
        _our_errors(),
    ):
        torch.compile(plain, backend=backend, dynamic=False)(*own_inputs, **own_keywords)
    return report


@contextmanager
def _our_errors() -> Iterator[None]:
    """What torch.compile wraps comes out as it was raised."""
    try:
        yield
    except torch._dynamo.exc.BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, SuperKernelError):
            raise failure.inner_exception from failure
        raise


def _uncompiled(model: Any) -> Any:
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        return model._orig_mod
    return getattr(model, "_torchdynamo_orig_callable", model)


@contextmanager
def _buffers_kept(model: Any) -> Iterator[None]:
    """What a run leaves in the buffers of a module, such as counts and means, is undone."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    before = [(module, dict(module._buffers)) for module in modules]
    values = [(buffer, buffer.clone()) for _, buffers in before for buffer in buffers.values() if buffer is not None]
    try:
        yield
    finally:
        for module, buffers in before:
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)


def _copies(values: Any) -> Any:
    """Tensors that need gradients and are no leaves cannot be copied deeply: they are detached first."""

    def detached(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
            return value.detach().requires_grad_()
        return value

    return copy.deepcopy(torch.utils._pytree.tree_map(detached, values))


def explain_place(place: str, options: Mapping[str, Any] | None = None) -> Report:
    """`file.py:function`, or `file.py` to report everything that the script compiles with this back end."""
    file, _, name = place.partition(":")
    path = Path(file)
    if not path.is_file():
        raise GraphError(f"{file!r} is no file; explain takes file.py:function, or file.py to run it as a script")
    if not name:
        with collecting() as report, _our_errors():
            _run_script(path)
        return report
    module = _imported(path)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise GraphError(f"{file} has no {name!r}{nearest(name, known)}")
    model, inputs = _with_inputs(module, name)
    return explain(model, *inputs, options=options)


def _run_script(path: Path) -> None:
    """As `python path` would, without arguments."""
    words, places = sys.argv, sys.path
    sys.argv, sys.path = [str(path)], [str(path.parent.resolve()), *places]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise GraphError(f"{path} ended with status {end.code}") from end
    finally:
        sys.argv, sys.path = words, places


def _imported(path: Path) -> ModuleType:
    name = path.stem if path.stem not in sys.modules else f"explained_{path.stem}"  # no module is to be replaced
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GraphError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _with_inputs(module: ModuleType, name: str) -> tuple[Any, tuple[Any, ...]]:
    """What to compile, and with what: the file may say it in a function of its own, or the function returns both."""
    found = getattr(module, name)
    for giver in (f"{name}_inputs", _INPUTS):
        if callable(make := getattr(module, giver, None)) and giver != name:
            inputs = make()
            return found, inputs if isinstance(inputs, tuple) else (inputs,)
    if not callable(found):
        raise GraphError(f"{name!r} is a {type(found).__name__}, nothing that can be compiled")
    if isinstance(found, torch.nn.Module) or _needs_arguments(found):
        raise GraphError(
            f"{name!r} needs inputs: give the file a function {name}_inputs() or {_INPUTS}() that returns a tuple of "
            "them, or name a function without arguments that returns (model, inputs)"
        )
    if isinstance(found, type):
        return found(), ()
    made = found()
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        inputs = made[1]
        return made[0], inputs if isinstance(inputs, tuple) else (inputs,)
    return found, ()


def _needs_arguments(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
