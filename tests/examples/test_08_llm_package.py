"""A C program writes eager's tokens with the package of a language model."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from examples.program import load, run_here

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow


def test_a_c_program_writes_the_tokens_of_eager_torch(tmp_path: Path) -> None:
    example = load("08_llm_package.py")
    example.PREFILL_SIZES = (16,)
    model = example.model_of(width=96, layers=1)
    with torch.no_grad():
        path = example.export_model(model, tmp_path / "llm.sk")
        expected = example.write_eagerly(model, 64)
    program = example.build_program(tmp_path)

    def generate(*words: object) -> subprocess.CompletedProcess[str]:
        command = [str(program), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    ended = generate(path, 64, *example.PROMPT)
    assert ended.returncode == 0, ended.stderr
    assert example.check([int(word) for word in ended.stdout.split()], expected) == []
    assert example.check([*expected[:-1], -1], expected) != []
    # weights are stored once for all entries and shapes
    weights = sum(parameter.nbytes for parameter in model.parameters())
    states = sum(buffer.nbytes for buffer in model.buffers())
    assert (path / "weights.safetensors").stat().st_size < 1.05 * (weights + states) + 2**21
    too_long = generate(path, 2, *range(17))
    assert too_long.returncode == 1 and "longer than every prefill shape" in too_long.stderr
    missing = generate(tmp_path / "nothing.sk", 2, 1)
    assert missing.returncode == 1 and "nothing.sk" in missing.stderr


@pytest.mark.conformance
def test_the_example_runs_as_it_is(tmp_path: Path) -> None:
    ended = run_here("08_llm_package.py", tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "64 tokens, the same" in ended.stdout and ended.stdout.endswith("execute sample success\n")
