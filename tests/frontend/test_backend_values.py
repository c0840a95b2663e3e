"""Values: fused, unfused and eager agree, whatever the inputs look like and whatever becomes of inputs and outputs."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from frontend.fused import assert_same_bits, check, compiled, run
from measured import sample
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from superkernel.frontend.report import collecting
from superkernel.frontend.scope import super_kernel

pytestmark = pytest.mark.slow

X = torch.linspace(-2, 2, 64).reshape(4, 16)


def wave(x: Tensor) -> Tensor:
    return x.sin().sum(0)


# outputs


def test_a_later_call_leaves_earlier_results_alone() -> None:
    function = compiled(wave)
    first = function(X)
    kept = first.clone()
    second = function(X * 2)
    assert torch.equal(first, kept) and not torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()


def several(x: Tensor) -> Any:
    y = x.sin()
    return y, y.t(), y[1:, ::2], y, x, x[0], {"rows": [y.view(-1), None, 3]}


def test_views_aliases_inputs_and_plain_values_are_returned_as_eager_returns_them() -> None:
    ran = check(several, X)
    y, transposed, part, again, given, row, rest = ran.outputs
    (x,) = ran.inputs
    assert y is again and given is x
    assert transposed.data_ptr() == y.data_ptr() and part.untyped_storage()._cdata == y.untyped_storage()._cdata
    assert row.data_ptr() == x.data_ptr() and rest["rows"][0].data_ptr() == y.data_ptr()


def test_outputs_that_share_memory_still_share_it_when_written_to() -> None:
    function = compiled(several)
    x = X.clone()
    y, transposed, _, _, _, row, _ = function(x)
    y.zero_()
    assert not transposed.any()
    row.fill_(7)
    assert (x[0] == 7).all()


@pytest.mark.parametrize("model", [lambda x: x, lambda x: (x, x), lambda x: x.t()], ids=["input", "twice", "view"])
def test_a_model_that_computes_nothing(model: Any) -> None:
    check(model, X)


# inputs


def layouts() -> dict[str, Tensor]:
    big = torch.linspace(-3, 3, 4096)
    return {
        "transposed": big[:64].reshape(16, 4).t(),
        "sliced": big.reshape(64, 64)[3:7, 5:37:2],
        "offset": big[7:71].reshape(4, 16),
        "expanded": big[:16].expand(4, 16),
        "column": big[:4].reshape(4, 1).expand(4, 16),
        "channels last": big[:64].reshape(2, 2, 4, 4).to(memory_format=torch.channels_last),
        "flipped": big[:64].reshape(4, 16).flip(0),
        "one element": big[5:6],
        "empty": big[:0].reshape(0, 16),
    }


@pytest.mark.conformance
def test_inputs_may_lie_in_memory_as_they_like() -> None:
    ran = check(lambda *given: [(x + 1).relu() for x in given], *layouts().values())
    assert [len(scope.segments) for scope in ran.report.scopes] == [1]


def test_an_input_at_another_offset_is_another_input() -> None:
    function = compiled(wave)
    big = torch.linspace(-3, 3, 4096)
    for start in (0, 1, 7, 16):
        x = big[start : start + 64].reshape(4, 16)
        torch.testing.assert_close(function(x), wave(x))


def test_inputs_that_are_the_same_memory() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return x.sin() + y

    function = compiled(model)
    big = torch.linspace(-3, 3, 128)
    torch.testing.assert_close(function(big[:64], big[:64]), model(big[:64], big[:64]))
    torch.testing.assert_close(function(big[:64], big[32:96]), model(big[:64], big[32:96]))


@pytest.mark.conformance
def test_numbers_and_scalars() -> None:
    def model(x: Tensor, i: int, f: float, b: bool, s: Tensor) -> Any:
        return x * i + f * s, i + 1, f, b, s.exp(), x.sum()

    check(model, X, 3, 0.5, True, torch.tensor(1.5))


def test_a_number_that_changes_is_seen() -> None:
    function = compiled(lambda x, i: x * i, dynamic=None)
    for i in (2, 3, 2):
        assert torch.equal(function(X, i), X * i)


def test_every_plain_dtype_is_fused() -> None:
    def model(*given: Tensor) -> Any:
        return [(torch.where(x > 1, x, x + x), x.float()) for x in given]

    floating = [torch.float64, torch.float16, torch.bfloat16]
    whole = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
    ran = check(model, *((X * 10).to(dtype) for dtype in [*floating, *whole]))
    assert [len(scope.segments) for scope in ran.report.scopes] == [1] and not ran.scopes["graph"].unfusible


def test_complex_numbers_that_are_not_computed_as_pairs_are_left_to_torch_with_a_reason() -> None:
    def model(x: Tensor) -> Any:
        return (x * x.conj()).real, x.acosh().abs().sin()

    values = torch.complex(X, X + 1)
    ran = check(model, values)
    assert ran.report.scopes[0].unfusible and "complex" in str(ran.report)
    with collecting() as report:
        found = compiled(lambda x: x @ x.t())(values.conj())
    torch.testing.assert_close(found, values.conj() @ values.conj().t())
    assert "conjugated lazily" in report.scopes[0].segments[0].reason


# mutation


def test_an_input_written_in_place_is_one_segment_and_written_in_every_call() -> None:
    def model(x: Tensor) -> Tensor:
        x.add_(1)
        return x.sin()

    ran = check(model, X)
    assert len(ran.scopes["graph"].segments) == 1
    x = X.clone()
    ran.function(x)
    ran.function(x)
    assert torch.equal(x, X + 1 + 1)


def update(caches: list[Tensor], new: Tensor, at: Tensor) -> list[Tensor]:
    """One step of a decoder's cache, in all the ways to write one."""
    copied, put, sliced, scattered = caches
    copied.index_copy_(1, at, new)
    put[:, at] = new
    sliced[:, 3:5] = new
    scattered.scatter_(1, at.reshape(1, 2, 1).expand(2, 2, 8), new)
    return [(cache * 2).sum(-1) for cache in caches]


