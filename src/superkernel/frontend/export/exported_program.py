"""frontend.export.exported_program: a module and inputs -> the program of torch.export, right for every call."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch.export import ExportedProgram

from ...errors import SuperKernelError, UnsupportedError
from ..capture.source_lines import source_line
from .assigned_buffers import BufferChanges, assignments_as_writes
from .changed_values import ChangedValue, observed_values, values_after_a_call
from .held_values import is_plain_tensor, values_as_before
from .refusals import assigned_names, assigned_tensors, changed_values, check_exported, export_failure, other_program

_LOG_OF_ERRORS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@dataclass(frozen=True)
class ProgramLine:
    """A node of a program as text, and the line of the model that it comes from."""

    text: str
    source: str | None


@dataclass(frozen=True)
class _Exported:
    """What torch.export says of a call."""

    program: ExportedProgram
    constants: Mapping[str, torch.Tensor]
    assigned: Sequence[str]  # tensors, by the attributes that hold them
    buffers: BufferChanges

    @property
    def lines(self) -> tuple[ProgramLine, ...]:
        nodes = self.program.graph_module.graph.nodes
        return tuple(ProgramLine(node.format_node() or node.name, source_line(node)) for node in nodes)


@dataclass(frozen=True)
class TracedCall:
    """A call that torch.export has traced, what it computes, and which values in Python it changes."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    entry: str
    lines: tuple[ProgramLine, ...]
    constants: Mapping[str, torch.Tensor]  # with the elements that they had at the end of the call
    changed: tuple[ChangedValue, ...]
    assigned: tuple[str, ...]  # tensors, by the attributes that hold them
    buffers: BufferChanges

    def refusal(self) -> UnsupportedError:
        return assigned_tensors(self.assigned, self.changed, self.entry) or changed_values(self.changed, self.entry)

    def is_same_after(self, changed: Sequence[ChangedValue]) -> bool:
        """Whether it computes the same in a model where these values have changed."""
        try:
            with values_after_a_call(changed):
                return self.difference() is None
        except UnsupportedError:
            return False

    def difference(self) -> ProgramLine | None:
        """Where the program of another call is not the same."""
        other = _exported(self.module, self.args, self.entry, None)
        for line, other_line in zip_longest(self.lines, other.lines):
            if line is None or other_line is None or line.text != other_line.text:
                return line or other_line
        for name, tensor in self.constants.items():
            if name not in other.constants or not _is_equal(tensor, other.constants[name]):
                return next((line for line in self.lines if f"%c_{name}," in line.text), ProgramLine(name, None))
        return None


def _is_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    is_same_kind = tensor.dtype == other.dtype and tensor.shape == other.shape
    return is_same_kind and bool(torch.allclose(tensor, other, rtol=0, atol=0, equal_nan=True))


def export_program(
    module: torch.nn.Module, args: tuple[Any, ...], entry: str, dynamic_shapes: Any = None
) -> ExportedProgram:
    """The program of torch.export, for fixed shapes unless some are dynamic."""
    program = _exported(module, args, entry, dynamic_shapes).program
    check_exported(program, entry)
    return program


def trace_call(module: torch.nn.Module, args: tuple[Any, ...], entry: str) -> tuple[ExportedProgram, TracedCall]:
    """The program for fixed shapes. A model whose next call would compute something else is refused."""
    with observed_values(module) as changed:
        found = _exported(module, args, entry, None)
    if any(value.is_shared for value in changed):
        changed = _without_other_threads(module, args, entry, changed)
    names = found.assigned
    call = TracedCall(module, args, entry, found.lines, found.constants, tuple(changed), tuple(names), found.buffers)
    is_seen = all(any(name.startswith(value.path) for value in changed) for name in names)
    constants = [found.program.constants[name] for name in found.constants]
    is_known = not any(value.is_drawn or any(map(value.lies_in, constants)) for value in changed)
    if not (is_seen and is_known) or (changed and not call.is_same_after(changed)):
        raise call.refusal()
    if not changed and (line := call.difference()) is not None:
        raise other_program(line.source, entry)
    check_exported(found.program, entry)
    return found.program, call


def _without_other_threads(
    module: torch.nn.Module, args: tuple[Any, ...], entry: str, changed: Sequence[ChangedValue]
) -> list[ChangedValue]:
    """A generator that another call of the model leaves alone was changed by another thread."""
    with observed_values(module) as again:
        _exported(module, args, entry, None)
    drawn = {value.path for value in again}
    return [value for value in changed if not value.is_shared or value.path in drawn]


def check_other_calls(calls: Sequence[TracedCall]) -> None:
    """Refuses values that some calls change and other calls compute with."""
    changing = [call for call in calls if call.changed]
    changed = [value for call in changing for value in call.changed]
    if changing and len(calls) > 1 and not all(call.is_same_after(changed) for call in calls):
        raise changing[0].refusal()


def _exported(module: torch.nn.Module, args: tuple[Any, ...], entry: str, dynamic_shapes: Any) -> _Exported:
    in_inference_mode = any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers()))
    with (
        torch_failures_as_refusals(entry, dynamic_shapes is not None),
        torch.inference_mode(in_inference_mode),  # as the weights were made
        torch.no_grad(),
        values_as_before(module),
        assignments_as_writes(module, entry) as buffers,
        warnings.catch_warnings(record=True) as warned,
        _quiet_logs(),
    ):
        warnings.simplefilter("always")
        program = torch.export.export(module, args, dynamic_shapes=dynamic_shapes, strict=False)
        constants = _elements(program)
    return _Exported(program, constants, assigned_names(module, [str(w.message) for w in warned]), buffers)


def _elements(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Copies of constants: some are memory of arrays that are put back."""
    constants = {name: value for name, value in program.constants.items() if name not in program.state_dict}
    return {name: value.detach().clone() for name, value in constants.items() if is_plain_tensor(value)}


@contextmanager
def torch_failures_as_refusals(entry: str, has_buckets: bool) -> Iterator[None]:
    """`has_buckets`: the model is traced for any size of a dimension."""
    try:
        yield
    except SuperKernelError:
        raise
    except Exception as reason:  # of torch, or of any class that the model's own code raises
        raise export_failure(reason, entry, has_buckets) from reason


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Without what torch logs of errors that the export raises."""
    loggers = [logging.getLogger(name) for name in _LOG_OF_ERRORS]

    def is_no_failure(record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING

    for logger in loggers:
        logger.addFilter(is_no_failure)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_no_failure)
