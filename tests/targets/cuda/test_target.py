"""targets.cuda.target: devices, slots and launch shapes; builds without an assembler; saved and loaded kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from targets.cuda.written_kernels import PtxFolder, graph_of, small_gpu

import superkernel as sk
from superkernel.errors import BuildError, LaunchError, OptionError, PlanError, UnsupportedError
from superkernel.targets import find_target
from superkernel.targets.cuda import assemble as assembling
from superkernel.targets.cuda import build as building
from superkernel.targets.cuda.assemble import find_assemblers
from superkernel.targets.cuda.device import find_device, known_devices, runs_on
from superkernel.targets.cuda.executable import CudaExecutable
from superkernel.targets.cuda.kernels.streaming_gemv import StreamingGemv
from superkernel.targets.cuda.machine import fitting_slots, machine_of, most_registers, next_slots, shape_of

SMALL = {"name": "small", "architecture": "sm_80", "sms": 4}
LOG = (
    "ptxas info : Used {registers} registers\n 0 bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads\n"
)


class FakeAssembler:
    """Says that a kernel with more than `most` threads in a block spills."""

    newest = (9, 0)

    def __init__(self, most: int = 1024) -> None:
        self.most, self.identity = most, f"fake {most}"

    def assemble(self, text: str, architecture: str, flags: Sequence[str]) -> tuple[bytes, str, str]:
        threads = int(text.partition(".reqntid ")[2].split(",")[0] or 0) if ".reqntid" in text else 0
        spilled = 8 if threads > self.most else 0
        return text.encode(), LOG.format(registers=64, spilled=spilled), "fake"


@pytest.fixture
def files(tmp_path: Path) -> PtxFolder:
    return PtxFolder(tmp_path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))


def assemble_with(monkeypatch: pytest.MonkeyPatch, *assemblers: Any) -> None:
    for module in (assembling, building):
        monkeypatch.setattr(module, "find_assemblers", lambda: assemblers)


def two_ops(files: PtxFolder, blocks: int = 40) -> list[sk.Op]:
    add, total = files.add(grid=(blocks, 1, 1)), files.total()
    return [sk.Op(add, ["a", "b", "c", 512], name="sum"), sk.Op(total, ["c", "t"], name="total")]


# devices


def test_a_device_by_name_architecture_file_or_fields(tmp_path: Path) -> None:
    assert find_device("h200").sms == 132 and find_device("H200") == find_device("h200")
    assert find_device("sm_80").architecture == "sm_80"
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(SMALL))
    assert find_device(path) == find_device(SMALL) == find_device(str(path))
    assert find_target("cuda").for_chip(path).chip_fields() == find_target("cuda").for_chip(SMALL).chip_fields()
    saved = find_target("cuda").for_chip(SMALL).chip_fields()
    assert saved is not None and find_device(json.loads(json.dumps(saved))) == find_device(SMALL)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("h20", "did you mean"), ("nothing.json", "cannot be read"), (7, "give the name of a GPU"),
        ({"name": "x", "architecture": "sm_90"}, "sms is None"),
        ({"name": "x", "architecture": "gfx90a", "sms": 4}, "no architecture such as sm_90a"),
        ({"name": "x", "architecture": "sm_90", "sms": 4, "smm": 1}, "unknown field 'smm'"),
        ({"name": "x", "architecture": "sm_90", "sms": 4, "costs": {"sync": 1}}, "costs is"),
        ({"name": "x", "architecture": "sm_90", "sms": 4, "largest_cluster": 3}, "largest_cluster is 3"),
        ({"name": "x", "architecture": "sm_90", "sms": 4, "largest_cluster": True}, "largest_cluster is True"),
        ({"name": "x", "architecture": "sm_80", "sms": 4, "largest_cluster": 2}, "only 1 below sm_90"),
        ({"name": "x", "architecture": "sm_90", "sms": 4, "cluster_sync_ns": -1}, "cluster_sync_ns is -1"),
        ({"name": "x", "architecture": "sm_90", "sms": 4, "staging_spills": -1}, "staging_spills is -1"),
    ],
)  # fmt: skip
def test_a_device_that_is_none(given: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        find_device(given)
    assert "sm_90a" in known_devices()


def test_which_ptx_runs_on_which_device() -> None:
    hopper, blackwell = find_device("sm_90a"), find_device("b200")
    assert runs_on("sm_80", hopper) and runs_on("sm_90", hopper) and runs_on("sm_90a", hopper)
    assert not runs_on("sm_90a", blackwell) and not runs_on("sm_100", hopper)
    assert runs_on("sm_100f", blackwell) and runs_on("sm_90", blackwell)


# slots


def test_registers_of_four_slots_of_128_threads() -> None:
    assert most_registers(small_gpu(), 512) == 120
    assert most_registers(small_gpu(), 1024) == 64 and most_registers(small_gpu(), 896) == 72
    assert most_registers(small_gpu(), 128) == 255
    assert most_registers(small_gpu(), 288) == 168  # 9 warps: one of the four parts of an SM runs 3
    assert most_registers(small_gpu(), 544) == 96  # with the warp that asks for the inputs of later ops


def test_cores_are_spread_over_sms_first() -> None:
    gpu = small_gpu(4)
    assert (shape_of(1, 4, gpu).sms, shape_of(3, 4, gpu).sms, shape_of(3, 2, gpu).sms) == (1, 1, 3)
    wide = shape_of(10, 4, gpu)
    assert (wide.sms, wide.slots, wide.sm(9)) == (4, 3, 1)
    machine = machine_of(16, 4, gpu)
    assert machine.groups[1] == (1, 5, 9, 13) and machine.near((1, 13)) and not machine.near((1, 2))
    assert machine.costs.near_sync_ns < machine.costs.sync_ns
    assert machine_of(3, 4, gpu).costs.sync_ns == machine.costs.near_sync_ns, "all cores are on one SM"


def test_slots_by_threads_and_shared_memory(files: PtxFolder) -> None:
    assert fitting_slots(graph_of(two_ops(files)), small_gpu()) == 8
    large = files.kernel("large", "mov.u32 %r1, dynamic; ret;", ["in:x"], shared=60_000)
    assert fitting_slots(graph_of([sk.Op(large, ["a"])]), small_gpu(shared_bytes=166912)) == 2
    narrow = files.kernel("narrow", "ret;", ["in:x"], threads=(32, 1, 1))
    assert fitting_slots(graph_of([*two_ops(files), sk.Op(narrow, ["a"])]), small_gpu()) == 7
    assert [next_slots(8, 128), next_slots(8, 128, kernels=20), next_slots(4, 128, kernels=20)] == [7, 4, 3]


def test_what_fits_on_no_sm_is_refused_by_name(files: PtxFolder) -> None:
    huge = files.kernel("huge", "mov.u32 %r1, dynamic; ret;", ["in:x"], shared=99_000)
    with pytest.raises(PlanError, match="op 'big' needs 99000 bytes of shared memory; a block has 99500 on small"):
        fitting_slots(graph_of([sk.Op(huge, ["a"], name="big")]), small_gpu(shared_bytes=99_500))
    wide = files.kernel("wide", "ret;", ["in:x"], threads=(1024, 1, 1))
    with pytest.raises(PlanError, match="op 'wide' has blocks of 1024 threads; small runs 512"):
        fitting_slots(graph_of([sk.Op(wide, ["a"])]), small_gpu(threads=512))


def test_a_kernel_that_spills_gets_fewer_slots(files: PtxFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assemble_with(monkeypatch, FakeAssembler(most=512))
    with sk.compile(two_ops(files), target="cuda", chip=SMALL) as kernel:
        assert isinstance(kernel.executable, CudaExecutable)
        assert kernel.executable.slots == 4
        assert any("8 slots would spill 8 bytes" in line for line in kernel.plan.summary)


def test_a_kernel_that_spills_with_one_slot_is_refused_by_name(
    files: PtxFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assemble_with(monkeypatch, FakeAssembler(most=64))
    with pytest.raises(BuildError, match=r"the super kernel spills 8 bytes; op '(sum|total)' needs 64 registers alone"):
        sk.compile(two_ops(files), target="cuda", chip=SMALL)


def test_what_else_leaves_registers_is_said_where_there_is_one_slot(
    files: PtxFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assemble_with(monkeypatch, FakeAssembler(most=64))
    with pytest.raises(BuildError, match=r"with 1 slot of .* registers alone\. Compile that op by itself"):
        sk.compile(two_ops(files), target="cuda", chip=SMALL)
    with pytest.raises(BuildError, match=r"alone\. Leave prefetch-weights out, which takes 32 threads of every SM, or"):
        sk.compile(two_ops(files), target="cuda", chip=SMALL, options="prefetch-weights=1")


def test_weights_are_not_staged_where_the_threads_for_it_would_make_the_kernel_spill(
    files: PtxFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gemv = StreamingGemv(512, 512, blocks=4)
    between = sk.Op(files.total(), ["a", "t"], name="total")
    ops = [gemv.op("w0", "x0", "x1"), between, gemv.op("w1", "x1", "x2")]
    chip = SMALL | {"architecture": "sm_90a"}
    staged = "stage weights of"
    assemble_with(monkeypatch, FakeAssembler())
    with sk.compile(ops, target="cuda", chip=chip) as kernel:
        assert kernel.executable.slot_shape.block_threads == 416 and str(kernel.plan).count(staged) == 2
    assemble_with(monkeypatch, FakeAssembler(most=400))
    with sk.compile(ops, target="cuda", chip=chip) as kernel:
        assert kernel.executable.slot_shape.block_threads == 288 and staged not in str(kernel.plan)
        assert "weights are not staged: the super kernel would spill 8 bytes" in str(kernel.plan)
        kernel.save(tmp_path / "saved")
    assemble_with(monkeypatch)  # a saved kernel is planned as it was, whatever assembles here
    with sk.load(tmp_path / "saved") as loaded:
        assert str(loaded.plan) == str(kernel.plan) and loaded.executable.table == kernel.executable.table


def test_serialised_wgmma_is_refused(files: PtxFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeAssembler()
    monkeypatch.setattr(
        fake, "assemble", lambda *_: (b"x", LOG.format(registers=8, spilled=0) + "(C7510) Potential", "f")
    )
    assemble_with(monkeypatch, fake)
    with pytest.raises(BuildError, match="C7510"):
        sk.compile(two_ops(files), target="cuda", chip=SMALL)


def test_cores_counts_slots(files: PtxFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assemble_with(monkeypatch, FakeAssembler())
    for cores, sms, slots in ((1, 1, 1), (3, 3, 1), (10, 4, 3), (1000, 4, 8)):
        with sk.compile(two_ops(files), target="cuda", chip=SMALL, cores=cores) as kernel:
            found = kernel.executable
            assert isinstance(found, CudaExecutable)
            assert (found.sms, found.slots) == (sms, slots), cores
    with pytest.raises(PlanError, match="cores=0"):
        sk.compile(two_ops(files), target="cuda", chip=SMALL, cores=0)


# what is refused


def test_what_the_target_does_not_take(files: PtxFolder, tmp_path: Path) -> None:
    source = tmp_path / "k.cpp"
    source.write_text('extern "C" void k(float*) {}\n')
    cpp = sk.SubKernel.from_source(source, "k", block_dim=1, params=["inout:x"])
    with pytest.raises(UnsupportedError, match="takes PTX, and this is a source file"):
        sk.compile([sk.Op(cpp, ["a"])], target="cuda", chip=SMALL)
    cube = files.kernel("cube", "ret;", ["inout:x"], core="cube")
    with pytest.raises(UnsupportedError, match="core='cube'"):
        sk.compile([sk.Op(cube, ["a"])], target="cuda", chip=SMALL)
    dynamic = files.kernel("chosen", "ret;", ["inout:x"])
    with pytest.raises(UnsupportedError, match="op 'chosen' is dynamic"):
        sk.compile([sk.Op(dynamic, ["a"], task="dynamic")], target="cuda", chip=SMALL)
    with pytest.raises(OptionError, match="choose it with chip="):
        sk.compile(two_ops(files), target="cuda", march="x86-64-v3")


def test_ptx_of_a_newer_architecture_is_refused(files: PtxFolder) -> None:
    ops = two_ops(files)
    path = ops[0].kernel.binary.path
    path.write_text(path.read_text().replace(".target sm_80", ".target sm_90a"))
    with pytest.raises(BuildError, match=r"'add': .* was compiled for sm_90a, and small is sm_80"):
        sk.compile(ops, target="cuda", chip=SMALL)


def test_more_blocks_than_can_be_resident_with_sync_all(files: PtxFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assemble_with(monkeypatch)
    meeting = files.add(grid=(40, 1, 1), sync_all=True)
    with pytest.raises(PlanError, match="calls sync_all with 40 blocks, but there are 32 cores"):
        sk.compile([sk.Op(meeting, ["a", "b", "c", 512])], target="cuda", chip=SMALL)
    few = files.add(grid=(6, 1, 1), sync_all=True)
    ops = [sk.Op(files.total(), ["a", "t"]), sk.Op(few, ["a", "b", "c", 512]), *two_ops(files)[1:]]
    with sk.compile(ops, target="cuda", chip=SMALL) as kernel:
        assert kernel.plan.cores == 6, "fewer blocks than cores need no feeding"


def test_options_without_effect_say_so(files: PtxFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    options = sk.Options.parse("preload-code=max:split-mode=2:func-align=128:prefetch-weights=1")
    said = options.without_effect("cuda")
    assert [sentence.split()[1] for sentence in said] == ["preload-code=max", "split-mode=2", "func-align=128"]


# without an assembler, and on disk


def test_plan_and_source_need_no_assembler(files: PtxFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assemble_with(monkeypatch)
    with sk.compile(two_ops(files), target="cuda", chip=SMALL) as kernel:
        found = kernel.executable
        assert isinstance(found, CudaExecutable) and found.cubin is None
        assert "sk_main" in kernel.source and "task table" in kernel.source
        assert "the super kernel was not assembled: there is no assembler" in found.remarks[0]
        assert "registers" not in str(kernel.graph)
        kernel.save(tmp_path / "saved")
        kernel.dump(tmp_path / "dump")
    with sk.load(tmp_path / "saved") as loaded:
        assert loaded.source == kernel.source
    assert (tmp_path / "dump" / "source.ptx").read_text().startswith(kernel.source)


def test_the_facts_of_every_kernel_are_on_the_page_of_the_graph(
    files: PtxFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assemble_with(monkeypatch, FakeAssembler())
    with sk.compile(two_ops(files), target="cuda", chip=SMALL) as kernel:
        page = str(kernel.graph)
    assert "add: 128 threads, 64 registers alone, 0 bytes of shared memory" in page
    assert "total: 128 threads, 64 registers alone, 512 bytes of shared memory" in page


def test_a_saved_kernel_is_loaded_without_an_assembler(
    files: PtxFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assemble_with(monkeypatch, FakeAssembler())
    with sk.compile(two_ops(files), target="cuda", chip=SMALL) as kernel:
        kernel.save(tmp_path / "saved")
        built = kernel.executable
    assemble_with(monkeypatch)
    with sk.load(tmp_path / "saved") as loaded:
        found = loaded.executable
        assert isinstance(found, CudaExecutable) and isinstance(built, CudaExecutable)
        assert found.cubin is not None and built.cubin is not None
        assert found.cubin.read_bytes() == built.cubin.read_bytes()
        assert (found.table, found.slot_shape, found.value_room) == (built.table, built.slot_shape, built.value_room)
        assert (found.shared_bytes, found.state_bytes, found.sources) == (
            built.shared_bytes,
            built.state_bytes,
            built.sources,
        )
        loaded.save(tmp_path / "again")


def test_a_wait_that_sank_is_saved_and_loaded(
    files: PtxFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assemble_with(monkeypatch)
    code = (
        "ld.param.u64 %rd1, [late_w]; ld.param.u64 %rd2, [late_x]; ld.param.u64 %rd3, [late_y];\n"
        "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];\nld.global.b32 %r5, [%rd2];\nst.global.b32 [%rd3], %r5;\nret;"
    )
    late = files.kernel("late", code, ["in:w", "in:x", "out:y"], grid=(40, 1, 1))
    with sk.compile([*two_ops(files), sk.Op(late, ["w", "c", "d"])], target="cuda", chip=SMALL) as kernel:
        assert any("late has 2048 bytes per block in flight" in line for line in kernel.plan.summary)
        kernel.save(tmp_path / "saved")
    with sk.load(tmp_path / "saved") as loaded:
        assert str(loaded.plan) == str(kernel.plan) and "wait at the wait point of late" in str(loaded.plan)


def test_a_saved_table_that_is_not_of_the_plan_is_refused(
    files: PtxFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assemble_with(monkeypatch)
    with sk.compile(two_ops(files), target="cuda", chip=SMALL) as kernel:
        assert isinstance(kernel.executable, CudaExecutable)
        kernel.executable.save(tmp_path)
        (tmp_path / "tasks.bin").write_bytes(kernel.executable.table.data[:-4] + b"\1\0\0\0")
        with pytest.raises(LaunchError, match=r"tasks\.bin is not what this version writes"):
            find_target("cuda").for_chip(SMALL).builder.restore(kernel.plan, tmp_path)
        (tmp_path / "launch.json").write_text("{}")
        with pytest.raises(LaunchError, match="is no saved super kernel of the cuda target"):
            find_target("cuda").for_chip(SMALL).builder.restore(kernel.plan, tmp_path)


def test_a_small_super_kernel_is_assembled(files: PtxFolder) -> None:
    if not find_assemblers():
        pytest.skip("no assembler")
    with sk.compile(two_ops(files), target="cuda", chip=SMALL) as kernel:
        found = kernel.executable
        assert isinstance(found, CudaExecutable) and found.resources is not None and found.cubin is not None
        assert found.resources.spilled_bytes == 0 and found.cubin.read_bytes().startswith(b"\x7fELF")
