"""lowering.inductor_hooks: a part that Inductor compiled -> the same, reporting its launches to listeners.

Its program calls kernels by names of its module: generated ones, `extern_kernels` and `torch.ops`. While there are
listeners, these names stand for functions that take the time around them; otherwise nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...runtime.launch_events import TorchKernel, register, torch_launch

_GENERATED = "cpp_fused"
_LIBRARY = "extern_kernels"


class ForeignPart:
    """Reports the launches of one compiled part."""

    def __init__(self, compiled: Any, name: str, scope: str, reason: str) -> None:
        self._compiled, self._name = compiled, name
        self._facts = scope, reason
        self._plain: Callable[..., Any] | None = None  # the whole part, where its kernels are out of reach

    def start_reporting(self, detail: bool) -> None:
        names = self._names()
        if names is None:
            if self._plain is None:
                self._plain = self._compiled.current_callable
                self._compiled.current_callable = self._timed(self._plain, self._name, self._name)
            return
        for name, value in list(names.items()):
            if isinstance(value, _Timed | _TimedNames):
                continue
            if name.startswith(_GENERATED) and callable(value):
                readable = name.removeprefix("cpp_")
                names[name] = _Timed(value, self._timed(value, readable, readable))
            elif name in (_LIBRARY, "torch"):
                names[name] = _TimedNames(value, name, self._timed)

    def stop_reporting(self) -> None:
        if self._plain is not None:
            self._compiled.current_callable, self._plain = self._plain, None
        names = self._names() or {}
        for name, value in list(names.items()):
            if isinstance(value, _Timed | _TimedNames):
                names[name] = value.plain

    def _names(self) -> dict[str, Any] | None:
        """The names of the generated module; None: it is no plain Python program."""
        function = getattr(self._compiled.current_callable, "__func__", self._compiled.current_callable)
        names: dict[str, Any] | None = getattr(function, "__globals__", None)
        return names if names is not None and _LIBRARY in names else None

    def _timed(self, plain: Callable[..., Any], name: str, operator: str) -> Callable[..., Any]:
        kernel = TorchKernel(name, operator, *self._facts)

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch_launch(kernel):
                return plain(*args, **kwargs)

        return call


class _Timed:
    """A kernel, and the function around it."""

    def __init__(self, plain: Any, call: Callable[..., Any]) -> None:
        self.plain, self._call = plain, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


class _TimedNames:
    """`extern_kernels`, or `torch` as far as its `ops` are called: what is called through it is timed."""

    def __init__(self, plain: Any, path: str, timed: Callable[..., Callable[..., Any]]) -> None:
        self.plain, self._path, self._timed = plain, path, timed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.plain, name)
        if self._path == "torch" and name != "ops":
            return found
        if isinstance(found, torch._ops.OpOverload):
            operator = found._schema.name
            return self._timed(found, operator.split("::")[-1], operator)
        if self._path == _LIBRARY and callable(found):
            return self._timed(found, name, name)
        return _TimedNames(found, f"{self._path}.{name}", self._timed)


def report_launches(compiled: Any, name: str, scope: str, reason: str) -> Any:
    """The part itself, with a reporter of its launches that lives as long as it does."""
    if hasattr(compiled, "current_callable"):
        compiled.superkernel_part = part = ForeignPart(compiled, name, scope, reason)
        register(part)
    return compiled
