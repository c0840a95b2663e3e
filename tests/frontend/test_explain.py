"""explain: what became of each scope, as text, as JSON, from the shell, in logs and in torch's trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from frontend.fused import assert_same_bits, compiled
from torch import Tensor, nn
from typer.testing import CliRunner

import superkernel as sk
from superkernel.errors import GraphError, OptionError, UnsupportedError
from superkernel.frontend import measured_calls
from superkernel.frontend.graph_breaks import graph_break
from superkernel.tools.cli import app

pytestmark = pytest.mark.slow

X = torch.linspace(-2, 2, 64).reshape(4, 16)


def model(x: Tensor) -> Tensor:
    x = x + 1
    with sk.super_kernel("a", "early-start=2"):
        x = x.sin()
        x = x.logcumsumexp(0)
        x = x.sum(0)
    return x


def test_the_text_names_scopes_segments_ops_lines_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    report = sk.explain(model, X)
    text = str(report)
    assert text.startswith(
        "verdict: partly fused: 2 super kernels, 1 operator of torch, 1 op outside of scopes\n"
        "launches per call: 3 -> 3\n"
    )
    assert "\n1 graph, 1 scope; 1 op outside of scopes (Inductor); cache: " in text
    assert "graph breaks: none\nsplits: 1\n  1. aten::logcumsumexp, 2 launches more: no cpu sub-kernel is " in text
    assert 'do: register a kernel, sk.register_kernel("aten::logcumsumexp")' in text
    assert "scope 'a' in graph 1 (inference): 2 segments, options early-start=2" in text
    assert (
        "unfusible aten::logcumsumexp: no cpu sub-kernel is registered for it (" in text
        and "x = x.logcumsumexp(0)" in text
    )
    assert "segment 1: 1 op, fused; ended by aten::logcumsumexp: no cpu sub-kernel is registered for it" in text
    assert "segment 2: 1 op, fused; ended with the graph" in text
    assert "x = x.sin()" in text and "syncs: none; 2 buffers" in text


def test_the_report_is_data_too() -> None:
    report = sk.explain(model, X)
    (scope,) = report.scopes
    assert (scope.name, scope.options, len(scope.segments), len(scope.unfusible)) == ("a", "early-start=2", 2, 1)
    assert all(segment.fused and segment.reason and segment.syncs == {} for segment in scope.segments)
    facts = json.loads(json.dumps(report.to_dict()))
    advice = {"verdict", "launches", "gain", "against_inductor", "splits", "graph_breaks"}
    assert set(facts) == {"graphs", "scopes", "outside", "notes", "cache", *advice}
    assert facts["launches"] == {"before": 3, "after": 3} and facts["splits"][0]["op"] == "aten::logcumsumexp"
    (page,) = facts["scopes"]
    assert page["unfusible"][0]["op"] == "aten::logcumsumexp"
    assert [segment["fused"] for segment in page["segments"]] == [True, True]
    (op,) = page["segments"][0]["ops"]
    assert op["blocks"] == 1 and "x = x.sin()" in op["origins"][0]
    assert set(facts["cache"]) == {"hits", "misses"}


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(16))
        self.plain, self.calls = torch.zeros(16), 0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        self.calls += 1
        self.count.add_(1)
        self.plain.add_(1)
        x.mul_(scale)
        values = x + self.count
        return values - values.sum(0, keepdim=True) + self.plain


def test_it_changes_neither_inputs_nor_buffers_nor_random_numbers_and_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measured_calls, "MOST_SECONDS", float("inf"))
    large = X.repeat(2048, 1)  # two loops that cores share: two ops
    counting, x = Counting(), large.clone()
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    report = sk.explain(counting, x, scale=2.0)
    assert report.scopes and torch.equal(x, large) and not counting.count.any()
    assert torch.equal(torch.rand(2), expected)
    assert counting.calls == 1 and (counting.plain == 1).all()  # the model itself ran once
    gain = report.advice.gain
    assert gain is not None and gain.before_us > 0 and "measured: " in str(report) and " us, unfused " in str(report)


def broken(x: Tensor) -> Tensor:
    y = x.sin()
    return y.cos() if y.sum() > 0 else y.sum(0)


def test_graph_breaks_are_named_with_their_lines() -> None:
    report = sk.explain(broken, X)
    (branch,) = report.graph_breaks
    assert report.graphs == 2 and branch.reason == "a branch depends on the value of a tensor"
    assert branch.line.endswith("return y.cos() if y.sum() > 0 else y.sum(0)") and "torch.where" in branch.hint
    assert "graph breaks: 1\n  tests/frontend/test_explain.py:" in str(report)


def test_a_message_of_dynamo_is_read() -> None:
    message = (
        "Call to `torch._dynamo.graph_break()`\n  Explanation: User-inserted graph break.\n    Message: None\n"
        "  Hint: This graph break is fundamental - it is unlikely that Dynamo will ever trace it.\n"
        "  Hint: Remove the `torch._dynamo.graph_break()` call.\n\n  Developer debug context: Called with args `[]`"
    )
    inner = torch._dynamo.__file__
    found = graph_break(message, [("/home/model.py", 3), ("/home/layer.py", 5), (inner, 7)])
    assert found.reason == "Call to `torch._dynamo.graph_break()`" and found.line == "/home/layer.py:5"
    assert found.explanation == "User-inserted graph break. Message: None"
    assert found.hint == "Remove the `torch._dynamo.graph_break()` call."
    assert graph_break("no fields", []).to_dict() == {"reason": "no fields", "explanation": "", "hint": "", "line": ""}


def test_an_lstm_without_graphs_says_why_every_time() -> None:
    for _ in range(2):  # Dynamo skips code that it once could not trace, and no longer says why
        report = sk.explain(nn.LSTM(4, 4), torch.zeros(2, 1, 4))
        assert report.graphs == 0
        assert report.advice.verdict == (
            "nothing was compiled: Attempted to wrap RNN, GRU, or LSTM: Dynamo does not support RNN, GRU, or LSTM; "
            "call the model under torch.no_grad(): recurrent layers are traced there"
        )


@pytest.mark.conformance
def test_an_lstm_is_fused_without_gradients() -> None:
    recurrent, x = nn.LSTM(4, 4), torch.zeros(2, 1, 4)
    assert not sk.explain(recurrent, x).graphs
    with torch.no_grad():
        assert sk.explain(recurrent, x).scopes[0].fused


def test_a_compiled_model_is_explained_anew_and_keeps_working() -> None:
    function = compiled(model)
    before = function(X)
    for _ in range(3):
        assert len(sk.explain(function, X).scopes) == 1
    assert_same_bits(function(X), before)
    module = torch.compile(Counting(), backend="superkernel")
    assert sk.explain(module, X).scopes[0].fused


def test_options_and_training_graphs() -> None:
    report = sk.explain(model, X, options={"fuse": "off"})
    assert not report.scopes[0].fused and "fuse=off" in str(report)
    report = sk.explain(lambda x: x.sin().sum(0), X.clone().requires_grad_())
    assert [scope.graph for scope in report.scopes] == ["1 (forward)", "2 (backward)"]


def test_errors_are_raised_as_they_are() -> None:
    def wrong(x: Tensor) -> Tensor:
        with sk.super_kernel("a", "early-strat=2"):
            return x.sin()

    def strict(x: Tensor) -> Tensor:
        with sk.super_kernel("a", "strict-scope-check=abort"):
            return x.logcumsumexp(0)

    with pytest.raises(OptionError, match=r"super_kernel_scope 'a': unknown option 'early-strat'"):
        sk.explain(wrong, X)
    with pytest.raises(UnsupportedError, match=r"super_kernel_scope 'a'.*aten::logcumsumexp"):
        sk.explain(strict, X)
    with pytest.raises(OptionError, match="unknown backend option 'fuze'"):
        sk.explain(model, X, options={"fuze": "off"})
    with pytest.raises(GraphError, match="needs a model or a function, not 3"):
        sk.explain(3)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"needs a model, not the class Counting: pass an instance, Counting\("):
        sk.explain(Counting, X)


# from the shell

SCRIPT = """
import atexit
import os
import subprocess
import sys

