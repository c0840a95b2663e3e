"""Emitted sources are parsed as device code: what the declarations allow passes, every kind of mistake is found."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from targets.ascend import source_mistakes
from targets.ascend.conformance.cases import random_case
from targets.ascend.declared import enums, functions, macros, parsed
from targets.ascend.random_emissions import random_emissions
from targets.ascend.random_lists import kernel
from targets.ascend.test_emit_golden import (
    AIV,
    PARAMS,
    SCENARIOS,
    dump_and_feed,
    dynamic,
    four_adds,
    planned,
    split_copies,
)

from superkernel.errors import BuildError
from superkernel.model.op import Op
from superkernel.targets import ascend
from superkernel.targets.ascend import source_check
from superkernel.targets.ascend.core_types import CUBE, VECTOR, CoreClass
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.plan import AscendPlan
from superkernel.targets.ascend.source_check import Severity, check_emitted, emitted_findings, findings
from superkernel.targets.native.c_names import is_c_identifier

INCLUDE = Path(ascend.__file__).parent / "include"
SAMPLE = """\
#include <cstdint>
#include "kernel_operator.h"

constexpr uint64_t arrive = 1 | 0 << 4 | 14 << 8;

static inline __aicore__ uint64_t load(__gm__ uint64_t* word) { return *(volatile __gm__ uint64_t*)word; }
static inline __aicore__ void clean(__gm__ uint64_t* word) {
    dcci((__gm__ void*)word, cache_line_t::SINGLE_CACHE_LINE, dcci_dst_t::CACHELINE_OUT);
}

extern "C" __aicore__ void add(uint64_t first_slot);
extern "C" __aicore__ void plain(GM_ADDR x, GM_ADDR y);

