"""Inputs that wrap tensors, such as a DTensor, are looked at through the tensors inside: a wrapper has no memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from frontend.fused import compiled  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402
from torch.utils._python_dispatch import return_and_correct_aliasing  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402

from superkernel.frontend.input_overlap import eager_where_inputs_overlap  # noqa: E402
from superkernel.frontend.wrapped_inputs import find_wrapped  # noqa: E402
from superkernel.targets import find_target, model_support_of  # noqa: E402


class Wrapper(torch.Tensor):  # type: ignore[misc]
    """Around one tensor, as a DTensor of torch 2.11: as many inputs for AOTAutograd as there are for Dynamo."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type[Wrapper], inner: torch.Tensor) -> Wrapper:
        layout = {"strides": inner.stride(), "dtype": inner.dtype, "device": inner.device}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **layout)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Wrapper({self.inner})"  # torch's own would compute with the elements

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(tensors: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> Wrapper:
        return Wrapper(tensors["inner"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inner_args, inner_kwargs = tree_map_only(Wrapper, lambda value: value.inner, (args, kwargs))
        results = tree_map_only(torch.Tensor, Wrapper, function(*inner_args, **inner_kwargs))
        return return_and_correct_aliasing(function, args, kwargs, results)


def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


def unwrapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return rows(x, w).inner  # type: ignore[attr-defined,no-any-return]


def wrapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return Wrapper(rows(x, w))


@pytest.mark.slow
@pytest.mark.parametrize("model", [rows, unwrapped])
def test_a_weight_may_be_a_wrapper(model: Any) -> None:
    x, w = torch.randn(1, 64), torch.randn(64, 64)
    function = compiled(model, fullgraph=True)
    for _ in range(2):
        found = function(x, Wrapper(w))
        assert type(found) is (Wrapper if model is rows else torch.Tensor)
        torch.testing.assert_close(found.inner if model is rows else found, rows(x, w))


@pytest.mark.slow
def test_a_result_may_be_a_wrapper() -> None:
    x, w = torch.randn(1, 64), torch.randn(64, 64)
    function = compiled(wrapped, fullgraph=True)
    for _ in range(2):
        found = function(x, w)
        assert type(found) is Wrapper
        torch.testing.assert_close(found.inner, rows(x, w))


def test_the_tensors_of_a_wrapper_stand_in_its_place() -> None:
    a, b, c, d = (torch.zeros(4) for _ in range(4))
    inputs = [c, TwoTensor(TwoTensor(a, b), d), 7]
    plain = find_wrapped(inputs)
    assert plain is not None and plain.sources == (0, 1, 1, 1, 2)
    found = plain(inputs)
    assert [x if isinstance(x, int) else x.data_ptr() for x in found] == [x.data_ptr() for x in (c, a, b, d)] + [7]
    assert find_wrapped([c, 7]) is None


def test_a_call_runs_eagerly_if_a_wrapped_tensor_shares_memory_with_another_input() -> None:
    a, b, c, d = (torch.zeros(4) for _ in range(4))
    support = model_support_of(find_target("cpu"))

    def call(*inputs: object) -> str:
        return eager_where_inputs_overlap(lambda *args: "compiled", lambda *args: "eager", inputs, support)(*inputs)

    assert call(TwoTensor(a, b), c) == "compiled"
    assert call(TwoTensor(a, b), b) == "eager"
    assert call(TwoTensor(a, b), TwoTensor(c, d)) == "compiled"
    assert call(TwoTensor(a, b), TwoTensor(c, a)) == "eager"
