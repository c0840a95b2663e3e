"""Bags of table rows and triangular systems give what torch gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from targets.cpu.kernels.launched import BLOCKS, Launcher, laid_out  # noqa: E402

from superkernel.errors import LaunchError, UnsupportedError  # noqa: E402
from superkernel.model.tensor_arg import TensorArg  # noqa: E402
from superkernel.targets.cpu.kernels import embedding_bag, triangular  # noqa: E402

pytestmark = pytest.mark.slow

OFFSETS = torch.tensor([0, 3, 3, 10])
INDICES = torch.tensor([1, 5, 1, 7, 0, 2, 2, 6, 3, 1, 4, 4])


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def bagged(launch: Launcher, blocks: int, table: torch.Tensor, *args: object) -> list[torch.Tensor]:
    results = [torch.zeros_like(result) for result in torch.ops.aten._embedding_bag(table, *args)]
    outs = {f"out{i}": result for i, result in enumerate(results)}
    launch(embedding_bag._embedding_bag, blocks, table, *args, **outs)
    return results


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [-1, 1])
def test_bags(launch: Launcher, mode: int, padding: int) -> None:
    table = torch.randn(8, 300)
    factors = torch.rand(12) if mode == 0 else None
    args = (INDICES, OFFSETS, False, mode, False, factors, False, padding)
    wanted = torch.ops.aten._embedding_bag(table, *args)
    for blocks in BLOCKS:
        found = bagged(launch, blocks, table, *args)
        torch.testing.assert_close(found[0], wanted[0])
        if mode == 2:
            assert torch.equal(found[3], wanted[3])
        if mode > 0:  # what training reads
            assert torch.equal(found[1], wanted[1]) and torch.equal(found[2], wanted[2])


def test_the_last_offset_may_be_given(launch: Launcher) -> None:
    args = (INDICES, torch.tensor([0, 4, 12]), False, 1, False, None, True, -1)
    table = torch.randn(8, 5)
    torch.testing.assert_close(bagged(launch, 2, table, *args)[0], torch.ops.aten._embedding_bag(table, *args)[0])


def test_an_index_outside_of_the_table_is_an_error(launch: Launcher) -> None:
    outs = {"out0": torch.zeros(1, 4), **{f"out{i}": torch.zeros(1, dtype=torch.int64) for i in (1, 2, 3)}}
    for index, offset, said in ((8, 0, "an index is outside of the table"), (1, 5, "an offset is outside")):
        args = (torch.tensor([index]), torch.tensor([offset]))
        with pytest.raises(LaunchError, match=said):
            launch(embedding_bag._embedding_bag, 1, torch.randn(8, 4), *args, **outs)


def test_bags_of_other_dtypes_are_refused() -> None:
    table, index = TensorArg("t", 0, "int8", (4, 4), (4, 1)), TensorArg("i", 0, "int64", (4,), (1,))
    outs = {"out0": table, "out1": index, "out2": index, "out3": index}
    with pytest.raises(UnsupportedError, match="embedding_bag of int8"):
        embedding_bag._embedding_bag(table, index, index, **outs, cores=2)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(launch: Launcher, upper: bool, left: bool, unit: bool) -> None:
    matrix = torch.randn(3, 20, 20) / 8 + 2 * torch.eye(20)
    right = torch.randn((3, 20, 37) if left else (3, 37, 20))
    options = {"upper": upper, "left": left, "unitriangular": unit}
    wanted = torch.linalg.solve_triangular(matrix.double(), right.double(), **options).float()
    for blocks, layout in ((1, "rows"), (2, "turned"), (7, "gaps")):
        out = laid_out(torch.zeros_like(right), layout)
        launch(triangular.linalg_solve_triangular, blocks, laid_out(matrix, layout), right, **options, out=out)
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)