extern "C" __global__ __aicore__ __attribute__((aligned(512))) void auto_gen_sample_kernel() {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    __gm__ uint64_t* const slots = (__gm__ uint64_t*)get_para_base();
    set_ffts_base_addr(load(slots + 0));
    const uint64_t block = get_block_idx() * get_subblockdim() + get_subblockid();
    preload((const void*)add, 7);
    if (block < 8) add(1);
    plain((GM_ADDR)load(slots + 1), (GM_ADDR)load(slots + 2));
    pipe_barrier(PIPE_ALL);
    ffts_cross_core_sync(PIPE_MTE3, arrive);
    wait_flag_dev(14);
    clean((__gm__ uint64_t*)load(slots + 3));
    if (get_coreid() < 0 || get_sys_cnt() < 0 || get_block_num() < 0) trap();
}
"""
# kind of mistake -> what stands in the sample, what is written instead, what the message says
MISTAKES = {
    "a return value of another type": ("(__gm__ uint64_t*)get_para_base()", "get_para_base()", "'int64_t'"),
    "an integer as a pointer": ("(GM_ADDR)load(slots + 2)", "load(slots + 2)", "no matching function"),
    "an unknown builtin": ("wait_flag_dev(14)", "wait_flag(14)", "undeclared identifier 'wait_flag'"),
    "an unknown type": ("const uint64_t block", "const ulong_t block", "unknown type name 'ulong_t'"),
    "an unknown value of an enum": ("PIPE_MTE3", "PIPE_MTE9", "undeclared identifier 'PIPE_MTE9'"),
    "an integer as an enum": ("PIPE_MTE3", "5", "no matching function"),
    "the enum of another parameter": ("dcci_dst_t::CACHELINE_OUT", "ENTIRE_DATA_CACHE", "no matching function"),
    "an unknown kernel type": ("MIX_AIC_1_2", "MIX_AIC_2_1", "undeclared identifier 'KERNEL_TYPE_MIX_AIC_2_1'"),
    "too few arguments": ("PIPE_MTE3, arrive", "PIPE_MTE3", "no matching function"),
    "too many arguments": ("trap();", "trap(1);", "no matching function"),
    "an address space lost without a cast": ("__gm__ uint64_t* const", "uint64_t* const", "cannot initialize"),
    "an address space lost in a cast": ("*(volatile __gm__ uint64_t*)word", "*(volatile uint64_t*)word", "changes"),
    "an address space lost in a parameter": ("clean(__gm__ uint64_t* word)", "clean(uint64_t* word)", "changes"),
    "an address space lost from an integer": ("(GM_ADDR)load(slots + 1)", "(uint8_t*)load(slots + 1)", "no matching"),
    "a dereferenced address": ("load(slots + 0)", "*(uint64_t*)load(slots + 0)", "which has no address space"),
    "another address space": ("(GM_ADDR)load(slots + 1)", "(__ubuf__ uint8_t*)load(slots + 1)", "no matching"),
    "a function as an address": ("(__gm__ uint64_t*)get_para_base()", "(__gm__ uint64_t*)get_para_base", "changes"),
    "a missing declaration": (
        'extern "C" __aicore__ void add(uint64_t first_slot);',
        "",
        "undeclared identifier 'add'",
    ),
    "a call with the wrong type": ("add(1)", "add(slots)", "no matching function"),
    "a missing include": ('#include "kernel_operator.h"', "", "unknown type name '__aicore__'"),
    "a function of the host": ("static inline __aicore__ void clean", "static inline void clean", "no __aicore__"),
    "a call of a kernel": (
        'extern "C" __aicore__ void add',
        'extern "C" __global__ __aicore__ void add',
        "only the host",
    ),
    "a missing semicolon": ("wait_flag_dev(14);", "wait_flag_dev(14)", "expected ';'"),
    "an unused constant": (
        "constexpr uint64_t arrive",
        "constexpr int other = 0;\nconstexpr uint64_t arrive",
        "unused",
    ),
    # operands outside the documented range
    "a set on PIPE_S": ("PIPE_MTE3", "PIPE_S", "not allowed as the pipe"),
    "a set on PIPE_ALL": ("PIPE_MTE3", "PIPE_ALL", "not allowed as the pipe"),
    "a mode that there is not": ("0 << 4", "3 << 4", "the mode of a cross-core set"),
    "a set of flag 16": ("14 << 8", "16 << 8", "flag from 0 to 15"),
    "a set without its lowest bit": ("arrive = 1 |", "arrive = 0 |", "config is"),
    "a wait for flag 16": ("wait_flag_dev(14)", "wait_flag_dev(16)", "from 0 to 15"),
    "a barrier of PIPE_S": ("pipe_barrier(PIPE_ALL)", "pipe_barrier(PIPE_S)", "hardware error"),
    "cache maintenance of another memory": ("CACHELINE_OUT", "CACHELINE_UB", "global memory"),
    "a preload of nothing": ("add, 7", "add, 0", "at least one line"),
    "a preload of the whole cache": ("add, 7", "add, 16", "less than the instruction cache"),
}
both_classes = pytest.mark.parametrize("core_class", [CUBE, VECTOR], ids=lambda core_class: core_class.value)


@both_classes
def test_a_source_that_is_right_has_no_findings(core_class: CoreClass) -> None:
    assert findings(SAMPLE, core_class) == ()


@both_classes
@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_found(kind: str, core_class: CoreClass) -> None:
    right, wrong, message = MISTAKES[kind]
    assert SAMPLE.count(right) >= 1, right
    before, _, after = SAMPLE.partition(right)
    found = findings(before + wrong + after, core_class)
    assert any(message in finding.message for finding in found), found


def test_a_finding_names_file_line_and_class() -> None:
    [found] = findings(SAMPLE.replace("wait_flag_dev(14)", "wait_flag(14)"), CUBE, name="sample_kernel.cpp")
    line = SAMPLE.splitlines().index("    wait_flag_dev(14);") + 1
    assert str(found).startswith(f"sample_kernel.cpp:{line}: error: use of undeclared identifier 'wait_flag'")
    assert str(found).endswith("(cube cores)")


def test_vector_cores_preload_less_than_eight_lines() -> None:
    source = SAMPLE.replace("add, 7", "add, 8")
    assert findings(source, CUBE) == ()
    assert "less than the instruction cache" in findings(source, VECTOR)[0].message


GUARDED = """\
#include "kernel_operator.h"
#ifdef __DAV_CUBE__
constexpr bool on_cube = true;
#else
constexpr bool on_cube = false;
#endif
extern "C" __aicore__ void add(uint64_t first_slot);
static inline __aicore__ void preload_add() { preload((const void*)add, 8); }
extern "C" __global__ __aicore__ void entry() {
    if constexpr (on_cube) {
        preload_add();
        preload((const void*)add, 8);
    } else {
        preload((const void*)add, 7);
    }
}
"""


@both_classes
def test_a_limit_of_one_class_does_not_hold_for_code_of_the_other(core_class: CoreClass) -> None:
    assert [finding for finding in findings(GUARDED, core_class) if not finding.unused] == []


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("add, 7", "add, 8", 14),
        ("if constexpr (on_cube)", "if (get_block_idx())", 12),
        ("} else {", "}\n    preload_add();\n    {", 8),
    ],
    ids=["a branch that is taken", "a condition that is no constant", "a function that is called"],
)
def test_a_limit_of_one_class_holds_for_what_it_reaches(right: str, wrong: str, line: int) -> None:
    assert line in [finding.line for finding in findings(GUARDED.replace(right, wrong), VECTOR)]


def test_a_kernel_type_has_cores_of_the_class() -> None:
    source = SAMPLE.replace("KERNEL_TYPE_MIX_AIC_1_2", "KERNEL_TYPE_MIX_AIV_1_0")
    assert findings(source, VECTOR) == ()
    assert "no core of the class" in findings(source, CUBE)[0].message


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_golden_sources_parse(scenario: Callable[[], AscendPlan]) -> None:
    assert emitted_findings(emit(scenario())) == ()


@cache
def golden_emissions() -> list[EmittedKernel]:
    return [emit(scenario()) for scenario in SCENARIOS]


def test_random_lists_parse() -> None:
    for emitted in random_emissions(0, 6):
        assert emitted_findings(emitted) == (), emitted.name


def test_random_cases_parse() -> None:
    for seed in range(6):
        _, emitted, _ = random_case(seed)
        assert emitted_findings(emitted) == (), emitted.name


def test_a_sub_kernel_may_have_any_name() -> None:
    """That of a builtin, or of a variable of the entry: it is linked under another."""
    declared = parsed(source_check.DECLARATIONS, "-D__DAV_CUBE__")
    names = {*functions(declared), *macros(declared), "uint64_t", "std", "AscendC"}
    names = names.union(*([name, *values] for name, values in enums(declared).items()))
    words = "\n".join(emit(scenario()).source for scenario in (dynamic, dump_and_feed, split_copies))
    names |= set(re.findall(r"\b[a-z]\w*\b", re.sub("//.*|#.*", "", words)))
    chosen = [name for name in sorted(names) if is_c_identifier(name)]
    ops = [Op(kernel(name, AIV, 8, *PARAMS), ["x", "y", f"z{i}"], f"op{i}") for i, name in enumerate(chosen)]
    assert emitted_findings(emit(planned("named", ops, "split-mode=1:profiling=1"))) == ()
    tiled = [kernel(f"k{i}", AIV, 8, *PARAMS, variants={1: name, 7: f"k{i}"}) for i, name in enumerate(chosen)]
    ops = [Op(one, ["x", "y", f"z{i}"], f"op{i}", task="dynamic") for i, one in enumerate(tiled)]
    assert emitted_findings(emit(planned("named", ops, "split-mode=2:preload-code=none"))) == ()


@pytest.mark.parametrize("kind", source_mistakes.KINDS)
def test_a_word_left_out_of_emitted_code_is_found(kind: str) -> None:
    mistakes = source_mistakes.planted(kind, golden_emissions())
    for mistake in random.Random(1).sample(mistakes, 2):
        source_mistakes.check(mistake)


@both_classes
def test_the_device_branch_of_subkernel_h_parses(core_class: CoreClass) -> None:
    """Its text stands in the source: what a header contains is not looked at."""
    header = (INCLUDE / "superkernel" / "subkernel.h").read_text().replace("#pragma once", "")
    calls = "sk_wait_previous(); sk_sync_all(); sk_sync_all<true>(); sk_set_next();"
    kernel = f'extern "C" __aicore__ void early(uint64_t first_slot) {{ (void)first_slot; {calls} }}'
    define = {CUBE: ("-DSK_ON_CUBE",), VECTOR: ()}[core_class]
    assert findings("\n".join(['#include "kernel_operator.h"', header, kernel]), core_class, define) == ()


@both_classes
def test_as_function_h_makes_a_kernel_callable(core_class: CoreClass) -> None:
    kernels = """\
