"""targets.cuda.facts: what is found of a kernel in its PTX, and every description or construct that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import superkernel as sk
from superkernel.errors import BuildError, GraphError, SuperKernelError, UnsupportedError
from superkernel.model.graph import build_graph
from superkernel.targets.cuda.facts import Atomics, KernelFacts, complete, facts_from_json, facts_of, facts_to_json
from superkernel.targets.cuda.spin_loops import Spin
from superkernel.targets.cuda.wait_point import WaitKind

HEAD = """.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.global .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.global .align 4 .b8 from_host[8];
.global .align 4 .u32 state = 7;
"""
PARAMS = ".param .u64 .ptr .global .align 1 k0, .param .u64 .ptr .global .align 1 k1, .param .u32 k2"
REGISTERS = ".reg .b32 %r<20>; .reg .b64 %rd<30>; .reg .pred %p<9>; .reg .f32 %f<9>;"
LOADS = "ld.param.u64 %rd0, [k0]; ld.param.u64 %rd1, [k1]; ld.param.u32 %r2, [k2];"
BODY_LINE = 9


class Writer:
    """Writes a PTX file with one entry, and describes it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "k.ptx"

    def kernel(
        self, body: str, ptx_params: str = PARAMS, directives: str = ".reqntid 128", **changes: Any
    ) -> sk.SubKernel:
        """A kernel whose body begins at BODY_LINE."""
        entry = f".visible .entry k({ptx_params}) {directives} {{ {REGISTERS} {LOADS if ptx_params == PARAMS else ''}"
        self.path.write_text(f"{HEAD}{entry}\n{body}\nret;\n}}\n")
        described: dict[str, Any] = {"params": ["in:x", "out:y", "scalar:n:int32"], "grid": (4, 1, 1)}
        return sk.SubKernel.from_ptx(self.path, "k", **(described | changes))

    def facts(self, body: str, **changes: Any) -> KernelFacts:
        return facts_of(complete(self.kernel(body, **changes)))

    def refusal(self, body: str, kind: type[SuperKernelError], **changes: Any) -> str:
        with pytest.raises(SuperKernelError) as refused:
            complete(self.kernel(body, **changes))
        assert type(refused.value) is kind, refused.value
        return str(refused.value)


