"""targets.native.control_flow: what a function calls on every path, at every level of optimisation."""

from __future__ import annotations

from pathlib import Path

import pytest

from superkernel.cache import Cache
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.native import control_flow
from superkernel.targets.native.control_flow import ControlFlow
from superkernel.targets.native.elf import host_architecture
from superkernel.targets.native.object_facts import SIGNAL, WAIT, facts_of
from superkernel.targets.native.objects import compile_source, object_key
from superkernel.targets.native.toolchain import find_toolchain

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("X86_64" not in host_architecture(), reason="machine code of x86-64 only"),
]

SOURCE = Path(__file__).parents[1] / "cpu" / "kernels" / "promises.cpp"
ON_EVERY_PATH = (
    "always", "in_both", "after_a_loop", "switch_behind", "through_function", "through_both", "at_the_end",
)  # fmt: skip
NOT_ON_EVERY_PATH = (
    "plain", "only_if", "in_a_loop", "early_return", "switch_before", "through_some", "in_a_handler", "not_in_block_1",
    "signals_at_once", "late",
)  # fmt: skip
NOT_UNDERSTOOD = ("through_pointer",)
FLAGS = {
    "-O0": ("-O0",),
    "-O2": ("-O2",),
    "-O3": (),
    "one section": ("-O2", "-fno-function-sections", "-fno-exceptions"),
    "no PLT": ("-O2", "-fno-plt"),
}


@pytest.fixture(scope="module", params=FLAGS)
def compiled(request: pytest.FixtureRequest) -> Path:
    return compile_source(SOURCE, FLAGS[request.param], find_toolchain(), Cache(), (INCLUDE,))


def test_which_functions_wait_on_every_path(compiled: Path) -> None:
    code = ControlFlow(compiled)
    names = (*ON_EVERY_PATH, *NOT_ON_EVERY_PATH, *NOT_UNDERSTOOD)
    assert tuple(name for name in names if code.always_calls(name, WAIT)) == ON_EVERY_PATH


def test_one_section_with_handlers_may_continue_in_any_of_them() -> None:
    """Which function a handler belongs to is not known: a call before the wait may continue in it."""
    flags = ("-O2", "-fno-function-sections")
    code = ControlFlow(compile_source(SOURCE, flags, find_toolchain(), Cache(), (INCLUDE,)))
    assert code.always_calls("always", WAIT) and not code.always_calls("through_function", WAIT)


def test_which_functions_may_signal(compiled: Path) -> None:
    """Another function of the object that signals does not matter."""
    code = ControlFlow(compiled)
    assert code.may_call("signals_at_once", SIGNAL) is True
    assert code.may_call("always", SIGNAL) is False
    assert code.may_call("through_both", SIGNAL) is False
    facts = {name: facts_of(compiled, object_key(compiled), [name], compiled, Cache()) for name in ("always", "plain")}
    assert facts["always"].waits == (True,) and not facts["always"].signals
    assert facts["plain"].waits == (False,) and not facts["plain"].signals


def test_code_that_cannot_be_read_waits_on_no_path(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_flow.shutil, "which", lambda program: None)
    code = ControlFlow(compiled)
    assert not code.always_calls("always", WAIT)
    assert code.may_call("always", SIGNAL) is None


def test_an_unknown_function_waits_on_no_path(compiled: Path) -> None:
    code = ControlFlow(compiled)
    assert not code.always_calls("missing", WAIT) and code.may_call("missing", SIGNAL) is None
