"""package.weights_header: a safetensors file -> where each of its tensors lies, checked; the data are not read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import BuildError, shown
from .weights_file import METADATA, PADDING

_MOST_HEADER_BYTES = 100 << 20


@dataclass(frozen=True)
class StoredRange:
    """A tensor of the file: its bytes from `begin` to `end`, counted from the beginning of the file."""

    dtype: str  # as safetensors names it, such as F32
    shape: tuple[int, ...]
    begin: int
    end: int


def parse_weights_header(stream: BinaryIO, path: Path) -> Mapping[str, StoredRange]:
    """The tensors by name, without those that fill gaps; a BuildError if the header contradicts itself or the file."""
    try:
        size = os.fstat(stream.fileno()).st_size
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(_MOST_HEADER_BYTES, size - 8):
            raise BuildError(f"{path} is no safetensors file: its header cannot have {length} bytes")
        header = json.loads(stream.read(length))
    except OSError as reason:
        raise BuildError(f"{path} cannot be read: {reason}") from reason
    except (ValueError, RecursionError) as reason:
        raise BuildError(f"{path} is no safetensors file: its header is not JSON: {reason}") from reason
    if not isinstance(header, dict):
        raise BuildError(f"{path} is no safetensors file: its header is no object")
    data = 8 + length
    tensors = {name: _range(path, name, value, data, size) for name, value in header.items() if name != METADATA}
    return {name: stored for name, stored in tensors.items() if stored.dtype != "U8" or not PADDING.fullmatch(name)}


def _range(path: Path, name: str, value: Any, data: int, size: int) -> StoredRange:
    where = f"{path}: tensor {shown(name)}"
    if not isinstance(value, dict) or not isinstance(value.get("dtype"), str):
        raise BuildError(f"{where} has no dtype")
    shape, offsets = _sizes(value.get("shape")), _sizes(value.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        raise BuildError(f"{where} has no shape and data_offsets in whole numbers")
    begin, end = offsets
    if not begin <= end <= size - data:
        raise BuildError(f"{where} ends at byte {end} of {size - data}: the file was cut short, or the header changed")
    return StoredRange(value["dtype"], shape, data + begin, data + end)


def _sizes(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or any(type(size) is not int or size < 0 for size in value):
        return None
    return tuple(value)
