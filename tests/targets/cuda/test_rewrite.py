"""targets.cuda.rewrite: every construct that is coupled to a launch becomes what a super kernel needs there."""

from __future__ import annotations

from pathlib import Path

import pytest
from targets.cuda.written_kernels import ADD, TOTAL, VECTOR, PtxFolder

from superkernel.errors import UnsupportedError
from superkernel.targets.cuda.reader import read_ptx_file
from superkernel.targets.cuda.rewrite import BodyShape, KernelBody, rewrite
from superkernel.targets.cuda.super_kernel_text import _access_sources

WAIT = ("// the wait",)


class Rewriting:
    """Writes an entry and rewrites it."""

    def __init__(self, folder: Path) -> None:
        self.files = PtxFolder(folder)

    def body(self, code: str, shape: BodyShape | None = None, wait: tuple[str, ...] = ()) -> KernelBody:
        kernel = self.files.kernel("k", code, ["in:x", "out:y", "scalar:n"])
        module = read_ptx_file(kernel.binary.path)
        entry = module.entry("k")
        assert entry is not None
        sources = _access_sources(kernel.binary.path, hash(code), "k", (2,))
        return rewrite(entry, module, shape or BodyShape((128, 1, 1), 0, True), "k", "k", wait, sources)

    def lines(self, code: str, shape: BodyShape | None = None) -> list[str]:
        return [line.strip() for line in self.body(code, shape).lines]

    def text(self, code: str, shape: BodyShape | None = None) -> str:
        return "\n".join(self.lines(code, shape))


@pytest.fixture
def rewriting(tmp_path: Path) -> Rewriting:
    return Rewriting(tmp_path)


# ids


def test_a_flat_grid_needs_no_division(rewriting: Rewriting) -> None:
    text = rewriting.text("mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %nctaid.x; ret;")
    assert "mov.u32 %r1, %sk_block;" in text
    assert "mov.u32 %r2, 0;" in text
    assert "mov.u32 %r3, %sk_id_nctaid_x;" in text
    assert "div.u32" not in text and "rem.u32" not in text


def test_a_grid_of_three_dimensions_is_divided_out_of_the_block(rewriting: Rewriting) -> None:
    shape = BodyShape((128, 1, 1), 0, flat_grid=False)
    lines = rewriting.lines("mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; ret;", shape)
    assert "rem.u32 %sk_id_ctaid_x, %sk_block, %sk_id_nctaid_x;" in lines
    assert "div.u32 %sk_quotient, %sk_block, %sk_id_nctaid_x;" in lines
    assert "rem.u32 %sk_id_ctaid_y, %sk_quotient, %sk_id_nctaid_y;" in lines
    assert "div.u32 %sk_id_ctaid_z, %sk_quotient, %sk_id_nctaid_y;" in lines


def test_ids_that_the_code_does_not_read_are_not_computed(rewriting: Rewriting) -> None:
    text = rewriting.text("mov.u32 %r1, %ctaid.x; ret;", BodyShape((128, 1, 1), 0, flat_grid=False))
    assert "ctaid_y" not in text and "div.u32" not in text


def test_the_extent_of_the_grid_comes_from_the_task(rewriting: Rewriting) -> None:
    shape = BodyShape((128, 1, 1), 0, flat_grid=False)
    lines = rewriting.lines("mov.u32 %r1, %nctaid.y; mov.u32 %r2, %nctaid.z; ret;", shape)
    assert "ld.sk_table.u32 %sk_id_nctaid_y, [%sk_task+48];" in lines
    assert "div.u32 %sk_id_nctaid_z, %sk_id_nctaid_z, %sk_id_nctaid_x;" in lines
    assert "div.u32 %sk_id_nctaid_z, %sk_id_nctaid_z, %sk_id_nctaid_y;" in lines


def test_threads_of_two_dimensions(rewriting: Rewriting) -> None:
    code = "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.y; mov.u32 %r4, %ntid.z; ret;"
    lines = rewriting.lines(code, BodyShape((32, 4, 1), 0, True))
    assert "rem.u32 %sk_id_tid_x, %sk_thread, 32;" in lines
    assert "rem.u32 %sk_id_tid_y, %sk_quotient, 4;" in lines
    assert "mov.u32 %r3, 4;" in lines and "mov.u32 %r4, 1;" in lines


