"""Inputs that wrap tensors, such as a DTensor, are looked at through the tensors inside: a wrapper has no memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

from superkernel.frontend.input_overlap import eager_where_inputs_overlap  # noqa: E402
from superkernel.frontend.wrapped_inputs import find_wrapped  # noqa: E402
from superkernel.targets import find_target, model_support_of  # noqa: E402


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
