"""A package returns what the model returns, in its containers, and states may exchange their values."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node

import superkernel as sk

Pair = namedtuple("Pair", "first second")


@dataclass
class ModelOutput(OrderedDict[str, Any]):
    """An output class as model libraries have it: a dataclass and a dict, without the fields that are None."""

    logits: Any = None
    cache: Any = None
    hidden: Any = None

    def __post_init__(self) -> None:
        self.update({field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None})


register_pytree_node(
    ModelOutput,
    lambda output: (list(output.values()), list(output)),
    lambda values, names: ModelOutput(**dict(zip(names, values, strict=True))),
    serialized_type_name="ModelOutput",
)


class Exchange(nn.Module):
    """Two states that change places in every call, and nested return values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("front", torch.zeros(4))
        self.register_buffer("back", torch.arange(4.0))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("other", torch.ones(2, dtype=torch.int64))

    def forward(self, x: Tensor) -> dict[Any, Any]:
        old, count = self.front.clone(), self.count.clone()
        self.front.copy_(self.back)
        self.back.copy_(old)
        self.count.copy_(self.other)
        self.other.copy_(count)
        output = ModelOutput(logits=x + self.front, hidden=[x * 2])
        return {"output": output, "pair": Pair(x.sum(), None), 3: (self.count + 1,), "version": 7}


def test_containers_and_exchanged_states(tmp_path: Path) -> None:
    path = sk.export(Exchange(), (torch.ones(4),), tmp_path / "exchange.sk")
    eager = Exchange()
    with sk.load_model(path) as model:
        names = [kind.name for kind in model.forward.outputs]
        assert names == ["output_logits", "output_hidden", "pair_first", "output_3"]
        for number in range(4):
            x = torch.full((4,), float(number))
            expected, returned = eager(x), model(x)
            assert list(returned) == ["output", "pair", 3, "version"] and returned["version"] == 7
            output = returned["output"]
            assert torch.equal(output.logits, expected["output"].logits)
            assert output.cache is None and torch.equal(output["hidden"][0], x * 2)
            assert torch.equal(returned["pair"].first, x.sum()) and returned["pair"].second is None
            assert torch.equal(returned[3][0], expected[3][0])
        states = model.save_state()
        assert all(states[name].tolist() == value.tolist() for name, value in eager.named_buffers())


def test_a_class_that_takes_nothing_but_tensors_becomes_a_tuple() -> None:
    class Strict:
        def __init__(self, value: Tensor) -> None:
            self.value = value + 1

    register_pytree_node(
        Strict, lambda s: ([s.value], None), lambda values, _: Strict(*values), serialized_type_name="S"
    )

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return Strict(x), x

    from superkernel.frontend.export.returned_values import returned_values
    from superkernel.package.return_structure import plain_structure

    program = torch.export.export(Model(), (torch.ones(2),), strict=False)
    returned = returned_values(program, "forward")
    assert returned.structure == plain_structure(2) and returned.names == ("output_0", "output_1")
