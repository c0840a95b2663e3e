"""The convolution sub-kernel gives what torch gives in float64, whatever the sizes, strides, groups and paddings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from targets.cpu.kernels.launched import BLOCKS, LAYOUTS, Launcher, laid_out, same_bits  # noqa: E402

from superkernel.errors import GraphError, UnsupportedError  # noqa: E402
from superkernel.model.op import Place  # noqa: E402
from superkernel.model.tensor_arg import TensorArg  # noqa: E402
from superkernel.targets.cpu.kernels import convolution  # noqa: E402

FORMATS = st.sampled_from([torch.contiguous_format, torch.channels_last])


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def check(
    launch: Launcher,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    steps: tuple[list[int], list[int], list[int]],
    groups: int,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> None:
    stride, padding, dilation = steps
    none = [0] * len(stride)
    wide = None if bias is None else bias.double()
    wanted = torch.convolution(x.double(), weight.double(), wide, stride, padding, dilation, False, none, groups)
    first = None
    for blocks in BLOCKS:
        out = torch.full(wanted.shape, 77.0).contiguous(memory_format=memory_format)
        arguments = (x, weight, bias, stride, padding, dilation, False, none, groups)
        launch(convolution.convolution, blocks, *arguments, out=out)
        torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4)
        first = out if first is None else first
        assert same_bits(out, first), f"{blocks} blocks give other bits than one"


@settings(max_examples=min(60, settings().max_examples))
@given(
    data=st.data(),
    images=st.sampled_from([0, 1, 2]),
    groups=st.sampled_from([1, 1, 2, 3]),
    channels=st.sampled_from([1, 3, 4]),
    filters=st.sampled_from([1, 2, 17, 40]),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    formats=st.tuples(FORMATS, FORMATS, FORMATS),
    bias=st.booleans(),
)
def test_images(
    launch: Launcher,
    data: st.DataObject,
    images: int,
    groups: int,
    channels: int,
    filters: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    formats: tuple[torch.memory_format, ...],
    bias: bool,
) -> None:
    stride, padding, dilation = (
        data.draw(st.lists(st.integers(low, high), min_size=2, max_size=2)) for low, high in ((1, 4), (0, 3), (1, 3))
    )
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    assume(all(s + 2 * p >= r for s, p, r in zip(size, padding, reach, strict=True)))
    x = random(images, groups * channels, *size).contiguous(memory_format=formats[0])
    weight = random(groups * filters, channels, *kernel).contiguous(memory_format=formats[1])
    added = random(groups * filters) if bias else None
    check(launch, x, weight, added, (stride, padding, dilation), groups, formats[2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_patches_of_a_vision_transformer(launch: Launcher, layout: str) -> None:
    x = laid_out(random(2, 3, 64, 64), layout)
    check(launch, x, random(96, 3, 16, 16), random(96), ([16, 16], [0, 0], [1, 1]), 1)


@pytest.mark.parametrize("stride", [1, 3])
def test_signals_in_one_dimension(launch: Launcher, stride: int) -> None:
    x, weight = random(2, 6, 50), random(8, 3, 5)
    check(launch, x, weight, random(8), ([stride], [2], [2]), 2)


def test_deep_filters_and_many_channels(launch: Launcher) -> None:
    check(launch, random(1, 200, 6, 6), random(70, 200, 3, 3), None, ([1, 1], [1, 1], [1, 1]), 1)


def tensor(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> TensorArg:
    return TensorArg("t", 0, dtype, shape, strides or tuple(torch.empty(shape).stride()))


def test_what_has_no_kernel_is_refused() -> None:
    x, weight, out = (tensor("float32", shape) for shape in ((1, 2, 5, 5), (4, 2, 3, 3), (1, 4, 3, 3)))

    def refused(
        reason: str,
        x: TensorArg = x,
        weight: TensorArg = weight,
        out: TensorArg = out,
        transposed: bool = False,
        kind: type[Exception] = UnsupportedError,
    ) -> None:
        sizes = ([1, 1], [0, 0], [1, 1], transposed, [0, 0], 1)
        with pytest.raises(kind, match=reason):
            convolution.convolution(x, weight, None, *sizes, out=out, cores=2, scratch=lambda _nbytes: Place("room"))

    refused("transposed", transposed=True)
    refused("convolution of bfloat16, float32", x=tensor("bfloat16", x.shape))
    refused("in 3 dimensions", x=tensor("float32", (1, 2, 5, 5, 5)))
    refused("filters with gaps", weight=tensor("float32", weight.shape, (36, 18, 6, 2)))
    refused("rows with gaps", out=tensor("float32", out.shape, (80, 20, 4, 1)))
    refused("cannot give", weight=tensor("float32", (4, 3, 3, 3)), kind=GraphError)