def test_caches_are_updated_in_place_within_one_segment() -> None:
    caches, new, at = [torch.randn(2, 16, 8) for _ in range(4)], torch.randn(2, 2, 8), torch.tensor([3, 11])

    def model(caches: list[Tensor], new: Tensor, at: Tensor) -> list[Tensor]:
        with super_kernel("cache", "strict-scope-check=abort"):
            return update(caches, new.sin(), at)

    ran = check(model, caches, new, at)
    assert len(ran.scopes["cache"].segments) == 1 and ran.report.outside == 0
    mine, expected = copy.deepcopy(caches), copy.deepcopy(caches)
    addresses = [cache.data_ptr() for cache in mine]
    for step in range(3):
        ran.function(mine, new + step, at + step)
        update(expected, (new + step).sin(), at + step)
    torch.testing.assert_close(mine, expected)
    assert [cache.data_ptr() for cache in mine] == addresses


def test_a_view_of_an_input_written_in_place() -> None:
    def model(x: Tensor) -> Tensor:
        y = x[1]
        y.mul_(2)
        x[0].copy_(y)
        return x.t() + y.sum()

    check(model, X)


@pytest.mark.conformance
def test_an_input_written_by_one_scope_and_read_by_another() -> None:
    def model(x: Tensor) -> Any:
        with super_kernel("a"):
            y = x.sin()
            x.add_(y)
        z = x.cos()
        with super_kernel("b"):
            x.mul_(2)
            return z + x

    ran = check(model, X)
    assert ran.scopes["a"].fused and ran.scopes["b"].fused


def test_metadata_and_data_of_an_input_change() -> None:
    def model(x: Tensor) -> Tensor:
        x.t_()
        x.add_(1)
        return x.sin()

    check(model, X)


