"""The matmul sub-kernels give what torch gives in float64, whatever the shapes, strides and number of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.errors import GraphError, UnsupportedError  # noqa: E402
from superkernel.model.params import Kind  # noqa: E402
from superkernel.targets.cpu.kernels import matmul  # noqa: E402

pytestmark = pytest.mark.slow

BLOCKS = (1, 2, 3, 7)
UNTOUCHED = 77.0
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}


@dataclass(frozen=True)
class Tensor:
    """What the kernels' functions are told of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Operand:
    """A tensor as a view of a buffer that begins with it."""

    base: torch.Tensor
    view: torch.Tensor

    def named(self, name: str) -> Tensor:
        dtype = str(self.view.dtype).removeprefix("torch.")
        return Tensor(name, dtype, tuple(self.view.shape), tuple(self.view.stride()))


def operand(values: torch.Tensor, layout: str = "rows") -> Operand:
    """A view with these values (and, where it repeats elements, one of them), laid out as asked."""
    shape = values.shape
    order = list(range(len(shape)))
    if layout == "columns" and len(shape) > 1:
        order[-2:] = order[:-3:-1]
    elif layout == "batch inside" and len(shape) > 2:
        order = [1, 0, 2]
    step = {"spread": 3}.get(layout, 1)
    strides = [0] * len(shape)
    for dimension in reversed(order):
        strides[dimension] = 0 if layout == "repeated" and dimension == len(shape) - 1 else step
        step *= max(1, shape[dimension]) if strides[dimension] else 1
        step += 5 if layout == "padded" and dimension == order[-1] else 0
    room = 1 + sum(stride * (size - 1) for stride, size in zip(strides, shape, strict=True) if size)
    base = torch.full((room,), UNTOUCHED, dtype=values.dtype)
    view = torch.as_strided(base, tuple(shape), tuple(strides))
    if values.numel():
        view.copy_(values) if layout != "repeated" else view[..., :1].copy_(values[..., :1])
    return Operand(base, view)


