"""Mistakes and lacks: the user's are errors that say what to do; the machine's leave the model to Inductor."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from frontend.fused import compiled, refused, run
from torch import Tensor

from superkernel import targets
from superkernel.errors import OptionError, UnsupportedError
from superkernel.frontend import backend, segments
from superkernel.frontend.capture.fusibility import Cause, Unfusible
from superkernel.frontend.lowering.program_trace import LibraryCall
from superkernel.frontend.scope import super_kernel
from superkernel.model.tensor_arg import ScratchBuffers

pytestmark = pytest.mark.slow

X = torch.linspace(-2, 2, 64).reshape(4, 16)


def scoped(options: str = "", again: str = "") -> Any:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", options):
            x = x.sin()
        with super_kernel("a", again):
            return x.sum(0)

    return model


# the user's


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("early-strat=1", "did you mean 'early-start'?"),
        ("early-start=9", "'early-start'"),
        ("early-start", "'early-start'"),
        ("strict-scope-check=maybe", "bypass, abort"),
    ],
)
def test_a_bad_option_of_a_scope_is_refused_with_its_name_and_line(options: str, told: str) -> None:
    message = refused(scoped(options), X, kind=OptionError)
    assert message.startswith("super_kernel_scope 'a': ") and told in message
    assert "with super_kernel(" in message and "test_backend_refusals.py" in message


def test_two_option_texts_for_one_name_are_refused_with_both_lines() -> None:
    message = refused(scoped("early-start=1", "early-start=2"), X, kind=OptionError)
    assert "super_kernel_scope 'a' is given different options: 'early-start=1' at " in message
    assert 'with super_kernel("a", options)' in message and 'with super_kernel("a", again)' in message


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"fuze": "off"}, OptionError, "did you mean 'fuse'?"),
        ({"fuse": "on"}, OptionError, "auto, marked, whole, off"),
        ({"cores": 0}, OptionError, "an integer from 1"),
        ({"early_start": 9}, OptionError, "early-start"),
        ({"target": "gpu"}, OptionError, "unknown target 'gpu'"),
    ],
)
def test_a_bad_option_of_the_back_end_is_refused(options: dict[str, Any], kind: Any, told: str) -> None:
    assert told in refused(scoped(), X, kind=kind, **options)


def test_a_known_target_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_MODULES", {"cpu": "superkernel.targets.cpu"})
    assert "available: cpu" in refused(scoped(), X, kind=UnsupportedError, target="cuda")


def test_a_tensor_on_another_device_runs_unfused_or_is_refused_under_abort() -> None:
    ran = run(scoped(), X.to("meta"))
    assert ran.outputs.is_meta
    (warning,) = ran.warnings
    assert warning.startswith("super_kernel_scope 'a': ") and "device meta" in warning
    assert "device meta" in refused(scoped("strict-scope-check=abort"), X.to("meta"), kind=UnsupportedError)


# the machine's


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """For us alone: Inductor has read CXX long ago."""
    monkeypatch.setenv("CXX", "a-compiler-that-is-not-there")


@pytest.mark.parametrize("fuse", ["auto", "off"])
def test_without_a_compiler_the_model_runs_through_inductor_and_says_so_once(no_compiler: None, fuse: str) -> None:
    ran = run(scoped(), X, fuse=fuse)
    torch.testing.assert_close(ran.outputs, X.sin().sum(0))
    (warning,) = ran.warnings
    assert warning.startswith("super_kernel_scope 'a': runs unfused through Inductor: ")
    assert "a-compiler-that-is-not-there" in warning and "apt-get install" in warning
    assert not ran.scopes["a"].fused and "a-compiler-that-is-not-there" in ran.scopes["a"].segments[0].reason


def test_without_a_compiler_a_strict_scope_is_refused(no_compiler: None) -> None:
    message = refused(scoped("strict-scope-check=abort"), X, kind=UnsupportedError)
    assert "super_kernel_scope 'a'" in message and "a-compiler-that-is-not-there" in message


def test_the_same_warning_comes_once_for_all_shapes(no_compiler: None) -> None:
    model = scoped()
    first = run(model, X)
    other = run(model, X[:2])
    assert len(first.warnings) == 1 and not other.warnings


@pytest.mark.conformance
def test_without_any_compiler_the_ops_run_one_by_one(tmp_path: Path) -> None:
    script = tmp_path / "model.py"
    script.write_text(
        dedent("""
        import torch
        import superkernel as sk

        def model(x):
            x = x + 1
            with sk.super_kernel("a"):
                return x.sin().sum(0)

        x = torch.ones(4, 4)
        torch.testing.assert_close(torch.compile(model, backend="superkernel")(x), model(x))
        """)
    )
    environment = {**os.environ, "CXX": "not-there", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "super_kernel_scope 'a': runs unfused through Inductor" in done.stderr
    assert done.stderr.count("Inductor has no C++ compiler either") == 1


def test_an_unknown_torch_goes_through_inductor_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("superkernel.frontend.torch_versions.SUPPORTED", ((2, 9), (2, 10)))
    caplog.set_level(logging.WARNING, "superkernel")
    model = scoped()
    for rows in (4, 3, 2):
        torch.testing.assert_close(compiled(model)(X[:rows]), X[:rows].sin().sum(0))
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "superkernel"]
    assert "superkernel supports torch 2.9 to 2.10, not" in warning and torch.__version__ in warning


def test_a_program_that_cannot_be_read_runs_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*args: Any) -> Any:
        raise KeyError("something new")

    monkeypatch.setattr("superkernel.frontend.lowering.cpp.trace_program", odd)
    ran = run(scoped(), X)
    torch.testing.assert_close(ran.outputs, X.sin().sum(0))
    assert len(ran.warnings) == 1 and "KeyError: 'something new'" in ran.warnings[0]


# collectives

COLLECTIVE = Unfusible("_c10d_functional::all_reduce", "collective", (), Cause.COLLECTIVE)


class FakeCollective:
    """An operator of torch.distributed, as far as segments look at it."""

    class _schema:
        name = "_c10d_functional::all_reduce"
        overload_name = ""


def test_a_collective_splits_with_its_own_reason() -> None:
    call = LibraryCall(FakeCollective(), (), {}, ())
    found = segments.match_library_call(call, targets.find_target("cpu"), 2, ScratchBuffers("scratch"))
    assert found == COLLECTIVE


def test_the_strict_check_ignores_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    real = segments.match_library_call

    def disguised(call: LibraryCall, *rest: Any) -> Any:
        if call.op._schema.name == "aten::sort":
            return COLLECTIVE
        return real(call, *rest)

    def model(x: Tensor) -> Tensor:
        with super_kernel("a", "strict-scope-check=abort"):
            return x.sin().sort(0).values.sum(0)

    monkeypatch.setattr(segments, "match_library_call", disguised)
    ran = run(model, X)
    torch.testing.assert_close(ran.outputs, model(X))
    scope = ran.scopes["a"]
    assert [len(segment.ops) for segment in scope.segments] == [1, 1]
    assert scope.segments[0].reason == "ended by _c10d_functional::all_reduce: collective"


def test_the_back_end_is_the_one_that_torch_finds_by_name() -> None:
    assert "superkernel" in torch._dynamo.list_backends()
    assert torch._dynamo.lookup_backend("superkernel") is backend.superkernel


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_torch_compile_are_accepted(mode: str) -> None:
    model = scoped()
    torch.testing.assert_close(torch.compile(model, backend="superkernel", mode=mode)(X), model(X))
