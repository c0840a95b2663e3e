"""Outlining: which parts an Inductor kernel is cut into, and which kernels are refused; nothing is compiled."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from superkernel.frontend.lowering.cpp_kernels import kernel_source
from superkernel.frontend.lowering.cpp_outline import BYTES_PER_PARTIAL_RESULT, ELEMENTS_PER_SYNC, MAX_ROWS, outline
from superkernel.frontend.lowering.cpp_parser import OutlineError

THREADS = 2


def kernel(body: str, parameters: str = "const float* in_ptr0, float* out_ptr0") -> str:
    """The text of a kernel as Inductor writes it."""
    return (
        f'#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C"  void  kernel({parameters})\n{{\n'
        "    std::atomic<int> inductor_cpu_integer_div_error{0};\n"
        "    inductor_cpu_integer_div_error_flag = &inductor_cpu_integer_div_error;\n"
        f"{indent(dedent(body), '    ')}\n"
        "    inductor_cpu_integer_div_error_flag = nullptr;\n"
        "    inductor_cpu_throw_if_integer_div_error(inductor_cpu_integer_div_error);\n}\n"
    )


def loop(variable: str, last: str, body: str) -> str:
    head = f"for(int64_t {variable}=static_cast<int64_t>(0L); {variable}<{last}; {variable}+=static_cast<int64_t>(1L))"
    return f"{head}\n{{\n{indent(dedent(body), '    ')}\n}}"


def number(value: int) -> str:
    return f"static_cast<int64_t>({value}L)"


def region(body: str) -> str:
    """A parallel region whose threads share what `body` says."""
    inner = f"int tid = omp_get_thread_num();\n{dedent(body)}"
    return f"#pragma omp parallel num_threads({THREADS})\n{{\n{indent(inner, '    ')}\n}}"


SHARED = region("{\n#pragma omp for\n" + loop("x0", number(100), "out_ptr0[x0] = in_ptr0[x0] * 2;") + "\n}")


def reduction(inner: str = "100", into: str = "out_ptr0[0]") -> str:
    """A sum with one partial result per thread."""
    work = loop("x1", number(int(inner)), "tmp_acc0_local = tmp_acc0_local + in_ptr0[x1];")
    shared = f"float tmp_acc0_local = 0;\n#pragma omp for\n{work}\ntmp_acc0_arr[tid] = tmp_acc0_local;"
    return (
        "{\n"
        "    float tmp_acc0 = 0;\n"
        f"    float tmp_acc0_arr[{THREADS}];\n"
        f"    for (int i = 0; i < {THREADS}; i++)\n    {{\n        tmp_acc0_arr[i] = 0;\n    }}\n"
        f"{indent(region(shared), '    ')}\n"
        f"    for (int tid = 0; tid < {THREADS}; tid++)\n"
        "    {\n        tmp_acc0 = tmp_acc0 + tmp_acc0_arr[tid];\n    }\n"
        f"    {into} = static_cast<float>(tmp_acc0);\n"
        "}"
    )


def in_loops(inner: str, *counts: str) -> str:
    text = inner
    for at, count in reversed(list(enumerate(counts))):
        text = "#pragma GCC ivdep\n" + loop(f"y{at}", count, "{\n" + text + "\n}")
    return "{\n" + text + "\n}"


def blocks(body: str, parameters: str = "const float* in_ptr0, float* out_ptr0") -> list[int]:
    return [part.blocks for part in outline(kernel(body, parameters), THREADS).parts]


def test_code_without_a_region_is_one_serial_part() -> None:
    serial = "{\n" + loop("x0", number(100), "out_ptr0[x0] = in_ptr0[x0];") + "\n}"
    assert blocks(serial) == [1]
    assert blocks(serial + "\n" + serial) == [1]


def test_short_loops_that_wait_for_each_other_are_serial() -> None:
    def region(count: int) -> str:
        shared = "{\n#pragma omp for\n" + loop("x0", number(count), "out_ptr0[x0] = in_ptr0[x0];") + "\n}\n"
        return f"#pragma omp parallel num_threads({THREADS})\n{{\nint tid = omp_get_thread_num();\n{shared * 3}}}"

    assert blocks(region(100)) == [1]
    assert blocks(region(ELEMENTS_PER_SYNC * THREADS)) == [THREADS] * 3
    (part,) = outline(kernel(region(100)), THREADS).parts
    assert "omp" not in part.body and part.body.count("for") == 3


def test_a_shared_loop_is_a_part_of_as_many_blocks_as_threads() -> None:
    (part,) = outline(kernel(SHARED), THREADS).parts
    assert part.blocks == THREADS
    assert "sk::block_share(" in part.body and "omp" not in part.body


def test_a_full_reduction_is_a_shared_loop_and_a_joining_part() -> None:
    share, joining = outline(kernel(reduction()), THREADS).parts
    assert (share.blocks, joining.blocks) == (THREADS, 1)
    assert share.workspace == joining.workspace == "results1"
    assert share.workspace_bytes == joining.workspace_bytes == THREADS * BYTES_PER_PARTIAL_RESULT
    assert [p.name for p in share.parameters] == ["in_ptr0"]
    assert [p.name for p in joining.parameters] == ["out_ptr0"]


def test_a_reduction_inside_loops_keeps_the_results_of_every_iteration() -> None:
    body = in_loops(reduction(into="out_ptr0[y0 * 3 + y1]"), number(2), number(3))
    share, joining = outline(kernel(body), THREADS).parts
    assert (share.blocks, joining.blocks) == (THREADS, 1)
    assert share.workspace_bytes == 2 * 3 * THREADS * BYTES_PER_PARTIAL_RESULT
    for part in (share, joining):
        assert part.body.count("for (int64_t y") == 2
        assert f"results + row++ * {THREADS * BYTES_PER_PARTIAL_RESULT}" in part.body


def test_a_reduction_inside_a_loop_beside_other_kernels() -> None:
    assert blocks(in_loops(reduction(), number(4)) + "\n" + SHARED) == [THREADS, 1, THREADS]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (in_loops(reduction(), number(MAX_ROWS + 1)), f"{MAX_ROWS + 1} iterations"),
        (in_loops(reduction(), "ks0"), "a loop up to ks0"),
        (in_loops(reduction() + "\n" + reduction(), number(2)), "beside other code"),
        (in_loops("float held = in_ptr0[y0];\n" + reduction(), number(2)), "beside other code"),
        (region("{\n" + loop("x0", number(9), "out_ptr0[x0] = 1;") + "\n}"), "every thread runs"),
        (SHARED.replace("num_threads(2)", "num_threads(4)"), "for 2 threads"),
        (reduction().replace("_arr[2]", "_arr[4]"), "another number of threads"),
        (reduction().replace("tmp_acc0_arr[tid] = tmp_acc0_local;", ""), "not assigned once per thread"),
    ],
)
def test_what_cannot_be_cut_is_refused(body: str, reason: str) -> None:
    with pytest.raises(OutlineError, match=reason):
        outline(kernel(body), THREADS)


@pytest.mark.parametrize("add", ["atomic_add(&out_ptr0[x0], {v});", "atomic_add_vec<float, 2, 1>(out_ptr0, x0, {v});"])
def test_threads_must_not_add_rounded_numbers_in_any_order(add: str) -> None:
    body = SHARED.replace("out_ptr0[x0] = in_ptr0[x0] * 2;", add.format(v="in_ptr0[x0]"))
    with pytest.raises(OutlineError, match="threads add to out_ptr0 in any order"):
        outline(kernel(body), THREADS)
    assert blocks(body, "const int64_t* in_ptr0, int64_t* out_ptr0") == [THREADS]


def test_division_by_zero_is_thrown_where_it_happens() -> None:
    (part,) = outline(kernel(SHARED), THREADS).parts
    assert "inductor_cpu" not in part.body


def test_a_failed_check_names_the_kernel_and_no_file_of_the_build() -> None:
    source = kernel_source("cpp_fused_mul_0", outline(kernel(SHARED), THREADS))
    assert source.functions.startswith('#line 1 "fused_mul_0"\n')


def test_pointers_are_restricted_on_request() -> None:
    plain, restricted = (kernel_source("cpp_mul_0", outline(kernel(SHARED), THREADS), word) for word in (False, True))
    assert "__restrict__" not in plain.functions and plain.symbols != restricted.symbols
    assert restricted.functions.count("* __restrict__ ") == 2
