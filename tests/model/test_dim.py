"""A Dim: which buckets are accepted, and which bucket a size gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import superkernel as sk


def test_a_size_gets_the_smallest_bucket_that_holds_it() -> None:
    dim = sk.Dim("batch", buckets=(1, 4, 16))
    assert [dim.bucket_for(size) for size in (1, 2, 4, 5, 16)] == [1, 4, 4, 16, 16]


def test_above_the_largest_bucket_sizes_double() -> None:
    dim = sk.Dim("batch", buckets=(1, 6))
    assert [dim.bucket_for(size) for size in (7, 12, 13, 25)] == [12, 12, 24, 48]


def test_a_dim_is_a_value() -> None:
    assert sk.Dim("batch", (1, 4)) == sk.Dim("batch", buckets=[1, np.int64(4)])
    assert hash(sk.Dim("batch", (1, 4))) == hash(sk.Dim("batch", (1, 4)))
    assert sk.Dim("batch", (1, 4)) != sk.Dim("rows", (1, 4))


@pytest.mark.parametrize(
    ("name", "buckets", "said"),
    [
        ("", (1,), "name of a Dim is ''"),
        (3, (1,), "name of a Dim is 3"),
        ("batch", (), "at least one size"),
        ("batch", 4, "sizes in ascending order"),
        ("batch", "14", "sizes in ascending order"),
        ("batch", (0, 4), "0 is no positive whole number"),
        ("batch", (-1, 4), "-1 is no positive whole number"),
        ("batch", (1, 2.5), "2.5 is no positive whole number"),
        ("batch", (1, True), "True is no positive whole number"),
        ("batch", (4, 1), "1 comes after 4: give each size once, in ascending order"),
        ("batch", (4, 4), "4 comes after 4"),
    ],
)
def test_bad_buckets_are_refused(name: Any, buckets: Any, said: str) -> None:
    with pytest.raises(sk.OptionError, match=said):
        sk.Dim(name, buckets)