@pytest.fixture
def ptx(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


COPY = "ld.global.f32 %f1, [%rd0]; st.global.f32 [%rd1], %f1;"


def test_the_facts_of_a_plain_kernel(ptx: Writer) -> None:
    kernel = complete(ptx.kernel(COPY))
    facts = facts_of(kernel)
    assert (facts.symbol, facts.version, facts.target, facts.threads) == ("k", (8, 7), "sm_90a", (128, 1, 1))
    assert (facts.layout.types, facts.layout.sizes, facts.layout.offsets) == (
        ("u64", "u64", "u32"),
        (8, 8, 4),
        (0, 8, 16),
    )
    assert facts.layout.scratch is None and facts.dimensions == 1
    assert (facts.atomics, facts.async_proxy, facts.wait_point, facts.spin) == (Atomics.NONE, False, None, Spin.NONE)
    assert kernel.threads == (128, 1, 1)  # found in the PTX
    assert (kernel.sync_all, kernel.waits_inside, kernel.signals_inside, kernel.may_fail) == (
        False,
        False,
        False,
        False,
    )
    assert str(facts) == "128 threads, 0 bytes of shared memory"
    assert hash(facts) == hash(facts_of(complete(ptx.kernel(COPY))))


def test_the_page_of_a_graph_shows_the_facts_of_every_kernel(ptx: Writer) -> None:
    kernel = complete(
        ptx.kernel("red.global.add.f32 [%rd1], 0f3F800000;", params=["in:x", "inout:y", "scalar:n:int32"])
    )
    graph = build_graph([sk.Op(kernel, ["a", "b", 4])])
    assert "k: 128 threads, 0 bytes of shared memory, float atomics (not bit-reproducible)" in str(graph)


@pytest.mark.parametrize(
    "body",
    [
        COPY,
        "griddepcontrol.wait; st.global.f32 [%rd1], %f1;",
        "again: ld.acquire.gpu.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra again;",
        "atom.global.add.u32 %r1, [%rd1], 1;",
        "mov.u32 %r1, global_smem; st.shared.u32 [%r1], 0; mov.u32 %r2, %ctaid.z;",
    ],
)
def test_facts_survive_json(ptx: Writer, body: str) -> None:
    kernel = complete(ptx.kernel(body, shared=64))
    assert facts_from_json(json.loads(json.dumps(facts_to_json(kernel)))) == facts_of(kernel)


def test_static_and_dynamic_shared_memory(ptx: Writer) -> None:
    body = (
        ".shared .align 4 .b8 first[6]; .shared .align 16 .b8 second[16]; .shared .align 4 .b8 unused[64];"
        "st.shared.u32 [first], 0; st.shared.u32 [second], 0; mov.u32 %r1, global_smem;"
    )
    facts = ptx.facts(body, shared=4096)
    assert (facts.static_shared, facts.dynamic_shared) == (32, 4096)
    assert "4128 bytes of shared memory" in str(facts)


def test_dimensions_and_the_async_proxy(ptx: Writer) -> None:
    assert ptx.facts("mov.u32 %r1, %nctaid.y;").dimensions == 2
    assert ptx.facts("mov.u32 %r1, %ctaid.z;").dimensions == 3
    assert ptx.facts("wgmma.fence.sync.aligned;").async_proxy
    bulk = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 64, [%r3];"
    facts = ptx.facts(bulk)
    assert facts.async_proxy and "uses the async proxy" in str(facts)


def test_atomics_are_named(ptx: Writer) -> None:
    integer = ptx.facts("red.global.add.u32 [%rd1], 1;", params=["in:x", "inout:y", "scalar:n:int32"])
    assert integer.atomics is Atomics.INTEGER and "integer atomics" in str(integer)
    out = ptx.facts("red.global.add.u32 [%rd1], 1;")
    assert "updates y atomically: what it held before the op counts" in str(out)


def test_a_kernel_that_waits_inside(ptx: Writer) -> None:
    kernel = complete(ptx.kernel("ld.global.f32 %f1, [%rd0];\n griddepcontrol.wait;\n st.global.f32 [%rd1], %f1;"))
    facts = facts_of(kernel)
    assert facts.wait_point is not None and facts.wait_point.kind is WaitKind.GRIDDEPCONTROL
    assert (facts.wait_point.line, facts.wait_point.reads_before) == (BODY_LINE + 1, (0,))
    assert kernel.waits_inside and kernel.early_start == ("x",)
    assert "waits inside at line 10, after it has read x" in str(facts)
    plain = complete(ptx.kernel(f"griddepcontrol.launch_dependents; griddepcontrol.wait; {COPY}"))
    assert plain.waits_inside and plain.early_start is True and not plain.signals_inside


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"setp.eq.u32 %p1, %r2, 0; @%p1 bra end; griddepcontrol.wait; {COPY} end:", "is not reached on every path"),
        (f"setp.eq.u32 %p1, %r2, 0; @%p1 griddepcontrol.wait; {COPY}", "is not reached on every path"),
        (f"again: griddepcontrol.wait; {COPY} setp.eq.u32 %p1, %r2, 0; @%p1 bra again;",
         "is not reached on every path"),
        ("st.global.f32 [%rd1], %f1; griddepcontrol.wait;", "line 9 writes before griddepcontrol.wait"),
        ("ld.global.u64 %rd5, [%rd0]; ld.global.f32 %f1, [%rd5]; griddepcontrol.wait; st.global.f32 [%rd1], %f1;",
         "line 9 accesses unknown memory before griddepcontrol.wait"),
    ],
)  # fmt: skip
def test_a_wait_that_cannot_be_used_moves_to_the_beginning(ptx: Writer, body: str, words: str) -> None:
    kernel = complete(ptx.kernel(body))
    assert facts_of(kernel).wait_point is None and not kernel.waits_inside and kernel.early_start is False
    assert words in str(kernel.target_facts)


def test_launch_dependents_means_nothing(ptx: Writer) -> None:
    kernel = complete(ptx.kernel(f"griddepcontrol.launch_dependents; {COPY}"))
    assert facts_of(kernel).wait_point is None and not kernel.waits_inside and not kernel.signals_inside