# state


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(16))
        self.weight = nn.Parameter(torch.ones(16), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x * self.weight + self.count


def test_buffers_are_updated_and_weights_that_change_are_seen() -> None:
    model = Counting()
    function = compiled(model)
    for step in range(1, 4):
        torch.testing.assert_close(function(X), X * model.weight + step)
        model.weight.mul_(2)
    assert (model.count == 3).all()
    model.load_state_dict({"count": torch.zeros(16), "weight": torch.full((16,), 3.0)})
    torch.testing.assert_close(function(X), X * 3 + 1)


def test_modules_are_copied_and_pickled_before_and_after_they_are_compiled() -> None:
    model = Counting()
    before = pickle.loads(pickle.dumps(model))
    model.compile(backend="superkernel", options={"profit_gate": 0})
    first = model(X)
    copied = copy.deepcopy(model)
    sent = pickle.loads(pickle.dumps(model))
    assert_same_bits(model(X), copied(X))
    assert torch.equal(sent(X), first + 1) and torch.equal(before(X), first)
    assert torch.equal(model.count, copied.count) and model.count.data_ptr() != copied.count.data_ptr()
    whole = torch.compile(Counting(), backend="superkernel", options={"profit_gate": 0})
    assert torch.equal(whole(X), first)
    assert torch.equal(copy.deepcopy(whole)(X), first + 1)


@pytest.mark.conformance
def test_a_constant_of_the_model_is_part_of_it() -> None:
    table = torch.arange(16.0)

    def model(x: Tensor) -> Tensor:
        return x * table + torch.tensor([2.0]) + torch.arange(16)

    check(model, X)


# modes


@pytest.mark.parametrize("mode", sample([torch.inference_mode, torch.no_grad, torch.enable_grad]))
def test_grad_modes(mode: Any) -> None:
    function = compiled(wave)
    with mode():
        result = function(X)
        torch.testing.assert_close(result, wave(X))
        assert result.is_inference() == (mode is torch.inference_mode)
    torch.testing.assert_close(function(X), wave(X))


@pytest.mark.conformance
def test_autocast() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ w).relu()

    ran = check(model, X, torch.randn(16, 8), tolerance=2e-2)
    assert ran.outputs.dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        plain = compiled(lambda x, w: (x @ w).relu())(X, torch.randn(16, 8))
    assert plain.dtype is torch.bfloat16


def test_another_default_device_makes_no_difference() -> None:
    function = compiled(several)
    expected = function(X)
    with torch.device("meta"):
        assert_same_bits(function(X), expected)


def test_another_number_of_threads_gives_the_same_bits() -> None:
    def model(x: Tensor) -> Tensor:
        return (x.sin() + 1).softmax(-1).sum(0)

    x, threads = torch.randn(64, 512), torch.get_num_threads()
    function = compiled(model)
    first = function(x)
    try:
        for number in (1, 4, 2):
            torch.set_num_threads(number)
            assert_same_bits(function(x), first)
    finally:
        torch.set_num_threads(threads)


def test_random_numbers_are_those_of_torch_and_leave_its_generator_where_eager_would() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            return x + torch.rand(4, 16) + torch.randn(4, 16)

    torch.manual_seed(3)
    eager, after = model(X), torch.rand(1)
    torch.manual_seed(3)
    ran = run(model, X)
    assert torch.equal(ran.outputs, eager) and torch.equal(torch.rand(1), after)
    assert {found.op for found in ran.scopes["a"].unfusible} >= {"aten::rand", "aten::randn"}
    assert not torch.equal(ran.function(X), eager)


def test_dropout_does_nothing_in_eval_mode() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            with super_kernel("a", "strict-scope-check=abort"):
                return self.dropout(x).sin()

    assert check(Model().eval(), X).scopes["a"].fused


# what is no plain tensor


def test_a_tensor_subclass_is_fused_inside() -> None:
    ran = run(lambda x: x.sin() + 1, TwoTensor(X.clone(), X * 2))
    assert isinstance(ran.outputs, TwoTensor)
    torch.testing.assert_close(ran.outputs.a, X.sin() + 1)
    torch.testing.assert_close(ran.outputs.b, (X * 2).sin() + 1)
    assert ran.scopes["graph"].fused


@pytest.mark.parametrize("kind", ["sparse", "nested", "quantized", "meta"])
def test_tensors_that_are_not_plain_run_right(kind: str) -> None:
    model: Any = lambda x: x + x  # noqa: E731
    if kind == "sparse":
        x = torch.eye(4).to_sparse()
        assert torch.equal(run(model, x).outputs.to_dense(), 2 * torch.eye(4))
    elif kind == "nested":
        x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
        assert torch.equal(compiled(model)(x).values(), 2 * x.values())
    elif kind == "quantized":
        x = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
        assert torch.equal(compiled(lambda x: x.dequantize() + 1)(x), x.dequantize() + 1)
    else:
        assert compiled(model)(X.to("meta")).is_meta
