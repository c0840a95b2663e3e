"""The attention sub-kernels give what float64 gives, whatever the shapes, strides, masks and number of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.errors import GraphError, UnsupportedError  # noqa: E402
from superkernel.model.params import Kind  # noqa: E402
from superkernel.model.tensor_arg import ScratchBuffers, TensorArg  # noqa: E402
from superkernel.targets.cpu.kernels import attention  # noqa: E402

BLOCKS = (1, 2, 3, 7)
UNTOUCHED = 77.0
EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-24}
INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
OPERATOR = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@dataclass(frozen=True)
class Operand:
    """A tensor as a view of a buffer that begins with it."""

    base: torch.Tensor
    view: torch.Tensor

    def named(self, name: str) -> TensorArg:
        dtype = str(self.view.dtype).removeprefix("torch.")
        return TensorArg(name, 0, dtype, tuple(self.view.shape), tuple(self.view.stride()))


ORDERS = {"heads outside": (0, 1, 2, 3), "rows outside": (0, 2, 1, 3), "size outside": (3, 0, 1, 2)}


def operand(values: torch.Tensor, order: tuple[int, ...], gap: int = 0, repeated: tuple[int, ...] = ()) -> Operand:
    """A view with these values: dimensions from the outermost to the innermost, a gap behind each innermost row."""
    strides, step = [0] * values.dim(), 1
    for dimension in reversed(order):
        if dimension in repeated:
            continue
        strides[dimension] = step
        step = step * max(1, values.shape[dimension]) + (gap if step == 1 else 0)
    room = 1 + sum(stride * max(0, size - 1) for stride, size in zip(strides, values.shape, strict=True))
    base = torch.full((room,), UNTOUCHED).to(values.dtype)
    view = torch.as_strided(base, tuple(values.shape), tuple(strides))
    once = tuple(slice(0, 1) if dimension in repeated else slice(None) for dimension in range(values.dim()))
    view[once] = values[once]
    return Operand(base, view)


def plain(values: torch.Tensor) -> Operand:
    return operand(values, tuple(range(values.dim())))


@dataclass(frozen=True)
class Result:
    out: torch.Tensor
    logsumexp: torch.Tensor


class Launcher:
    """Ops compiled once per symbols, all block counts in one super kernel: numbers are passed by name."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[str, ...], sk.SuperKernel] = {}

    def __call__(
        self,
        query: Operand,
        key: Operand,
        value: Operand,
        mask: Operand | None = None,
        *,
        causal: bool = False,
        scale: float | None = None,
        out_order: tuple[int, ...] = (0, 1, 2, 3),
        out_gap: int = 0,
    ) -> Result:
        """By one block; the other block counts give the same bits, and nothing is written between elements."""
        shape, dtype = query.view.shape, query.view.dtype
        made: dict[str, Operand] = {}
        for blocks in BLOCKS:
            made[f"out_{blocks}"] = operand(torch.full(shape, math.nan, dtype=dtype), out_order, out_gap)
            made[f"logsumexp_{blocks}"] = operand(torch.full(shape[:3], math.nan), (0, 2, 1))
        inputs = {"query": query, "key": key, "value": value} | ({} if mask is None else {"mask": mask})
        scratch = ScratchBuffers("partial")
        ops = attention.flash_attention_for_cpu(
            *(inputs[name].named(name) for name in ("query", "key", "value")),
            is_causal=causal,
            attn_mask=None if mask is None else mask.named("mask"),
            scale=scale,
            out0=made["out_1"].named("out"),
            out1=made["logsumexp_1"].named("logsumexp"),
            cores=2,
            scratch=scratch,
        )
        buffers: dict[str, Any] = {name: one.base for name, one in (inputs | made).items()}
        for nbytes in scratch.sizes.values():
            buffers |= {f"partial_{blocks}": torch.full((nbytes // 4,), math.nan) for blocks in BLOCKS}
        scalars = {
            param.name: argument
            for op in ops
            for param, argument in zip(op.kernel.params, op.args, strict=True)
            if param.kind is Kind.SCALAR
        }
        self._kernel(ops)({**scalars, **buffers})
        for blocks in BLOCKS:
            for kind in ("out", "logsumexp"):
                again, first = made[f"{kind}_{blocks}"].view, made[f"{kind}_1"].view
                assert torch.equal(bits(again), bits(first)), f"{blocks} blocks give another {kind} than one"
        result = Result(made["out_1"].view.clone(), made["logsumexp_1"].view.clone())
        for one in made.values():
            one.view.fill_(UNTOUCHED)
            assert bool((one.base == UNTOUCHED).all())
        return result

    def _kernel(self, ops: list[sk.Op]) -> sk.SuperKernel:
        key = tuple(op.kernel.name for op in ops)
        if key not in self.kernels:
            shared = {"query", "key", "value", "mask"}
            general = [
                sk.Op(
                    replace(op.kernel, block_dim=blocks, grid=None),
                    [
                        param.name if param.kind is Kind.SCALAR or param.name in shared else f"{param.name}_{blocks}"
                        for param in op.kernel.params
                    ],
                )
                for blocks in BLOCKS
                for op in ops
            ]
            self.kernels[key] = sk.compile(general, "_".join(key), cores=2)
        return self.kernels[key]

    def close(self) -> None:
        for kernel in self.kernels.values():
            kernel.close()


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(INTEGERS[tensor.dtype])


def assert_close(
    found: Result,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> None:
    """Within the errors of one float per multiplication and exponential, and of one rounding of the result."""
    group = query.view.shape[1] // max(1, key.view.shape[1])
    q = query.view.double()
    k, v = (one.view.double().repeat_interleave(group, 1) for one in (key, value))
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = factor * (q @ k.mT)
    unsure = (q.shape[3] + 8) * EPSILON[torch.float32] * abs(factor) * (q.abs() @ k.abs().mT)
    if mask is not None:
        added = mask.view.double()
        if mask.view.dtype is torch.bool:
            added = torch.zeros(mask.view.shape).double().masked_fill(~mask.view, -math.inf)
        scores = scores + added
        unsure = unsure + 2 * EPSILON[torch.float32] * added.abs().nan_to_num(posinf=0)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    empty = (scores == -math.inf).all(-1)
    weights = torch.softmax(scores, -1).masked_fill(empty[..., None], 0)
    wanted = weights @ v
    logsumexp = torch.logsumexp(scores, -1).masked_fill(empty, 0)
    unsure = unsure.amax(-1, keepdim=True) if scores.shape[-1] else torch.zeros(*scores.shape[:-1], 1).double()
    exponents = 4 * EPSILON[torch.float32] * (scores - logsumexp[..., None]).abs().masked_fill(weights == 0, 0)
    shaky = 2 * unsure + 4 * EPSILON[torch.float32] * math.sqrt(scores.shape[-1] + 16)
    allowed = shaky * (weights @ v.abs()) + exponents.clamp(max=1) * weights @ v.abs() + 1e-30
    dtype = found.out.dtype
    allowed = allowed + EPSILON[dtype] * wanted.abs() + SMALLEST[dtype]
    wrong = ~((found.out.double() - wanted).abs() <= allowed)
    assert not bool(wrong.any()), f"{int(wrong.sum())} of {wrong.numel()} elements of {tuple(wrong.shape)}"
    far = ~(
        (found.logsumexp.double() - logsumexp).abs() <= shaky[..., 0] + 4 * EPSILON[torch.float32] * logsumexp.abs()
    )
    assert not bool(far.any()), f"{int(far.sum())} of {far.numel()} sums of exponentials"


def random_mask(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Some keys are hidden, some rows entirely, and the last keys from all rows."""
    hidden = torch.rand(shape, generator=generator) < 0.3
    hidden |= torch.rand((*shape[:-1], 1), generator=generator) < 0.1
    hidden[..., shape[-1] * 2 // 3 :] |= bool(torch.rand((), generator=generator) < 0.5)
    if kind == "bool":
        return ~hidden
    values = torch.randn(shape, generator=generator).masked_fill(hidden, -math.inf)
    return values.to(torch.float32 if kind == "float" else dtype)


DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = st.sampled_from([1, 3, 8, 15, 16, 17, 32, 37, 40, 64, 72, 80, 96, 100, 128, 130])
KEYS = st.sampled_from([1, 2, 3, 7, 63, 64, 65, 95, 96, 97, 130, 200, 511, 1100])
QUERIES = st.sampled_from([1, 1, 1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 65, 100, 130])
LAYOUTS = st.sampled_from(["heads outside", "rows outside"])


@settings(max_examples=min(50, settings().max_examples))  # each runs four kernels and float64 beside them
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    batches=st.sampled_from([1, 1, 2, 3]),
    heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 1, 2, 3, 4, 8]),
    queries=QUERIES,
    keys=KEYS,
    size=SIZES,
    causal=st.booleans(),
)
def test_any_shape_strides_and_mask_give_what_float64_gives_and_block_counts_the_same_bits(
    launch: Launcher,
    data: st.DataObject,
    dtype: torch.dtype,
    batches: int,
    heads: int,
    group: int,
    queries: int,
    keys: int,
    size: int,
    causal: bool,
) -> None:
    generator = torch.Generator().manual_seed(keys + 300 * size + 90000 * queries)

    def random(name: str, *shape: int) -> Operand:
        gap = data.draw(st.sampled_from([0, 5]), f"gap in {name}")
        repeated = data.draw(st.sampled_from([(), (), (), (0,), (1,), (0, 1)]), f"repeated in {name}")
        values = torch.randn(shape, generator=generator).to(dtype)
        return operand(values, ORDERS[data.draw(LAYOUTS, f"layout of {name}")], gap, repeated)

    query = random("query", batches, heads * group, queries, size)
    key, value = random("key", batches, heads, keys, size), random("value", batches, heads, keys, size)
    mask = None
    if (kind := data.draw(st.sampled_from([None, "element", "float", "bool"]), "mask")) is not None:
        full = (batches, heads * group, queries, keys)
        shape = tuple(data.draw(st.sampled_from([1, one]), "size of the mask") for one in full)
        rank = data.draw(st.sampled_from([2, 4]), "rank of the mask")
        values = random_mask(kind, shape[-rank:], dtype, generator)
        order = data.draw(st.permutations(range(rank)), "order of the mask")
        mask = operand(values, tuple(order), data.draw(st.sampled_from([0, 3]), "gap in the mask"))
    scale = data.draw(st.sampled_from([None, None, 0.3, 1.0, -0.2]), "scale")
    out_order = ORDERS[data.draw(st.sampled_from(list(ORDERS)), "layout of out")]
    out_gap = data.draw(st.sampled_from([0, 3]), "gap in out")
    found = launch(query, key, value, mask, causal=causal, scale=scale, out_order=out_order, out_gap=out_gap)
    assert_close(found, query, key, value, mask, causal, scale)


def three(dtype: torch.dtype, *shape: int, heads: int | None = None, keys: int | None = None) -> list[Operand]:
    generator = torch.Generator().manual_seed(sum(shape))
    batches, query_heads, queries, size = shape
    other = (batches, heads or query_heads, queries if keys is None else keys, size)
    return [plain(torch.randn(s, generator=generator).to(dtype)) for s in (shape, other, other)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 7, 40])
@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_itself_gives_the_same(launch: Launcher, dtype: torch.dtype, queries: int, causal: bool) -> None:
    query, key, value = three(dtype, 2, 6, queries, 48, heads=2, keys=50)
    mask = torch.randn(2, 1, queries, 50).to(dtype)
    mask[:, :, queries // 2] = -math.inf
    mask[:, :, :, 30:] = -math.inf
    for one in (None, plain(mask)):
        added = None if one is None else one.view
        out, logsumexp = OPERATOR(query.view, key.view, value.view, 0.0, causal, attn_mask=added)
        found = launch(query, key, value, one, causal=causal)
        allowed = 2e-6 + 4 * EPSILON[dtype]
        torch.testing.assert_close(found.out, out, rtol=allowed, atol=allowed)
        about = 1e-5 if dtype is torch.float32 else 1e-3  # torch's exponentials are rougher there
        torch.testing.assert_close(found.logsumexp, logsumexp, rtol=about, atol=about)


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_many_keys_are_split_and_merged(launch: Launcher, rows: int) -> None:
    query, key, value = three(torch.float32, 1, 2, rows, 64, keys=5000)
    sizes = attention.Sizes(1, 2, 1, rows, 5000, 64, False)
    assert sizes.splits > 1
    assert_close(launch(query, key, value), query, key, value)
    mask = torch.zeros(1, 1, rows, 5000)
    mask[..., 100:] = -math.inf  # most splits see nothing
    mask[:, :, 0] = -math.inf
    assert_close(launch(query, key, value, plain(mask)), query, key, value, plain(mask))


def test_splits_depend_on_sizes_and_blocks_on_cores() -> None:
    sizes = attention.Sizes(1, 8, 4, 1, 4096, 64, False)
    assert sizes.splits == 4
    assert [sizes.blocks(cores) for cores in (1, 2, 8, 100)] == [1, 2, 8, 32]
    assert attention.Sizes(1, 8, 4, 1, 128, 64, False).splits == 1
    assert attention.Sizes(1, 8, 4, 64, 4096, 64, False).splits == 1
    assert attention.Sizes(1, 1, 1, 1, 2048, 128, False).splits == 8
    assert attention.Sizes(1, 1, 1, 1, 10**6, 128, False).splits == 32
    assert attention.Sizes(1, 1, 1, 1, 16, 16, False).blocks(8) == 1


def test_one_head_that_looks_like_many_is_read_once(launch: Launcher) -> None:
    query, key, value = three(torch.float32, 1, 4, 1, 64, keys=70)
    shared = [operand(one.view, (0, 1, 2, 3), repeated=(1,)) for one in (key, value)]
    named = [one.named("t") for one in (query, *shared)]
    out, logsumexp = plain(torch.empty(1, 4, 1, 64)).named("out"), plain(torch.empty(1, 4, 1)).named("lse")
    (op,) = attention.flash_attention_for_cpu(*named, out0=out, out1=logsumexp, cores=2, scratch=ScratchBuffers("s"))
    given = dict(zip((param.name for param in op.kernel.params), op.args, strict=True))
    assert (given["heads"], given["group"]) == (1, 4)
    assert_close(launch(query, *shared), query, *shared)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [3, 20])
def test_rows_without_keys_are_zero(launch: Launcher, dtype: torch.dtype, queries: int) -> None:
    query, key, value = three(dtype, 1, 2, queries, 24, keys=200)
    takes_part = torch.ones(queries, 200, dtype=torch.bool)
    takes_part[1] = False
    found = launch(query, key, value, plain(takes_part))
    assert bool((found.out[:, :, 1] == 0).all()) and bool((found.logsumexp[:, :, 1] == 0).all())
    assert_close(found, query, key, value, plain(takes_part))
    lowest = torch.zeros(queries, 200)
    lowest[2] = torch.finfo(torch.float32).min  # not hidden: all keys alike
    found = launch(query, key, value, plain(lowest))
    mean = value.view.double().mean(2)
    torch.testing.assert_close(found.out[:, :, 2].double(), mean, rtol=EPSILON[dtype], atol=EPSILON[dtype])


@pytest.mark.parametrize("queries", [2, 30])
def test_nan_reaches_its_row_and_what_no_row_looks_at_is_not_read(launch: Launcher, queries: int) -> None:
    query, key, value = three(torch.float32, 1, 1, queries, 16, keys=300)
    query.view[0, 0, 1, 3] = math.nan
    found = launch(query, key, value)
    assert bool(found.out[0, 0, 1].isnan().all()) and bool(found.logsumexp[0, 0, 1].isnan())
    assert not bool(found.out[0, 0, 0].isnan().any())
    query.view[0, 0, 1, 3] = 0
    key.view[0, 0, 200:], value.view[0, 0, 200:] = math.nan, math.nan
    takes_part = torch.arange(300)[None] < 100
    found = launch(query, key, value, plain(takes_part))
    short = [operand(one.view[:, :, :100], (0, 1, 2, 3)) for one in (key, value)]
    assert_close(found, query, *short)


@pytest.mark.parametrize("queries", [2, 30])
def test_infinite_scores_are_nan_as_in_torch(launch: Launcher, queries: int) -> None:
    query, key, value = three(torch.float32, 1, 1, queries, 16, keys=40)
    key.view[0, 0, 7, 3], query.view[0, 0, :, 3] = 1e38, 1.0
    query.view[0, 0, 0, 3], query.view[0, 0, 1, 3] = 1e30, -1e30
    out, logsumexp = OPERATOR(query.view, key.view, value.view)
    found = launch(query, key, value)
    assert bool(out[0, 0, 0].isnan().all()) and not bool(out[0, 0, 1:].isnan().any())
    torch.testing.assert_close(found.out, out, equal_nan=True, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.logsumexp[..., 1:], logsumexp[..., 1:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 20])
def test_what_lies_behind_a_row_is_not_read_into_the_sum(launch: Launcher, queries: int) -> None:
    bases = [torch.full((20000,), math.nan) for _ in range(3)]
    views = [torch.as_strided(bases[0], (1, 2, queries, 21), (0, 30, 60, 1))]
    views += [torch.as_strided(base, (1, 2, 50, 21), (0, 30, 60, 1)) for base in bases[1:]]
    for number, view in enumerate(views):
        view.fill_(number)
    found = launch(*(Operand(base, view) for base, view in zip(bases, views, strict=True)))
    assert bool((found.out == 2).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [(0, 2, 3, 16, 5), (1, 0, 3, 16, 5), (1, 2, 0, 16, 5), (1, 2, 3, 16, 0), (1, 2, 30, 16, 0), (1, 2, 3, 0, 5)],
)
def test_sizes_of_zero(launch: Launcher, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    batches, heads, queries, size, keys = shape
    query = plain(torch.ones(batches, heads, queries, size, dtype=dtype))
    key = plain(torch.ones(batches, heads, keys, size, dtype=dtype))
    found = launch(query, key, key)
    assert found.out.shape == query.view.shape and bool((found.out == 0).all())
    wanted = math.log(keys) if keys else 0.0
    torch.testing.assert_close(found.logsumexp, torch.full(query.view.shape[:3], wanted))


@given(x=st.floats(-90, 0, width=32))
@example(x=-87.33)
@example(x=-87.34)
@example(x=0.0)
def test_exponentials_are_right_to_the_last_place(launch: Launcher, x: float) -> None:
    # two keys with the scores 0 and x: the weights are 1 and e^x, and the values tell them apart
    query = plain(torch.ones(1, 1, 1, 1))
    key, value = plain(torch.tensor([0.0, x]).view(1, 1, 2, 1)), plain(torch.tensor([0.0, 1.0]).view(1, 1, 2, 1))
    found = float(launch(query, key, value, scale=1.0).out)
    wanted = math.exp(x) / (1 + math.exp(x))
    assert abs(found - wanted) <= 2.5 * 2.0**-23 * wanted + 2.0**-126


def arguments(dtype: str = "float32", **changed: Any) -> dict[str, Any]:
    def tensor(name: str, shape: tuple[int, ...], dtype: str = dtype) -> TensorArg:
        return TensorArg(name, 0, dtype, shape, tuple(torch.empty(shape, device="meta").stride()))

    shapes = {"query": (1, 4, 3, 16), "key": (1, 2, 5, 16), "value": (1, 2, 5, 16), "out0": (1, 4, 3, 16)}
    given = {name: tensor(name, shape) for name, shape in shapes.items()}
    given["out1"] = tensor("out1", (1, 4, 3), "float32")
    for name, change in changed.items():
        if isinstance(change, tuple):
            given[name] = tensor(name, change)
        else:
            given[name] = change
    return {**given, "cores": 2, "scratch": ScratchBuffers("s")}


def test_dropout_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"dropout_p is 0\.5"):
        attention.flash_attention_for_cpu(**arguments(dropout_p=0.5))


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match=f"attention of {dtype}"):
        attention.flash_attention_for_cpu(**arguments(dtype))
    mask = TensorArg("mask", 0, dtype, (3, 5), (5, 1))
    with pytest.raises(UnsupportedError, match=f"attention of float32 with a mask of {dtype}"):
        attention.flash_attention_for_cpu(**arguments(attn_mask=mask))


def test_mixed_dtypes_are_refused() -> None:
    key = TensorArg("key", 0, "bfloat16", (1, 2, 5, 16), (160, 80, 16, 1))
    with pytest.raises(UnsupportedError, match="mixed dtypes: float32, bfloat16, float32, float32"):
        attention.flash_attention_for_cpu(**arguments(key=key))
    with pytest.raises(UnsupportedError, match="exponentials of float64"):
        attention.flash_attention_for_cpu(**arguments(out1=TensorArg("out1", 0, "float64", (1, 4, 3), (12, 3, 1))))


def test_rows_that_are_not_contiguous_and_heads_that_are_too_large_are_refused() -> None:
    query = TensorArg("query", 0, "float32", (1, 4, 3, 16), (192, 48, 1, 3))
    with pytest.raises(UnsupportedError, match=r"the last dimension of query .* is not contiguous"):
        attention.flash_attention_for_cpu(**arguments(query=query))
    large = {name: (1, 1, 3, 513) for name in ("query", "key", "value", "out0")}
    with pytest.raises(UnsupportedError, match="heads of 513 elements"):
        attention.flash_attention_for_cpu(**arguments(**large, out1=TensorArg("l", 0, "float32", (1, 1, 3), (3, 3, 1))))
    with pytest.raises(UnsupportedError, match="four dimensions"):
        attention.flash_attention_for_cpu(**arguments(query=(4, 3, 16)))


@pytest.mark.parametrize("scale", [1j, "scale", 1e39])
def test_scales_that_are_no_float_are_refused(scale: object) -> None:
    with pytest.raises(UnsupportedError, match="scale"):
        attention.flash_attention_for_cpu(**arguments(scale=scale))


@pytest.mark.parametrize(
    "changed",
    [
        {"key": (1, 2, 5, 8)},
        {"value": (1, 2, 6, 16)},
        {"key": (1, 3, 5, 16), "value": (1, 3, 5, 16)},
        {"out0": (1, 4, 4, 16)},
        {"key": (2, 2, 5, 16), "value": (2, 2, 5, 16)},
        {"out1": (1, 4, 5)},
    ],
)
def test_shapes_that_do_not_fit_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="cannot give"):
        attention.flash_attention_for_cpu(**arguments(**changed))


@pytest.mark.parametrize("shape", [(3, 6), (4, 5), (2, 1, 3, 5), (1, 2, 3, 5), (1, 1, 1, 3, 5)])
def test_masks_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="cannot be broadcast"):
        attention.flash_attention_for_cpu(**arguments(attn_mask=shape))


def test_the_largest_heads(launch: Launcher) -> None:
    for rows in (2, 20):
        query, key, value = three(torch.bfloat16, 1, 1, rows, 512, keys=150)
        assert_close(launch(query, key, value), query, key, value)
