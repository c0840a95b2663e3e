"""dim: a dimension whose size changes between calls, and the sizes (buckets) that code is compiled for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ..errors import OptionError, shown
from .plain_values import whole_number


@dataclass(frozen=True)
class Dim:
    """Dimensions with one name have one size in every call. A call is padded to the smallest bucket that holds it."""

    name: str
    buckets: tuple[int, ...]

    def __init__(self, name: str, buckets: Iterable[int]) -> None:
        if not isinstance(name, str) or not name.strip():
            raise OptionError(f"the name of a Dim is {shown(name)}; a text such as 'batch' is needed")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "buckets", _checked(name, buckets))

    def bucket_for(self, size: int) -> int:
        """The smallest bucket that holds `size`; above the largest bucket, the largest doubled until it does."""
        for bucket in self.buckets:
            if size <= bucket:
                return bucket
        bucket = self.buckets[-1]
        while bucket < size:
            bucket *= 2
        return bucket


def _checked(name: str, buckets: object) -> tuple[int, ...]:
    what = f"Dim {name!r}: buckets are {shown(buckets)}"
    if isinstance(buckets, str | bytes) or not isinstance(buckets, Iterable):
        raise OptionError(f"{what}; sizes in ascending order are needed, such as (1, 4, 16)")
    sizes = []
    for bucket in buckets:
        size = whole_number(bucket)
        if size is None or size < 1:
            raise OptionError(f"{what}; {shown(bucket)} is no positive whole number")
        sizes.append(size)
    if not sizes:
        raise OptionError(f"{what}; at least one size is needed")
    for smaller, larger in pairwise(sizes):
        if smaller >= larger:
            raise OptionError(f"{what}; {larger} comes after {smaller}: give each size once, in ascending order")
    return tuple(sizes)
