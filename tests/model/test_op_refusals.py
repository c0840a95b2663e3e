"""Sub-kernels and ops that contradict themselves or each other are refused before anything is compiled."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from runtime.given import ADD, KERNELS, MARK, TOUCH, VECTOR, kernel

import superkernel as sk
from superkernel import GraphError, Op, Place
from superkernel.model.graph import build_graph

ARGS = ["a", "b", "c"]


def refusal(make: Callable[[], object], *words: str) -> str:
    with pytest.raises(GraphError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


# --- sub-kernels


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", ("'x'", "kind:name")),
        ("in:", ("'in:'", "kind:name")),
        ("in:x:", ("'in:x:'",)),
        ("in:x[3]", ("'in:x[3]'",)),
        ("in:x y", ("'in:x y'",)),
        ("in:x:float32[3]@blok", ("@blok",)),
        ("inn:x", ("unknown kind 'inn'", "did you mean 'in'?", "workspace")),
        ("in:x:float33", ("unknown dtype 'float33'", "did you mean 'float32'?")),
        ("in:x:float32[a]", ("[a]", "whole numbers")),
        ("in:x:float32[-1]", ("[-1]", "whole numbers")),
        ("in:x:float32[2,]", ("[2,]", "whole numbers")),
        ("in:x:float32[99999999999999999999]", ("whole numbers",)),
        ("in:x:float32[999999999999999999]", ("larger than any memory",)),
        ("scalar:x:float32[3]", ("a scalar has no shape",)),
        ("scalar:x@block", ("no @block",)),
        ("scalar:x:bfloat16", ("a scalar cannot be bfloat16", "float32")),
        (3, ("3",)),
        (None, ("None",)),
    ],
)
def test_a_parameter_that_cannot_be_read_names_kernel_and_text(text: Any, words: tuple[str, ...]) -> None:
    refusal(lambda: kernel("add", text), "sub-kernel 'add'", *words)


@pytest.mark.parametrize("block_dim", [0, -1, 65536, 1.0, True, "2", None])
def test_a_block_count_out_of_range(block_dim: Any) -> None:
    refusal(lambda: kernel("add", "in:x", block_dim=block_dim), "'add'", repr(block_dim), "1 to 65535")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"core": "vektor"}, ("core kind 'vektor'", "did you mean 'vector'?")),
        ({"flags": "-O2"}, ("flags", "list", "'-O2'")),
        ({"flags": [3]}, ("flags", "[3]")),
        ({"flags": None}, ("flags", "None")),
        ({"early_start": ["y"]}, ("early_start", "'y'", "no parameter")),
        ({"early_start": 3}, ("early_start", "3")),
        ({"sync_all": "yes"}, ("sync_all", "'yes'")),
        ({"op_type": 3}, ("op_type", "3")),
        ({"op_type": " "}, ("op_type",)),
        ({"variants": {"a": "b"}}, ("variants", "'a'")),
        ({"variants": {1: "add", "a": "b"}}, ("variants", "'a'")),
        ({"variants": {1: None}}, ("variants", "None")),
        ({"variants": {True: "add"}}, ("variants", "True")),
        ({"variants": [1]}, ("variants", "[1]")),
        ({"variants": {2**63: "add"}}, ("tiling key", "does not fit int64")),
    ],
)
def test_a_wrong_fact_about_a_kernel(more: dict[str, Any], words: tuple[str, ...]) -> None:
    refusal(lambda: kernel("add", "in:x", **more), "sub-kernel 'add'", *words)


def test_two_parameters_of_one_name() -> None:
    refusal(lambda: kernel("add", "in:x", "out:x"), "'add'", "two parameters", "'x'")


def test_a_block_promise_that_does_not_divide() -> None:
    refusal(lambda: kernel("add", "in:x:float32[7]@block", block_dim=2), "'add'", "7 elements", "2 equal parts")


def test_params_are_a_list() -> None:
    for params in ("in:x", None, 3):
        refusal(lambda params=params: sk.SubKernel.from_source(KERNELS, "add", block_dim=1, params=params), "list")


@pytest.mark.parametrize("name", ["", " ", 3, None, "a\0b", "a\nb", "a\ud800"], ids=ascii)
def test_a_name_is_a_line_of_text(name: Any) -> None:
    refusal(lambda: kernel(name, "in:x"), "name")
    refusal(lambda: build_graph([Op(ADD, ARGS)], name), "the super kernel's name", repr(name))
    if name is not None:
        refusal(lambda: Op(ADD, ARGS, name=name), "'add'", "name")
    refusal(lambda: Op(ADD, ["a", name, "c"]), "'add'", "'y'")


# --- ops


@pytest.mark.parametrize("args", [[], ["a"], ["a", "b"], ["a", "b", "c", "d"]])
def test_the_number_of_arguments(args: list[str]) -> None:
    refusal(lambda: Op(ADD, args), "op 'add'", f"{len(args)} arguments for 3 parameters", "in:x, in:y, out:z")


@pytest.mark.parametrize("args", ["abc", {"a", "b", "c"}, None, 3, iter("abc")])
def test_arguments_are_a_list_of_names(args: Any) -> None:
    refusal(lambda: Op(ADD, args), "op 'add'", "list of names")


@pytest.mark.parametrize("offset", [-1, 1.0, True, None, "8", 2**60], ids=ascii)
def test_an_offset_is_a_whole_number_of_bytes_from_0(offset: Any) -> None:
    refusal(lambda: Op(ADD, ["a", Place("b", offset), "c"]), "op 'add'", "'y'", "offset in 'b'", repr(offset))


@pytest.mark.parametrize("offset", [0, 8])
def test_a_scalar_has_no_place(offset: int) -> None:
    scaled = kernel("store_float64", "scalar:value:float64", "out:out:int64[1]")
    refusal(lambda: Op(scaled, [Place("v", offset), "out"]), "op 'store_float64'", "'value'", "scalar")


@pytest.mark.parametrize("name", ["", 3, "a\nb"], ids=ascii)
def test_a_place_has_a_name(name: Any) -> None:
    refusal(lambda: Op(ADD, ["a", Place(name, 8), "c"]), "op 'add'", "'y'")


@pytest.mark.parametrize("libraries", ["m", [3], 3, ["-lm"], [""], ["a\nb"]], ids=ascii)
def test_libraries_are_files_or_names(libraries: Any) -> None:
    refusal(lambda: kernel("add", "in:x", libraries=libraries), "sub-kernel 'add'", "librar")


@pytest.mark.parametrize("arg", [1, 1.5, None, np.ones(12), ["b"]])
def test_memory_is_given_by_name(arg: Any) -> None:
    refusal(lambda: Op(ADD, ["a", arg, "c"]), "op 'add'", "'y' (in)", "must be a name")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stream": -1}, ("stream", "-1")),
        ({"stream": 1.0}, ("stream", "1.0")),
        ({"task": "dynamc"}, ("task 'dynamc'", "did you mean 'dynamic'?")),
        ({"task": None}, ("task None",)),
        ({"tiling": lambda inputs: (0, 1)}, ("tiling function", "task='dynamic'")),
        ({"tiling": 3, "task": "dynamic"}, ("tiling", "3")),
        ({"send": [1, 1]}, ("send", "twice")),
        ({"send": None}, ("send", "None")),
        ({"recv": 1.5}, ("recv", "1.5")),
        ({"recv": [[1]]}, ("recv", "[1]")),
        ({"recv": True}, ("recv", "True")),
        ({"send": ""}, ("send",)),
        ({"send": sk.Event("a\nb")}, ("send",)),
    ],
)
def test_a_wrong_fact_about_an_op(more: dict[str, Any], words: tuple[str, ...]) -> None:
    refusal(lambda: Op(ADD, ARGS, **more), "op 'add'", *words)


def test_variants_need_a_dynamic_op() -> None:
    refusal(lambda: Op(kernel("add", "in:x", variants={1: "add"}), ["a"]), "op 'add'", "variants", "task='dynamic'")


def test_an_op_uses_a_sub_kernel() -> None:
    refusal(lambda: Op("add", ARGS), "SubKernel", "'add'")  # type: ignore[arg-type]


# --- lists of ops


def graph_refusal(*words: str, ops: Any) -> None:
    """Also through `compile`, with nothing built."""
    refusal(lambda: build_graph(ops, "wrong"), "super_kernel_scope 'wrong'", *words)
    refusal(lambda: sk.compile(ops, name="wrong"), "super_kernel_scope 'wrong'", *words)


def test_an_empty_list() -> None:
    graph_refusal("the list of ops is empty", ops=[])


@pytest.mark.parametrize("ops", [None, Op(ADD, ARGS), [ADD], "abc", [Op(ADD, ARGS), None], {"add": Op(ADD, ARGS)}])
def test_something_else_than_a_list_of_ops(ops: Any) -> None:
    graph_refusal("Op", ops=ops)


def test_two_ops_of_one_name() -> None:
    graph_refusal("'again'", ops=[Op(ADD, ARGS, name="again"), Op(ADD, ARGS, name="again")])


def test_one_name_of_two_dtypes() -> None:
    double = kernel("touch", "in:x:float64[12]", "out:y")
    graph_refusal("op 'touch'", "'x'", "float64 for 'c'", "float32", ops=[Op(ADD, ARGS), Op(double, ["c", "d"])])


def test_one_name_of_two_sizes() -> None:
    longer = kernel("touch", "in:x:float32[13]", "out:y")
    graph_refusal("op 'touch'", "'x'", "13", "'c'", "12", ops=[Op(ADD, ARGS), Op(longer, ["c", "d"])])


def test_one_op_that_says_two_things_of_one_name() -> None:
    both = kernel("touch", "in:x:float32[12]", "inout:y:float64[12]")
    graph_refusal("op 'touch'", "'y'", "float64 for 'c'", ops=[Op(both, ["c", "c"])])


def test_equal_sizes_of_different_shapes_are_one_memory() -> None:
    square = kernel("touch", "in:x:float32[3,4]", "out:y")
    assert build_graph([Op(ADD, ARGS), Op(square, ["c", "d"])]).buffers["c"].shape == (12,)


def test_a_name_that_is_memory_and_scalar() -> None:
    number = kernel("store_int64", "scalar:value", "out:out")
    graph_refusal("op 'store_int64'", "'c'", "scalar", ops=[Op(ADD, ARGS), Op(number, ["c", "d"])])


def test_a_scalar_name_of_two_dtypes() -> None:
    whole, real = (kernel(f"store_{dtype}", f"scalar:value:{dtype}", "out:out") for dtype in ("int32", "float32"))
    graph_refusal("'n'", "int32", "float32", ops=[Op(whole, ["n", "a"]), Op(real, ["n", "b"])])


def test_two_event_ids_that_print_alike() -> None:
    graph_refusal("'1'", ops=[Op(ADD, ARGS, send=[1, "1"])])


@pytest.mark.parametrize(
    ("dtype", "value", "words"),
    [
        ("int8", 128, "128 does not fit int8"),
        ("int8", -129, "-129 does not fit int8"),
        ("uint8", -1, "-1 does not fit uint8"),
        ("uint64", 2**64, "does not fit uint64"),
        pytest.param("int64", 10**5000, "too long to show does not fit int64", id="huge"),
        ("int32", 1.0, "1.0 is no int32"),
        ("bool", 2, "2 is no bool"),
        ("float32", 1e39, "1e+39 does not fit float32"),
        pytest.param("float64", 10**400, "does not fit float64", id="large"),
        ("float64", 1j, "1j"),
        ("float64", None, "None"),
    ],
)
def test_a_literal_that_does_not_fit_its_scalar(dtype: str, value: Any, words: str) -> None:
    number = kernel(f"store_{dtype}", f"scalar:value:{dtype}", "out:out")
    refusal(lambda: Op(number, [value, "out"]), f"op 'store_{dtype}'", "'value'", words)


def test_a_slot_that_is_not_in_the_layout_names_the_nearest() -> None:
    with sk.compile([Op(MARK, ["ran"])], name="marked") as k:
        refusal(lambda: k.layout["mark_ram"], "'mark_ram'", "did you mean 'mark_ran'?")


def test_no_message_shows_the_inside_of_a_python_object() -> None:
    message = refusal(lambda: build_graph([TOUCH], "wrong"))  # type: ignore[list-item]
    assert not re.search(r"PosixPath|<.* at 0x", message) and VECTOR not in message
