"""Models of transformers give compiled what they give eagerly, in as few super kernels as their operators allow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


from models import zoo  # noqa: E402
from superkernel.frontend.report import collecting  # noqa: E402
from superkernel.registry import find_kernel  # noqa: E402

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
# Calls of that operator; DeepSeek's heads have values of another width than keys, which torch computes without it.
ATTENTIONS = dict.fromkeys(zoo.ALL, 2) | {"deepseek_v3": 0}
TASKS = [(name, "prefill") for name in zoo.ALL] + [(name, "decode") for name in zoo.DECODERS]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("name", "what"), TASKS)
def test_a_model_is_right_and_only_attention_divides_it(name: str, what: str) -> None:
    with torch.no_grad():
        model = zoo.built(name)
        task = zoo.prefill(name, model) if what == "prefill" else zoo.decode(model)
        inputs, own = task.arguments(), task.arguments()
        wanted = task.function(*inputs)
        function = torch.compile(
            task.function, backend="superkernel", fullgraph=True, dynamic=False, options={"profit_gate": 0}
        )
        with collecting() as report:
            found = function(*own)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(zoo.cached(own), zoo.cached(inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        again = function(*task.arguments())  # not only the first call is right
        torch.testing.assert_close(again, found, rtol=0, atol=0)
    (scope,) = report.scopes
    left = 0 if find_kernel(ATTENTION, "cpu") else ATTENTIONS[name]
    assert [entry.op for entry in scope.unfusible] == [ATTENTION._schema.name] * left
    assert len(scope.segments) == left + 1
    assert all(segment.fused for segment in scope.segments) and report.outside == 0
