"""frontend.explain: a model and inputs -> what the back end compiles for it, as a CompileReport."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import GraphError, OptionError, SuperKernelError, nearest, shown
from .backend import prepare_tracing, superkernel
from .explain_dump import explain_dump
from .graph_breaks import recording_graph_breaks
from .measured_calls import MeasuredCalls
from .report import CompileReport, collecting

_INPUTS = "example_inputs"
_DUMPS = (".txt", ".pbtxt", ".json")  # graphs that a target's own tools write


def explain(
    model: Callable[..., Any],
    *inputs: Any,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **keywords: Any,
) -> CompileReport:
    """Compile `model` for these inputs and report what became of every scope.

    The model runs once, on copies of the inputs, and the buffers of a module are restored. Its compiled graphs are then
    called on further copies, for at most two seconds, until the profit gate has measured them. Where gradients are
    needed, the backward graph is compiled as well.
    """
    plain = uncompiled(model)
    if isinstance(plain, type):
        raise GraphError(
            f"explain needs a model, not the class {plain.__name__}: pass an instance, {plain.__name__}(...)"
        )
    if not callable(plain):
        raise GraphError(f"explain needs a model or a function, not {shown(model)}")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"explain: options is a dict of back end options, not {shown(options)}")
    backend_options = dict(options) if options is not None else None

    measured = MeasuredCalls()

    def backend(module: Any, examples: Any) -> Any:  # a new function each time, so that Dynamo compiles again
        return measured.keep_first_call(superkernel(module, examples, mode=mode, options=backend_options))

    backend.compiler_fn = superkernel  # type: ignore[attr-defined]  # Dynamo traces as for the back end itself
    prepare_tracing()

    copied_inputs, copied_keywords = _copies(inputs), _copies(keywords)
    limits = {"recompile_limit": 10_000, "accumulated_recompile_limit": 100_000}
    with (
        _reporting() as report,
        torch.random.fork_rng([]),
        torch._dynamo.config.patch(limits),
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
        _restored_buffers(plain),
        _unwrapped_errors(),
    ):
        torch.compile(plain, backend=backend, dynamic=False)(*copied_inputs, **copied_keywords)
        measured.decide(report.segments)
    if not report.graphs:
        _forget_skipped_code(plain)
    return report


def _forget_skipped_code(model: Any) -> None:
    """Dynamo skips code of which it once made no graph, until it forgets it: the next trace is to say why as well."""
    callables = list(model.modules()) if isinstance(model, torch.nn.Module) else [model]
    wrapper = torch._dynamo.external_utils.wrap_inline(model)  # what Dynamo traces of the modules of torch.nn
    for function in (*callables, wrapper):
        if hasattr(getattr(function, "forward", function), "__code__"):
            torch._dynamo.eval_frame.remove_from_cache(function)


@contextmanager
def _reporting() -> Iterator[CompileReport]:
    """A report of what is compiled inside, with the graph breaks."""
    with collecting(explaining=True) as report, recording_graph_breaks(report.graph_breaks, report.skipped):
        yield report


@contextmanager
def _unwrapped_errors() -> Iterator[None]:
    """Raises our errors as they were raised, without the wrapper of torch.compile."""
    try:
        yield
    except torch._dynamo.exc.BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, SuperKernelError):
            raise failure.inner_exception from failure
        raise


def uncompiled(model: Any) -> Any:
    """What torch.compile was given."""
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        return model._orig_mod
    return getattr(model, "_torchdynamo_orig_callable", model)


@contextmanager
def _restored_buffers(model: Any) -> Iterator[None]:
    """Restores the buffers of a module, such as running means, after a run."""
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
    """Deep copies. Tensors that need gradients and are not leaves are detached first: deepcopy refuses them."""

    def detached(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
            return value.detach().requires_grad_()
        return value

    return copy.deepcopy(torch.utils._pytree.tree_map(detached, values))


def explain_place(place: str, options: Mapping[str, Any] | None = None, arguments: Sequence[str] = ()) -> CompileReport:
    """`file.py:function`; `file.py`, to report everything that the script compiles; or a graph that tools dumped.

    `arguments` are those of the file, which finds them in sys.argv.
    """
    file, _, name = place.partition(":")
    path = Path(file)
    if not path.is_file():
        raise GraphError(f"{file!r} is not a file; explain takes file.py:function, or file.py to run it as a script")
    if path.suffix in _DUMPS:
        return explain_dump(path, options)
    with as_program(path, arguments):
        if not name:
            if options:
                given = ", ".join(f"--{option.replace('_', '-')}" for option in options)
                raise OptionError(
                    f"{given}: a script compiles with options of its own: change them in {file}, or name a function of "
                    f"the file, as {file}:model"
                )
            return _explain_script(path)
        module = import_file(path)
        if not hasattr(module, name):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise GraphError(f"{file} has no {name!r}{nearest(name, known)}")
        model, inputs = with_inputs(module, name)
        return explain(model, *inputs, options=options)


@contextmanager
def as_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """sys.argv and sys.path as under `python path arguments`."""
    before = sys.argv, sys.path
    sys.argv, sys.path = [str(path), *arguments], [str(path.parent.resolve()), *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = before


def _explain_script(path: Path) -> CompileReport:
    with _reporting() as report, _unwrapped_errors():
        report.is_script = True
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise GraphError(f"{path} ended with status {end.code}") from end
    return report


def import_file(path: Path) -> ModuleType:
    """The module in a Python file."""
    name = path.stem if path.stem not in sys.modules else f"explained_{path.stem}"  # replaces no imported module
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


def with_inputs(module: ModuleType, name: str) -> tuple[Any, tuple[Any, ...]]:
    """The callable and its inputs: from a function `*_inputs` of the file, or returned together by the function."""
    found = getattr(module, name)
    if not callable(found):
        raise GraphError(f"{name!r} is {shown(found)}, nothing that can be compiled")
    provider = next((key for key in (f"{name}_inputs", _INPUTS) if key != name and _is_function(module, key)), None)
    if isinstance(found, type):
        found = _instance(found, name)
    elif provider is None and not needed_parameters(found) and not isinstance(found, torch.nn.Module):
        returned = found()
        if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[0]):
            return returned[0], _as_tuple(returned[1])
        return found, ()
    if provider is not None:
        return found, _as_tuple(getattr(module, provider)())
    if not needed_parameters(found.forward if isinstance(found, torch.nn.Module) else found):
        return found, ()
    raise GraphError(
        f"{name!r} needs inputs: give the file a function {name}_inputs() or {_INPUTS}() that returns a tuple of "
        "them, or name a function without arguments that returns (model, inputs)"
    )


def _instance(model: type, name: str) -> Any:
    """An instance of a class whose constructor needs nothing."""
    if needed := needed_parameters(model):
        raise GraphError(
            f"{name!r} is a class that needs arguments ({', '.join(needed)}): name an instance of it, or a function "
            f"without arguments that returns ({name}(...), inputs)"
        )
    instance = model()
    if not callable(instance):
        raise GraphError(f"{name!r} is a class whose instances cannot be called, nothing that can be compiled")
    return instance


def _is_function(module: ModuleType, name: str) -> bool:
    return callable(getattr(module, name, None))


def _as_tuple(inputs: Any) -> tuple[Any, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


def needed_parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters that a caller must give."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
