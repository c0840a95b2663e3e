"""Every public argument takes every kind of wrong value: only errors of this package come out, in words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime.given import ADD, KERNELS, MARK, compiled, kernel, vector

import superkernel as sk
from superkernel import Op, SubKernel, SuperKernelError


class Unusual:
    """An object that is nothing that any argument takes."""

    def __repr__(self) -> str:
        return "<unusual>"


WRONG: dict[str, Any] = {
    "none": None, "true": True, "five": 5, "minus": -1, "zero": 0, "float": 1.5, "nan": float("nan"),
    "infinity": float("inf"), "huge": 10**5000, "large": 2**70, "bytes": b"x", "empty text": "", "blank": "  ",
    "text": "x", "NUL": "a\0b", "surrogate": "\ud800", "newline": "a\nb", "long text": "x" * 5000, "object": Unusual(),
    "type": str, "function": lambda *_, **__: None, "list": [], "tuple": (), "dict": {}, "set": {1}, "list of none":
    [None], "list of list": [[]], "list of numbers": [5, -1], "list of NUL": ["a\0b"], "list of surrogate": ["\ud800"],
    "list of bytes": [b"x"], "list of huge": [10**5000], "dict of none": {None: None}, "dict of numbers": {5: 5},
    "dict of huge": {10**5000: 10**5000}, "dict of texts": {"x": "y"}, "dict of NUL": {"a\0b": "a\0b"},
    "dict of bytes": {b"x": b"x"}, "generator": (i for i in ()), "numpy number": np.int64(3), "numpy float":
    np.float32(1.5), "array": np.zeros(3), "array of objects": np.array([None], object), "range": range(3), "path":
    Path("no/such/path"), "NUL path": Path("a\0b"), "complex": 1j, "unhashable": [{}], "exception": ValueError("x"),
}  # fmt: skip

SOURCE: dict[str, Any] = {"path": KERNELS, "name": "add", "block_dim": 1, "params": ["in:x", "in:y", "out:z"]}
OP: dict[str, Any] = {"kernel": ADD, "args": ["a", "b", "c"]}
NUMBER = kernel("store_int64", "scalar:value:int64", "out:out:int64[1]")
DYNAMIC = kernel("mark", "inout:ran:int64[1]", variants={0: "mark"})


def source(**change: Any) -> None:
    SubKernel.from_source(**{**SOURCE, **change})


def op(**change: Any) -> None:
    Op(**{**OP, **change})


def dynamic(tiling: Any) -> None:
    Op(DYNAMIC, ["ran"], task="dynamic", tiling=tiling)


def compile_with(**change: Any) -> None:
    compiled_with = {"ops": [Op(MARK, ["ran"])], "name": "wrong"} | change
    sk.compile(**compiled_with).close()


def launch(k: sk.SuperKernel, change: Callable[[Any], dict[str, Any]]) -> Callable[[Any], None]:
    given = {"buffers": {"a": vector(), "b": vector(), "c": vector()}}
    return lambda value: k(**{**given, **change(value)}) and None


def wait(timeout: Any) -> None:
    event = sk.Event("e")
    event.set()
    event.wait(timeout)


ENTRIES: dict[str, Callable[[Any], object]] = {
    **{f"SubKernel.from_source({name}=)": lambda value, name=name: source(**{name: value}) for name in (
        "path", "name", "block_dim", "params", "core", "op_type", "sync_all", "early_start", "flags", "variants",
        "libraries", "keyed_by_text", "threads", "grid", "shared", "pure")},
    "from_source(params=[value])": lambda value: source(params=[value]),
    "from_source(variants={value: symbol})": lambda value: source(variants={key(value): "add"}),
    "from_source(variants={0: value})": lambda value: source(variants={0: value}),
    "from_object(path=)": lambda value: SubKernel.from_object(value, "add", block_dim=1, params=["in:x"]),
    "from_object(name=)": lambda value: SubKernel.from_object(KERNELS, value, block_dim=1, params=["in:x"]),
    "from_ptx(path=)": lambda value: SubKernel.from_ptx(value, "add", block_dim=1, params=["in:x"]),
    "from_json(path=)": SubKernel.from_json,
    **{f"Op({name}=)": lambda value, name=name: op(**{name: value}) for name in (
        "kernel", "args", "name", "stream", "send", "recv", "task", "tiling")},
    "Op(args=[value])": lambda value: op(args=["a", value, "c"]),
    "Op(args=[scalar])": lambda value: op(kernel=NUMBER, args=[value, "n"]),
    "Op(send=[value])": lambda value: op(send=[value]),
    "Op(dynamic, tiling=)": dynamic,
    "Place(name=)": lambda value: op(args=[sk.Place(value), "b", "c"]),
    "Place(offset=)": lambda value: op(args=[sk.Place("a", value), "b", "c"]),
    "Event(name=)": sk.Event,
    "Event().wait(timeout=)": wait,
    "Tiling.from_object(path=)": lambda value: sk.Tiling.from_object(value, "tile"),
    "Tiling.from_object(symbol=)": lambda value: sk.Tiling.from_object(KERNELS, value),
    "Tiling.from_source(flags=)": lambda value: sk.Tiling.from_source(KERNELS, "tile", value),
    "Options.parse(text=)": sk.Options.parse,
    **{f"Options({name}=)": lambda value, name=name: sk.Options(**{name: value}) for name in vars(sk.Options())},
    **{f"compile({name}=)": lambda value, name=name: compile_with(**{name: value})
       for name in inspect.signature(sk.compile).parameters},
    "compile(ops=[value])": lambda value: compile_with(ops=[value]),
    "load(directory=)": sk.load,
    "super_kernel(scope=)": lambda value: sk.super_kernel(value).__enter__(),
    "super_kernel(options=)": lambda value: sk.super_kernel("s", value).__enter__(),
    "profile(directory=)": sk.profile,
    "profile(detail=)": lambda value: sk.profile("no/such", value),
    "register_kernel(op=)": sk.register_kernel,
    "register_kernel(target=)": lambda value: sk.register_kernel("aten::mm", value),
    "register_kernel(function=)": sk.register_kernel("wrong::operator"),
}  # fmt: skip


def outcome(call: Callable[[Any], object], value: Any) -> str | None:
    """What is wrong with how a value was refused; None: it was accepted, or refused as it should be."""
    try:
        call(value)
    except SuperKernelError as error:
        return None if str(error).strip() else f"{type(error).__name__} says nothing"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def failures(call: Callable[[Any], object]) -> dict[str, str]:
    found = {name: outcome(call, value) for name, value in WRONG.items()}
    return {name: text for name, text in found.items() if text is not None}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_wrong_value_is_refused_in_words(entry: str) -> None:
    assert failures(ENTRIES[entry]) == {}


# --- a kernel that is there


@pytest.fixture(scope="module")
def added() -> Iterator[sk.SuperKernel]:
    with compiled(Op(ADD, ["a", "b", "c"])) as k:
        yield k


LAUNCHES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "buffers": lambda value: {"buffers": value},
    "a buffer": lambda value: {"buffers": {"a": value, "b": vector()}},
    "an output": lambda value: {"buffers": {"a": vector(), "b": vector(), "c": value}},
    "the name of a buffer": lambda value: {"buffers": {"a": vector(), "b": vector(), key(value): vector()}},
    "events": lambda value: {"events": value},
    "the name of an event": lambda value: {"events": {key(value): sk.Event()}},
    "tiling": lambda value: {"tiling": value},
    "the op of a tiling": lambda value: {"tiling": {key(value): lambda _: (0, 1)}},
}


def key(value: Any) -> Any:
    """A value that a dict can have as its key."""
    try:
        hash(value)
    except TypeError:
        return "unhashable"
    return value


@pytest.mark.parametrize("argument", LAUNCHES)
def test_a_launch_refuses_wrong_values_in_words(added: sk.SuperKernel, argument: str) -> None:
    assert failures(launch(added, LAUNCHES[argument])) == {}


@pytest.mark.parametrize("argument", LAUNCHES)
def test_a_prepared_and_a_submitted_launch_refuse_wrong_values_in_words(added: sk.SuperKernel, argument: str) -> None:
    given = {"buffers": {"a": vector(), "b": vector(), "c": vector()}}
    change = LAUNCHES[argument]
    assert failures(lambda value: added.bind(**{**given, **change(value)})) == {}
    assert failures(lambda value: added.submit(**{**given, **change(value)}).result()) == {}


def test_an_update_refuses_wrong_values_in_words(added: sk.SuperKernel) -> None:
    prepared = added.bind({"a": vector(), "b": vector(), "c": vector()})
    assert failures(lambda value: prepared.update("a", value)) == {}
    assert failures(lambda value: prepared.update(value, vector())) == {}
    prepared()


@pytest.mark.parametrize("method", ["save", "dump", "emulate"])
def test_a_method_refuses_wrong_values_in_words(
    added: sk.SuperKernel, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert failures(getattr(added, method)) == {}


def test_a_wrong_event_or_scalar_at_launch() -> None:
    ops = [Op(MARK, ["first"]), Op(MARK, ["ran"], name="second", stream=1, recv="e")]
    with compiled(*ops, options="stream-fusion=1") as k:
        numbers = {"first": np.zeros(1, np.int64), "ran": np.zeros(1, np.int64)}
        assert failures(lambda value: k(numbers, events={"e": value} if value is not None else 5)) == {}
        assert not numbers["ran"].any()
    with compiled(Op(NUMBER, ["n", "out"])) as k:
        assert failures(lambda value: k({"n": value})) == {}


def test_a_wrong_answer_of_a_tiling_function() -> None:
    answers: list[Callable[[Any], Any]] = [
        lambda value: value,
        lambda value: (value, 1),
        lambda value: (0, value),
        lambda value: sk.Tiling(value, value),
    ]
    with compiled(Op(DYNAMIC, ["ran"], task="dynamic")) as k:

        def launch_with(function: Any) -> None:
            k({"ran": np.zeros(1, np.int64)}, tiling={"mark": function})

        assert failures(launch_with) == {}
        for answer in answers:
            assert failures(lambda value, answer=answer: launch_with(lambda _: answer(value))) == {}


@pytest.mark.parametrize("name", ["target", "cores", "cache", "dump", "profit_gate", "options", "fuse", "mode"])
def test_the_back_end_refuses_wrong_values_in_words(name: str) -> None:
    from superkernel.frontend.settings import BackendSettings

    assert failures(lambda value: BackendSettings.parse({name: value})) == {}
    assert failures(lambda value: BackendSettings.parse({key(value): 1})) == {}
    assert failures(BackendSettings.parse) == {}


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["model", "options", "mode"])
def test_explain_refuses_wrong_values_in_words(argument: str) -> None:
    def explain(value: Any) -> None:
        if argument == "model" and callable(value):
            return  # a function is a model
        sk.explain(**{"model": lambda: None, argument: value})

    assert failures(explain) == {}
