"""frontend.export.exported_program: a module and inputs -> the program of torch.export, right for every call."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from ...errors import UnsupportedError
from .assigned_buffers import BufferChanges, assignments_as_writes
from .changed_values import ChangedValue, observed_values, values_after_a_call
from .held_values import values_as_before
from .refusals import assigned_names, assigned_tensors, changed_values, check_exported, export_failure

_LOG_OF_ERRORS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@dataclass(frozen=True)
class TracedCall:
    """A call that torch.export has traced, what it computes, and which values in Python it changes."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    entry: str
    code: str
    constants: Mapping[str, Any]
    changed: tuple[ChangedValue, ...]
    assigned: tuple[str, ...]  # tensors, by the attributes that hold them
    buffers: BufferChanges

    def refusal(self) -> UnsupportedError:
        return assigned_tensors(self.assigned, self.changed, self.entry) or changed_values(self.changed, self.entry)

    def is_same_after(self, changed: Sequence[ChangedValue]) -> bool:
        """Whether it computes the same in a model where these values have changed."""
        try:
            with values_after_a_call(changed):
                program, *_ = _exported(self.module, self.args, self.entry, None)
        except UnsupportedError:
            return False
        pairs = [(tensor, program.constants.get(name)) for name, tensor in self.constants.items()]
        return self.code == program.graph_module.code and all(
            torch.allclose(tensor, other, rtol=0, atol=0, equal_nan=True)
            for tensor, other in pairs
            if isinstance(tensor, torch.Tensor) and isinstance(other, torch.Tensor) and tensor is not other
        )


def export_program(
    module: torch.nn.Module, args: tuple[Any, ...], entry: str, dynamic_shapes: Any = None
) -> ExportedProgram:
    """The program of torch.export, for fixed shapes unless some are dynamic."""
    program, *_ = _exported(module, args, entry, dynamic_shapes)
    check_exported(program, entry)
    return program


def trace_call(module: torch.nn.Module, args: tuple[Any, ...], entry: str) -> tuple[ExportedProgram, TracedCall]:
    """The program for fixed shapes. A model whose next call would compute something else is refused."""
    with observed_values(module) as changed:
        program, assigned, buffers = _exported(module, args, entry, None)
    code, constants = program.graph_module.code, dict(program.constants)
    call = TracedCall(module, args, entry, code, constants, tuple(changed), tuple(assigned), buffers)
    is_seen = all(any(name.startswith(value.path) for value in changed) for name in assigned)
    if (changed or assigned) and not (is_seen and call.is_same_after(changed)):
        raise call.refusal()
    check_exported(program, entry)
    return program, call


def check_other_calls(calls: Sequence[TracedCall]) -> None:
    """Refuses values that some calls change and other calls compute with."""
    changing = [call for call in calls if call.changed]
    changed = [value for call in changing for value in call.changed]
    if changing and len(calls) > 1 and not all(call.is_same_after(changed) for call in calls):
        raise changing[0].refusal()


def _exported(
    module: torch.nn.Module, args: tuple[Any, ...], entry: str, dynamic_shapes: Any
) -> tuple[ExportedProgram, Sequence[str], BufferChanges]:
    """The program, the tensors that were assigned to attributes, by their paths, and what happened to buffers."""
    in_inference_mode = any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers()))
    try:
        with (
            torch.inference_mode(in_inference_mode),  # as the weights were made
            torch.no_grad(),
            values_as_before(module),
            assignments_as_writes(module, entry) as buffers,
            warnings.catch_warnings(record=True) as warned,
            _quiet_logs(),
        ):
            warnings.simplefilter("always")
            program = torch.export.export(module, args, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as reason:  # of torch, or of any class that the model's own code raises
        raise export_failure(reason, entry) from reason
    return program, assigned_names(module, [str(warning.message) for warning in warned]), buffers


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
