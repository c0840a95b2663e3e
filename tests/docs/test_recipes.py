"""docs/recipes-server.md and docs/recipes-notebook.md: the server answers threads, the cells run in order."""

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


def test_the_cells_of_the_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "notebook"}
    with torch.no_grad():  # puts the grad mode back that the first cell changes
        for number, (_, cell) in enumerate(blocks(read_page("recipes-notebook.md"), "python")):
            run(cell, tmp_path / f"cell_{number}.py", names)
    assert (tmp_path / "report.html").stat().st_size > 100_000
