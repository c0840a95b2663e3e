"""frontend.lowering.program_trace: the calls of a generated program and the memory that each one touches, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...errors import UnsupportedError
from ...model.tensor_arg import TensorArg


class StorageOrigin(Enum):
    """Where the memory of a storage comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    ALLOCATED = "allocated"  # by the program
    RETURNED = "returned"  # by a library call, at run time


@dataclass(eq=False)
class Storage:
    """A piece of memory of the program."""

    name: str
    origin: StorageOrigin
    nbytes: int
    index: int = 0  # of the input or constant
    returned: bool = False  # an output of the program lies in it


@dataclass(frozen=True)
class TracedTensor:
    """A tensor of the program: where it begins in its storage (bytes), and its layout there (elements)."""

    storage: Storage
    offset: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool = False
    negated: bool = False


def kernel_argument(value: Any) -> Any:
    """An argument of a call as a sub-kernel takes it: a view becomes a TensorArg."""
    if not isinstance(value, TracedTensor):
        return value
    if value.conjugated or value.negated:
        raise UnsupportedError("a tensor with a lazy conjugate or negative bit")
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorArg(value.storage.name, value.offset, dtype, value.shape, value.strides)


@dataclass(frozen=True)
class KernelCall:
    """A call of a generated kernel."""

    kernel: str
    args: tuple[TracedTensor | int | float, ...]
    origins: tuple[str, ...] = ()  # lines of the model that it computes


@dataclass(frozen=True)
class LibraryCall:
    """A call of an operator that Inductor leaves to torch. Views stand for tensors in args and kwargs."""

    op: Any  # OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[TracedTensor | None, ...]  # what it returns: new memory, or memory that it was given
    origins: tuple[str, ...] = ()

    @property
    def given(self) -> list[TracedTensor]:
        """The tensors among its arguments, also in lists."""
        values = [*self.args, *self.kwargs.values()]
        flat = [value for given in values for value in (given if isinstance(given, list | tuple) else [given])]
        return [value for value in flat if isinstance(value, TracedTensor)]

    def allocate_results(self) -> None:
        """A sub-kernel runs in its place: the program allocates the new memory that it would have returned.

        What it was given may be memory that an earlier call returns, and stays so.
        """
        given = {view.storage for view in self.given}
        for view in self.results:
            if view is not None and view.storage.origin is StorageOrigin.RETURNED and view.storage not in given:
                view.storage.origin = StorageOrigin.ALLOCATED


ProgramCall = KernelCall | LibraryCall


@dataclass(frozen=True)
class KernelText:
    """The source of a generated kernel, and the types of its arguments."""

    types: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class ProgramTrace:
    """A generated program as a list of calls."""

    kernels: dict[str, KernelText]
    calls: list[ProgramCall]
    outputs: list[TracedTensor | Any]  # what is not a view is a plain value
    storages: list[Storage]
    constants: list[Any]  # tensors, by index
    inputs: list[TracedTensor | Any]
