"""The shell: what each command prints, leaves behind and exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caches import with_host_library

import superkernel as sk
from superkernel.cache import GATE_SUFFIX, Cache
from superkernel.errors import LaunchError
from superkernel.runtime.artefact import MANIFEST
from superkernel.tools import bench, demo
from superkernel.tools.cli import app, main

SOURCE = """\
#include <superkernel/kernel.h>
extern "C" void add(const float* x, const float* y, float* z) {
    const int part = 64 / sk::block_num(), begin = sk::block_idx() * part;
    for (int i = begin; i < begin + part; ++i) z[i] = x[i] + y[i];
}
"""
VECTOR = "float32[64]"


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Shell = Callable[..., Outcome]


@pytest.fixture(scope="module")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_host_library(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def shell(warm_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """`superkernel` with arguments, through the console entry."""
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(warm_cache))

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["superkernel", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        printed = capsys.readouterr()
        status = exit.value.code
        return Outcome(status if isinstance(status, int) else 0, printed.out, printed.err)

    return run


@pytest.fixture
def ops(tmp_path: Path) -> Path:
    """The description of two adds, one after the other."""
    (tmp_path / "add.cpp").write_text(SOURCE)
    params = [f"in:x:{VECTOR}", f"in:y:{VECTOR}", f"out:z:{VECTOR}"]
    described = {
        "name": "twice",
        "options": "early-start=0:preload-code=none",
        "kernels": {"add": {"source": "add.cpp", "block_dim": 2, "params": params}},
        "ops": [
            {"kernel": "add", "args": ["a", "b", "t"]},
            {"kernel": "add", "args": ["t", "b", "c"], "name": "second"},
        ],
    }
    path = tmp_path / "ops.json"
    path.write_text(json.dumps(described))
    return path


@pytest.fixture
def broken(ops: Path) -> Path:
    ops.with_name("add.cpp").write_text("#error broken on purpose\n")
    return ops


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# in general


def test_the_version_is_printed(shell: Shell) -> None:
    assert shell("--version") == Outcome(0, f"superkernel {sk.__version__}\n", "")


@pytest.mark.parametrize("words", [["superkernel"], ["superkernel", "cache"]])
def test_without_arguments_there_is_help(shell: Shell, words: list[str]) -> None:
    outcome = shell(*words[1:])
    assert (outcome.status, f"Usage: {' '.join(words)} [" in outcome.out) == (0, True)


def test_these_are_the_commands() -> None:
    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    compiling = {"compile", "run", "emulate", "export", "package"}
    assert commands == compiling | {"demo", "doctor", "explain", "compare", "bench", "trace", "cache"}


@pytest.mark.parametrize("arguments", [["nope"], ["compile"], ["compile", "ops.json"], ["demo", "--nope"], ["bench"]])
def test_a_wrong_use_exits_with_2(shell: Shell, arguments: list[str]) -> None:
    assert shell(*arguments).status == 2


def test_with_json_a_wrong_use_is_answered_in_json(shell: Shell) -> None:
    outcome = shell("compile", "ops.json", "--json")
    assert outcome.status == 2 and "--output" in outcome.json["error"]["message"] and not outcome.json["ok"]
    outcome = shell("explian", "--json")
    assert outcome.status == 2 and outcome.json["error"]["kind"] == "UsageError"
    assert shell("trace", "--json").json["error"]["message"].endswith("name a script, or a module with -m")
    assert shell("compile", "--", "--json").out == ""  # not an option there


def test_nothing_that_a_script_prints_reaches_the_json_output() -> None:
    code = """
import atexit, os, subprocess
from superkernel.tools.json_answers import print_json, scripts_print_to_stderr
with scripts_print_to_stderr(True):
    print("from Python")
    os.write(1, b"from C\\n")
    subprocess.run(["echo", "from a process"])
    atexit.register(print, "at exit")
print_json({"ok": True})
print("later")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == {"ok": True}, done.stderr
    for printed in ("from Python", "from C", "from a process", "at exit", "later"):
        assert printed in done.stderr


@pytest.mark.parametrize("words", [[], ["compile"], ["run"], ["trace"], ["explain"], ["cache"], ["cache", "info"]])
def test_h_is_help_everywhere(shell: Shell, words: list[str]) -> None:
    assert shell(*words, "-h").status == 0
    assert shell(*words, "-h").out == shell(*words, "--help").out


