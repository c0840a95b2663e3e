"""superkernel run: a saved kernel on .npy files, from the shell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel import Op, SubKernel
from superkernel.tools.cli import main

SOURCE = """\
#include <superkernel/tiling.h>
extern "C" {
void scale(const float* x, double factor, float* y) {
    for (int i = 0; i < 8; ++i) y[i] = float(factor) * x[i];
}
void count(const float* x, long* calls, unsigned short* halves) {
    ++*calls;
    halves[0] = 0x3f80;
}
void touch(const void*, void*) {}
int always(const sk_tiling_args* in, sk_tiling_result* out) {
    out->blocks = in->most_blocks;
    return 0;
}
}
"""
VECTOR = "float32[8]"
Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = factor * x and z = factor * y, with a counter that launches raise in place, and a bfloat16 output."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "kernels.cpp").write_text(SOURCE)
    scale = kernel(folder, "scale", f"in:x:{VECTOR}", "scalar:factor:float64", f"out:y:{VECTOR}")
    count = kernel(folder, "count", f"in:x:{VECTOR}", "inout:calls:int64[1]", "out:halves:bfloat16[1]")
    tiling = sk.Tiling.from_source(folder / "kernels.cpp", "always")
    ops = [
        Op(scale, ["x", "factor", "y"]),
        Op(scale, ["y", "factor", "a/z"], task="dynamic", tiling=tiling),
        Op(count, ["a/z", "calls", "halves"]),
    ]
    with sk.compile(ops, name="scaled", cores=1, outputs=["a/z", "halves"]) as k:
        k.save(folder / "scaled.sk")
    np.save(folder / "x.npy", np.arange(8, dtype=np.float32))
    np.save(folder / "calls.npy", np.full(1, 40))
    return folder


def kernel(folder: Path, name: str, *params: str) -> SubKernel:
    return SubKernel.from_source(folder / "kernels.cpp", name, block_dim=1, params=list(params))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """`superkernel run` -> exit status, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["superkernel", "run", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        printed = capsys.readouterr()
        return int(exit.value.code or 0), printed.out, printed.err

    return run


def given(saved: Path, **changed: Any) -> list[str]:
    inputs = {"x": saved / "x.npy", "calls": saved / "calls.npy", "factor": 3, **changed}
    return [word for name, value in inputs.items() if value is not None for word in ("--input", f"{name}={value}")]


def test_outputs_are_saved_and_summarised(shell: Shell, saved: Path, tmp_path: Path) -> None:
    status, out, err = shell(saved / "scaled.sk", *given(saved), "--output", tmp_path / "new" / "out")
    assert (status, err) == (0, "")
    assert out.splitlines()[0].startswith("scaled: launched on 1 core in ")
    assert f"  calls: int64[1], from 41 to 41, mean 41 -> {tmp_path / 'new' / 'out' / 'calls.npy'}" in out
    assert "  halves: bfloat16 as uint16[1] -> " in out
    written = {path.name: np.load(path) for path in (tmp_path / "new" / "out").iterdir()}
    np.testing.assert_array_equal(written["a%2Fz.npy"], 9 * np.arange(8, dtype=np.float32))
    assert written["calls.npy"].tolist() == [41] and written["halves.npy"].tolist() == [0x3F80]


def test_without_output_nothing_is_written(shell: Shell, saved: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = shell(saved / "scaled.sk", *given(saved))
    assert status == 0 and "a/z: float32[8], from 0 to 63, mean 31.5" in out
    assert not list(tmp_path.iterdir())


def test_a_file_alone_is_called_like_its_stem(shell: Shell, saved: Path) -> None:
    files = ("-i", saved / "x.npy", "-i", saved / "calls.npy", "-i", "factor=0.5")
    status, out, _ = shell(saved / "scaled.sk", *files, "--json")
    assert status == 0
    assert json.loads(out)["outputs"]["a/z"]["max"] == 7 / 4


def test_repeated_launches_have_the_same_inputs(shell: Shell, saved: Path, tmp_path: Path) -> None:
    status, out, _ = shell(saved / "scaled.sk", *given(saved), "--repeat", 5, "--json", "--output", tmp_path)
    answer = json.loads(out)
    assert status == 0 and answer["ok"] and answer["launches"] == 5
    assert (answer["name"], answer["target"], answer["cores"]) == ("scaled", "cpu", 1)
    assert 0 < answer["us"]["min"] <= answer["us"]["median"] <= answer["us"]["max"]
    calls = {"dtype": "int64", "shape": [1], "min": 41, "max": 41, "mean": 41, "nan": 0}
    assert answer["outputs"]["calls"] == calls | {"file": str(tmp_path / "calls.npy")}
    assert "5 launches on 1 core, median" in shell(saved / "scaled.sk", *given(saved), "--repeat", 5)[1]


def test_numbers_that_json_lacks(shell: Shell, saved: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([np.nan, np.inf, 1, 2, 3, 4, 5, 6], np.float32))
    _, out, _ = shell(saved / "scaled.sk", *given(saved, x=tmp_path / "x.npy"), "--json")
    found = json.loads(out, parse_constant=pytest.fail)["outputs"]["a/z"]
    assert (found["nan"], found["min"], found["max"]) == (1, 9, None)


def test_what_is_missing_is_listed_with_types(shell: Shell, saved: Path) -> None:
    status, out, err = shell(saved / "scaled.sk")
    assert (status, out) == (1, "")
    for line in (
        "'scaled' needs 3 more inputs:",
        "  --input x=FILE.npy  (float32[8])",
        "  --input factor=NUMBER  (a scalar, float64)",
        "  --input calls=FILE.npy  (int64[1])",
    ):
        assert line in err.splitlines() or line in err


def test_a_folder_of_another_kind_is_refused_with_the_command_for_it(shell: Shell, saved: Path, tmp_path: Path) -> None:
    status, _, err = shell(tmp_path)
    assert status == 1 and "is no saved super kernel: there is no" in err and "superkernel package" in err
    with pytest.raises(sk.BuildError, match=r"is not a package: .* opened by sk.load, in the shell by superkernel run"):
        sk.load_model(saved / "scaled.sk")


def test_wrong_inputs_are_named(shell: Shell, saved: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", a=np.zeros(1))
    np.save(tmp_path / "two.npy", np.zeros(2))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "empty.npy").write_text("")
    intact = (saved / "x.npy").read_bytes()
    (tmp_path / "header.npy").write_bytes(intact[:10] + b"{" * 20 + intact[30:])
    (tmp_path / "huge.npy").write_bytes(intact.replace(b"(8,), }" + b" " * 17, b"(80000000000000000,), } "))
    digits = b"(" + b"9" * 22 + b",), } "
    (tmp_path / "digits.npy").write_bytes(intact.replace(b"(8,), }" + b" " * (len(digits) - 7), digits))
    os.mkfifo(tmp_path / "pipe.npy")
    long = "x" * 300
    wrong: dict[str, dict[str, Any]] = {
        "no op of 'scaled' uses the name 'factr' (did you mean 'factor'?)": {"factr": 3},
        "nowhere.npy cannot be read as .npy": {"x": "nowhere.npy"},
        "'x' is an array (float32[8]): give it as x=FILE.npy": {"x": 3},
        "empty.npy cannot be read as .npy": {"x": tmp_path / "empty.npy"},
        "objects.npy cannot be read as .npy": {"x": tmp_path / "objects.npy"},
        "header.npy cannot be read as .npy": {"x": tmp_path / "header.npy"},
        "huge.npy cannot be read as .npy": {"x": tmp_path / "huge.npy"},
        "digits.npy cannot be read as .npy": {"x": tmp_path / "digits.npy"},
        "pipe.npy is no regular file": {"x": tmp_path / "pipe.npy"},
        f"{long} cannot be read as .npy": {"x": long},
        f"no op of 'scaled' uses the name {long!r}": {long: 3},
        "holds several arrays": {"x": tmp_path / "many.npz"},
        "a scalar is one number, and": {"factor": tmp_path / "two.npy"},
        "'x' has dtype float64, the ops take float32": {"x": tmp_path / "two.npy"},
        "three cannot be read as .npy": {"factor": "three"},
    }
    for words, changed in wrong.items():
        status, out, err = shell(saved / "scaled.sk", *given(saved, **changed))
        assert (status, out) == (1, "") and words in err, (words, err)
    status, _, err = shell(saved / "scaled.sk", *given(saved), "--input", saved / "x.npy")
    assert status == 1 and "'x' was given before" in err


def test_errors_are_json_too(shell: Shell, saved: Path, tmp_path: Path) -> None:
    status, out, _ = shell(tmp_path / "nothing", "--json")
    answer = json.loads(out)
    assert status == 1 and not answer["ok"] and "no saved super kernel" in answer["error"]["message"]
    (tmp_path / "file").write_text("")
    status, out, _ = shell(saved / "scaled.sk", *given(saved), "--output", tmp_path / "file", "--json")
    assert status == 1 and "is not a folder" in json.loads(out)["error"]["message"]
    assert shell(saved / "scaled.sk", "--repeat", 0)[0] == 2
    assert shell()[0] == 2


def test_what_needs_python_is_refused(shell: Shell, saved: Path, tmp_path: Path) -> None:
    touch = kernel(saved, "touch", "in:x", "out:y")
    refused = {
        "op 'touch' is dynamic and a Python function chooses its tiling": [Op(touch, ["x", "y"], task="dynamic")],
        "waits for the external event go, which nothing sets here": [
            Op(touch, ["x", "y"]),
            Op(touch, ["y", "z"], recv=["go"]),
        ],
    }
    for number, (words, ops) in enumerate(refused.items()):
        with sk.compile(ops, name="refused", cores=1) as k:
            k.save(tmp_path / str(number))
        status, _, err = shell(tmp_path / str(number))
        assert status == 1 and words in err


def test_untyped_outputs_are_passed_and_saved(shell: Shell, saved: Path, tmp_path: Path) -> None:
    with sk.compile([Op(kernel(saved, "touch", "in:x", "out:y"), ["x", "y"])], name="untyped", cores=1) as k:
        k.save(tmp_path / "untyped.sk")
    status, _, err = shell(tmp_path / "untyped.sk", "--input", saved / "x.npy")
    assert status == 1 and "--input y=FILE.npy  (any dtype and shape)" in err
    inputs = ("--input", saved / "x.npy", "--input", f"y={saved / 'x.npy'}", "--output", tmp_path / "out")
    assert shell(tmp_path / "untyped.sk", *inputs)[0] == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["y.npy"]