def test_early_start_is_a_promise_that_the_code_must_keep(ptx: Writer) -> None:
    words = ptx.refusal(COPY, GraphError, early_start=True)
    assert "early_start=True, but the PTX has no griddepcontrol.wait; leave early_start out" in words
    waiting = "ld.global.f32 %f1, [%rd0]; griddepcontrol.wait; st.global.f32 [%rd1], %f1;"
    words = ptx.refusal(waiting, GraphError, early_start=["y"])
    assert "the kernel reads 'x' before its wait" in words
    assert complete(ptx.kernel(waiting, early_start=["x"])).waits_inside
    assert not complete(ptx.kernel(waiting, early_start=False)).waits_inside


def test_the_wait_sinks_to_the_first_access_to_a_produced_buffer(ptx: Writer) -> None:
    params = f"{PARAMS}, .param .u64 .ptr .global .align 1 k3"
    body = f"""{LOADS} ld.param.u64 %rd3, [k3];
        ld.global.nc.v4.f32 {{%f1, %f2, %f3, %f4}}, [%rd0];
        ld.global.nc.v4.f32 {{%f5, %f6, %f7, %f8}}, [%rd0+16];
        {{ .reg .b32 t; ld.global.f32 %f1, [%rd3]; }}
        st.global.f32 [%rd1], %f1;"""
    kernel = ptx.kernel(body, params, params=["in:w", "out:y", "scalar:n:int32", "in:x"])
    facts = facts_of(complete(kernel))
    point = facts.sunk_wait(("x",))
    assert (point.kind, point.line, point.reads_before, point.bytes_before) == (WaitKind.SUNK, BODY_LINE + 3, (0,), 32)
    assert facts.sunk_wait(("w", "x")).bytes_before == 0 and facts.sunk_wait(("w",)).line == BODY_LINE + 1
    assert facts.sunk_wait(("y",)).line == BODY_LINE + 4  # never past a store


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "again: ld.global.f32 %f1, [%rd0];\n setp.eq.u32 %p1, %r2, 0; @%p1 bra again;",
            BODY_LINE - 1,
        ),  # before a loop
        ("setp.eq.u32 %p1, %r2, 0;\n @%p1 bra end;\n ld.global.f32 %f1, [%rd0]; end:", BODY_LINE + 1),  # a branch
        ("ld.global.u64 %rd5, [%rd0];\n ld.global.f32 %f1, [%rd5];", BODY_LINE + 1),  # an unknown address
        ("red.global.add.u32 [%rd1], 1;\n ld.global.f32 %f1, [%rd0];", BODY_LINE),  # an update
    ],
)
def test_the_wait_sinks_through_straight_code_only(ptx: Writer, body: str, line: int) -> None:
    point = ptx.facts(body).sunk_wait(())
    assert point.line == line


def test_kernels_whose_blocks_wait_for_each_other(ptx: Writer) -> None:
    body = "again: ld.acquire.gpu.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra again;"
    kernel = complete(ptx.kernel(body))
    assert kernel.sync_all is True and "its blocks wait for other blocks" in str(kernel.target_facts)
    assert complete(ptx.kernel(body, sync_all=False)).sync_all is False


def test_scratch_pointers_of_triton(ptx: Writer) -> None:
    params = f"{PARAMS}, .param .u64 .ptr .global .align 1 k3, .param .u64 .ptr .global .align 1 k4"
    facts = ptx.facts(LOADS, ptx_params=params)
    assert facts.layout.scratch == (3, 4) and facts.scratch == 0
    using = f"{LOADS}\n ld.param.u64 %rd3, [k3]; st.global.u32 [%rd3], 0;"
    assert ptx.facts(using, ptx_params=params, scratch=256).scratch == 256
    words = ptx.refusal(using, GraphError, ptx_params=params)
    assert f"k.ptx:{BODY_LINE + 1}: the kernel uses Triton's global scratch memory, but scratch is 0" in words
    words = ptx.refusal(using.replace("k3", "k4"), UnsupportedError, ptx_params=params)
    assert "the kernel records a profile of itself" in words
    assert "has no scratch parameters behind its own" in ptx.refusal(COPY, GraphError, scratch=256)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (["in:x", "out:y"], "params names 2 parameters, the PTX has 3: k0 (pointer), k1 (pointer), k2 (u32)"),
        (["in:x", "out:y", "scalar:n", "scalar:m"], "params names 4 parameters, the PTX has 3"),
        (["in:x", "out:y", "in:z"], "k2 in the PTX is a u32 and no pointer; declare it as scalar:z:dtype"),
        (["in:x", "scalar:y", "scalar:n"], "k1 in the PTX is a pointer; declare it as in, out or inout"),
        (["in:x", "out:y", "scalar:n:int64"], "k2 in the PTX has 4 bytes (u32), not 8"),
        (["in:x", "in:y", "scalar:n:int32"],
         "k.ptx:9: st.global.f32 writes parameter 'y', which is declared as in; declare it as out or inout"),
    ],
)  # fmt: skip
def test_declared_parameters_that_are_not_those_of_the_ptx(ptx: Writer, params: list[str], words: str) -> None:
    assert words in ptx.refusal(COPY, GraphError, params=params)


