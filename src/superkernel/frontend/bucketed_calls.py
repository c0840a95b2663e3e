"""frontend.bucketed_calls: calls with changing sizes -> calls of functions that are compiled for buckets.

A call is padded to its bucket by repeating its last row, which computes again what that row computes, so that padding
raises no errors of its own. The results of the padding are cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._guards import CompileContext, compile_context

from ..model.dim import Dim

SizeFunction = Callable[..., tuple[Any, ...]]  # of the size of every Dim


@dataclass(frozen=True)
class InputSpec:
    """An argument that is padded."""

    index: int  # among the arguments of a call
    dimensions: tuple[int | None, ...]  # for every Dim the dimension that has its size
    shape: SizeFunction
    strides: SizeFunction


@dataclass(frozen=True)
class RowsOfOutput:
    """Dimension `dim` of an output has outer * rows * inner elements."""

    dim: int
    outer: SizeFunction
    inner: SizeFunction


@dataclass(frozen=True)
class OutputSpec:
    """What becomes of one result of the compiled function."""

    rows: tuple[RowsOfOutput | None, ...] = ()  # for every Dim
    shape: SizeFunction | None = None  # None: it is no tensor
    strides: SizeFunction | None = None
    number: SizeFunction | None = None  # a result that is computed from the sizes alone
    base: int | None = None  # the padded argument of which it is a view
    offset: SizeFunction | None = None  # of that view, in elements of the argument
    may_differ: bool = False  # its strides: the compiled function takes an argument with other strides than the caller


CompileBucket = Callable[[Sequence[Any], tuple[int, ...]], Callable[..., Any]]


class BucketedCalls:
    """The function that Dynamo calls. Several threads may call at once."""

    def __init__(
        self,
        module: Callable[..., Any],
        dims: Sequence[Dim],
        limited: Sequence[bool],
        tensors: Sequence[int],
        inputs: Sequence[InputSpec],
        outputs: Sequence[OutputSpec],
        written: Sequence[int],
        compile_bucket: CompileBucket,
    ) -> None:
        """`limited`: for every Dim, whether sizes above its largest bucket must not be padded; `tensors`: the arguments
        that compiled functions take; `written`: those that they write, none is padded."""
        self._module, self._dims, self._tensors = module, tuple(dims), tuple(tensors)
        self._limited = tuple(limited)
        self._inputs, self._outputs, self._written = tuple(inputs), tuple(outputs), tuple(written)
        self._compile_bucket = compile_bucket
        self._compile_context = CompileContext.try_get()
        measured = [next(spec for spec in inputs if spec.dimensions[k] is not None) for k in range(len(self._dims))]
        self._measured = [(spec.index, spec.dimensions[k]) for k, spec in enumerate(measured)]
        self._functions: dict[tuple[int, ...], Callable[..., Any]] = {}
        self._calls: dict[tuple[int, ...], Callable[[Sequence[Any]], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        sizes = tuple([args[index].shape[dimension] for index, dimension in self._measured])
        call = self._calls.get(sizes)
        if call is None:
            call = self.prepare(args)
        return call(args)

    def prepare(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        """The call for the sizes of `args`; compiles its bucket if no call had it before."""
        sizes = tuple(int(args[index].shape[dimension]) for index, dimension in self._measured)
        buckets = tuple(
            size if is_limited and size > dim.buckets[-1] else dim.bucket_for(size)
            for dim, is_limited, size in zip(self._dims, self._limited, sizes, strict=True)
        )
        with compile_lock:
            function = self._functions.get(buckets)
            if function is None:
                with compile_context(self._compile_context):
                    function = self._functions[buckets] = self._compile_bucket(args, buckets)
        call = self._new_call(function, sizes, buckets)
        self._calls[sizes] = call
        return call

    def _new_call(
        self, function: Callable[..., Any], sizes: tuple[int, ...], buckets: tuple[int, ...]
    ) -> Callable[[Sequence[Any]], Any]:
        pads = [(self._tensors.index(spec.index), _pad(spec, sizes, buckets)) for spec in self._inputs]
        cuts = [(place, cut) for place, spec in enumerate(self._outputs) if (cut := _cut(spec, sizes, buckets))]
        pick = itemgetter(*self._tensors) if len(self._tensors) > 1 else lambda args: (args[self._tensors[0]],)

        def call(args: Sequence[Any]) -> Any:
            if self._written and self._writes_padded(args):
                return self._module(*args)
            tensors = list(pick(args))
            for place, pad in pads:
                tensors[place] = pad(tensors[place])
            results = function(*tensors)
            if cuts:
                results = list(results)
                for place, cut in cuts:
                    results[place] = cut(results[place], args)
            return results

        return call

    def _writes_padded(self, args: Sequence[Any]) -> bool:
        """Whether an argument that is written shares memory with one that is padded: the copy would not change."""
        written = {args[index].untyped_storage().data_ptr() for index in self._written}
        return any(args[spec.index].untyped_storage().data_ptr() in written for spec in self._inputs)


def _pad(spec: InputSpec, sizes: tuple[int, ...], buckets: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that repeats the last row up to the bucket, with the strides that the bucket is compiled for."""
    shape, strides = spec.shape(*buckets), spec.strides(*buckets)
    rows = [
        (dimension, torch.arange(bucket).clamp_(max=size - 1))
        for dimension, size, bucket in zip(spec.dimensions, sizes, buckets, strict=True)
        if dimension is not None and size < bucket
    ]

    def pad(tensor: torch.Tensor) -> torch.Tensor:
        for dimension, row_numbers in rows:
            tensor = tensor.index_select(dimension, row_numbers)
        return tensor if tensor.stride() == strides else _with_layout(tensor, shape, strides)

    return pad


def _with_layout(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _cut(
    spec: OutputSpec, sizes: tuple[int, ...], buckets: tuple[int, ...]
) -> Callable[[Any, Sequence[Any]], Any] | None:
    """A function of a result and the arguments: the result without the rows that were added; None: it stays."""
    if spec.number is not None:
        (number,) = spec.number(*sizes)
        return lambda result, args: number
    if spec.shape is None or spec.strides is None:
        return None
    shape, strides = spec.shape(*sizes), spec.strides(*sizes)
    if spec.base is not None and spec.offset is not None:
        base, (offset,) = spec.base, spec.offset(*sizes)
        return lambda result, args: args[base].as_strided(shape, strides, args[base].storage_offset() + offset)
    steps: list[tuple[int, int, int, int, int]] = []
    current = list(buckets)
    for k, rows in enumerate(spec.rows):
        if rows is not None and sizes[k] < buckets[k]:
            (outer,), (inner,) = rows.outer(*current), rows.inner(*current)
            steps.append((rows.dim, outer, buckets[k], sizes[k], inner))
            current[k] = sizes[k]
    if not steps and not spec.may_differ:
        return None

    def cut(result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
        for dim, outer, bucket, size, inner in steps:
            if outer == 1:
                result = result.narrow(dim, 0, size * inner)
            else:
                result = result.unflatten(dim, (outer, bucket * inner)).narrow(dim + 1, 0, size * inner)
                result = result.flatten(dim, dim + 1)
        return result if result.stride() == strides else _with_layout(result, shape, strides)

    return cut