def test_warps_and_sizes_are_those_of_the_sub_kernel(rewriting: Rewriting) -> None:
    code = "mov.u32 %r1, %warpid; mov.u32 %r2, %nwarpid; mov.u32 %r3, %dynamic_smem_size; mov.u32 %r4, %laneid; ret;"
    lines = rewriting.lines(code, BodyShape((96, 1, 1), 64, True))
    assert "shr.u32 %sk_id_warpid, %sk_thread, 5;" in lines
    assert {"mov.u32 %r1, %sk_id_warpid;", "mov.u32 %r2, 3;", "mov.u32 %r3, 64;", "mov.u32 %r4, %laneid;"} <= {*lines}


# barriers and the end


def test_barrier_0_becomes_the_barrier_of_the_slot_with_the_threads_of_the_sub_kernel(rewriting: Rewriting) -> None:
    code = (
        "bar.sync 0; barrier.sync 0; bar.sync 0, 128; barrier.cta.sync.aligned 0; bar.warp.sync 0xffffffff;"
        "bar.red.popc.u32 %r1, 0, %p1; @%p2 bar.arrive 0, 128; ret;"
    )
    lines = rewriting.lines(code)
    assert "bar.sync %sk_barrier, 128;" in lines
    assert "barrier.sync %sk_barrier, 128;" in lines
    assert "barrier.cta.sync.aligned %sk_barrier, 128;" in lines
    assert "bar.warp.sync 0xffffffff;" in lines
    assert "bar.red.popc.u32 %r1, %sk_barrier, 128, %p1;" in lines
    assert "@%p2 bar.arrive %sk_barrier, 128;" in lines


def test_a_sub_kernel_that_is_narrower_than_its_slot_has_a_barrier_of_its_own(rewriting: Rewriting) -> None:
    lines = rewriting.lines("bar.sync 0; ret;", BodyShape((64, 1, 1), 0, True, narrow=True))
    assert "bar.sync %sk_narrow_barrier, 64;" in lines


@pytest.mark.parametrize("code", ["bar.sync 1; ret;", "bar.sync %r1; ret;"])
def test_other_barriers_are_refused(rewriting: Rewriting, code: str) -> None:
    with pytest.raises(UnsupportedError, match="only barrier 0"):
        rewriting.body(code)


def test_ret_and_exit_branch_to_the_end_of_the_body(rewriting: Rewriting) -> None:
    lines = rewriting.lines("@%p1 ret; @!%p2 exit; exit; ret;")
    assert "@%p1 bra $sk_k_done;" in lines
    assert "@!%p2 bra $sk_k_done;" in lines
    assert lines.count("bra $sk_k_done;") == 2
    assert not any(line.startswith(("ret", "exit")) for line in lines)


def test_labels_are_unique_and_branch_tables_follow_them(rewriting: Rewriting) -> None:
    code = "bra $L_1; $L_1: $table: .branchtargets $L_1, $L_2; brx.idx %r1, $table; $L_2: ret;"
    text = rewriting.text(code)
    assert "$sk_k_L_1:" in text and "bra $sk_k_L_1;" in text
    assert "brx.idx %r1, $sk_k_table;" in text
    assert "$L_" not in text


def test_a_last_warp_that_is_not_full_cannot_meet_or_shuffle(rewriting: Rewriting) -> None:
    shape = BodyShape((48, 1, 1), 0, True)
    assert rewriting.body("mov.u32 %r1, %tid.x; ret;", shape).threads == 48
    for code in ("bar.sync 0; ret;", "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1; ret;"):
        with pytest.raises(UnsupportedError, match="a multiple of 32 threads"):
            rewriting.body(code, shape)


# memory


def test_arguments_come_from_the_task(rewriting: Rewriting) -> None:
    lines = rewriting.lines("ld.param.u64 %rd1, [k_y]; @%p1 ld.param.u32 %r1, [k_n]; ret;")
    assert "ld.sk_table.v2.u32 {%sk_index, %sk_stride}, [%sk_arguments+16];" in lines
    assert "mad.wide.u32 %sk_value, %sk_sm, %sk_stride, %sk_value;" in lines
    assert "mov.b64 %rd1, %sk_value;" in lines
    assert "ld.sk_table.v2.u32 {%sk_index, %sk_stride}, [%sk_arguments+32];" in lines
    assert "@%p1 mov.b32 %r1, %sk_value32;" in lines
    assert not any("[k_" in line for line in lines)


