"""Weights of all entries: each memory is stored once, in the order in which kernels read it."""

from __future__ import annotations

import torch

from superkernel.frontend.export.stored_weights import StoredWeights


def test_the_same_memory_and_equal_constants_have_one_name() -> None:
    weights = StoredWeights()
    weight = torch.randn(4, 8)
    assert [weights.add("first", weight), weights.add("second", weight)] == ["first", "first"]
    names = [weights.add("constant.c", torch.tensor(values)) for values in ([1.0], [1.0], [2.0], [1.0])]
    assert names == ["constant.c", "constant.c", "constant.c.2", "constant.c"]


def test_states_are_apart_and_empty_tensors_are_no_memory() -> None:
    weights = StoredWeights()
    state = torch.zeros(2)
    assert [weights.add("w", state), weights.add("s", state, is_state=True)] == ["w", "s"]
    assert [weights.add("e", torch.empty(0)), weights.add("f", torch.empty(0, dtype=torch.int64))] == ["e", "f"]


def test_a_dense_tensor_is_stored_as_it_lies_in_memory() -> None:
    weights = StoredWeights()
    image = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    weights.add("channels_last", image)
    weights.add("sliced", torch.arange(8.0)[::2])
    weights.add("flags", torch.tensor([True, False]))
    weights.add("half", torch.ones(3, dtype=torch.bfloat16))
    contents = weights.contents()
    assert contents["channels_last"].shape == (1, 3, 4, 2)
    assert bytes(contents["channels_last"].data) == image.permute(0, 2, 3, 1).contiguous().numpy().tobytes()
    assert bytes(contents["sliced"].data) == torch.tensor([0.0, 2.0, 4.0, 6.0]).numpy().tobytes()
    assert bytes(contents["flags"].data) == b"\x01\x00"
    assert (contents["half"].dtype, contents["half"].data.nbytes) == ("bfloat16", 6)