def test_scalars_by_type(ptx: Writer) -> None:
    params = ".param .f32 a, .param .u64 b"
    assert "is a f32; declare it as scalar:a:float32" in ptx.refusal(
        "", GraphError, ptx_params=params, params=["scalar:a", "scalar:b"]
    )
    assert "a in the PTX is a f32" in ptx.refusal(
        "", GraphError, ptx_params=params, params=["scalar:a:int32", "scalar:b"]
    )
    complete(ptx.kernel("", params, params=["scalar:a:float32", "scalar:b"]))
    used = "ld.param.u64 %rd1, [b]; st.global.u32 [%rd1], 0;"
    words = ptx.refusal(used, GraphError, ptx_params=params, params=["scalar:a:float32", "scalar:b"])
    assert "uses parameter 'b' as an address, but it is declared as a scalar" in words


def test_stores_that_cannot_be_told_apart_are_remarked(ptx: Writer) -> None:
    facts = ptx.facts("setp.eq.u32 %p1, %r2, 0; selp.b64 %rd5, %rd0, %rd1, %p1; st.global.u32 [%rd5], 0;")
    assert "may write x, which is declared as in" in str(facts)
    facts = ptx.facts("ld.global.u64 %rd5, [%rd0];\n st.global.u32 [%rd5], 0;")
    assert f"accesses memory that no parameter points to (line {BODY_LINE + 1}), which nothing orders" in str(facts)


@pytest.mark.parametrize(
    ("directives", "threads", "words"),
    [
        ("", (1, 1, 1), "threads is missing: the PTX does not say how many threads a block has (.reqntid)"),
        (".maxntid 128", (1, 1, 1), "threads is missing"),
        (".reqntid 128", (64, 1, 1), "threads=(64, 1, 1), but the kernel was compiled for blocks of (128, 1, 1)"),
        (".maxntid 128, 2, 1", (512, 1, 1), "but the kernel was compiled for at most (128, 2, 1) threads"),
        ("", (2048, 1, 1), "a block has at most 1024 threads"),
    ],
)
def test_threads_that_are_not_the_kernels(
    ptx: Writer, directives: str, threads: tuple[int, int, int], words: str
) -> None:
    assert words in ptx.refusal(COPY, GraphError, directives=directives, threads=threads)


def test_threads_that_fit(ptx: Writer) -> None:
    assert ptx.facts(COPY, directives=".maxntid 128, 2, 1", threads=(32, 8, 1)).threads == (32, 8, 1)
    assert ptx.facts(COPY, directives=".maxntid 1").threads == (1, 1, 1)


def test_shared_memory_over_the_limit_or_missing(ptx: Writer) -> None:
    used = "mov.u32 %r1, global_smem;"
    assert f"k.ptx:{BODY_LINE}: the kernel uses dynamic shared memory (global_smem), but shared is 0" in ptx.refusal(
        used, GraphError
    )
    words = ptx.refusal(used, UnsupportedError, shared=240000)
    assert "240000 bytes of shared memory; a block has at most 232448 on sm_90a" in words
    words = ptx.refusal(".shared .align 4 .b8 big[65536]; st.shared.u32 [big], 0;", UnsupportedError)
    assert "65536 bytes of static shared memory; the limit is 49152" in words


