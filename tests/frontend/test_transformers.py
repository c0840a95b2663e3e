"""Models of transformers give compiled what they give eagerly, each as one super kernel."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from frontend import transformers_models as zoo  # noqa: E402

import superkernel as sk  # noqa: E402
from superkernel.frontend.report import collecting  # noqa: E402

pytestmark = pytest.mark.slow

TASKS = [(name, "prefill") for name in zoo.ALL] + [(name, "decode") for name in zoo.DECODERS]
# A mixture of experts in every run; the others are part of `make conformance`.
ALWAYS = {("qwen3_moe", "decode")}
PARAMS = [pytest.param(*task, marks=[] if task in ALWAYS else [pytest.mark.conformance]) for task in TASKS]


@pytest.mark.parametrize(("name", "what"), PARAMS)
def test_a_model_is_right_and_one_super_kernel(name: str, what: str) -> None:
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
    assert scope.unfusible == [] and len(scope.segments) == 1
    assert scope.segments[0].fused and report.outside == 0


@pytest.mark.conformance
def test_the_report_of_twelve_layers_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with torch.no_grad():
        task = zoo.decode(zoo.llama(layers=12).eval())
        lines = str(sk.explain(task.function, *task.arguments())).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100, "\n".join(lines)
    assert lines[0] == "verdict: fused: 1 super kernel" and lines[1].endswith(" -> 1")
    assert any(line.endswith(" ops x 12, alike:") for line in lines)
