"""Sums with int4 weights are within a stated bound of the exact ones, for every instruction set, layout and group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from targets.cpu.kernels.launched import BLOCKS, Launcher, same_bits  # noqa: E402

from superkernel.targets.cpu.kernels import weight_only  # noqa: E402
from superkernel.targets.cpu.kernels.weight_only import PackedLayout  # noqa: E402
from superkernel.targets.native.march import LEVELS, NATIVE, lacking_here, level_features  # noqa: E402
from superkernel.targets.native.toolchain import cpu_features, find_toolchain  # noqa: E402

pytestmark = pytest.mark.slow

LONG = pytest.mark.conformance
MARCHES = [NATIVE, "x86-64-v3", pytest.param("x86-64-v4", marks=LONG), pytest.param("x86-64-v2", marks=LONG)]
IN_HALVES = [PackedLayout(32, True), PackedLayout(64, True)]
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=LONG), pytest.param(torch.float16, marks=LONG)]
HALF_UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # of a result that is rounded
CARRIED, MOST = 0x7F7F80, 0x7F7F7F  # MOST has the largest three digits, CARRIED one more


class Int4Launcher(Launcher):
    """Kernels for one instruction set."""

    def __init__(self, march: str) -> None:
        super().__init__(march)
        has = level_features(march) if march in LEVELS else cpu_features().split()
        self.splits = "avx2" in has and ("avx512bw" in has or "avx512f" not in has)  # rows into digits


@pytest.fixture(scope="module", params=MARCHES)
def launch(request: pytest.FixtureRequest) -> Iterator[Int4Launcher]:
    if lacking := lacking_here(request.param, find_toolchain()):
        pytest.skip(f"this processor has no {', '.join(lacking)}")
    launcher = Int4Launcher(request.param)
    yield launcher
    launcher.close()


@dataclass(frozen=True)
class Weights:
    """Whole numbers (n, k), and scale and zero point of each group of rows and column (groups, n, 2)."""

    numbers: torch.Tensor
    scales: torch.Tensor
    layout: PackedLayout

    @property
    def group(self) -> int:
        return self.numbers.shape[1] // self.scales.shape[0]

    def packed(self) -> torch.Tensor:
        n, k = self.numbers.shape
        packed = bytearray(self.layout.pack(self.numbers.tolist()))
        return torch.frombuffer(packed, dtype=torch.uint8).view(n, k // 2)

    def first(self, columns: int) -> Weights:
        return Weights(self.numbers[:columns], self.scales[:, :columns], self.layout)

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(weight - 8) * scale and the zero point, (k, n) of float64 each."""
        scale, zero = (self.scales[..., i].double().repeat_interleave(self.group, 0) for i in (0, 1))
        return (self.numbers.t().double() - 8) * scale, zero


