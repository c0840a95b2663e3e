"""A torch.compile back end that keeps the graphs of AOTAutograd and runs them as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import Graph, GraphModule, Node

NEUTRAL = ("placeholder", "get_attr", "output")


class Recorder:
    """Keeps every graph that it compiles; `seen` is called with each of them."""

    def __init__(self, seen: Callable[[Graph], object] = lambda graph: None) -> None:
        self.graphs: list[Graph] = []
        self._seen = seen
        self._aot = aot_autograd(fw_compiler=self._record, keep_inference_input_mutations=True)

    def __call__(self, module: GraphModule, inputs: list[Any]) -> Any:
        return self._aot(module, inputs)

    def _record(self, module: GraphModule, inputs: list[Any]) -> Any:
        from functorch.compile import make_boxed_func

        self.graphs.append(module.graph)
        self._seen(module.graph)
        return make_boxed_func(module.forward)


def compiled(model: Callable[..., Any], *inputs: Any, **options: Any) -> list[Graph]:
    """The graphs of one compiled call."""
    torch._dynamo.reset()
    recorder = Recorder()
    torch.compile(model, backend=recorder, **options)(*inputs)
    return recorder.graphs


def compute(graph: Graph) -> list[Node]:
    """The nodes that do something."""
    return [node for node in graph.nodes if node.op not in NEUTRAL]


def named(graph: Graph, name: str) -> Node:
    """The first node whose op is called `name`, as "sin" or "copy_"."""
    return next(node for node in compute(graph) if _op_name(node) == name)


def _op_name(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(packet.__name__)