@pytest.mark.parametrize(
    ("load", "found"),
    [
        ("ld.param.s8 %r1, [k_n];", "cvt.s32.s8 %r1, %sk_value32;"),
        ("ld.param.u16 %h1, [k_n];", "cvt.u16.u16 %h1, %sk_value32;"),
        ("ld.param.u32 %rd1, [k_n];", "cvt.u64.u32 %rd1, %sk_value32;"),
    ],
)
def test_small_arguments_have_the_width_of_their_register(rewriting: Rewriting, load: str, found: str) -> None:
    assert found in rewriting.lines(f"{load} ret;")


def test_parameters_that_tasks_do_not_give_are_null(rewriting: Rewriting) -> None:
    shape = BodyShape((128, 1, 1), 0, True, parameters=1)
    lines = rewriting.lines("ld.param.u64 %rd1, [k_x]; ld.param.u64 %rd2, [k_y]; ret;", shape)
    assert "mov.b64 %rd2, 0;" in lines and "mov.b64 %rd1, %sk_value;" in lines


def test_a_part_of_a_parameter_is_refused(rewriting: Rewriting) -> None:
    with pytest.raises(UnsupportedError, match="fields of a structure"):
        rewriting.body("ld.param.u32 %r1, [k_x+4]; ret;")


def test_shared_memory_begins_at_the_base_of_the_slot(rewriting: Rewriting) -> None:
    code = (
        ".shared .align 8 .b8 part[40]; .shared .align 128 .b8 tile[256]; mov.u32 %r1, dynamic; mov.u64 %rd1, part;"
        "st.shared.u32 [tile+8], %r2; cvta.shared.u64 %rd2, %rd1; ret;"
    )
    body = rewriting.body(code, BodyShape((128, 1, 1), 100, True))
    text = "\n".join(line.strip() for line in body.lines)
    assert body.shared_bytes == 256 + 256, "100 bytes of dynamic memory, then part at 112, tile at 256"
    assert "add.u32 %sk_shared_0, %sk_shared, 0;" in text
    assert "add.u32 %sk_shared_1, %sk_shared, 112;" in text
    assert "add.u32 %sk_shared_2, %sk_shared, 256;" in text
    assert "mov.b32 %r1, %sk_shared_0;" in text
    assert "cvt.u64.u32 %sk_shared_address, %sk_shared_1;" in text and "mov.b64 %rd1, %sk_shared_address;" in text
    assert "st.shared.u32 [%sk_shared_2+8], %r2;" in text
    assert ".shared" not in text.replace("st.shared", "").replace("cvta.shared", "")


def test_tables_are_carried_along_under_new_names(rewriting: Rewriting) -> None:
    body = rewriting.body("mov.u64 %rd1, pointers; ld.const.u64 %rd2, [pointers]; ret;")
    assert body.declarations == (
        ".const .align 8 .u64 sk_k_pointers[1] = {sk_k_table};",
        ".global .align 4 .b32 sk_k_table[4] = {1, 2, 3, 4};",
    )
    assert any("mov.u64 %rd1, sk_k_pointers;" in line for line in body.lines)


NC = (
    "ld.param.u64 %rd1, [k_x]; ld.param.u64 %rd2, [k_y];\nld.global.nc.L1::no_allocate.v2.b32 {%r1, %r2}, [%rd1];\n"
    "ld.global.L1::evict_last.L2::128B.b32 %r3, [%rd2];\nldu.global.u32 %r4, [%rd2];\nret;"
)


def test_loads_of_written_buffers_are_coherent(rewriting: Rewriting) -> None:
    text = rewriting.text(NC, BodyShape((128, 1, 1), 0, True, coherent=(0, 1)))
    assert "ld.global.v2.b32 {%r1, %r2}, [%rd1];" in text
    assert "ld.global.L2::128B.b32 %r3, [%rd2];" in text
    assert "ld.global.u32 %r4, [%rd2];" in text


