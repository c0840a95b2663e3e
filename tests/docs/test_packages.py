"""docs/packages.md and docs/c-api.md: what they show works, from a shell, from Python, from C and C++."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs.pages import blocks, read_page, shell_commands
from handmade_package import write_counter, write_sums
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.package.weights_header import parse_weights_header  # noqa: E402
from superkernel.targets.native.toolchain import find_toolchain, run  # noqa: E402
from superkernel.tools.cli import app  # noqa: E402

MODEL = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).eval()
    return model, (torch.randn(1, 8),)
"""


@pytest.mark.slow
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    np.save("x.npy", np.ones((1, 8), np.float32))
    ((_, text),) = blocks(read_page("packages.md"), "sh")
    answers = {}
    for words in shell_commands(text):
        options = ["--calls", "20"] if "bench" in words else []
        done = CliRunner().invoke(app, [*words[1:], *options, "--json"])
        assert done.exit_code == 0, done.output
        answers[words[2] if words[1] == "package" else words[1]] = json.loads(done.stdout)
        if "export" in words:
            change_a_weight(shutil.copytree("policy.sk", "old.sk"))
    (entry,) = answers["export"]["entries"]
    assert entry["shapes"][0]["inputs"] == [{"name": "input", "dtype": "float32", "shape": [1, 8]}]
    assert answers["info"] == answers["export"]
    assert answers["verify"]["files"] == len(answers["info"]["files"])
    assert answers["run"]["outputs"]["output_0"]["shape"] == [1, 4]
    assert np.load("results/output_0.npy").shape == (1, 4)
    refuses_numbers_that_are_not_those_of_the_code(Path(shutil.copytree("policy.sk", "edited.sk")))
    runs_from_c_and_cpp(tmp_path, np.zeros((1, 8), np.float32))
    assert answers["bench"]["calls"] == 20 and answers["bench"]["us"]["p50"] > 0
    assert answers["diff"]["differences"] == [{"kind": "weight", "name": "2.bias", "what": "values differ"}]

    write_counter(tmp_path / "counter.sk")
    names: dict[str, Any] = {}
    for _, code in blocks(read_page("packages.md"), "python"):
        exec(code, names)
    assert names["action"].shape == (1, 4)
    assert names["counter"].save_state()["total"].tolist() == [1, 1, 1, 1]
    assert names["counter"].states == ("total",)


def runs_from_c_and_cpp(folder: Path, x: Any) -> None:
    """The programs of docs/c-api.md, on the package that is in the folder."""
    flags = CliRunner().invoke(app, ["package", "build-env", "--flags"]).stdout.split()
    for language, options in (("c", ("-std=c99", "-pedantic")), ("cpp", ("-std=c++17",))):
        ((_, code),) = blocks(read_page("c-api.md"), language)
        (folder / f"program.{language}").write_text(code)
        source = ("-x", language.replace("pp", "++"), f"program.{language}", "-x", "none")
        run([*find_toolchain().cxx, *options, "-Werror", *source, *flags, "-o", "program"], what="the page's program")
        printed = run(["./program"], what="the page's program")
        if language == "c":
            with sk.load_model("policy.sk") as policy:
                np.testing.assert_array_equal(np.array(printed.split(), np.float32), policy(x)[0])


def refuses_numbers_that_are_not_those_of_the_code(package: Path) -> None:
    manifest = package / "manifest.json"
    fields = json.loads(manifest.read_text())
    fields["entries"][0]["shapes"][0]["launches"][0]["plans"][0]["counters"] += 1
    manifest.write_text(json.dumps(fields))
    write_sums(package)
    with pytest.raises(sk.SuperKernelError, match=r"manifest\.json is not that of the code"):
        sk.load_model(package)


def change_a_weight(package: Path) -> None:
    file = Path(package) / "weights.safetensors"
    with file.open("rb") as weights:
        stored = parse_weights_header(weights, file)["2.bias"]
    raw = bytearray(file.read_bytes())
    raw[stored.begin] ^= 1
    file.write_bytes(raw)
    write_sums(Path(package))