def test_parameters_over_the_limit(ptx: Writer) -> None:
    count = 4096
    declared = ", ".join(f".param .u64 .ptr .global .align 1 p{number}" for number in range(count))
    params = [f"in:p{number}" for number in range(count)]
    assert "32768 bytes of parameters; the limit is 32764" in ptx.refusal(
        "", UnsupportedError, ptx_params=declared, params=params
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("\nsetmaxnreg.inc.sync.aligned.u32 240;", "setmaxnreg.inc.sync.aligned.u32; warps of a super kernel"),
        ("\nbar.sync 1;", "bar.sync 1: a named barrier other than 0"),
        ("\nbarrier.sync %r1, 128;", "barrier.sync %r1: a named barrier other than 0"),
        ("\nbar.red.popc.u32 %r1, 3, %p1;", "bar.red.popc.u32 3: a named barrier other than 0"),
        ("\nbar.arrive 0, 128;", "a barrier of some of the 128 threads of a block"),
        ("\nbar.sync 0, 64;", "a barrier of some of the 128 threads of a block"),
        ("\ncall.uni __assertfail, ();", "a device-side assert (a call of __assertfail)"),
        ("\ncall.uni (%r1), vprintf, (%rd1, %rd1);", "a device-side printf (a call of vprintf)"),
        ("\ncall.uni (%r1), malloc, (%rd1);", "a device-side malloc (a call of malloc)"),
        ("\ncall.uni helper;", "a call of helper; functions are not called"),
        ("\nmov.u32 %r1, %envreg2;", "a read of %envreg2, the state of a cooperative launch"),
        ("\nmov.u32 %r1, %dynamic_smem_size;", "a read of %dynamic_smem_size"),
        ("\ntcgen05.wait::ld.sync.aligned;", "tcgen05.wait::ld.sync.aligned; tensor memory"),
        ("\ntex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}];", "textures and surfaces"),
        ("\nsust.b.1d.b32.trap [%rd1, {%r1}], {%r2};", "textures and surfaces"),
        ("\nmov.u32 %r1, %cluster_ctarank;", "a read of %cluster_ctarank; the blocks of a super kernel run alone"),
        ("\nbarrier.cluster.arrive.aligned;", "barrier.cluster.arrive.aligned; the blocks"),
        ("\nmapa.shared::cluster.u32 %r1, %r2, 0;", "mapa.shared::cluster.u32; the blocks"),
        ("\nst.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];", "st.async"),
        ("\nmov.u64 %rd5, from_host;", "the variable from_host, which has no initial value in the PTX"),
        ("\nst.global.u32 [state], 1;", "st.global.u32 writes the variable state of its module"),
    ],
)  # fmt: skip
def test_constructs_that_no_super_kernel_can_contain(ptx: Writer, body: str, words: str) -> None:
    message = ptx.refusal(body, UnsupportedError)
    assert message.startswith("sub-kernel 'k': ") and f"k.ptx:{BODY_LINE + 1}: " in message and words in message


@pytest.mark.parametrize("directive", [".explicitcluster", ".reqnctapercluster 2, 1, 1", ".maxclusterrank 8"])
def test_clusters_are_refused(ptx: Writer, directive: str) -> None:
    message = ptx.refusal(COPY, UnsupportedError, directives=f".reqntid 128\n{directive}")
    assert f"k.ptx:{BODY_LINE}: a kernel with clusters ({directive})" in message and "num_ctas=1" in message


def test_whole_barriers_and_tables_are_taken(ptx: Writer) -> None:
    body = (
        "bar.sync 0; barrier.sync 0, 128; bar.warp.sync -1; bar.red.popc.u32 %r1, 0, %p1; ld.global.u32 %r1, [table];"
    )
    ptx.facts(body, directives=".reqntid 128 .reqnctapercluster 1, 1, 1")


def test_structs_are_refused_by_name(ptx: Writer) -> None:
    message = ptx.refusal("", UnsupportedError, ptx_params=".param .align 8 .b8 k0[16]", params=["in:p"])
    assert "k.ptx:8: parameter k0 is a struct of 16 bytes" in message


def test_a_missing_entry_names_the_nearest(ptx: Writer) -> None:
    ptx.kernel(COPY)
    kernel = sk.SubKernel.from_ptx(ptx.path, "kk", grid=(1, 1, 1), params=["in:x"])
    with pytest.raises(BuildError, match=r"has no entry of that name \(did you mean 'k'\?\); its entries are k"):
        complete(kernel)
    ptx.path.write_text(HEAD)
    with pytest.raises(BuildError, match="it has no entry"):
        complete(kernel)


def test_only_ptx_is_taken(tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text("")
    kernel = sk.SubKernel.from_source(tmp_path / "k.cpp", "k", block_dim=1, params=["in:x"])
    with pytest.raises(UnsupportedError, match="the cuda target takes PTX, and this is a source file"):
        complete(kernel)
    with pytest.raises(BuildError, match="has not been read yet"):
        facts_of(kernel)