extern "C" __global__ __aicore__ void add(GM_ADDR x) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    (void)x;
}
extern "C" __aicore__ void caller(GM_ADDR x) { add(x); }
"""
    before = ("-include", str(INCLUDE / "superkernel" / "as_function.h"))
    assert findings(kernels, core_class, before) == ()
    assert any(
        "only the host" in found.message for found in findings('#include "kernel_operator.h"\n' + kernels, core_class)
    )


def test_an_emitted_source_with_an_error_is_refused() -> None:
    emitted = emit(four_adds())
    wrong = replace(emitted, source=emitted.source.replace("wait_flag_dev(", "wait_flag("))
    with pytest.raises(BuildError, match=r"(?s)super_kernel_scope 'add_skp'.*add_skp_kernel\.cpp:\d+: error: use of"):
        check_emitted(wrong)


def test_a_warning_refuses_nothing() -> None:
    emitted = emit(four_adds())
    warned = replace(emitted, source=emitted.source + "\nconstexpr int other = 0;\n")
    assert [finding.severity for finding in emitted_findings(warned)] == [Severity.WARNING]
    assert check_emitted(warned) == "add_skp_kernel.cpp parsed for vector cores without an error"


def test_without_libclang_the_remark_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_check, "libclang_installed", lambda: False)
    assert check_emitted(emit(four_adds())) == (
        "add_skp_kernel.cpp was not parsed: libclang is not installed (pip install libclang)"
    )
