"""Parts of a graph: what crosses their borders, and what does not."""

from __future__ import annotations

import pytest
import torch
from frontend.recorded import compiled
from torch import Tensor
from torch.fx import GraphModule, Node

from superkernel.frontend.capture.partition import GraphPart, partition

_TOKENS = (torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default)


def inverted(x: Tensor) -> Tensor:
    """Each inverse checks for errors, in order: an op with an effect."""
    return torch.linalg.inv(torch.linalg.inv(x) + 1)


def parts_of(module: GraphModule, foreign: object) -> list[GraphPart]:
    return partition(module, lambda node: None if node.target is foreign else "all")


def test_tokens_of_effects_do_not_cross_from_part_to_part() -> None:
    x = torch.eye(3) * 2
    with torch._functorch.config.patch(unlift_effect_tokens=True):  # as Inductor has it
        (graph,) = compiled(inverted, x)
    module = graph.owning_module
    if not any(node.target in _TOKENS for node in graph.nodes):
        pytest.skip(f"torch {torch.__version__} records the check for errors without a token")
    parts = parts_of(module, torch.ops.aten.add.Tensor)
    assert [part.scope for part in parts] == ["all", None, "all"]
    assert all(isinstance(node.meta["val"], Tensor) and node.meta["val"].dim() == 2 for p in parts for node in p.inputs)
    assert [_tokens(part) for part in parts] == [list(_TOKENS), [], list(_TOKENS)]
    value: list[Tensor] = [x]
    for part in parts:
        value = part.module(*value)
    torch.testing.assert_close(value[0], inverted(x))


def _tokens(part: GraphPart) -> list[object]:
    return [node.target for node in part.module.graph.nodes if isinstance(node, Node) and node.target in _TOKENS]
