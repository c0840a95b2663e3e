"""superkernel package: info, verify, run, bench and diff on a package, as text and as JSON, and what they refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from handmade_package import INSTRUCTION_SET, change_manifest, write_handmade, write_sums
from typer.testing import CliRunner

from superkernel.errors import LaunchError
from superkernel.package.library_functions import ArrayType
from superkernel.tools.cli import app
from superkernel.tools.package_latency import _timed
from superkernel.tools.package_run import read_values

Shell = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    np.save(folder / "x.npy", np.ones((2, 4), np.float32))
    np.save(folder / "ones.npy", np.ones((2, 4), np.float32))
    return write_handmade(folder / "hand.sk")


def shell(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["package", *map(str, words)])
    return done.exit_code, done.output


def answer(*words: object) -> dict[str, Any]:
    status, output = shell(*words, "--json")
    fields: dict[str, Any] = json.loads(output)
    assert fields["ok"] == (status == 0)
    return fields


def test_info(package: Path) -> None:
    fields = answer("info", package)
    assert fields["name"] == "hand" and fields["instruction_sets"] == [INSTRUCTION_SET]
    assert [entry["name"] for entry in fields["entries"]] == ["forward", "count", "rows", "both"]
    assert fields["entries"][2]["shapes"][1]["bucket"]["size"] == 8
    assert fields["states"] == [{"name": "counter", "dtype": "int64", "shape": [1]}]
    status, text = shell("info", package)
    assert status == 0 and f"code for {INSTRUCTION_SET}" in text
    assert "x float32[4, 3] -> doubled float32[4, 3] (batch up to 4); 1 launch" in text
    assert "forward: x + y * w" in text and "states: counter int64[1]" in text


def test_verify(package: Path, tmp_path: Path) -> None:
    assert shell("verify", package)[1].startswith(f"{package}: 5 files, ")
    changed = shutil.copytree(package, tmp_path / "changed.sk")
    (changed / "explain.txt").write_text("handmade!")
    status, text = shell("verify", changed)
    assert status == 1 and text.startswith("error: ") and "explain.txt was c" in text
    assert answer("verify", changed)["error"]["kind"] == "BuildError"


def test_run(package: Path, tmp_path: Path) -> None:
    x, ones = package.parent / "x.npy", package.parent / "ones.npy"
    fields = answer("run", package, "-i", x, "--input", f"y={ones}", "-o", tmp_path / "results", "--threads", 1)
    assert fields["entry"] == "forward" and fields["outputs"]["output_0"]["max"] == 4
    np.testing.assert_array_equal(np.load(tmp_path / "results" / "output_0.npy")[0], [1, 2, 3, 4])
    status, text = shell("run", package, "--entry", "count", "-i", "step=2", "--repeat", 3)
    assert status == 0 and "hand.count: 3 calls, median" in text and "from 16 to 16" in text
    np.save(tmp_path / "x.npy", np.array([1, 0], np.uint16))
    assert "bits: bfloat16 as uint16[2]" in shell("run", package, "--entry", "both", "-i", tmp_path / "x.npy")[1]
    np.save(tmp_path / "two.npy", np.array(2))  # the only input, whatever the name of the file
    assert "from 12 to 12" in shell("run", package, "--entry", "count", "-i", tmp_path / "two.npy")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--input", "z={x}"], "'forward' has no input 'z'; there are x, y"),
        (["-i", "{x}", "-i", "x={x}"], "'x' was given before"),
        (["-i", "{x}"], "needs 1 more input:\n  --input y=FILE.npy  (float32[2, 4])"),
        (["-i", "x=3"], "'x' is an array (float32[2, 4]): give it as x=FILE.npy"),
        (["-i", "x=absent.npy"], "absent.npy cannot be read as .npy"),
        (["--entry", "cont"], "there is no such entry (did you mean 'count'?)"),
        (["--entry", "count", "-i", "step=2.5x"], "2.5x cannot be read as .npy"),
        (["-i", "{x}", "-i", "y={x}", "-o", "{x}"], "is not a folder"),
        (["-i", "{x}", "-i", "y={x}", "-o", "x" * 300], "cannot be used: File name too long"),
        (["-i", "x" * 300], "'forward' has no input 'xxxx"),
        (["--entry", "rows", "-i", "x={x}"], "no shape fits x [2, 4]"),
        (["--entry", "count", "-i", "step=2.7"], "--input step=2.7: 2.7 is no int64"),
        (["--entry", "count", "-i", "step=9223372036854775808"], "9223372036854775808 is no int64"),
    ],
)
def test_run_refuses(package: Path, words: list[str], message: str) -> None:
    x = package.parent / "x.npy"
    status, text = shell("run", package, *(word.format(x=x) for word in words))
    assert status == 1 and message in text


def test_numbers_of_inputs_are_what_was_written() -> None:
    kinds = (ArrayType("flag", "bool", ()), ArrayType("level", "uint8", ()), ArrayType("scale", "float16", ()))
    entry = SimpleNamespace(name="forward", inputs=kinds)
    values = read_values(entry, ("flag=1", "level=255", "scale=0.5"))
    assert {name: (value.item(), value.dtype.name) for name, value in values.items()} == {
        "flag": (True, "bool"), "level": (255, "uint8"), "scale": (0.5, "float16")
    }  # fmt: skip
    for given in ("flag=2", "level=256", "level=-1"):
        with pytest.raises(LaunchError, match=f"--input {given}: .* is no "):
            read_values(entry, (given,))


def test_bench(package: Path) -> None:
    fields = answer("bench", package, "--calls", 50)
    times = fields["us"]
    assert fields["calls"] == 50 and fields["rate"] is None and fields["late"] == 0
    assert times["min"] <= times["p50"] <= times["p90"] <= times["p99"] <= times["max"]
    status, text = shell("bench", package, "--entry", "count", "--calls", 20, "--rate", 5000, "--wait", "sleep")
    assert status == 0 and "20 calls at 5000 calls a second; the last call gave the bits of the first" in text
    assert shell("bench", package, "--wait", "spinn")[0] == 1
    assert shell("bench", package, "--rate", "inf")[0] == 2  # JSON has no such number


def test_calls_at_a_rate_begin_on_time_or_are_counted() -> None:
    times, late = _timed(lambda: None, 20, 2000)
    assert len(times) == 20 and (times >= 0).all() and late < 20
    assert _timed(lambda: sum(range(20_000)), 5, 1e6)[1] == 4  # every call after the first begins late


def test_diff(package: Path, tmp_path: Path) -> None:
    assert answer("diff", package, package) == {
        "ok": True, "same": True, "a": str(package), "b": str(package), "differences": []
    }  # fmt: skip
    other = write_handmade(tmp_path / "other.sk")
    assert shell("diff", package, other) == (0, "field name: 'hand', then 'other'\n")
    assert shell("diff", package, tmp_path)[0] == 1


def test_diff_tells_what_is_returned(package: Path, tmp_path: Path) -> None:
    listed, changed = (shutil.copytree(package, tmp_path / name) for name in ("listed.sk", "changed.sk"))
    for other, scale in ((listed, 2), (changed, 3)):
        returns = {"list": [{"output": 0}, {"constant": scale}]}
        change_manifest(other, lambda fields, returns=returns: fields["entries"][0].update(returns=returns))
    for first, second in ((listed, changed), (package, listed)):
        status, text = shell("diff", first, second)
        assert status == 0 and text.startswith("entry forward: returns: {") and text.count("\n") == 1


def test_diff_tells_that_code_of_torch_differs(package: Path, tmp_path: Path) -> None:
    first, second = (shutil.copytree(package, tmp_path / name) for name in ("first.sk", "second.sk"))
    for other in (first, second):
        (other / "torch").mkdir()
        (other / "torch" / "forward.pt2").write_text(other.name)
        write_sums(other)
    assert shell("diff", first, second) == (0, "torch torch/forward.pt2: code or weights differ\n")


def test_export_refuses_what_is_no_function(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(
        "def make():\n    return 3\n\ndef buckets():\n    return make, (), {'overwrite': True}\n"
    )
    for place, message in (
        ("absent.py:make", "'absent.py' is not a file; export takes file.py:function"),
        (f"{tmp_path}/model.py", f"names no function: write {tmp_path}/model.py:make"),
        (f"{tmp_path}/model.py:mak", "has no 'mak' (did you mean 'make'?)"),
        (f"{tmp_path}/model.py:make", "make() returns 3; it must return (model, inputs)"),
        (f"{tmp_path}/model.py:buckets", "returns overwrite, which the command gives as well"),
    ):
        done = CliRunner().invoke(app, ["export", place, "-o", str(tmp_path / "model.sk")])
        assert done.exit_code == 1 and message in done.output, done.output
    assert not (tmp_path / "model.sk").exists()


@pytest.mark.parametrize("command", ["explain", "export"])
@pytest.mark.parametrize("as_json", [False, True])
def test_what_the_file_raises_has_a_traceback_from_the_file_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str, as_json: bool
) -> None:
    pytest.importorskip("torch")
    for text, lines in (("def make():\n    return 1 // 0\n", 4), ("def make(:\n", 4)):
        (tmp_path / "failing.py").write_text(text)
        words = [command, f"{tmp_path}/failing.py:make", *(["-o", str(tmp_path / "made.sk")] * (command == "export"))]
        done = CliRunner().invoke(app, [*words, *(["--json"] * as_json)])
        assert done.exit_code == 1 and "json_answers" not in done.stderr, done.stderr
        assert lines <= len(done.stderr.splitlines()) <= lines + 1
        if as_json:
            assert json.loads(done.stdout)["error"]["kind"] in ("ZeroDivisionError", "SyntaxError")
        else:
            assert done.stdout == ""
