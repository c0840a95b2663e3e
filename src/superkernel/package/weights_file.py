"""package.weights_file: tensors by name -> a safetensors file whose data can be mapped with huge pages.

The data begin at a multiple of 2 MiB, every tensor at a multiple of 64 bytes. The format allows no holes: what lies
between tensors is a tensor named padding.N.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

DATA_ALIGNMENT = 2 << 20
TENSOR_ALIGNMENT = 64
METADATA = "__metadata__"  # no tensor: what the writer of a file says about it
PADDING = re.compile(r"padding\.[0-9]+")
# element types -> their names in the format
_NAMES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8",
    "int16": "I16", "int32": "I32", "int64": "I64", "bool": "BOOL",
}  # fmt: skip


def is_reserved(name: str, dtype: str) -> bool:
    """Whether the format, or this file, means something else by a tensor of that name."""
    return name == METADATA or (dtype == "uint8" and PADDING.fullmatch(name) is not None)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the weights file: the bytes of its elements in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def write_weights(path: Path, tensors: Mapping[str, StoredTensor]) -> None:
    with path.open("wb") as stream:
        for piece in _pieces(tensors):
            stream.write(piece)


def _pieces(tensors: Mapping[str, StoredTensor]) -> Iterator[bytes | memoryview]:
    """The file, piece by piece."""
    header: dict[str, Any] = {}
    contents: list[bytes | memoryview] = []
    free = filter(lambda padding: padding not in tensors, map("padding.{}".format, count()))
    end = 0
    for name, tensor in tensors.items():
        if gap := -end % TENSOR_ALIGNMENT:
            header[next(free)] = _entry("U8", (gap,), end, end + gap)
            contents.append(bytes(gap))
            end += gap
        begin, end = end, end + tensor.data.nbytes
        header[name] = _entry(_NAMES[tensor.dtype], tensor.shape, begin, end)
        contents.append(tensor.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    yield from contents


def _entry(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