import torch
import superkernel as sk

X = torch.linspace(-2, 2, 64).reshape(4, 16)

def model(x):
    with sk.super_kernel("a"):
        return x.sin().sum(0)

def model_inputs():
    return (X,)

def both():
    return model, X

class Net(torch.nn.Module):
    def forward(self, x):
        return model(x)

class Sized(Net):
    def __init__(self, size):
        super().__init__()

class Table:
    pass

net = Net()

def net_inputs():
    return X

def Net_inputs():
    return X

class Lonely(Net):
    pass

def needs(x):
    return x

def strict():
    with sk.super_kernel("a", "strict-scope-check=abort"):
        return X.logcumsumexp(0)

number = 3

def fails():
    print("before it fails")
    raise ValueError("on purpose")

if __name__ == "__main__":
    print("words:", sys.argv[1:])
    torch.compile(model, backend="superkernel")(X)
    if "loud" in sys.argv:
        os.write(1, b"from C\\n")
        subprocess.run(["echo", "from a process"])
        atexit.register(print, "at exit")
    sys.exit("fail" in sys.argv)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "some_model.py"
    path.write_text(dedent(SCRIPT))
    return str(path)


def shell(*words: str) -> Any:
    return CliRunner().invoke(app, ["explain", *words])


@pytest.mark.parametrize("place", [":model", ":both", ":net", ":Net", ""])
def test_the_shell_explains_functions_models_and_scripts(script: str, place: str) -> None:
    done = shell(script + place)
    assert done.exit_code == 0, done.output
    assert "scope 'a' in graph 1 (inference): 1 segment" in done.output
    assert "return x.sin().sum(0)" in done.output


