"""How a sub-kernel is called and which protocol it speaks, as its own text says."""

from __future__ import annotations

from pathlib import Path

import pytest
from targets.ascend.conftest import completed

import superkernel as sk
from superkernel.model.params import Param
from superkernel.targets.ascend import as_type
from superkernel.targets.ascend.calling_convention import (
    CallingConvention,
    SyncProtocol,
    convention_of_text,
    protocol_of_text,
)
from superkernel.targets.ascend.facts import facts_from_json, facts_of, facts_to_json

THREE = tuple(map(Param.parse, ("in:x", "in:y", "out:z")))
INDEX, POINTERS = CallingConvention.SLOT_INDEX, CallingConvention.POINTERS


@pytest.mark.parametrize(
    ("declared", "convention"),
    [
        ("(uint64_t first_slot) {", INDEX),
        ("(uint64_t) {", INDEX),
        ("(const std::uint64_t slots);", INDEX),
        ("(GM_ADDR x, GM_ADDR y, GM_ADDR z) {", POINTERS),
        ("(GM_ADDR x,\n     GM_ADDR y,  // the second\n     GM_ADDR z)\n{", POINTERS),
        ("(__gm__ float* x, const __gm__ half *y, __gm__ uint8_t* z);", POINTERS),
    ],
)
def test_the_declaration_says_how_a_function_is_called(declared: str, convention: CallingConvention) -> None:
    text = f'void other(GM_ADDR only) {{}}\nextern "C" __global__ __aicore__ void f{declared} }}'
    assert convention_of_text(text, ["f"], THREE, "") is convention


def test_a_function_that_the_text_does_not_show_takes_an_index() -> None:
    assert convention_of_text("MAKE_KERNEL(f)", ["f"], THREE, "") is INDEX
    assert convention_of_text("// void f(GM_ADDR x);\nMAKE_KERNEL(f)", ["f"], THREE, "") is INDEX


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("(GM_ADDR x, GM_ADDR y)", r"2 pointers for 3 parameters \(in:x, in:y, out:z\)"),
        ("()", "0 pointers for 3 parameters"),
        ("(void)", "0 pointers for 3 parameters"),
        ("(GM_ADDR x, GM_ADDR y, uint32_t n)", "'uint32_t n' is no address in global memory"),
        ("(float* x, float* y, float* z)", "'float. x' is no address"),
        ("(uint64_t a, uint64_t b, uint64_t c)", "'uint64_t a' is no address"),
        ("(int32_t first_slot)", "one uint64_t, the index of its first slot, or a GM_ADDR for each"),
    ],
)
def test_a_declaration_that_the_parameters_do_not_fit(declared: str, words: str) -> None:
    with pytest.raises(sk.GraphError, match=words):
        convention_of_text(f"void f{declared} {{ }}", ["f"], THREE, "sub-kernel 'f': ")


@pytest.mark.parametrize(
    "text",
    [
        'extern "C" void f(const float* x, const float* y, float* z) { }',
        'extern "C" void f(const float* __restrict__ x, const float* y, float* z) noexcept { }',
        'extern "C" void f(const float* x, const float* y, float* z) __attribute__((noinline));',
        "#include <superkernel/kernel.h>\ntemplate <class T> void add(const T* x); KERNEL(f, add)",
    ],
)
def test_a_kernel_for_the_cpu_target_is_refused(text: str) -> None:
    with pytest.raises(sk.GraphError, match=r"a kernel for the cpu target.*a sub-kernel takes one uint64_t"):
        convention_of_text(text, ["f"], THREE, "sub-kernel 'f': ")


def test_a_plain_kernel_takes_no_scalar() -> None:
    params = (*THREE[:2], Param.parse("scalar:n:int32"))
    with pytest.raises(sk.GraphError, match="'n' is a scalar"):
        convention_of_text("void f(GM_ADDR x, GM_ADDR y, GM_ADDR n) { }", ["f"], params, "")


def test_the_functions_of_one_sub_kernel_are_called_alike() -> None:
    text = "void few(uint64_t slots) {}\nvoid many(GM_ADDR x, GM_ADDR y, GM_ADDR z) {}"
    with pytest.raises(sk.GraphError, match="'few' takes a slot index, but 'many' takes pointers"):
        convention_of_text(text, ["few", "many"], THREE, "")


@pytest.mark.parametrize(
    ("text", "protocol"),
    [
        ("#include <superkernel/subkernel.h>\n", SyncProtocol.SUBKERNEL_H),
        ('#include "kernel_operator.h"\n  # include "superkernel/host_kernel.h"\n', SyncProtocol.SUBKERNEL_H),
        ('#include "kernel_operator.h"\n', SyncProtocol.CANN),
        ("// #include <superkernel/subkernel.h>\n", SyncProtocol.CANN),
    ],
)
def test_the_header_says_which_protocol_a_source_speaks(text: str, protocol: SyncProtocol) -> None:
    assert protocol_of_text(text) is protocol


def test_both_are_facts_that_a_saved_kernel_keeps(tmp_path: Path) -> None:
    (tmp_path / "add.cpp").write_text("void add(GM_ADDR x, GM_ADDR y, GM_ADDR z) {}")
    kernel = completed(sk.SubKernel.from_source(tmp_path / "add.cpp", "add", block_dim=2, params=list(map(str, THREE))))
    facts = facts_of(kernel)
    assert (facts.convention, facts.protocol) == (POINTERS, SyncProtocol.CANN)
    assert facts_from_json(facts_to_json(kernel)) == facts


def test_an_object_without_metadata_is_called_as_asked(tmp_path: Path, binaries: Path) -> None:
    kernel = sk.SubKernel.from_object(binaries / "vec.o", "vec_func", block_dim=2, params=["in:x", "out:y"])
    assert facts_of(completed(kernel)).convention is INDEX
    asked = completed(as_type(kernel, "KERNEL_TYPE_AIV_ONLY", call="pointers"))
    assert facts_of(asked).convention is POINTERS
    with sk.compile([sk.Op(asked, ["a", "b"])], options="split-mode=1", target="ascend") as k:
        assert "void vec_func(uint64_t" not in k.source


def test_how_an_object_cannot_be_called(tmp_path: Path, binaries: Path) -> None:
    kernel = sk.SubKernel.from_object(binaries / "vec.o", "vec_func", block_dim=2, params=["in:x", "scalar:n:int32"])
    for call, words in (("pointer", "did you mean 'pointers'"), (3, "call is 3"), ("pointers", "'n' is a scalar")):
        with pytest.raises(sk.GraphError, match=words):
            as_type(kernel, "KERNEL_TYPE_AIV_ONLY", call=call)  # type: ignore[arg-type]
    source = sk.SubKernel.from_source(binaries / "vec.cpp", "vec_func", block_dim=2, params=["in:x"])
    with pytest.raises(sk.GraphError, match="a source says by its declaration"):
        as_type(source, "KERNEL_TYPE_AIV_ONLY", call="pointers")