def test_shells_complete_commands(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--install-completion" in shell("--help").out
    for name, value in {
        "_SUPERKERNEL_COMPLETE": "complete_bash",
        "COMP_WORDS": "superkernel e",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert sorted(shell().out.split()) == ["emulate", "explain", "export"]


def test_without_torch_explain_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from superkernel.tools.cli import main; sys.argv[1:] = ['explain', 'model.py', '--json']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == ""
    assert "torch is not installed: pip install" in json.loads(done.stdout)["error"]["message"]


def test_explain_refuses_options_that_a_script_would_not_see(shell: Shell, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text("print('runs')")
    outcome = shell("explain", tmp_path / "script.py", "--fuse", "off", "--target", "ascend")
    assert (outcome.status, outcome.out) == (1, "")
    assert (
        f"error: --fuse, --target: a script compiles with options of its own: change them in {tmp_path}" in outcome.err
    )


def test_the_shell_does_not_import_torch() -> None:
    code = "import superkernel.tools.cli, superkernel.tools.doctor, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# demo


def test_demo_succeeds(shell: Shell) -> None:
    outcome = shell("demo")
    assert (outcome.status, outcome.out.splitlines()[-1]) == (0, "execute sample success")


def test_demo_shows_one_slot_per_parameter_in_op_order(shell: Shell) -> None:
    slots = [line.split()[2] for line in shell("demo", "--json").json["layout"].splitlines()[2:]]
    assert slots == ["pow_in1", "pow_in2", "pow_out1", "pow_ws", "isinf_in1", "isinf_out1", "isinf_ws"]


def test_a_demo_that_goes_wrong_exits_with_1(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> demo.Demo:
        raise LaunchError("the output differs")

    monkeypatch.setattr(demo, "run", fail)
    assert shell("demo") == Outcome(1, "", "error: the output differs\n")


# compile: what it makes


def test_a_compiled_file_can_be_loaded_and_launched(shell: Shell, ops: Path) -> None:
    assert shell("compile", ops, "-o", ops.with_name("out")).status == 0
    ones = np.ones(64, np.float32)
    with sk.load(ops.with_name("out")) as kernel:
        assert (kernel({"a": ones, "b": ones})["c"] == 3).all()


def test_compile_prints_the_plan_and_where_things_lie(shell: Shell, ops: Path) -> None:
    out = ops.with_name("out")
    lines = shell("compile", ops, "-o", out, "--cores", 2).out.splitlines()
    assert lines[0].startswith("plan twice: 2 ops on 2 cores")
    assert f"saved in {out}/: {', '.join(listing(out))}" in lines


def test_compile_as_json(shell: Shell, ops: Path) -> None:
    out = ops.with_name("out")
    answer = shell("compile", ops, "-o", out, "--cores", 1, "--json").json
    expected = {"ok": True, "name": "twice", "target": "cpu", "cores": 1, "ops": 2, "edges": 1}
    expected |= {"artefact": str(out), "files": listing(out), "dump": None}
    assert expected.items() <= answer.items()


def test_an_option_of_the_shell_wins_and_the_others_of_the_file_stay(shell: Shell, ops: Path) -> None:
    answer = shell(
        "compile", ops, "-o", ops.with_name("out"), "--options", '"early_start = 1:func-align=128"', "--json"
    )
    assert sk.Options.parse(answer.json["options"]) == sk.Options.parse("preload-code=none:func-align=128")


def test_the_target_of_the_shell_wins(shell: Shell, ops: Path) -> None:
    answer = shell("compile", ops, "-o", ops.with_name("out"), "--target", "cpuu", "--json").json
    assert "'cpuu'" in answer["error"]["message"]


def test_dump_writes_the_stages(shell: Shell, ops: Path) -> None:
    shell("compile", ops, "-o", ops.with_name("out"), "--dump", ops.with_name("dump"))
    assert {"graph.txt", "plan.txt", "source.cpp", "commands.txt"} <= set(listing(ops.with_name("dump")))


def test_nothing_but_the_output_is_left_beside_it(shell: Shell, ops: Path) -> None:
    shell("compile", ops, "-o", ops.with_name("out"))
    assert listing(ops.parent) == ["add.cpp", "ops.json", "out"]


def test_an_earlier_result_is_replaced(shell: Shell, ops: Path) -> None:
    out = ops.with_name("out")
    shell("compile", ops, "-o", out, "--cores", 1)
    assert shell("compile", ops, "-o", out, "--cores", 2).status == 0
    assert json.loads((out / MANIFEST).read_text())["cores"] == 2


def test_an_empty_folder_is_filled(shell: Shell, ops: Path) -> None:
    out = ops.with_name("out")
    out.mkdir()
    shell("compile", ops, "-o", out)
    assert MANIFEST in listing(out)


def test_folders_on_the_way_are_made(shell: Shell, ops: Path) -> None:
    out = ops.with_name("far") / "away"
    shell("compile", ops, "-o", out)
    assert MANIFEST in listing(out)


# compile: what it refuses


def test_a_failed_compilation_leaves_nothing(shell: Shell, broken: Path) -> None:
    outcome = shell("compile", broken, "-o", broken.with_name("out"), "--dump", broken.with_name("dump"))
    assert (outcome.status, listing(broken.parent)) == (1, ["add.cpp", "ops.json"])


def test_a_failed_compilation_prints_one_error_with_the_compilers_message(shell: Shell, broken: Path) -> None:
    outcome = shell("compile", broken, "-o", broken.with_name("out"))
    assert outcome.out == ""
    assert outcome.err.startswith("error: ") and "broken on purpose" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_failed_compilation_as_json_has_command_and_stderr_apart(shell: Shell, broken: Path) -> None:
    answer = shell("compile", broken, "-o", broken.with_name("out"), "--json").json
    error = answer["error"]
    assert (answer["ok"], error["kind"]) == (False, "BuildError")
    assert str(broken.with_name("add.cpp")) in error["command"]
    assert "broken on purpose" in error["stderr"]
    assert len(error["message"].splitlines()) == 1


def test_a_mistake_in_the_file_is_told_with_its_field(shell: Shell, ops: Path) -> None:
    ops.write_text(ops.read_text().replace('"block_dim": 2', '"block_dim": "two"'))
    outcome = shell("compile", ops, "-o", ops.with_name("out"))
    assert outcome == Outcome(1, "", f"error: {ops}: kernels.add.block_dim: 'two' is not a whole number\n")


def test_a_bad_option_of_the_shell_is_refused(shell: Shell, ops: Path) -> None:
    outcome = shell("compile", ops, "-o", ops.with_name("out"), "--options", "early-strt=1")
    assert (outcome.status, "did you mean 'early-start'?" in outcome.err) == (1, True)


def test_a_folder_with_other_files_is_left_alone(shell: Shell, ops: Path) -> None:
    outcome = shell("compile", ops, "-o", ops.parent)
    assert (outcome.status, listing(ops.parent)) == (1, ["add.cpp", "ops.json"])


def test_a_folder_whose_ops_file_is_called_like_a_manifest_is_left_alone(shell: Shell, ops: Path) -> None:
    ops = ops.rename(ops.with_name(MANIFEST))
    assert (shell("compile", ops, "-o", ops.parent).status, listing(ops.parent)) == (1, ["add.cpp", MANIFEST])


def test_a_stranger_in_an_earlier_result_is_left_alone(shell: Shell, ops: Path) -> None:
    out = ops.with_name("out")
    shell("compile", ops, "-o", out)
    (out / "notes.txt").write_text("mine")
    outcome = shell("compile", ops, "-o", out)
    assert (outcome.status, "notes.txt" in outcome.err, (out / "notes.txt").read_text()) == (1, True, "mine")


def test_a_file_in_place_of_the_output_is_left_alone(shell: Shell, ops: Path) -> None:
    assert (shell("compile", ops, "-o", ops).status, ops.exists()) == (1, True)


def test_a_dump_into_the_output_is_refused(shell: Shell, ops: Path) -> None:
    outcome = shell("compile", ops, "-o", ops.with_name("out"), "--dump", ops.with_name("out") / "dump")
    assert (outcome.status, "--dump" in outcome.err) == (1, True)


def test_a_failed_save_leaves_nothing(shell: Shell, ops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(kernel: sk.SuperKernel, folder: Path) -> Path:
        folder.mkdir()
        (folder / "kernel.so").write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(sk.SuperKernel, "save", save)
    outcome = shell("compile", ops, "-o", ops.with_name("out"))
    assert (outcome.status, listing(ops.parent)) == (1, ["add.cpp", "ops.json"])
    assert "no space left" in outcome.err


def test_a_failed_move_keeps_the_earlier_result(shell: Shell, ops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ops.with_name("out")
    shell("compile", ops, "-o", out, "--cores", 1)
    rename = Path.rename

    def fail_for_the_new(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    assert shell("compile", ops, "-o", out, "--cores", 2).status == 1
    assert json.loads((out / MANIFEST).read_text())["cores"] == 1


# compile: progress


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on stderr says that it is a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_a_bar_shows_the_progress_on_a_terminal(shell: Shell, ops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_terminal(monkeypatch)
    assert "compiled add.cpp" in shell("compile", ops, "-o", ops.with_name("out")).err


def test_no_bar_is_shown_with_json(shell: Shell, ops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_terminal(monkeypatch)
    assert shell("compile", ops, "-o", ops.with_name("out"), "--json").err == ""


def test_no_bar_is_shown_without_a_terminal(shell: Shell, ops: Path) -> None:
    assert shell("compile", ops, "-o", ops.with_name("out")).err == ""


# bench


@dataclass(frozen=True)
class FakeResult:
    suite: str
    ok: bool

    def to_dict(self) -> dict[str, Any]:
        return {"suite": self.suite}

    def __str__(self) -> str:
        return f"table of {self.suite}"


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, int | None]]:
    """Two suites, of which the second fails; returns the calls."""
    calls: list[tuple[str, bool, int | None]] = []

    def run(suite: str, quick: bool = False, cores: int | None = None, seconds: float | None = None) -> FakeResult:
        assert seconds is None
        calls.append((suite, quick, cores))
        return FakeResult(suite, ok=suite == "boundary")

    monkeypatch.setattr(bench, "SUITES", {"boundary": "", "other": ""})
    monkeypatch.setattr(bench, "run", run)
    return calls


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["boundary", "--seconds", "9"], "--seconds belongs to collectives: suite 'boundary' always runs to its end"),
        (["collectives", "--seconds", "0"], "--seconds must be above 0, not 0"),
        (["cuda", "--seconds", "9"], "--seconds has no meaning for cuda: its suites use the whole device"),
    ],
)
def test_the_time_of_a_bench_is_checked(shell: Shell, words: list[str], message: str) -> None:
    assert shell("bench", *words) == Outcome(1, "", f"error: {message}\n")


@pytest.mark.usefixtures("suites")
def test_bench_prints_the_table(shell: Shell) -> None:
    assert shell("bench", "boundary") == Outcome(0, "table of boundary\n", "")


def test_bench_all_runs_every_suite(shell: Shell, suites: list[tuple[str, bool, int | None]]) -> None:
    shell("bench", "all", "--quick", "--cores", "1")
    assert suites == [("boundary", True, 1), ("other", True, 1)]


@pytest.mark.usefixtures("suites")
def test_bench_as_json(shell: Shell) -> None:
    expected = {"ok": False, "suites": {"boundary": {"suite": "boundary"}, "other": {"suite": "other"}}}
    assert shell("bench", "all", "--json").json == expected


@pytest.mark.usefixtures("suites")
def test_a_bench_that_misses_its_figures_exits_with_1(shell: Shell) -> None:
    assert shell("bench", "other").status == 1


@pytest.mark.usefixtures("suites")
def test_an_unknown_suite_is_told_with_the_known_ones(shell: Shell) -> None:
    message = "error: unknown suite 'boundry' (did you mean 'boundary'?); suites are boundary, other, all, cuda\n"
    assert shell("bench", "boundry") == Outcome(1, "", message)


# cache


def test_cache_info_and_clear(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path))
    Cache().make("key", ".o", lambda path: path.write_text("12345") and None)
    monkeypatch.setenv("SUPERKERNEL_CACHE_LIMIT", "2M")
    info = {"ok": True, "directory": str(tmp_path), "entries": 1, "bytes": 5, "limit": 2**21, "writable": True}
    assert shell("cache", "info", "--json").json == info
    assert shell("cache", "clear", "--json").json == {"ok": True, "directory": str(tmp_path), "removed": 1}
    shown = shell("cache", "info").out
    assert shown.startswith(f"{tmp_path}: 0 entries, 0.0 MB\nat most 2.1 MB")
    monkeypatch.setenv("SUPERKERNEL_CACHE_LIMIT", "plenty")
    assert shell("cache", "info", "--json").json["error"]["kind"] == "OptionError"


def test_cache_clear_gate_removes_verdicts_only(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path))
    for suffix in (".o", ".json", GATE_SUFFIX):
        Cache().write_text("key", suffix, "text")
    assert shell("cache", "clear", "--gate").out == f"{tmp_path}: 1 verdicts removed\n"
    assert Cache().read_text("key", GATE_SUFFIX) is None
    assert Cache().read_text("key", ".o") == Cache().read_text("key", ".json") == "text"
    assert len(list(tmp_path.rglob("*.gate.json*"))) == 0
    assert shell("cache", "clear", "--json").json["removed"] == 2


@pytest.mark.parametrize("command", ["info", "clear"])
def test_a_cache_that_cannot_be_used_is_an_error(shell: Shell, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", "/dev/null/cache")
    assert shell("cache", command, "--json").json["error"]["kind"] == "BuildError"
