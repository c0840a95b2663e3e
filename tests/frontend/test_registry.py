"""Registered kernels: what is registered is checked, and stands for its operator inside super kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from frontend.fused import check, compiled, refused, run
from torch import Tensor

import superkernel as sk
from superkernel.errors import GraphError, OptionError, UnsupportedError
from superkernel.frontend import registry

X = torch.linspace(-2, 2, 64).reshape(4, 16)

SOURCE = """
#include <superkernel/kernel.h>
#include <cstdint>

// block i takes the i-th part of n elements
static void part(int64_t n, int64_t& begin, int64_t& end) {
    begin = n * sk::block_idx() / sk::block_num();
    end = n * (sk::block_idx() + 1) / sk::block_num();
}

extern "C" void scale(const float* x, float factor, int64_t n, float* out) {
    int64_t begin, end;
    part(n, begin, end);
    for (int64_t i = begin; i < end; ++i) out[i] = x[i] * factor;
}

extern "C" void shift(const float* x, const float* by, int64_t n, float* out) {
    int64_t begin, end;
    part(n, begin, end);
    for (int64_t i = begin; i < end; ++i) out[i] = x[i] + by[i];
}

extern "C" void parts(const float* x, int64_t n, float* whole, float* rest) {
    int64_t begin, end;
    part(n, begin, end);
    for (int64_t i = begin; i < end; ++i) {
        whole[i] = static_cast<float>(static_cast<int64_t>(x[i]));
        rest[i] = x[i] - whole[i];
    }
}

extern "C" void increase(float* x, float by, int64_t n) {
    int64_t begin, end;
    part(n, begin, end);
    for (int64_t i = begin; i < end; ++i) x[i] += by;
}

extern "C" void half(const float* x, int64_t n, float* room) {
    for (int64_t i = 0; i < n; ++i) room[i] = x[i] * 0.5f;
}
"""


# operators


@torch.library.custom_op("mylib::scale", mutates_args=())
def scale(x: Tensor, factor: float) -> Tensor:
    return x * factor


@torch.library.custom_op("mylib::shift", mutates_args=())
def shift(x: Tensor, by: Tensor | None = None) -> Tensor:
    return x.clone() if by is None else x + by


@torch.library.custom_op("mylib::parts", mutates_args=())
def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.trunc(), x - x.trunc()


@torch.library.custom_op("mylib::increase", mutates_args=("x",))
def increase(x: Tensor, by: float) -> None:
    x += by


@torch.library.custom_op("mylib::quarter", mutates_args=())
def quarter(x: Tensor) -> Tensor:
    return x * 0.5 * 0.5


for one in (scale, shift, quarter):
    one.register_fake(lambda x, *rest: torch.empty_like(x))
parts.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))


# their kernels


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "mylib.cpp"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def kernels(source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All of them registered, and forgotten afterwards."""
    monkeypatch.setattr(registry, "_registered", {})

    def kernel(name: str, blocks: int, *params: str) -> sk.SubKernel:
        return sk.SubKernel.from_source(source, name, block_dim=blocks, params=params, sync_all=False)

    @sk.register_kernel("mylib::scale", "cpu")
    def _(x: Any, factor: float, *, out: Any, cores: int) -> sk.Op:
        if not x.contiguous or x.dtype != "float32":
            raise UnsupportedError("only contiguous float32")
        made = kernel("scale", cores, "in:x", "scalar:factor:float32", "scalar:n:int64", "out:out")
        return sk.Op(made, [x, factor, x.numel, out])

    @sk.register_kernel(shift)
    def _(x: Any, by: Any, *, out: Any) -> sk.Op:
        if by is None:
            raise UnsupportedError("nothing to shift by")
        return sk.Op(kernel("shift", 2, "in:x", "in:by", "scalar:n:int64", "out:out"), [x, by, x.numel, out])

    @sk.register_kernel(torch.ops.mylib.parts.default)
    def _(x: Any, *, out0: Any, out1: Any) -> sk.Op:
        return sk.Op(kernel("parts", 1, "in:x", "scalar:n:int64", "out:whole", "out:rest"), [x, x.numel, out0, out1])

    @sk.register_kernel(torch.ops.mylib.increase)
    def _(x: Any, by: float) -> sk.Op:
        return sk.Op(kernel("increase", 2, "inout:x", "scalar:by:float32", "scalar:n:int64"), [x, by, x.numel])

    @sk.register_kernel("mylib::quarter")
    def _(x: Any, *, out: Any, scratch: Any) -> list[sk.Op]:
        half = kernel("half", 1, "in:x", "scalar:n:int64", "out:room")
        room = scratch(x.numel * x.itemsize)
        return [sk.Op(half, [x, x.numel, room]), sk.Op(half, [room, x.numel, out])]

    yield


