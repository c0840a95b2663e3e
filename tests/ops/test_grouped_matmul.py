"""grouped_matmul: arrangements of tensors and groups, in floats and int8; experts without rows; what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from measured import sample

torch = pytest.importorskip("torch")

from frontend.fused import check, compiled, run  # noqa: E402
from torch import Tensor  # noqa: E402

from ops.direct import Launcher  # noqa: E402
from superkernel import ops  # noqa: E402
from superkernel.errors import LaunchError, UnsupportedError  # noqa: E402
from superkernel.targets.cpu.kernels import grouped as kernels  # noqa: E402

pytestmark = pytest.mark.slow

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
ROWS, DEPTH, WIDTH, GROUPS = 50, 70, 96, 4
LISTS = [[10, 10, 17, 50], [0, 0, 0, 50], [50, 50, 50, 50], [1, 2, 3, 50]]


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(shape) / 4).to(dtype)


def whole(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def counts(ends: list[int]) -> list[int]:
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def by_loop(x: Tensor, weight: Tensor, ends: list[int], bias: Tensor | None = None) -> Tensor:
    products = torch.empty(x.shape[0], weight.shape[-1])
    for group, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        products[begin:end] = x[begin:end].float() @ weight[group].float() + (
            0 if bias is None else bias[group].float()
        )
    return products


@pytest.mark.parametrize("dtype", sample(FLOATS, 2))
@pytest.mark.parametrize("ends", LISTS)
@pytest.mark.parametrize("transposed", [False, True])
def test_one_x_one_weight_one_result(launch: Launcher, dtype: torch.dtype, ends: list[int], transposed: bool) -> None:
    x, bias = floats(ROWS, DEPTH, dtype=dtype), floats(GROUPS, WIDTH, dtype=dtype)
    weight = floats(GROUPS, WIDTH, DEPTH, dtype=dtype).transpose(1, 2)
    weight = weight if transposed else weight.contiguous()
    for given in ({}, {"bias": [bias]}):
        for kind, numbers in ((0, ends), (1, counts(ends))):
            listed = {"group_list": torch.tensor(numbers), "group_list_type": kind, "split_item": 3}
            (reference,) = ops.grouped_matmul([x], [weight], **given, **listed, group_type=0)
            expected = by_loop(x, weight, ends, bias if given else None)
            torch.testing.assert_close(reference.float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
            bits = None
            for blocks in (1, 3):
                arguments = {"x": [x], "weight": [weight], "bias": given.get("bias"), "scale": None}
                arguments |= {"per_token_scale": None, "group_ends": None, "output_dtype": None, **listed}
                (found,) = launch(kernels.grouped_matmul, arguments, [reference], blocks)
                torch.testing.assert_close(found, reference, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
                assert bits is None or torch.equal(found, bits), "the number of blocks changes the result"
                bits = found


@pytest.mark.parametrize("dtype", sample(FLOATS))
def test_a_weight_per_group(dtype: torch.dtype) -> None:
    x = floats(ROWS, DEPTH, dtype=dtype)
    weight = [floats(WIDTH, DEPTH, dtype=dtype).t() for _ in range(GROUPS)]
    bias = [floats(WIDTH, dtype=dtype) for _ in range(GROUPS)]

    def model(x: Tensor, listed: Tensor, weight: list[Tensor], bias: list[Tensor]) -> Any:
        return ops.grouped_matmul([x], weight, bias=bias, group_list=listed, group_type=0, split_item=2)

    found = check(model, x, torch.tensor(LISTS[0]), weight, bias, tolerance=TOLERANCE[dtype])
    assert not found.report.scopes[0].unfusible and len(found.report.scopes[0].segments) == 1


@pytest.mark.parametrize("split_item", sample([0, 3]))
def test_numbers_divide_the_rows(split_item: int) -> None:
    x, weight = floats(ROWS, DEPTH), floats(GROUPS, DEPTH, WIDTH)

    def model(x: Tensor, weight: Tensor) -> Any:
        return ops.grouped_matmul([x], list(weight), group_list=[10, 10, 17, 50], split_item=split_item)

    found = check(model, x, weight)
    assert not found.report.scopes[0].unfusible
    shapes = [tuple(result.shape) for result in found.outputs]
    assert shapes == ([(10, WIDTH), (0, WIDTH), (7, WIDTH), (33, WIDTH)] if split_item == 0 else [(ROWS, WIDTH)])
    torch.testing.assert_close(torch.cat(found.outputs), by_loop(x, weight, [10, 10, 17, 50]))


def test_an_x_per_group() -> None:
    x = [floats(3, 5, 16), floats(2, 2, 2, 24), floats(7, 8)]
    weight = [floats(16, 9), floats(40, 24).t(), floats(8, 1)]

    def apart(x: list[Tensor], weight: list[Tensor]) -> Any:
        return ops.grouped_matmul(x, weight, group_type=-1)

    found = check(apart, x, weight)
    assert not found.report.scopes[0].unfusible
    for result, rows, matrix in zip(found.outputs, x, weight, strict=True):
        torch.testing.assert_close(result, rows @ matrix)

    def together(x: list[Tensor], weight: list[Tensor]) -> Any:
        return ops.grouped_matmul(x, weight, split_item=2)

    flat = [floats(3, 8), floats(0, 8), floats(5, 8)]
    same_width = [floats(8, 6) for _ in flat]
    found = check(together, flat, same_width)
    expected = torch.cat([rows @ matrix for rows, matrix in zip(flat, same_width, strict=True)])
    torch.testing.assert_close(found.outputs[0], expected)
    listed = ops.grouped_matmul(flat, same_width, split_item=2, group_list=torch.tensor([3, 3, 8]), group_type=0)
    assert torch.equal(listed[0], together(flat, same_width)[0])


def int8_cases() -> list[tuple[str, dict[str, Any]]]:
    scale, rows = torch.rand(GROUPS, WIDTH) * 1e-3, torch.rand(ROWS)
    sums, after = torch.randint(-9999, 9999, (GROUPS, WIDTH), dtype=torch.int32), torch.randn(GROUPS, WIDTH)
    found: list[tuple[str, dict[str, Any]]] = [
        ("int32", {"output_dtype": torch.int32}),
        ("int32, bias", {"output_dtype": torch.int32, "bias": [sums]}),
        ("int8", {"scale": [scale], "bias": [sums]}),
    ]
    for dtype in (torch.float16, torch.bfloat16):
        given = {"output_dtype": dtype, "scale": [scale]}
        found.append((f"{dtype}", given))
        for bias in (sums, after, after.half(), after.bfloat16()):
            told = f"{dtype}, {bias.dtype} bias"
            found.append((told, {**given, "per_token_scale": [rows], "bias": [bias]}))
    return found


@pytest.mark.parametrize(("told", "given"), int8_cases(), ids=[told for told, _ in int8_cases()])
def test_int8_gives_the_bits_of_the_reference(launch: Launcher, told: str, given: dict[str, Any]) -> None:
    x, weight = whole(ROWS, DEPTH), whole(GROUPS, WIDTH, DEPTH).transpose(1, 2)
    nothing = dict.fromkeys(("bias", "scale", "per_token_scale", "group_ends", "output_dtype"))
    for ends in LISTS:
        listed = {"group_list": torch.tensor(ends), "group_list_type": 0, "split_item": 3}
        (reference,) = ops.grouped_matmul([x], [weight], **given, **listed, group_type=0)
        for blocks in (1, 3):
            arguments = {"x": [x], "weight": [weight], **nothing, **given, **listed}
            (found,) = launch(kernels.grouped_matmul, arguments, [reference], blocks)
            assert torch.equal(found.view(torch.uint8), reference.contiguous().view(torch.uint8))
        if told == "int32":
            exact = by_loop(x.double(), weight.double(), ends)
            assert torch.equal(reference.double(), exact.double())


def test_int8_with_weights_and_scales_in_lists() -> None:
    x, rows = whole(ROWS, DEPTH), torch.rand(ROWS)
    weight, scale = [whole(DEPTH, WIDTH) for _ in range(3)], [torch.rand(WIDTH) * 1e-3 for _ in range(3)]

    def model(x: Tensor, rows: Tensor, weight: list[Tensor], scale: list[Tensor]) -> Any:
        given = {"scale": scale, "per_token_scale": [rows], "output_dtype": torch.bfloat16}
        return ops.grouped_matmul([x], weight, **given, group_list=[10, 10, ROWS], split_item=0)

    (scope,) = check(model, x, rows, weight, scale, tolerance=0).report.scopes
    assert not scope.unfusible


def test_a_mixture_of_experts_is_one_segment() -> None:
    def model(x: Tensor, up: Tensor, down: Tensor, up_scale: Tensor, down_scale: Tensor, sizes: Tensor) -> Tensor:
        given = {"group_list": sizes, "group_list_type": 1, "group_type": 0, "split_item": 3}
        (hidden,) = ops.grouped_matmul([x], [up], output_dtype=torch.int32, **given)
        rows, scale = ops.dequant_swiglu_quant(
            hidden,
            weight_scale=up_scale,
            activation_scale=torch.ones_like(x[:, 0], dtype=torch.float32),
            group_index=sizes,
            activate_left=True,
            quant_mode=1,
        )
        options = {"scale": [down_scale], "per_token_scale": [scale], "output_dtype": torch.bfloat16}
        return ops.grouped_matmul([rows], [down], **options, **given)[0]

    x, up, down = whole(30, 64), whole(GROUPS, 64, 96), whole(GROUPS, 48, 64)
    scales = torch.rand(GROUPS, 96) * 1e-4, torch.rand(GROUPS, 64) * 1e-2
    (scope,) = check(model, x, up, down, *scales, torch.tensor([7, 0, 20, 3]), tolerance=0).report.scopes
    assert len(scope.segments) == 1 and not scope.unfusible


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ([1, 2, 3, 4], 0),
        ([60, 50, 50, 50], 0),
        ([20, 10, 30, 50], 0),
        ([-1, 1, 0, 50], 1),
        ([10, 10, 10, 10], 1),
        ([2**62, 2**62, 0, 0], 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_lists_that_do_not_add_up_stop_the_launch(numbers: list[int], kind: int, dtype: torch.dtype) -> None:
    x, weight = torch.ones(ROWS, DEPTH, dtype=dtype), torch.ones(GROUPS, DEPTH, WIDTH, dtype=dtype)
    wanted = torch.int32 if dtype is torch.int8 else None

    def model(x: Tensor, weight: Tensor, listed: Tensor) -> Any:
        given = {"group_list": listed, "group_list_type": kind, "group_type": 0, "split_item": 3}
        return ops.grouped_matmul([x], [weight], output_dtype=wanted, **given)

    for call in (model, compiled(model)):
        with pytest.raises(
            LaunchError, match=r"group_list (adds up to|does not add up|gives a group less than no rows)"
        ):
            call(x, weight, torch.tensor(numbers))


def test_a_bias_of_another_type_is_left_to_torch() -> None:
    x, weight = floats(5, 16, dtype=torch.bfloat16), floats(2, 16, 8, dtype=torch.bfloat16)
    bias = floats(2, 8)
    found = run(
        lambda x, w, b: ops.grouped_matmul([x], [w], bias=[b], group_list=torch.tensor([2, 5]), split_item=3),
        x,
        weight,
        bias,
    )
    assert "bias of float32" in str(found.report.scopes[0].unfusible)
    torch.testing.assert_close(found.outputs[0].float(), by_loop(x, weight, [2, 5], bias), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize(("rows", "depth", "width"), sample([(0, 8, 5), (4, 8, 0), (4, 0, 5)]))
def test_sizes_of_zero(dtype: torch.dtype, rows: int, depth: int, width: int) -> None:
    x, weight = torch.ones(rows, depth, dtype=dtype), torch.ones(2, depth, width, dtype=dtype)
    wanted = torch.int32 if dtype is torch.int8 else None

    def model(x: Tensor, weight: Tensor, listed: Tensor) -> Any:
        return ops.grouped_matmul([x], [weight], group_list=listed, split_item=3, output_dtype=wanted)

    found = check(model, x, weight, torch.tensor([rows // 2, rows]), tolerance=0).outputs[0]
    assert found.shape == (rows, width) and bool((found == depth).all())


GOOD: dict[str, Any] = {"x": [floats(6, 8)], "weight": [floats(2, 8, 5)], "group_list": torch.tensor([2, 6])}
GOOD |= {"split_item": 3}
INT8 = {"x": [whole(6, 8)], "weight": [whole(2, 8, 5)]}
SCALED = {**INT8, "scale": [torch.ones(2, 5)], "output_dtype": torch.float16}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"x": []}, LaunchError, "at least one tensor"),
        ({"x": [floats(6, 8).double()]}, UnsupportedError, "x is float64"),
        ({"weight": [whole(2, 8, 5)]}, UnsupportedError, "weight is int8, but x.0. is float32"),
        ({"weight": [floats(2, 7, 5)]}, LaunchError, "cannot be multiplied by weight"),
        ({"weight": [floats(8, 5)] * 3}, LaunchError, r"group_list is \(2\); it must be \(3,\)"),
        ({"group_list": None}, LaunchError, "need a group_list"),
        ({"group_list": [2, 7]}, LaunchError, "adds up to 7 rows, but x has 6"),
        ({"group_list": [3, 2]}, LaunchError, "less than no rows"),
        ({"group_list": [2, 4, 6]}, LaunchError, "3 numbers for 2 groups"),
        ({"group_list": torch.tensor([2, 6]).int()}, UnsupportedError, "group_list is int32"),
        ({"group_list_type": 2}, UnsupportedError, "group_list_type is 2"),
        ({"group_type": 1}, UnsupportedError, "group_type is 1"),
        ({"group_type": -1}, LaunchError, "pass group_type=0"),
        ({"split_item": 0}, UnsupportedError, "pass group_list as numbers"),
        ({"split_item": 4}, UnsupportedError, "split_item is 4"),
        ({"act_type": 5}, UnsupportedError, "act_type is 5"),
        ({"offset": [torch.ones(5)]}, UnsupportedError, "offset is not supported"),
        ({"antiquant_scale": [torch.ones(5)]}, UnsupportedError, "antiquant_scale is not supported"),
        ({"tuning_config": [4]}, UnsupportedError, "tuning_config is not supported"),
        ({"output_dtype": torch.float16}, UnsupportedError, "of float32 the result is float32"),
        ({"scale": [torch.ones(2, 5)]}, UnsupportedError, "scale is not supported"),
        ({"bias": [torch.ones(5)]}, LaunchError, r"bias is \(5\); it must be \(2, 5\)"),
        ({"bias": [torch.ones(2, 5).half()]}, UnsupportedError, "bias is float16 beside an x of float32"),
        (INT8, LaunchError, "needs a scale"),
        ({**SCALED, "output_dtype": torch.int32}, UnsupportedError, "takes no scale"),
        ({**SCALED, "output_dtype": torch.float32}, UnsupportedError, "output_dtype is torch.float32"),
        ({**SCALED, "scale": [torch.ones(2, 5).long()]}, UnsupportedError, "scale is int64"),
        ({**SCALED, "per_token_scale": [torch.ones(5)]}, LaunchError, "does not fit an x of"),
        ({**SCALED, "output_dtype": None, "bias": [torch.ones(2, 5)]}, UnsupportedError, "bias is float32"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        ops.grouped_matmul(**{**GOOD, **change})


def test_fake_tensors_are_checked_as_well() -> None:
    with pytest.raises(LaunchError, match="cannot be multiplied by weight"):
        ops.grouped_matmul([floats(6, 8).to("meta")], [floats(7, 5).to("meta")])


def test_torch_checks_the_operator_as_it_checks_its_own() -> None:
    operator = torch.ops.superkernel.grouped_matmul.default
    listed = torch.tensor([2, 6])
    torch.library.opcheck(operator, ([floats(6, 8)], [floats(2, 8, 5)], None, None, None, listed, None, 3, 0, None))
