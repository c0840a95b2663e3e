"""Dimensions with buckets: calls of many sizes stay compiled and right; what would mix rows is refused."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from frontend.fused import assert_close, compiled, copies, refused
from measured import least
from torch import Tensor
from torch.utils._pytree import tree_leaves

import superkernel as sk
from superkernel.errors import OptionError, UnsupportedError
from superkernel.frontend.report import collecting

TABLE = torch.randn(10, 8, generator=torch.Generator().manual_seed(0))
BATCH = sk.Dim("batch", buckets=(12,))
BUCKETS = {"x": {0: BATCH}, "ids": {0: BATCH}}


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def scores(x: Tensor, ids: Tensor) -> Any:
    """Results of every kind: rows, numbers of rows, views of an input and of each other, and none of them."""
    y = x.exp() * TABLE[ids] + ids.new_ones(ids.shape[0], 8) // (ids + 1)[:, None]
    return y, ids + 1, x[:, 1:3], y.view(-1), x.shape[0] * 2, y.T, {"table": TABLE[:2] + 1}


def arguments(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 8), torch.randint(0, 10, (size,))


def check_call(function: Callable[..., Any], *inputs: Tensor) -> Any:
    found, wanted = function(*inputs), scores(*inputs)
    assert_close(found, wanted)
    for mine, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        if isinstance(mine, Tensor):
            assert mine.dtype == other.dtype and mine.shape == other.shape and mine.stride() == other.stride()
    return found


def check_without_gradients(function: Callable[..., Any], size: int) -> None:
    """In a thread, which has a mode of gradients of its own: in another mode Dynamo would compile again."""
    with torch.no_grad():
        check_call(function, *arguments(size))


def test_twenty_sizes_take_one_compile_per_bucket_and_are_right() -> None:
    function = compiled(scores, fullgraph=True, buckets=BUCKETS)
    counters = torch._dynamo.utils.counters
    counters.clear()
    with collecting() as report:
        for size in (2, *range(24, 5, -1)):
            check_call(function, *arguments(size))
        assert report.graphs == 2  # buckets 12 and 24, which doubles the largest
        assert counters["stats"]["unique_graphs"] == 1 and not counters["recompile_limit"]
        x, ids = arguments(7)
        found = check_call(function, x, ids)
        found[2].add_(1)  # a view of the argument, not of a padded copy
        assert found[2].data_ptr() == x[:, 1:3].data_ptr()
        torch.testing.assert_close(x[:, 1:3], found[2], rtol=0, atol=0)
        found[0].add_(1)  # two views of one result
        torch.testing.assert_close(found[0].view(-1), found[3], rtol=0, atol=0)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(check_without_gradients, function), [3, 9, 12, 20] * 5))
        assert report.graphs == 2
    assert report.notes == ["buckets (12,) for argument 'x', dimension 0 ('batch'): no row depends on another"]
    assert not hasattr(x, "_dynamo_weak_dynamic_indices")  # no mark is left on the caller's tensors


@pytest.mark.parametrize("dynamic", [None, True])
def test_dimensions_that_are_symbolic_already_get_buckets(dynamic: bool | None) -> None:
    """By mark_dynamic, by the second size of a call, or by dynamic=True, which gives equal sizes one symbol."""
    function = compiled(scores, fullgraph=True, dynamic=dynamic, buckets=BUCKETS)
    x, ids = arguments(8)
    if dynamic is None:
        torch._dynamo.mark_dynamic(x, 0)
    with collecting() as report:
        check_call(function, x, ids)
        for size in (5, 10, 12):
            check_call(function, *arguments(size))
        assert report.graphs == 1


def test_numbers_that_are_computed_from_sizes_are_those_of_the_call() -> None:
    def model(x: Tensor) -> Any:
        rows = x.shape[0]
        return x + 1, rows > 5, rows // 2, rows % 4, -rows, x.numel()

    function = compiled(model, fullgraph=True, buckets={"x": {0: BATCH}})
    with collecting() as report:
        for size in (3, 5, 6, 12, 7):
            x = torch.randn(size, 8)
            found, wanted = function(x), model(x)
            assert_close(found[0], wanted[0])
            assert found[1:] == wanted[1:] and [type(value) for value in found] == [type(value) for value in wanted]
        assert report.graphs == 1


def test_a_table_by_row_numbers_is_not_read_beyond_its_end() -> None:
    """Sizes above the largest bucket, for which padding was not looked at, are compiled for themselves."""

    def model(x: Tensor) -> Tensor:
        return x + table[torch.arange(x.shape[0])]

    table = torch.randn(15, 8)
    function = compiled(model, fullgraph=True, buckets={"x": {0: BATCH}})
    with collecting() as report:
        for size in (3, 12, 15, 15):
            x = torch.randn(size, 8)
            torch.testing.assert_close(function(x), model(x), rtol=0, atol=0)
        assert report.graphs == 2


def test_arguments_have_the_names_of_the_signature() -> None:
    """Whatever a decorator calls them, and however they are passed."""

    class Decorated(torch.nn.Module):
        @torch.no_grad()
        def forward(self, x: Tensor, ids: Tensor) -> Any:
            return scores(x, ids)

    function = compiled(Decorated(), fullgraph=True, buckets=BUCKETS)
    with collecting() as report:
        for size in (8, 9):
            x, ids = arguments(size)
            check_call(lambda x, ids: function(ids=ids, x=x), x, ids)
            check_call(function, x, ids)
        assert report.graphs <= 2  # one for each way to pass arguments


@pytest.mark.conformance
def test_sizes_0_and_1_are_compiled_for_themselves() -> None:
    function = compiled(lambda x: x + 1, buckets={"x": {0: BATCH}})
    with collecting() as report:
        for size in (1, 0, 5, 1, 0, 7):
            torch.testing.assert_close(function(torch.ones(size, 3)), torch.full((size, 3), 2.0))
        assert report.graphs == 3


def two_dims(x: Tensor, y: Tensor) -> Any:
    z = (x @ TABLE.T).relu() + y[None, :, None]
    return z, (z * 2).flatten(0, 1), z.transpose(0, 1).contiguous(), z.sum(-1).T


class Block(torch.nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.mix = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(torch.nn.functional.gelu(self.norm(x)))


@pytest.mark.conformance
def test_a_module_of_blocks_is_one_super_kernel_per_bucket() -> None:
    model = torch.nn.Sequential(*(Block() for _ in range(4)), torch.nn.Softmax(-1)).eval()
    function = compiled(model, fullgraph=True, buckets={"input": {0: sk.Dim("batch", (1, 4, 16))}})
    with collecting() as report:
        for size in range(1, 21):
            x = torch.randn(size, 5, 16)
            torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-5)
    assert report.graphs == 4  # 1, 4, 16 and 32
    assert [[segment.fused for segment in scope.segments] for scope in report.scopes] == [[True]] * 4


@pytest.mark.conformance
def test_a_padded_call_takes_at_most_a_third_longer_than_the_static_kernel_of_its_bucket() -> None:
    model = torch.nn.Sequential(*(Block(256) for _ in range(4))).eval()
    function = compiled(model, fullgraph=True, buckets={"input": {0: sk.Dim("batch", (1, 4, 16))}})
    for size, bucket in ((1, 1), (3, 4), (11, 16), (20, 32)):
        static = compiled(copies(model), fullgraph=True)
        inputs, of_bucket = torch.randn(size, 256), torch.randn(bucket, 256)
        torch.testing.assert_close(function(inputs), model(inputs), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(static(of_bucket), model(of_bucket), rtol=1e-4, atol=1e-4)

        def ratio(static: Any = static, inputs: Tensor = inputs, of_bucket: Tensor = of_bucket) -> float:
            times: list[list[float]] = [[], []]
            for _ in range(100):
                moments = [time.perf_counter()]
                for call, x in ((function, inputs), (static, of_bucket)):
                    call(x)
                    moments.append(time.perf_counter())
                times[0].append(moments[1] - moments[0])
                times[1].append(moments[2] - moments[1])
            return statistics.median(times[0]) / statistics.median(times[1])

        assert least(ratio, 1.3) < 1.3, (size, bucket)


@pytest.mark.conformance
def test_two_dimensions_have_buckets() -> None:
    words = sk.Dim("words", buckets=(6,))
    function = compiled(
        two_dims, fullgraph=True, buckets={"x": {0: sk.Dim("batch", (4, 8)), 1: words}, "y": {0: words}}
    )
    with collecting() as report:
        for size, length in ((3, 5), (4, 6), (8, 2), (2, 6), (7, 5), (3, 3)):
            inputs = torch.randn(size, length, 8), torch.randn(length)
            found, wanted = function(*inputs), two_dims(*inputs)
            assert_close(found, wanted)
            assert [value.stride() for value in found] == [value.stride() for value in wanted]
        assert report.graphs == 2


@pytest.mark.conformance
def test_layouts_of_arguments() -> None:
    def model(x: Tensor, ids: Tensor) -> Any:
        return x.exp() * TABLE[ids], x[:, 1:3], x.T + 1

    function = compiled(model, fullgraph=True, buckets=BUCKETS)
    for size in (9, 12):
        _, ids = arguments(size)
        for x in (torch.randn(8, size).t(), torch.randn(size, 16)[:, ::2], torch.randn(8).expand(size, 8)):
            found, wanted = function(x, ids), model(x, ids)
            assert_close(found, wanted)
            assert [value.stride() for value in found] == [value.stride() for value in wanted]
            assert found[1].data_ptr() == wanted[1].data_ptr()


@pytest.mark.conformance
def test_gradients_are_those_of_the_rows() -> None:
    layer = torch.nn.Linear(8, 8)
    function = compiled(lambda x: layer(x).relu().sum(-1), buckets={"x": {0: sk.Dim("batch", (4, 8))}})
    for size in (3, 4, 7):
        gradients = []
        for model in (function, lambda x: layer(x).relu().sum(-1)):
            x = torch.linspace(-1, 1, size * 8).view(size, 8).requires_grad_()
            layer.zero_grad()
            with torch.enable_grad():
                model(x).square().sum().backward()
            gradients.append([x.grad, *(parameter.grad.clone() for parameter in layer.parameters())])
        assert_close(*gradients)


# what is refused


def center(x: Tensor) -> Tensor:
    return x - x.mean(0)


def branching(x: Tensor) -> Tensor:
    return x[:2] if x.shape[0] > 3 else x[:1]


def two(x: Tensor, y: Tensor) -> Any:
    return x + 1, y * 2


REFUSED: dict[str, tuple[Any, int, Any, type, tuple[str, ...]]] = {
    "rows that mix": (
        center, 1, {"x": {0: BATCH}}, UnsupportedError,
        ("argument 'x', dimension 0 ('batch') cannot have buckets", "aten.mean", "reduces over the rows", "x.mean(0)"),
    ),
    "rows by position, after a branch": (branching, 1, {"x": {0: BATCH}}, UnsupportedError, ("by their position",)),
    "unknown argument": (center, 1, {"y": {0: BATCH}}, OptionError, ("no argument 'y'", "its arguments: x")),
    "dimension out of range": (
        center, 1, {"x": {2: BATCH}}, OptionError, ("argument 'x' has no dimension 2: it has 2 dimensions",)
    ),
    "write into the input": (
        lambda x: x.add_(1), 1, {"x": {0: BATCH}}, UnsupportedError, ("the model writes into input 'x'",)
    ),
    "size fixed by another argument": (
        lambda x, y: x + y, 2, {"x": {0: BATCH}}, UnsupportedError,
        ("works only where this size is 5", "give that argument the same Dim"),
    ),
    "view of another type": (
        lambda x: x.view(torch.int32), 1, {"x": {0: BATCH}}, UnsupportedError, ("with another element type",)
    ),
    "as many rows of a table": (
        lambda x: x + TABLE[: x.shape[0]], 1, {"x": {0: BATCH}}, UnsupportedError,
        ("argument 'x', dimension 0 ('batch') cannot have buckets", "torch cannot trace the model for any size of it"),
    ),
    "a table by row numbers": (
        lambda x: x + TABLE[torch.arange(x.shape[0])], 1, {"x": {0: BATCH}}, UnsupportedError,
        ("out of bounds for size 10 on row 10 of a bucket", "buckets of at most 10 rows", "x + TABLE[torch.arange("),
    ),
    "views of one result": (
        lambda x: (y := x.T.contiguous(), y.view(-1)), 1, {"x": {0: BATCH}}, UnsupportedError,
        ("outputs 0 and 1 are views of one tensor",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_what_and_where(case: str) -> None:
    model, count, buckets, kind, said = REFUSED[case]
    message = refused(model, *[torch.randn(5, 8) for _ in range(count)], kind=kind, buckets=buckets)
    assert [text for text in said if text not in message] == [], message


def test_one_dim_for_two_sizes_is_refused() -> None:
    inputs = torch.randn(5, 8), torch.randn(6, 8)
    message = refused(two, *inputs, kind=OptionError, buckets={"x": {0: BATCH}, "y": {0: BATCH}})
    assert (
        "argument 'x', dimension 0 ('batch') has size 5 and argument 'y', dimension 0 ('batch') has size 6" in message
    )


def test_a_dimension_marked_dynamic_without_buckets_is_told_of_them() -> None:
    x = torch.randn(5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="or the back end option 'buckets'"):
        compiled(center, dynamic=None)(x)


def test_an_argument_that_is_no_tensor_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def model(x: Tensor, factor: int) -> Tensor:
        return center(x) * factor

    refused(model, torch.ones(3, 4), 2, kind=UnsupportedError, buckets={"x": {0: BATCH}, "factor": {0: BATCH}})
    said = "buckets of argument 'factor' have no effect on a graph that does not take it as a tensor: it takes x"
    assert said in caplog.text