def test_a_script_that_collects_reports_itself_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "collects.py"
    path.write_text(
        dedent("""
        import torch
        from superkernel.frontend.report import collecting

        def first(x):
            return x.sin().sum(0)

        def second(x):
            return x.cos().sum(0)

        torch.compile(first, backend="superkernel")(torch.ones(4, 4))
        with collecting() as own:
            torch.compile(second, backend="superkernel")(torch.ones(4, 4))
        assert own.graphs == 1, own
        """)
    )
    done = shell(str(path))
    assert done.exit_code == 0, done.output
    assert "2 graphs, 2 scopes" in done.output and "return x.cos().sum(0)" in done.output
    assert "in graph 1 (inference)" in done.output and "in graph 2 (inference)" in done.output
    path.write_text("print('all is done in other processes')")
    assert "nothing was compiled: no model in this process" in shell(str(path)).output


def test_the_shell_answers_in_json(script: str) -> None:
    done = shell(f"{script}:model", "--json", "--options", "profiling=1")
    facts = json.loads(done.stdout)
    assert done.exit_code == 0 and facts["scopes"][0]["options"] == "profiling=1"
    done = shell(f"{script}:strict", "--json")
    facts = json.loads(done.stdout)
    assert done.exit_code == 1 and not facts["ok"] and facts["error"]["kind"] == "UnsupportedError"
    done = shell(f"{script}:fails", "--json")
    assert done.exit_code == 1 and json.loads(done.stdout)["error"]["message"] == "on purpose"
    assert "before it fails" in done.stderr and "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (":modle", "did you mean 'model'?"),
        (":needs", "needs inputs: give the file a function needs_inputs()"),
        (":number", "'number' is 3, nothing that can be compiled"),
        (":Sized", "'Sized' is a class that needs arguments (size): name an instance of it, or a function"),
        (":Table", "'Table' is a class whose instances cannot be called"),
        (":Lonely", "'Lonely' needs inputs: give the file a function Lonely_inputs()"),
        (":strict", "super_kernel_scope 'a'"),
        ("x.py:model", "is not a file"),
    ],
)
def test_the_shell_says_what_is_wrong(script: str, place: str, told: str) -> None:
    done = shell(script + place)
    assert done.exit_code == 1 and done.stderr.startswith("error: ") and told in done.stderr


def test_a_broken_file_a_script_that_fails_and_a_bad_option_are_told(tmp_path: Path, script: str) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def (:\n")
    done = shell(f"{broken}:model")
    assert done.exit_code == 1 and "SyntaxError" in done.stderr and str(broken) in done.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text(Path(script).read_text() + "    with_abort = torch.compile(strict, backend='superkernel')()\n")
    wrong.write_text(wrong.read_text().replace('    sys.exit("fail" in sys.argv)\n', ""))
    done = shell(str(wrong))
    assert done.exit_code == 1 and done.stderr.startswith("error: super_kernel_scope 'a': strict-scope-check=abort")
    wrong.write_text("raise SystemExit(3)")
    done = shell(str(wrong))
    assert done.exit_code == 1 and "wrong.py ended with status 3" in done.stderr
    done = shell(f"{script}:model", "--fuse", "of")
    assert done.exit_code == 1 and "did you mean 'off'?" in done.stderr


# logs and traces


@pytest.mark.conformance
def test_json_is_json_whatever_the_script_prints_and_logs_and_traces_show_the_report(
    script: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    environment = {**os.environ, "TORCH_LOGS": "superkernel", "TORCH_TRACE": str(trace)}
    command = [sys.executable, "-m", "superkernel", "explain", script, "--json", "--", "--size", "loud"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scopes"][0]["name"] == "a"
    for printed in ("words: ['--size', 'loud']", "from C", "from a process", "at exit"):
        assert printed in done.stderr
    assert "super_kernel_scope 'a': 1 of 1 segments fused" in done.stderr
    written = "".join(path.read_text() for path in trace.iterdir())
    for name in ("superkernel_report", "superkernel_report_json", "superkernel_a_1_plan", "superkernel_a_1_source"):
        assert f'"name": "{name}"' in written
    assert "scope 'a' in graph 1 (inference): 1 segment" in written