def scaled(x: Tensor) -> Tensor:
    with sk.super_kernel("a", "strict-scope-check=abort"):
        return scale(x.sin(), 3.0) + 1


def test_a_custom_operator_is_fused_whole(kernels: None) -> None:
    ran = check(scaled, X)
    (segment,) = ran.scopes["a"].segments
    assert len(segment.ops) == 3 and segment.ops[1].name == "scale"
    assert "scale(x.sin(), 3.0)" in segment.ops[1].origins[0]


@pytest.mark.conformance
def test_without_a_kernel_it_splits_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    ran = check(lambda x: scale(x.sin(), 3.0) + 1, X)
    scope = ran.scopes["graph"]
    assert [len(segment.ops) for segment in scope.segments] == [1, 1]
    assert str(scope.unfusible[0]).startswith("mylib::scale: no cpu sub-kernel is registered for it")


@pytest.mark.conformance
def test_several_results_scratch_and_optional_arguments(kernels: None) -> None:
    def model(x: Tensor, by: Tensor) -> Any:
        with sk.super_kernel("a", "strict-scope-check=abort:debug-replay=1"):
            whole, rest = parts(x)
            return whole, quarter(shift(rest, by))

    ran = check(model, X, X * 2)
    assert [op.name for op in ran.scopes["a"].segments[0].ops] == ["parts", "shift", "quarter", "quarter_2"]


def test_an_operator_that_writes_into_its_argument(kernels: None) -> None:
    def model(x: Tensor) -> Tensor:
        with sk.super_kernel("a", "strict-scope-check=abort"):
            y = x.sin()
            increase(y, 2.0)
            increase(x, 1.0)
            return y + x

    ran = check(model, X)
    assert len(ran.scopes["a"].segments) == 1
    assert sum(op.name.startswith("increase") for op in ran.scopes["a"].segments[0].ops) == 2
    x = X.clone()
    ran.function(x)
    ran.function(x)
    assert torch.equal(x, X + 1 + 1)


def test_a_kernel_that_says_no_leaves_the_operator_to_torch_with_its_reason(kernels: None) -> None:
    ran = check(lambda x: (scale(x.double(), 2.0), shift(x.float())), X)
    reasons = {found.op: found.reason for found in ran.scopes["graph"].unfusible}
    assert reasons == {"mylib::scale": "only contiguous float32", "mylib::shift": "nothing to shift by"}
    assert not ran.warnings


def test_gradients_go_through_a_custom_operator(kernels: None) -> None:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    scale.register_autograd(lambda ctx, grad: (scale(grad, ctx.factor), None), setup_context=setup)
    x = X.clone().requires_grad_()
    compiled(scaled)(x).sum().backward()
    torch.testing.assert_close(x.grad, 3 * X.cos())


