"""frontend.lowering.inductor_hooks: a part that Inductor compiled -> the same, its kernels reported as launch events.

The generated module calls kernels by global names: generated kernels, `extern_kernels` and `torch.ops`. While
there are listeners, these names refer to functions that measure each call; otherwise the module is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from ...runtime.launch_events import TorchKernel, register, torch_launch

_LIBRARY, _ORIGINAL = "extern_kernels", "superkernel_original"


class PartReporter:
    """Reports the kernel launches of one compiled part."""

    def __init__(self, compiled: Any, kernel_prefix: str, name: str, scope: str, reason: str) -> None:
        self._compiled, self._name = compiled, name
        self._kernel_prefix = kernel_prefix
        self._scope, self._reason = scope, reason
        self._original: Callable[..., Any] | None = None  # the whole part, where its kernels cannot be replaced

    def start_reporting(self, detail: bool) -> None:
        module = self._module_globals()
        if module is None:
            if self._original is None:
                self._original = self._compiled.current_callable
                self._compiled.current_callable = self._timed(self._original, self._name, self._name)
            return
        for name, value in list(module.items()):
            if _is_timed(value):
                continue
            if name.startswith(self._kernel_prefix) and "fused" in name and callable(value):
                readable = name.removeprefix(self._kernel_prefix)
                module[name] = self._timed(value, readable, readable)
            elif name in (_LIBRARY, "torch"):
                module[name] = _TimedNamespace(value, name, self._timed)

    def stop_reporting(self) -> None:
        if self._original is not None:
            self._compiled.current_callable, self._original = self._original, None
        module = self._module_globals() or {}
        for name, value in list(module.items()):
            if _is_timed(value):
                module[name] = value.superkernel_original

    def _module_globals(self) -> dict[str, Any] | None:
        """The globals of the generated module; None: the part is not a plain Python program."""
        function = getattr(self._compiled.current_callable, "__func__", self._compiled.current_callable)
        names: dict[str, Any] | None = getattr(function, "__globals__", None)
        return names if names is not None and _LIBRARY in names else None

    def _timed(self, original: Callable[..., Any], name: str, operator: str) -> Callable[..., Any]:
        kernel = TorchKernel(name, operator, self._scope, self._reason)

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch_launch(kernel):
                return original(*args, **kwargs)

        call.superkernel_original = original  # type: ignore[attr-defined]
        return call


def _is_timed(value: Any) -> bool:
    return isinstance(value, _TimedNamespace) or (isinstance(value, FunctionType) and _ORIGINAL in vars(value))


class _TimedNamespace:
    """`extern_kernels`, or `torch` with its `ops`: functions found through it are measured."""

    def __init__(self, original: Any, path: str, timed: Callable[..., Callable[..., Any]]) -> None:
        self.superkernel_original, self._path, self._timed = original, path, timed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.superkernel_original, name)
        if self._path == "torch" and name != "ops":
            return found
        if isinstance(found, torch._ops.OpOverload):
            operator = found._schema.name
            return self._timed(found, operator.split("::")[-1], operator)
        if self._path == _LIBRARY and callable(found):
            return self._timed(found, name, name)
        return _TimedNamespace(found, f"{self._path}.{name}", self._timed)


def report_launches(compiled: Any, kernel_prefix: str, name: str, scope: str, reason: str) -> Any:
    """The part itself. The object that reports its launches lives as long as the part."""
    if hasattr(compiled, "current_callable"):
        compiled.superkernel_part = part = PartReporter(compiled, kernel_prefix, name, scope, reason)
        register(part)
    return compiled
