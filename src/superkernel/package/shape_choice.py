"""package.shape_choice: the shapes of a call's arguments -> the shape of the entry whose code runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import LaunchError
from .library_functions import ArrayType, EntryDescription, EntryShape

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class ChosenShape:
    """A shape of an entry that fits the arguments of a call."""

    index: int
    outputs: tuple[ArrayType, ...]  # with the sizes of the call
    size: int | None = None  # of the bucket's dimension in the call; None: there is no bucket, or it is full


def choose_shape(entry: EntryDescription, sizes: Sequence[Sizes], where: str) -> ChosenShape:
    """The shape with just these sizes; otherwise the smallest bucket that holds them; otherwise a LaunchError."""
    for index, shape in enumerate(entry.shapes):
        if all(kind.shape == size for kind, size in zip(shape.inputs, sizes, strict=True)):
            return ChosenShape(index, shape.outputs)
    fitting = [
        (shape.bucket_size, index, size)
        for index, shape in enumerate(entry.shapes)
        if (size := _size_in_bucket(shape, sizes)) is not None
    ]
    if not fitting:
        raise LaunchError(_mismatch(entry, sizes, where))
    _, index, size = min(fitting)
    return ChosenShape(index, tuple(_resized(kind, size) for kind in entry.shapes[index].outputs), size)


def _size_in_bucket(shape: EntryShape, sizes: Sequence[Sizes]) -> int | None:
    """The size of the bucket's dimension in the arguments; None: they do not fit."""
    found = None
    for kind, size in zip(shape.inputs, sizes, strict=True):
        if kind.bucket_axis is None or len(size) != len(kind.shape):
            if kind.shape != size:
                return None
            continue
        length = size[kind.bucket_axis]
        if _resized(kind, length).shape != size or not 1 <= length <= shape.bucket_size or found not in (None, length):
            return None
        found = length
    return found


def _resized(kind: ArrayType, size: int) -> ArrayType:
    axis = kind.bucket_axis
    return kind if axis is None else replace(kind, shape=(*kind.shape[:axis], size, *kind.shape[axis + 1 :]))


def _mismatch(entry: EntryDescription, sizes: Sequence[Sizes], where: str) -> str:
    if len(entry.shapes) == 1 and entry.shapes[0].bucket is None:
        for kind, size in zip(entry.shapes[0].inputs, sizes, strict=True):
            if kind.shape != size:
                return f"{where}: input {kind.name!r} has shape {list(size)}, the model takes {list(kind.shape)}"
    passed = ", ".join(f"{kind.name} {list(size)}" for kind, size in zip(entry.shapes[0].inputs, sizes, strict=True))
    compiled = "; ".join(shape_text(shape) for shape in entry.shapes)
    return f"{where}: no shape fits {passed}; it was exported for {compiled}"


def shape_text(shape: EntryShape) -> str:
    """x [1, 8]; or x [batch <= 4, 8]."""
    texts = []
    for kind in shape.inputs:
        sizes = [
            f"{shape.bucket} <= {shape.bucket_size}" if axis == kind.bucket_axis else str(size)
            for axis, size in enumerate(kind.shape)
        ]
        texts.append(f"{kind.name} [{', '.join(sizes)}]")
    return ", ".join(texts) or "no inputs"