def random_weights(layout: PackedLayout, n: int, k: int, group: int, dtype: torch.dtype = torch.float32) -> Weights:
    scales = (torch.randn(k // group, n, 2) / 10).to(dtype)
    return Weights(torch.randint(0, 16, (n, k), dtype=torch.int32), scales, layout)


def product(
    launch: Int4Launcher,
    monkeypatch: pytest.MonkeyPatch,
    x: torch.Tensor,
    weights: Weights,
    counts: tuple[int, ...] = BLOCKS,
) -> torch.Tensor:
    """The same for every number of blocks."""
    monkeypatch.setattr(weight_only, "packed_layout", lambda: weights.layout)
    packed, found = weights.packed(), []
    for blocks in counts:
        out = torch.full((x.shape[0], len(packed)), 77.0, dtype=x.dtype)
        given = x, packed, weights.group, weights.scales
        launch(weight_only._weight_int4pack_mm_for_cpu, blocks, *given, out=out)
        found.append(out)
    assert all(same_bits(out, found[0]) for out in found), "the result depends on the number of blocks"
    return found[0]


def assert_near(found: torch.Tensor, x: torch.Tensor, weights: Weights, splits: bool = False) -> None:
    """Within the bound of docs/torch.md: of rows that are split into digits, or of sums of floats."""
    weight, zero = weights.parts()
    exact = x.double() @ (weight + zero)
    size, steps = weight.abs() + zero.abs(), len(weights.scales) + 4
    if splits:
        largest = x.double().abs().view(len(x), -1, weights.group).amax(2).repeat_interleave(weights.group, 1)
        bound = 2.0**-23 * (largest @ size)
    else:
        bound = torch.zeros(exact.shape, dtype=torch.float64)
        size += 16 * weights.scales[..., 0].double().abs().repeat_interleave(weights.group, 0)
        steps += weights.group
    bound += steps * 2.0**-24 * (x.double().abs() @ size)
    bound += HALF_UNIT[x.dtype] * (exact.abs() + bound) + 2.0**-24 * (x.dtype == torch.float16)
    assert bool(((found.double() - exact).abs() <= bound + 2.0**-140).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", IN_HALVES, ids=str)
@pytest.mark.parametrize("group", [32, pytest.param(64, marks=LONG), pytest.param(96, marks=LONG), 128, 256])
def test_all_groups_and_rows(
    launch: Int4Launcher, monkeypatch: pytest.MonkeyPatch, layout: PackedLayout, group: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(group)
    weights = random_weights(layout, 144, 3 * group, group, dtype)
    for rows in (1, 2, 3, 8, 16, 17):
        x = torch.randn(rows, 3 * group).to(dtype)
        found = product(launch, monkeypatch, x, weights)
        assert_near(found, x, weights)
        if rows == 1:  # the last block is not full
            assert_near(found[:, :128], x, weights.first(128), launch.splits)


@pytest.mark.parametrize("layout", IN_HALVES, ids=str)
def test_more_rows_of_weights_than_are_split_at_a_time(
    launch: Int4Launcher, monkeypatch: pytest.MonkeyPatch, layout: PackedLayout
) -> None:
    torch.manual_seed(1)
    weights = random_weights(layout, 2 * layout.block, 4416, 96)
    for rows in (1, 3):
        x = torch.randn(rows, 4416)
        assert_near(product(launch, monkeypatch, x, weights), x, weights, launch.splits and rows == 1)


@pytest.mark.parametrize("layout", IN_HALVES, ids=str)
@pytest.mark.parametrize("number", [0, 15])
@pytest.mark.parametrize("most", [MOST, CARRIED])
def test_the_largest_digits_do_not_overflow(
    launch: Int4Launcher, monkeypatch: pytest.MonkeyPatch, layout: PackedLayout, number: int, most: int
) -> None:
    """Both lower digits of 126 * 65536 - 32896 are -128."""
    weights = random_weights(layout, 2 * layout.block, 512, 256)
    weights.numbers.fill_(number)
    for sign in (1, -1):
        x = torch.full((1, 512), sign * (126.0 * 65536 - 32896))
        x[:, ::256] = most
        assert_near(product(launch, monkeypatch, x, weights), x, weights, launch.splits)


@pytest.mark.parametrize("layout", IN_HALVES, ids=str)
def test_whole_numbers_are_exact(launch: Int4Launcher, monkeypatch: pytest.MonkeyPatch, layout: PackedLayout) -> None:
    torch.manual_seed(2)
    weights = random_weights(layout, 2 * layout.block, 256, 128)
    weights.scales.copy_(torch.tensor([1.0, 3.0]))
    x = torch.randint(-1000, 1001, (5, 256)).float()
    for rows in (x[:1], x):
        wanted = rows.double() @ sum(weights.parts())
        assert torch.equal(product(launch, monkeypatch, rows, weights), wanted.float())


HARD = {
    "zeros": torch.zeros(256),
    "one number among zeros": torch.nn.functional.one_hot(torch.tensor(77), 256) * 3.0,
    "zeros in one group": torch.cat((torch.zeros(128), torch.linspace(-1, 1, 128))),
    "all exponents in one group": 2.0 ** torch.arange(-64, 64).repeat(2),
    "large beside small": torch.linspace(-1, 1, 256) * torch.tensor([1e6, 1.0, 1e-6, 0.0]).repeat(64),
    "the smallest that are split": torch.linspace(-1, 1, 256) * 2.0**-99,
    "smaller than those that are split": torch.linspace(-1, 1, 256) * 2.0**-101,
    "denormal": torch.linspace(-1, 1, 256) * 2.0**-130,
    "larger than those that are split": torch.linspace(-1, 1, 256) * 2.0**101,
}


@pytest.mark.parametrize("layout", IN_HALVES, ids=str)
def test_hard_rows(launch: Int4Launcher, monkeypatch: pytest.MonkeyPatch, layout: PackedLayout) -> None:
    torch.manual_seed(3)
    weights = random_weights(layout, 2 * layout.block + 16, 256, 128)
    rows = torch.stack([*HARD.values()])
    for x in (rows, *(row.clone() for row in rows.split(1))):
        assert_near(product(launch, monkeypatch, x, weights, (2,)), x, weights)


@pytest.mark.parametrize("layout", IN_HALVES, ids=str)
def test_rows_that_are_not_finite_leave_the_others_alone(
    launch: Int4Launcher, monkeypatch: pytest.MonkeyPatch, layout: PackedLayout
) -> None:
    torch.manual_seed(4)
    weights = random_weights(layout, 2 * layout.block + 16, 256, 64)
    weights.numbers.clamp_(min=1)  # 0 * infinity would not be a number
    x = torch.randn(4, 256)
    wanted = product(launch, monkeypatch, x, weights)
    x[1, 200], x[3, 5] = torch.nan, torch.inf
    found = product(launch, monkeypatch, x, weights)
    assert same_bits(found[0::2], wanted[0::2])
    assert bool(found[1].isnan().all()) and not bool(found[3].isfinite().any())
    for row in (1, 3):
        assert not bool(product(launch, monkeypatch, x[row : row + 1].clone(), weights).isfinite().any())


def test_errors_are_not_larger_than_those_of_torch(launch: Int4Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    weights = random_weights(weight_only.packed_layout(), 512, 1024, 128)
    exact_weight = sum(weights.parts())
    for rows in (1, 4):
        x = torch.randn(rows, 1024)
        theirs = torch.ops.aten._weight_int4pack_mm_for_cpu(x, weights.packed(), 128, weights.scales)
        ours = product(launch, monkeypatch, x, weights)
        wanted = x.double() @ exact_weight
        of_ours, of_theirs = (float((found - wanted).square().mean().sqrt()) for found in (ours, theirs))
        assert of_ours <= 2 * of_theirs, f"{of_ours:.3g} beside {of_theirs:.3g}"