def test_what_a_user_registers_goes_before_what_is_shipped(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    asked = []

    @sk.register_kernel("aten::mm")
    def _(self: Any, mat2: Any, *, out: Any) -> sk.Op:
        asked.append((self.shape, mat2.shape, out.shape))
        raise UnsupportedError("not today")

    ran = check(lambda x: (x @ x.t()).relu(), X)
    assert set(asked) == {((4, 16), (16, 4), (4, 4))}
    assert ran.scopes["graph"].unfusible[0].reason == "not today"


# mistakes


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x, *, out: None, "lacks factor"),
        (lambda x, factor: None, "lacks out"),
        (lambda x, factor, *, out, core: None, "does not know core"),
        (lambda x, factor, *, out0: None, "lacks out and does not know out0"),
    ],
)
def test_a_wrong_signature_is_refused_when_it_is_registered(function: Any, told: str) -> None:
    with pytest.raises(GraphError) as caught:
        sk.register_kernel("mylib::scale", "cpu")(function)
    assert told in str(caught.value) and "(x, factor, *, out, [cores], [scratch])" in str(caught.value)
    assert ("mylib::scale", "cpu") not in registry._registered


def test_other_mistakes_are_refused_when_it_is_registered() -> None:
    for wrong in ("scale", "a::b::c", "::x", 3, None):
        with pytest.raises(GraphError, match="register_kernel"):
            sk.register_kernel(wrong)
    with pytest.raises(GraphError, match="a function is needed"):
        sk.register_kernel("mylib::scale")(None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="unknown target 'gpu'"):
        sk.register_kernel("mylib::scale", "gpu")


@pytest.mark.parametrize("nonsense", [None, 3, "op", [], [None], {"op": 1}], ids=repr)
def test_nonsense_from_a_registered_function_runs_unfused_and_names_it(
    nonsense: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    sk.register_kernel("mylib::scale")(lambda x, factor, *, out: nonsense)
    ran = run(lambda x: scale(x, 2.0), X)
    assert torch.equal(ran.outputs, X * 2)
    (warning,) = ran.warnings
    assert "super_kernel_scope 'graph'" in warning and "'mylib::scale' on cpu returned" in warning


def test_an_exception_in_a_registered_function_runs_unfused_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})

    @sk.register_kernel("mylib::scale")
    def _(x: Any, factor: float, *, out: Any) -> sk.Op:
        raise ValueError("odd")

    ran = run(lambda x: scale(x, 2.0), X)
    assert torch.equal(ran.outputs, X * 2)
    (warning,) = ran.warnings
    assert "ValueError: odd" in warning and "mylib::scale" in warning
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", dict(registry._registered))
        message = refused(lambda x: scale(x, 2.0), X, kind=UnsupportedError, strict_scope_check="abort")
    assert "ValueError: odd" in message and "mylib::scale" in message


def test_a_buffer_that_is_none_of_the_arguments_runs_unfused_and_names_it(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    made = sk.SubKernel.from_source(source, "half", block_dim=1, params=["in:x", "scalar:n:int64", "out:room"])
    sk.register_kernel("mylib::scale")(lambda x, factor, *, out: sk.Op(made, ["strange", x.numel, out]))
    ran = run(lambda x: scale(x, 2.0), X)
    assert torch.equal(ran.outputs, X * 2)
    assert len(ran.warnings) == 1 and "'strange'" in ran.warnings[0]


@pytest.mark.parametrize(
    ("x", "room", "told"),
    [
        ("in:x", "in:room", "no op writes the result 'out': 'half' takes it as 'room', declared in"),
        ("inout:x", "out:room", "the operator does not write its argument 'x': 'half' takes it as 'x', declared inout"),
        ("in:x:float64", "out:room", "'half' declares 'in:x:float64' and is given a tensor of float32"),
        ("in:x", "out:room:float32[1000,1000]", "'half' declares 'out:room:float32[1000,1000]' and is given"),
    ],
)
def test_a_kernel_that_declares_what_the_operator_does_not_do_runs_unfused_and_names_it(
    source: Path, monkeypatch: pytest.MonkeyPatch, x: str, room: str, told: str
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    made = sk.SubKernel.from_source(source, "half", block_dim=1, params=[x, "scalar:n:int64", room])
    sk.register_kernel("mylib::scale")(lambda x, factor, *, out: sk.Op(made, [x, x.numel, out]))
    ran = run(lambda x: scale(x, 2.0) + 1, X)
    assert torch.equal(ran.outputs, X * 2 + 1)
    assert len(ran.warnings) == 1 and told in ran.warnings[0]