def test_loads_of_other_buffers_keep_their_hints(rewriting: Rewriting) -> None:
    text = rewriting.text(NC, BodyShape((128, 1, 1), 0, True, coherent=(1,)))
    assert "ld.global.nc.L1::no_allocate.v2.b32 {%r1, %r2}, [%rd1];" in text
    assert "ld.global.L2::128B.b32 %r3, [%rd2];" in text


def test_a_load_whose_address_is_unknown_is_coherent(rewriting: Rewriting) -> None:
    code = "ld.param.u64 %rd1, [k_x];\nld.global.u64 %rd2, [%rd1];\nld.global.nc.u32 %r1, [%rd2];\nret;"
    shape = BodyShape((128, 1, 1), 0, True, coherent=(), unknown_is_coherent=True)
    assert "ld.global.u32 %r1, [%rd2];" in rewriting.text(code, shape)


# what is in flight at the end, and waits


def test_copies_in_flight_are_awaited_at_the_end(rewriting: Rewriting) -> None:
    copies = rewriting.body("cp.async.ca.shared.global [%r1], [%rd1], 16; cp.async.commit_group; ret;")
    assert copies.after == ("cp.async.wait_all;",) and not copies.proxy_fence
    code = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16; cp.async.bulk.wait_group.read 0; ret;"
    bulk = rewriting.body(code)
    assert (
        bulk.after == ("cp.async.bulk.wait_group 0;", "fence.proxy.async;") and bulk.proxy_fence == "fence.proxy.async;"
    )
    assert rewriting.body("ret;").after == ()


def test_copies_of_what_the_launch_does_not_write_need_no_fence_of_device_memory(rewriting: Rewriting) -> None:
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2]; ret;"
    code = f"ld.param.u64 %rd1, [k_x];\n{copy}"
    weights, produced = (BodyShape((128, 1, 1), 0, True, coherent=written) for written in ((1,), (0, 1)))
    assert rewriting.body(code, weights).proxy_fence == "fence.proxy.async.shared::cta;"
    assert rewriting.body(code, produced).proxy_fence == "fence.proxy.async;"
    assert rewriting.body(f"ld.global.u64 %rd1, [%rd2];\n{copy}", weights).proxy_fence == "fence.proxy.async;"


def test_barrier_objects_are_noted_to_be_invalidated(rewriting: Rewriting) -> None:
    body = rewriting.body("@%p1 mbarrier.init.shared::cta.b64 [%r1+8], 1; ret;")
    assert body.mbarriers == 1
    lines = [line.strip() for line in body.lines]
    assert "add.u32 %sk_value32, %r1, 8;" in lines
    assert "@%p1 st.shared.u32 [%sk_slot_words+128], %sk_value32;" in lines


def test_launch_dependents_becomes_nothing(rewriting: Rewriting) -> None:
    lines = rewriting.lines("griddepcontrol.launch_dependents; griddepcontrol.wait; ret;")
    assert not any(line.startswith("griddepcontrol") for line in lines)


def test_the_wait_stands_in_front_of_its_statement(rewriting: Rewriting) -> None:
    code = "mov.u32 %r1, 1; mov.u32 %r2, 2; mov.u32 %r3, 3; ret;"
    registers = 5  # statements that declare registers
    for place, following in ((0, "mov.u32 %r1, 1;"), (2, "mov.u32 %r3, 3;"), (3, "bra $sk_k_done;"), (4, "")):
        shape = BodyShape((128, 1, 1), 0, True, wait_statement=registers + place)
        lines = [line.strip() for line in rewriting.body(code, shape, WAIT).lines]
        at = lines.index(WAIT[0])
        assert (lines[at + 1] if at + 1 < len(lines) else "") == following


def test_blocks_that_share_memory_or_barriers_do_not_overlap(tmp_path: Path) -> None:
    files = PtxFolder(tmp_path)
    for name, code, needed in (("add", ADD, False), ("total", TOTAL, True)):
        kernel = files.add() if name == "add" else files.total()
        module = read_ptx_file(kernel.binary.path)
        entry = module.entry(name)
        assert entry is not None and VECTOR
        body = rewrite(entry, module, BodyShape((128, 1, 1), 0, True), name, name)
        assert body.repeats_need_barrier is needed, code
