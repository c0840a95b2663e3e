"""A model run fused, with fuse=off and eagerly, on copies of the same inputs; the first two must agree in bits."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from superkernel.errors import SuperKernelError
from superkernel.frontend.report import CompileReport, ScopeReport, collecting

_BUILDERS = ("superkernel-gate", "superkernel-warm-up", "superkernel-host")


def await_builds() -> None:
    """Of threads that earlier calls have started: they use the cache as well, and count in it."""
    for thread in threading.enumerate():
        if thread.name in _BUILDERS:
            thread.join()


def compiled(
    model: Callable[..., Any], *, fullgraph: bool = False, dynamic: bool | None = False, **options: Any
) -> Any:
    """Without the profit gate, unless a test asks for it: every fusible segment is fused, in every call."""
    chosen = {"profit_gate": 0, **options}
    return torch.compile(model, backend="superkernel", fullgraph=fullgraph, dynamic=dynamic, options=chosen)


@dataclass
class Run:
    """What one compiled call gave."""

    report: CompileReport
    outputs: Any
    inputs: Any  # after the call
    function: Any  # to be called again
    warnings: list[str] = field(default_factory=list)

    @property
    def scopes(self) -> dict[str, ScopeReport]:
        names = [scope.name for scope in self.report.scopes]
        assert len(set(names)) == len(names), names
        return {scope.name: scope for scope in self.report.scopes}

    @property
    def shape(self) -> dict[str, list[int]]:
        """Scope -> the number of ops of each segment."""
        return {name: [len(segment.ops) for segment in scope.segments] for name, scope in self.scopes.items()}


def run(model: Callable[..., Any], *inputs: Any, **options: Any) -> Run:
    """Compile and call once, on copies of the inputs."""
    own = copies(inputs)
    function = compiled(model, **options)
    listener = _Listener()
    logger = logging.getLogger("superkernel")
    logger.addHandler(listener)
    try:
        with collecting() as report:
            outputs = function(*own)
    finally:
        logger.removeHandler(listener)
    return Run(report, outputs, own, function, listener.warnings)


def check(model: Callable[..., Any], *inputs: Any, tolerance: float = 1e-5, **options: Any) -> Run:
    """Fused, off and eager agree, in the outputs and in what became of the inputs.

    Without a segment of several ops, fused and off launch the same.
    """
    fused = run(model, *inputs, **options)
    if any(len(segment.ops) > 1 for scope in fused.report.scopes for segment in scope.segments):
        off = run(model, *inputs, **{**options, "fuse": "off"})
        assert_same_bits(fused.outputs, off.outputs)
        assert_same_bits(fused.inputs, off.inputs)
    own = copies(inputs)
    assert_close(fused.outputs, model(*own), tolerance)
    assert_close(fused.inputs, own, tolerance)
    return fused


def copies(values: Any) -> Any:
    """Copies that lie in memory as the originals do, and alias where they do."""
    return copy.deepcopy(values)


def assert_same_bits(left: Any, right: Any) -> None:
    for mine, other in _pairs(left, right):
        if isinstance(mine, torch.Tensor):
            assert mine.dtype == other.dtype and mine.shape == other.shape and mine.stride() == other.stride()
            assert bytes_of(mine) == bytes_of(other)
        else:
            assert mine == other


def assert_close(left: Any, right: Any, tolerance: float = 1e-5) -> None:
    for mine, other in _pairs(left, right):
        if isinstance(mine, torch.Tensor):
            assert mine.requires_grad == other.requires_grad
            torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert mine == other


def _pairs(left: Any, right: Any) -> list[tuple[Any, Any]]:
    return list(zip(tree_leaves(left), tree_leaves(right), strict=True))


def bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def refused(model: Callable[..., Any], *inputs: Any, kind: type[SuperKernelError], **options: Any) -> str:
    """The message of our error, which arrives inside of torch's."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(model, **options)(*copies(inputs))
    error = caught.value.inner_exception
    assert type(error) is kind, repr(error)
    return str(error)


def with_grad(values: Any) -> Any:
    return tree_map(lambda value: value.detach().clone().requires_grad_(), values)


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(record.getMessage())
