"""The convolution sub-kernels give what torch gives in float64, whatever the sizes, steps, groups and layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from targets.cpu.kernels.launched import LAYOUTS, Launcher, laid_out, same_bits  # noqa: E402

from superkernel.errors import GraphError, UnsupportedError  # noqa: E402
from superkernel.model.op import Place  # noqa: E402
from superkernel.model.tensor_arg import TensorArg  # noqa: E402
from superkernel.targets.cpu.kernels import convolution  # noqa: E402
from superkernel.targets.cpu.kernels.convolution_problem import ConvolutionProblem, choose_unit_size  # noqa: E402

BLOCKS = (1, 2, 7)
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """The same values; the channels of a pixel are neighbours in memory."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


def check(
    launch: Launcher,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
    planes: bool = False,
) -> None:
    """`planes`: every channel of the result is a plane of its own; otherwise its channels are neighbours."""
    steps = list(stride), list(padding), list(dilation), transposed, list(output_padding) * (x.dim() - 2), groups
    if len(output_padding) > 1:
        steps = *steps[:4], list(output_padding), groups
    wide = None if bias is None else bias.double()
    wanted = torch.convolution(x.double(), weight.double(), wide, *steps)
    first = None
    for blocks in BLOCKS:
        out = torch.full(wanted.shape, 77.0, dtype=x.dtype)
        out = out if planes else channels_last(out)
        launch(convolution.convolution, blocks, x, weight, bias, *steps, out=out)
        tolerance = TOLERANCES[x.dtype]
        torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
        first = out if first is None else first
        assert same_bits(out, first), f"{blocks} blocks give other bits than one"


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Convolutions in one to three dimensions, of images and filters in two layouts each."""
    axes = draw(st.sampled_from([1, 2, 2, 3]))
    largest = {1: 40, 2: 12, 3: 6}[axes]

    def per_axis(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes))

    sizes, kernel, stride, padding = per_axis(1, largest), per_axis(1, 4), per_axis(1, 3), per_axis(0, 3)
    dilation, transposed = per_axis(1, 3), draw(st.booleans())
    groups, channels = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 3, 4]))
    filters, images = draw(st.sampled_from([1, 2, 17, 40])), draw(st.sampled_from([0, 1, 2]))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    output_padding = [0] * axes
    if transposed:
        output_padding = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
        spans = zip(sizes, stride, padding, reach, output_padding, strict=True)
        assume(all((n - 1) * s - 2 * p + r + o > 0 for n, s, p, r, o in spans))
    else:
        assume(all(n + 2 * p >= r for n, p, r in zip(sizes, padding, reach, strict=True)))
    shape = (groups * channels, filters) if transposed else (groups * filters, channels)
    x, weight = random(images, groups * channels, *sizes), random(*shape, *kernel)
    return {
        "x": channels_last(x) if draw(st.booleans()) else x,
        "weight": channels_last(weight) if draw(st.booleans()) else weight,
        "bias": random(groups * filters),
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "transposed": transposed,
        "output_padding": output_padding,
        "planes": draw(st.booleans()),
    }


@settings(max_examples=min(25, settings().max_examples))
@given(problem=convolutions())
def test_every_parameter(launch: Launcher, problem: dict[str, Any]) -> None:
    check(launch, **problem)


@pytest.mark.conformance
@settings(max_examples=300)
@given(problem=convolutions(), bias=st.booleans())
def test_many_parameters(launch: Launcher, problem: dict[str, Any], bias: bool) -> None:
    check(launch, **problem | ({} if bias else {"bias": None}))


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize(
    ("channels", "multiplier", "size", "kernel", "step"),
    [(70, 1, (9, 21), (3, 3), 1), (24, 1, (11, 30), (5, 5), 2), (5, 2, (7, 40), (1, 3), 1)],
)
def test_depthwise(
    launch: Launcher, channels: int, multiplier: int, size: tuple[int, int], kernel: tuple[int, int], step: int,
    planes: bool,
) -> None:  # fmt: skip
    x = random(2, channels, *size)
    x = x if planes else channels_last(x)
    weight = random(channels * multiplier, 1, *kernel)
    padding = [kernel[0] // 2, kernel[1] // 2]
    check(launch, x, weight, random(channels * multiplier), [step] * 2, padding, [1, 1], channels, planes=planes)


@st.composite
def short_filters(draw: st.DrawFn) -> dict[str, Any]:
    """Depthwise filters of three and five columns, where blocks begin and end in every way."""
    columns, stride, dilation = draw(st.sampled_from([3, 5])), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    depth, rows = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    sizes = [draw(st.integers(depth, 3)), draw(st.integers(rows, 5)), draw(st.integers(1, 20))]
    padding = [draw(st.integers(0, 1)), draw(st.integers(0, 3)), draw(st.integers(0, 6))]
    assume(sizes[2] + 2 * padding[2] >= columns and sizes[1] + 2 * padding[1] > dilation * (rows - 1))
    channels = draw(st.sampled_from([3, 16, 21, 70]))
    axes = draw(st.sampled_from([2, 3]))
    sizes, padding, kernel = sizes[-axes:], padding[-axes:], [depth, rows, columns][-axes:]
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16]))
    return {
        "x": channels_last(random(2, channels, *sizes).to(dtype)),
        "weight": random(channels, 1, *kernel).to(dtype),
        "bias": random(channels).to(dtype) if draw(st.booleans()) else None,
        "stride": [1] * (axes - 1) + [stride],
        "padding": padding,
        "dilation": [1, dilation, 1][-axes:],
        "groups": channels,
    }


@settings(max_examples=min(40, settings().max_examples))
@given(problem=short_filters())
def test_depthwise_filters_of_few_columns(launch: Launcher, problem: dict[str, Any]) -> None:
    check(launch, **problem)


@pytest.mark.conformance
@settings(max_examples=300)
@given(problem=short_filters())
def test_many_depthwise_filters_of_few_columns(launch: Launcher, problem: dict[str, Any]) -> None:
    check(launch, **problem)


@pytest.mark.parametrize("columns", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_taps_outside_of_the_image_are_not_multiplied(launch: Launcher, columns: int, stride: int) -> None:
    """Infinity times the zeros of a padding would be no number."""
    x, weight = channels_last(random(1, 20, 6, 13).abs()), random(20, 1, 3, columns).abs()
    weight[..., 0] = weight[..., -1] = float("inf")
    wanted = torch.nn.functional.conv2d(x, weight[..., 1:-1], stride=stride, padding=(1, columns // 2), groups=20)
    steps = [stride] * 2, [1, columns // 2], [1, 1], False, [0, 0], 20
    out = channels_last(torch.empty(1, 20, (6 - 1) // stride + 1, (13 - 1) // stride + 1))
    launch(convolution.convolution, 1, x, weight, None, *steps, out=out)
    assert not out.isnan().any() and out[..., 1:-1].isinf().all() and wanted.isfinite().all()


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize(
    ("shape", "kernel", "groups"),
    [((1, 28, 28), (3, 3), 1), ((3, 24, 900), (3, 5), 1), ((1, 1, 13000), (1, 3), 1), ((6, 9, 50), (3, 3), 2)],
)
def test_patches_of_few_channels(
    launch: Launcher, shape: tuple[int, int, int], kernel: tuple[int, int], groups: int, planes: bool
) -> None:
    """Padded lines that fit the scratch memory at once, in several turns, and not at all."""
    x, weight = channels_last(random(1, *shape)), random(34, shape[0] // groups, *kernel)
    padding = [kernel[0] // 2, kernel[1] // 2]
    for stride, dilation in ((1, 1), (2, 1), (1, 2)):
        steps = [stride] * 2, [step * dilation for step in padding], [1, dilation]
        check(launch, x, weight, random(34), *steps, groups=groups, planes=planes)


def test_elements_of_16_bits_are_rounded_once(launch: Launcher) -> None:
    x, weight, bias = (tensor.bfloat16() for tensor in (random(1, 20, 9, 12), random(20, 20, 3, 3), random(20)))
    check(launch, channels_last(x), weight, bias, [1, 1], [1, 1], [1, 1])


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_kernel_takes_elements_of_16_bits(launch: Launcher, dtype: torch.dtype) -> None:
    x, bias = random(1, 20, 9, 12).to(dtype), random(20).to(dtype)
    check(launch, x, random(20, 20, 3, 3).to(dtype), bias, [1, 1], [1, 1], [1, 1])
    check(launch, channels_last(x), random(20, 1, 3, 3).to(dtype), bias, [1, 1], [1, 1], [1, 1], groups=20)
    check(launch, x, random(20, 8, 2, 2).to(dtype), None, [2, 2], [0, 0], [1, 1], transposed=True)


@pytest.mark.conformance
def test_without_a_bias(launch: Launcher) -> None:
    x = channels_last(random(2, 32, 13, 16))
    check(launch, x, random(24, 32, 3, 3), None, [1, 1], [1, 1], [1, 1])
    check(launch, x, random(24, 32, 2, 2), None, [1, 1], [1, 1], [1, 1])
    check(launch, x, random(32, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], groups=32)
    check(launch, x, random(24, 32, 1, 1), None, [1, 1], [0, 0], [1, 1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_patches_of_a_vision_transformer(launch: Launcher, layout: str) -> None:
    x = laid_out(random(2, 3, 64, 64), layout)
    check(launch, x, random(96, 3, 16, 16), random(96), [16, 16], [0, 0], [1, 1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(1, 1), (5, 5)])
def test_pointwise(launch: Launcher, sizes: tuple[int, int], layout: str) -> None:
    x, weight = random(2, 30, *sizes), random(50, 30, 1, 1)
    check(launch, laid_out(x, layout), weight, random(50), [1, 1], [0, 0], [1, 1], planes=True)
    check(launch, channels_last(x), weight, random(50), [1, 1], [0, 0], [1, 1])


@pytest.mark.parametrize("size", [6, 24])
def test_deep_filters_and_many_channels(launch: Launcher, size: int) -> None:
    """More filters than positions, then fewer: the elements of patches are gathered in another order."""
    check(launch, channels_last(random(1, 200, size, size)), random(70, 200, 3, 3), random(70), [1, 1], [1, 1], [1, 1])


@pytest.mark.parametrize(("filters", "padding"), [(24, 1), (70, 2)])
def test_winograd(launch: Launcher, filters: int, padding: int) -> None:
    x, weight = channels_last(random(2, 32, 13, 16)), random(filters, 32, 3, 3)
    assert "winograd_float32" in kernels(x, weight, padding=padding)
    check(launch, x, weight, random(filters), [1, 1], [padding] * 2, [1, 1])
    check(launch, x, channels_last(weight), random(filters), [1, 1], [padding] * 2, [1, 1])


def tensor(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> TensorArg:
    return TensorArg("t", 0, dtype, shape, strides or tuple(torch.empty(shape).stride()))


def kernels(x: torch.Tensor, weight: torch.Tensor, groups: int = 1, padding: int = 0) -> list[str]:
    """The functions that a convolution of these shapes calls."""
    out = torch.nn.functional.conv2d(x, weight, padding=padding, groups=groups)
    described = [tensor("float32", tuple(t.shape), tuple(t.stride())) for t in (x, weight, out)]
    steps = [1, 1], [padding] * 2, [1, 1], False, [0, 0], groups
    ops = convolution.convolution(
        *described[:2], None, *steps, out=described[2], cores=2, scratch=lambda _nbytes: Place("room")
    )
    return [op.kernel.name for op in ops]


def test_the_kernel_fits_the_shape() -> None:
    image = channels_last(random(1, 64, 14, 14))
    assert kernels(image, random(64, 1, 3, 3), groups=64, padding=1) == ["depthwise_float32"]
    assert kernels(image, random(128, 64, 3, 3), padding=1) == ["winograd_filters_float32", "winograd_float32"]
    assert kernels(image[:, :, :7, :7], random(128, 64, 3, 3), padding=1) == ["convolution_float32"]
    assert kernels(image, random(128, 64, 1, 1)) == ["convolution_float32"]
    assert kernels(image[:, :, :1, :1], random(128, 64, 1, 1)) == ["matmul_float32"]
    planes = image.contiguous()
    assert kernels(planes, random(128, 64, 1, 1)) == ["matmul_float32"]
    assert kernels(planes, random(128, 64, 5, 5)) == ["channels_last_float32", "convolution_float32"]


def test_cores_have_equal_work_and_sums_fit_the_cache() -> None:
    for channels, filters, size in ((64, 64, 56), (256, 256, 14), (512, 512, 7), (3, 64, 112), (16, 1000, 7)):
        shapes = (1, channels, size, size), (filters, channels, 3, 3), (1, filters, size, size)
        x, weight, out = (tensor("float32", shape) for shape in shapes)
        problem = ConvolutionProblem.of(x, weight, None, out, ([1], [1], [1], [0]), False, 1)
        for blocks in (1, 2, 16):
            unit = choose_unit_size(problem, blocks)
            units = -(-size * size // unit.positions) * -(-filters // unit.filters)
            assert unit.positions * unit.filters <= 98_304
            shared = units * unit.positions * unit.filters / -(-units // blocks) / unit.positions / unit.filters
            assert shared > 0.7 * blocks, (channels, filters, size, blocks, unit)


def test_what_has_no_kernel_is_refused() -> None:
    x, weight, out = (tensor("float32", shape) for shape in ((1, 2, 5, 5), (4, 2, 3, 3), (1, 4, 3, 3)))

    def refused(
        reason: str,
        x: TensorArg = x,
        weight: TensorArg = weight,
        out: TensorArg = out,
        bias: TensorArg | None = None,
        stride: Sequence[int] = (1, 1),
        kind: type[Exception] = UnsupportedError,
    ) -> None:
        steps = stride, [0, 0], [1, 1], False, [0, 0], 1
        with pytest.raises(kind, match=reason):
            convolution.convolution(x, weight, bias, *steps, out=out, cores=2, scratch=lambda _nbytes: Place("room"))

    refused("convolution of bfloat16, float32", x=tensor("bfloat16", x.shape))
    refused("convolution of float64", *(tensor("float64", t.shape) for t in (x, weight, out)))
    refused("in 4 dimensions", x=tensor("float32", (1, 2, 5, 5, 5, 5)))
    refused("in 0 dimensions", x=tensor("float32", (1, 2)))
    refused("one per axis", stride=(1, 1, 1), kind=GraphError)
    refused("at least 1", stride=(0, 1), kind=GraphError)
    refused("cannot give", weight=tensor("float32", (4, 3, 3, 3)), kind=GraphError)
    refused("cannot give", out=tensor("float32", (1, 4, 3, 4)), kind=GraphError)
    refused("cannot give", bias=tensor("float32", (3,)), kind=GraphError)
