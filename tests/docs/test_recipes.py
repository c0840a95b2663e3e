"""docs/recipes-*.md: the server answers threads, the cells run in order, generate writes the tokens of eager."""

from __future__ import annotations

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from docs.pages import blocks, read_page

torch = pytest.importorskip("torch")

from superkernel.frontend.report import collecting  # noqa: E402

REQUESTS = 8


def run(code: str, path: Path, names: dict[str, Any]) -> dict[str, Any]:
    path.write_text(code)  # Dynamo reads source lines
    exec(compile(code, str(path), "exec"), names)
    return names


def test_the_server_answers_threads_with_the_results_of_the_model(tmp_path: Path) -> None:
    torch._dynamo.reset()
    ((_, code),) = blocks(read_page("recipes-server.md"), "python")
    names = run(code, tmp_path / "server.py", {"__name__": "server"})
    names["warm_up"](2)
    rows = torch.randn(REQUESTS, 64)
    with ThreadingHTTPServer(("127.0.0.1", 0), names["Handler"]) as server:
        threading.Thread(target=server.serve_forever).start()

        def post(row: list[float]) -> list[float]:
            connection = http.client.HTTPConnection(*server.server_address[:2])  # type: ignore[arg-type]
            connection.request("POST", "/", json.dumps(row))
            answer = connection.getresponse()
            assert answer.status == 200
            return json.loads(answer.read())  # type: ignore[no-any-return]

        try:
            with ThreadPoolExecutor(4) as clients:
                answers = list(clients.map(post, rows.tolist()))
        finally:
            server.shutdown()
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(answers), names["model"](rows))


@pytest.mark.conformance
def test_the_cells_of_the_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "notebook"}
    with torch.no_grad():  # puts the grad mode back that the first cell changes
        for number, (_, cell) in enumerate(blocks(read_page("recipes-notebook.md"), "python")):
            run(cell, tmp_path / f"cell_{number}.py", names)
    assert (tmp_path / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize("backend", ["eager", pytest.param("superkernel", marks=pytest.mark.conformance)])
def test_generate_writes_the_tokens_of_the_eager_model_by_one_graph(backend: str, tmp_path: Path) -> None:
    """Dynamo's back end `eager` shows that each decode step is one graph, compiled once for all prompts."""
    pytest.importorskip("transformers")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ((_, code),) = blocks(read_page("recipes-generate.md"), "python")
    assert 'backend="superkernel"' in code and "num_hidden_layers=2" in code
    code = code.replace('backend="superkernel"', f"backend={backend!r}").replace("layers=2", "layers=1")
    with collecting() as report:
        run(code, tmp_path / "generate.py", {"__name__": "generate"})  # which compares the tokens
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    if backend == "superkernel":
        (scope,) = report.scopes
        assert scope.unfusible == [] and len(scope.segments) == 1 and report.outside == 0
