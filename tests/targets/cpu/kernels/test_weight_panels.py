"""Matmuls of 12 or 24 rows: weights in panels give the bits of weights as torch has them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.frontend.export.stored_weights import in_panels  # noqa: E402
from superkernel.targets.cpu.kernels import matmul  # noqa: E402
from superkernel.targets.cpu.kernels.shipping import Tensor  # noqa: E402
from superkernel.targets.cpu.kernels.weight_panels import with_weight_panels  # noqa: E402
from superkernel.targets.packaging import WeightPanels  # noqa: E402


def named(name: str, tensor: torch.Tensor, offset: int = 0) -> Tensor:
    return Tensor(name, offset, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


def linear(m: int, n: int, k: int, dtype: torch.dtype = torch.float32, cores: int = 2, alpha: float = 1) -> sk.Op:
    """x @ w.T + bias"""
    x, w, bias = torch.empty(m, k, dtype=dtype), torch.empty(n, k, dtype=dtype), torch.empty(n, dtype=dtype)
    out = named("y", torch.empty(m, n, dtype=dtype))
    return matmul.addmm(named("bias", bias), named("x", x), named("w", w.t()), alpha=alpha, out=out, cores=cores)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (12, 192, 192),
        (12, 33, 2),
        (12, 576, 100),
        (12, 47, 17),
        (24, 100, 515),
        (24, 64, 1024),
        (24, 81, 31),
        (12, 40, 6000),
    ],
)
def test_panels_and_plain_weights_give_the_same_bits_and_what_float64_gives(m: int, n: int, k: int, cores: int) -> None:
    generator = torch.Generator().manual_seed(m * n + k)
    x, w = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator)
    wide, bias = torch.randn(k, 2 * m, generator=generator), torch.randn(n, generator=generator)
    full = torch.randn(m, n, generator=generator)
    y, z, plain_z = torch.empty(m, n), torch.empty(n, m + 3), torch.empty(n, m + 3)
    plain = [
        matmul.addmm(named("bias", bias), named("x", x), named("w", w.t()), out=named("y", y), cores=cores),
        matmul.addmm(  # strided rows and results, and factors
            named("full", full), named("wide", wide.t()[::2]), named("w", w.t()), alpha=0.5, beta=-2,
            out=named("z", z.t()[:m]), cores=cores,
        ),
    ]  # fmt: skip
    ops, stored = with_weight_panels(plain, {"w"})
    assert stored == {"w": WeightPanels(0, n, k, k, 32)}
    assert [op.kernel.name for op in ops] == ["matmul_panels_add"] * 2
    panels = in_panels(w, stored["w"])
    assert panels.shape == (-(-n // 32), k, 32)
    plain_y = torch.empty(m, n)
    others = {"x": x, "wide": wide, "bias": bias, "full": full}
    with sk.compile(plain, "plain", cores=cores) as kernel:
        kernel({"w": w, "y": plain_y, "z": plain_z, **others})
    with sk.compile(ops, "panels", cores=cores) as kernel:
        kernel({"w": panels, "y": y, "z": z, **others})
    assert torch.equal(y, plain_y)
    assert torch.equal(z.t()[:m], plain_z.t()[:m])
    wanted = x.double() @ w.double().t() + bias
    torch.testing.assert_close(y.double(), wanted, rtol=0, atol=1e-6 * (k + 4))
    wanted = 0.5 * (wide.double().t()[::2] @ w.double().t()) - 2 * full
    torch.testing.assert_close(z.t()[:m].double(), wanted, rtol=0, atol=1e-6 * (k + 4))


@pytest.mark.parametrize(
    "op",
    [
        linear(11, 64, 64),
        linear(16, 64, 64),
        linear(12, 32, 64),
        linear(12, 64, 1),
        linear(12, 64, 64, torch.bfloat16),
        linear(12, 64, 64, alpha=0),
    ],
)
def test_what_the_kernel_computes_in_another_way_stays(op: sk.Op) -> None:
    ops, stored = with_weight_panels([op], {"w", "bias"})
    assert (ops, stored) == ([op], {})


def test_a_weight_that_is_read_in_two_ways_stays() -> None:
    twelve, one = linear(12, 64, 64), linear(1, 64, 64)
    assert with_weight_panels([twelve, one], {"w"})[1] == {}
    assert with_weight_panels([twelve], {"x"})[1] == {}, "only weights"
    both, stored = with_weight_panels([twelve, linear(24, 64, 64)], {"w"})
    assert list(stored) == ["w"], "another number of rows"
    assert all(op.kernel.name == "matmul_panels_add" for op in both)