class Launcher:
    """Kernels compiled once per symbol and block count: numbers are passed by name."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[str, int], sk.SuperKernel] = {}

    def __call__(self, op: sk.Op, buffers: dict[str, torch.Tensor], blocks: int) -> None:
        names = [param.name for param in op.kernel.params]
        key = (op.kernel.name, blocks)
        if key not in self.kernels:
            general = sk.Op(replace(op.kernel, block_dim=blocks, grid=None), names)
            self.kernels[key] = sk.compile([general], f"{op.kernel.name}_{blocks}", cores=2)
        scalars = {
            param.name: argument
            for param, argument in zip(op.kernel.params, op.args, strict=True)
            if param.kind is Kind.SCALAR
        }
        self.kernels[key]({**scalars, **buffers})

    def close(self) -> None:
        for kernel in self.kernels.values():
            kernel.close()


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def product(
    launch: Launcher,
    a: Operand,
    b: Operand,
    c: Operand | None = None,
    alpha: float = 1,
    beta: float = 1,
    blocks: int = 2,
    out_layout: str = "rows",
) -> torch.Tensor:
    """alpha * (a @ b) + beta * c by the kernel; memory between the elements of the output stays as it was."""
    shape = (*a.view.shape[:-1], b.view.shape[-1])
    out = operand(torch.full(shape, math.nan, dtype=a.view.dtype), out_layout)
    named_c = None if c is None else c.named("c")
    op = matmul.matmul_op(a.named("a"), b.named("b"), out.named("out"), named_c, alpha, beta, cores=2)
    buffers = {"a": a.base, "b": b.base, "out": out.base} | ({} if c is None else {"c": c.base})
    launch(op, buffers, blocks)
    result = out.view.clone()
    out.view.fill_(UNTOUCHED)
    assert bool((out.base == UNTOUCHED).all())
    return result


def assert_close(found: torch.Tensor, a: Operand, b: Operand, c: Operand | None, alpha: float, beta: float) -> None:
    """Within the errors of one float per multiplication, and of one rounding of the result."""
    wide_a, wide_b = a.view.double(), b.view.double()
    wanted = alpha * (wide_a @ wide_b)
    size = abs(alpha) * (wide_a.abs() @ wide_b.abs())
    if c is not None and beta != 0:
        wanted = wanted + beta * c.view.double()
        size = size + abs(beta) * c.view.double().abs()
    dtype = str(found.dtype).removeprefix("torch.")
    allowed = (a.view.shape[-1] + 4) * EPSILON["float32"] * size + EPSILON[dtype] * wanted.abs()
    wrong = (found.double() - wanted).abs() > allowed
    assert not bool(wrong.any()), f"{int(wrong.sum())} of {wrong.numel()} elements of {tuple(found.shape)}"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.dtype is torch.float32 else torch.int16)


SIZES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 18, 19, 31, 33, 48, 63, 65, 100, 130, 200])
DEPTHS = st.one_of(SIZES, st.sampled_from([64, 255, 256, 257, 513, 1024, 1041, 2100]))
LAYOUTS = st.sampled_from(["rows", "columns", "padded", "spread", "repeated", "batch inside"])
OUT_LAYOUTS = st.sampled_from(["rows", "columns", "padded", "spread", "batch inside"])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
FACTORS = st.sampled_from([0, 1, 1.0, -0.5, 2, 1 / 3])


@settings(max_examples=min(50, settings().max_examples))  # each runs four kernels and float64 beside them
@given(data=st.data(), dtype=DTYPES, batches=st.sampled_from([None, None, 1, 2, 5]), m=SIZES, n=SIZES, k=DEPTHS)
def test_any_shape_and_strides_give_what_float64_gives_and_block_counts_the_same_bits(
    launch: Launcher,
    data: st.DataObject,
    dtype: torch.dtype,
    batches: int | None,
    m: int,
    n: int,
    k: int,
) -> None:
    generator = torch.Generator().manual_seed(m + 300 * n + 90000 * k)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    batch = () if batches is None else (batches,)
    a = operand(random(*batch, m, k), data.draw(LAYOUTS, "layout of a"))
    b = operand(random(*batch, k, n), data.draw(LAYOUTS, "layout of b"))
    c, alpha, beta = None, 1.0, 1.0
    shapes = [None, (n,), (m, 1), (1, n), (m, n), (), (1,)] + ([(*batch, m, n), (*batch, 1, n)] if batch else [])
    if (shape := data.draw(st.sampled_from(shapes), "shape of c")) is not None:
        c = operand(random(*shape), data.draw(LAYOUTS, "layout of c") if shape else "rows")
        alpha, beta = data.draw(FACTORS, "alpha"), data.draw(FACTORS, "beta")
    out_layout = data.draw(OUT_LAYOUTS, "layout of out")
    first = product(launch, a, b, c, alpha, beta, blocks=1, out_layout=out_layout)
    assert_close(first, a, b, c, alpha, beta)
    for blocks in BLOCKS[1:]:
        again = product(launch, a, b, c, alpha, beta, blocks, out_layout)
        assert torch.equal(bits(again), bits(first)), f"{blocks} blocks give other bits than one"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("m", [1, 3, 4, 5])
@pytest.mark.parametrize(("batches", "k", "n"), [(3, 131, 70), (3, 258, 200), (5, 402, 400), (1, 402, 1000)])
def test_weights_near_and_far_are_read_as_runs_or_not_with_the_same_bits_for_any_blocks(
    launch: Launcher, dtype: torch.dtype, layout: str, m: int, batches: int, k: int, n: int
) -> None:
    """110 KB to 3.2 MB of float32 weights, odd rests of rows and columns: below and above where the way changes."""
    generator = torch.Generator().manual_seed(n)
    a = operand(torch.randn(batches, m, k, generator=generator).to(dtype))
    b = operand(torch.randn(batches, k, n, generator=generator).to(dtype), layout)
    first = product(launch, a, b, blocks=1)
    assert_close(first, a, b, None, 1, 1)
    for blocks in BLOCKS[1:]:
        assert torch.equal(bits(product(launch, a, b, blocks=blocks)), bits(first))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["rows", "columns", "spread"])
@pytest.mark.parametrize(("m", "n"), [(1, 40), (3, 100), (16, 64), (40, 1), (70, 70)])
def test_nan_and_infinity_reach_exactly_the_elements_they_reach_in_torch(
    launch: Launcher, dtype: torch.dtype, layout: str, m: int, n: int
) -> None:
    k = 37
    a, b = torch.ones(m, k), torch.ones(k, n)
    a[m // 2, 5], a[0, 7] = math.inf, 0
    b[7, n // 3], b[36, n - 1] = math.inf, math.nan
    first, second = operand(a.to(dtype), layout), operand(b.to(dtype), layout)
    wanted = first.view.double() @ second.view.double()
    found = product(launch, first, second).double()
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(nan=0), wanted.nan_to_num(nan=0))


@pytest.mark.parametrize("m", [2, 40])
def test_what_lies_behind_a_row_is_not_read_into_the_sum(launch: Launcher, m: int) -> None:
    bases = torch.full((4000,), math.nan), torch.full((4000,), math.nan)
    a = Operand(bases[0], torch.as_strided(bases[0], (m, 21), (60, 1)))
    b = Operand(bases[1], torch.as_strided(bases[1], (21, 30), (1, 60)))
    a.view.fill_(1), b.view.fill_(2)
    assert bool((product(launch, a, b) == 42).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_beta_zero_does_not_read_c_and_alpha_zero_does_not_multiply(launch: Launcher, dtype: torch.dtype) -> None:
    ones, nans = torch.ones(5, 5, dtype=dtype), torch.full((5, 5), math.nan, dtype=dtype)
    assert bool((product(launch, operand(ones), operand(ones), operand(nans), 2, 0) == 10).all())
    assert bool((product(launch, operand(nans), operand(ones), operand(ones), 0, 3) == 3).all())
    assert bool((product(launch, operand(nans), operand(ones), operand(nans), 0, 0) == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(0, 4, 5), (4, 0, 5), (4, 5, 0), (0, 0, 0), (0, 5, 0), (20, 0, 30)])
@pytest.mark.parametrize("batch", [(), (0,), (3,)])
def test_sizes_of_zero(
    launch: Launcher, dtype: torch.dtype, shape: tuple[int, int, int], batch: tuple[int, ...]
) -> None:
    m, k, n = shape
    a, b = operand(torch.ones(*batch, m, k, dtype=dtype)), operand(torch.ones(*batch, k, n, dtype=dtype))
    bias = operand(torch.arange(n).to(dtype))
    assert torch.equal(product(launch, a, b), a.view @ b.view)
    wanted = (2 * (a.view @ b.view) + 3 * bias.view).to(dtype)
    assert torch.equal(product(launch, a, b, bias, 2, 3), wanted)
    if k == 0:
        assert torch.equal(product(launch, a, b, bias, math.inf, 3), wanted)


def test_every_float16_is_read_and_every_sum_rounded_as_torch_does(launch: Launcher) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16).reshape(1, -1)
    wide = every.float() * (1 + 2.0**-11)  # halfway between neighbours, or nearly
    for values in (every, wide.clamp(-70000, 70000).half()):
        b, one = operand(values), operand(torch.ones(1, 1, dtype=torch.float16))
        out = operand(torch.zeros_like(values))
        op = matmul.mm(one.named("a"), b.named("b"), out=out.named("out"), cores=2)
        launch(op, {"a": one.base, "b": b.base, "out": out.base}, 2)
        torch.testing.assert_close(out.view, values, rtol=0, atol=0, equal_nan=True)
    scale = torch.tensor([[1.0], [2.0**-9], [2.0**-14], [3 * 2.0**-11]]).half()
    a, b = operand(scale), operand(every)
    out = operand(torch.zeros(4, every.shape[1], dtype=torch.float16))
    op = matmul.mm(a.named("a"), b.named("b"), out=out.named("out"), cores=1)
    launch(op, {"a": a.base, "b": b.base, "out": out.base}, 1)
    expected = (scale.float() * every.float()).half()
    torch.testing.assert_close(out.view, expected, rtol=0, atol=0, equal_nan=True)


def test_bfloat16_is_rounded_once_to_nearest_even(launch: Launcher) -> None:
    # 256 + 1 and 256 + 3 lie half-way between neighbours; 2**-9 more would be lost if products were rounded as well
    a = torch.tensor([[256.0, 1.0, 0.0], [256.0, 3.0, 0.0], [256.0, 1.0, 2.0**-9]], dtype=torch.bfloat16)
    b = torch.ones(3, 1, dtype=torch.bfloat16)
    assert product(launch, operand(a), operand(b)).flatten().tolist() == [256.0, 260.0, 258.0]


def test_ops_of_torch_chained_in_one_super_kernel() -> None:
    torch.manual_seed(0)
    x, w1, w2 = torch.randn(4, 48), torch.randn(48, 200) / 7, torch.randn(30, 200) / 14
    bias, batch1 = torch.randn(30), torch.randn(2, 4, 30)
    made = {"t": torch.empty(4, 200), "y": torch.empty(4, 30), "u": torch.empty(2, 4, 4), "v": torch.empty(2, 4, 30)}

    def named(name: str, tensor: torch.Tensor, offset: int = 0) -> Tensor:
        return Tensor(name, "float32", tuple(tensor.shape), tuple(tensor.stride()), offset)

    t, y, u, v = (named(name, tensor) for name, tensor in made.items())
    both = replace(y, shape=(2, 4, 30), strides=(0, 30, 1))
    ops = [
        matmul.mm(named("x", x), named("w1", w1), out=t, cores=2),
        matmul.addmm(named("bias", bias), t, named("w2", w2.t()), beta=0.5, alpha=2, out=y, cores=2),
        matmul.bmm(named("batch1", batch1), replace(both, shape=(2, 30, 4), strides=(0, 1, 30)), out=u, cores=2),
        matmul.baddbmm(named("batch1", batch1), u, both, out=v, cores=2),
    ]
    assert [op.kernel.op_type for op in ops] == ["MatMul", "MatMul", "BatchMatMul", "BatchMatMul"]
    with sk.compile(ops, "chain", cores=2) as k:
        k({"x": x, "w1": w1, "w2": w2, "bias": bias, "batch1": batch1, **made})
    wanted_y = torch.addmm(bias, x @ w1, w2.t(), beta=0.5, alpha=2)
    wanted_u = batch1 @ wanted_y.t()
    for name, wanted in {"y": wanted_y, "u": wanted_u, "v": batch1 + wanted_u @ wanted_y}.items():
        torch.testing.assert_close(made[name], wanted, rtol=1e-5, atol=1e-3)


def test_little_work_is_not_divided() -> None:
    assert matmul.block_count(1, 1, 16, 16, 4, cores=8) == 1
    assert matmul.block_count(1, 1, 4096, 1024, 4, cores=8) == 8
    assert matmul.block_count(0, 0, 0, 0, 4, cores=8) == 1


def tensor(dtype: str = "float32", shape: tuple[int, ...] = (4, 4)) -> Tensor:
    return Tensor("t", dtype, shape, tuple(torch.empty(shape).stride()))


@pytest.mark.parametrize("dtype", ["int64", "float64", "complex64", "bool"])
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match=f"matmul of {dtype}"):
        matmul.mm(tensor(dtype), tensor(dtype), out=tensor(dtype), cores=2)


def test_mixed_dtypes_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="mixed dtypes: bfloat16, bfloat16, float32"):
        matmul.mm(tensor("bfloat16"), tensor("bfloat16"), out=tensor(), cores=2)


@pytest.mark.parametrize("factor", [1j, "alpha", None, 1e39])
def test_factors_that_are_no_float_are_refused(factor: object) -> None:
    with pytest.raises(UnsupportedError, match="alpha"):
        matmul.addmm(tensor(), tensor(), tensor(), alpha=factor, out=tensor(), cores=2)
    with pytest.raises(UnsupportedError, match="beta"):
        matmul.baddbmm(tensor(), tensor(), tensor(), beta=factor, out=tensor(), cores=2)


@pytest.mark.parametrize("shapes", [((4, 4), (5, 4), (4, 4)), ((4, 4), (4, 4), (4, 5)), ((2, 4, 4), (4, 4), (2, 4, 4))])
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b, out = (tensor(shape=shape) for shape in shapes)
    with pytest.raises(GraphError, match="cannot give"):
        matmul.mm(a, b, out=out, cores=2)
    with pytest.raises(GraphError, match="cannot be broadcast"):
        matmul.addmm(tensor(shape=(3,)), tensor(), tensor(), out=tensor(), cores=2)
