"""What the target finds out about sub-kernels built in Python, and debug-replay on the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.ascend.conftest import completed

import superkernel as sk
from superkernel.targets.ascend import as_type
from superkernel.targets.ascend.call_graph import always_calls, calls
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.facts import facts_of

TEXT = """
#include <superkernel/subkernel.h>
// sk::sync_all() in a comment means nothing
static void meet(int times) { for (int i = 0; i < times; ++i) { sk::sync_all(); } }
extern "C" {
void plain(uint64_t slots) { auto x = sk::buffer<int32_t>(slots, 0); if (x.load(0)) { sk::work(1); } }
void meeting(uint64_t slots) { meet(2); }
void early(uint64_t slots) { sk_wait_previous(); plain(slots); sk_set_next(); }
void copy(uint64_t slots) {
    auto x = sk::buffer<int32_t>(slots, 0), y = sk::buffer<int32_t>(slots, 1);
    int32_t local[16];
    for (int64_t at = sk::block_idx() * 16; at < 128; at += sk::block_num() * 16) {
        (x + at).copy_in(local, 16);
        for (auto& one : local) one += 1;
        (y + at).copy_out(local, 16);
    }
}
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "kernels.cpp").write_text(TEXT)
    return tmp_path / "kernels.cpp"


def made(source: Path, name: str, **more: Any) -> sk.SubKernel:
    return sk.SubKernel.from_source(source, name, block_dim=4, params=["in:x:int32[128]", "out:y:int32[128]"], **more)


def test_a_function_calls_what_its_helpers_call() -> None:
    assert calls(TEXT, "meeting", "sync_all") and not calls(TEXT, "plain", "sync_all")
    assert calls(TEXT, "early", "wait_previous") and not calls(TEXT, "meeting", "wait_previous")
    assert calls(TEXT, "made_by_a_macro", "sync_all")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("int n = 3; sk_wait_previous(); use(n);", True),
        ("for (int i = 0; i < 3; ++i) { use(i); } sk::wait_previous();", True),
        ("if (fast) sk_wait_previous(); use(1);", False),
        ("if (fast) { sk_wait_previous(); } use(1);", False),
        ("if (fast) return; sk_wait_previous();", False),
        ("while (more()) { if (stop) { return; } } sk_wait_previous();", False),
        ("switch (n) { case 1: sk_wait_previous(); }", False),
        ("\n#ifdef FAST\n sk_wait_previous();\n#endif\n use(1);", False),
        ("auto wait = [&] { sk_wait_previous(); }; use(wait);", False),
        ("for (int i = 0; i < n; ++i) sk_wait_previous();", False),
    ],
)
def test_a_wait_is_found_where_it_stands_on_every_path(body: str, found: bool) -> None:
    text = f"void waiting(uint64_t slots) {{ {body} }}\nvoid other(uint64_t slots) {{ sk_wait_previous(); }}\n"
    assert always_calls(text, "waiting", "wait_previous") is found
    assert not always_calls(text + text, "waiting", "wait_previous")
    assert not always_calls(text, "missing", "wait_previous")


def test_early_start_and_sync_all_are_found_or_believed(source: Path) -> None:
    found = {name: completed(made(source, name)) for name in ("plain", "meeting", "early")}
    assert [found[name].sync_all for name in found] == [False, True, False]
    assert [found[name].waits_inside for name in found] == [False, False, True]
    assert [found[name].signals_inside for name in found] == [False, False, True]
    assert not completed(made(source, "meeting", sync_all=False)).sync_all
    told = completed(made(source, "early", early_start=False))
    assert not told.waits_inside and not told.signals_inside
    assert completed(made(source, "plain", early_start=["x"])).waits_inside


@pytest.mark.parametrize(
    ("core", "kind"),
    [
        ("any", KernelType.AIV_ONLY),
        ("vector", KernelType.AIV_ONLY),
        ("cube", KernelType.AIC_ONLY),
        ("mix", KernelType.MIX_AIC_1_2),
    ],
)
def test_the_core_gives_the_kernel_type(source: Path, core: str, kind: KernelType) -> None:
    assert facts_of(made(source, "plain", core=core)).type is kind


def test_every_kernel_type_can_be_asked_for(source: Path) -> None:
    for kind in KernelType:
        with sk.compile([sk.Op(as_type(made(source, "plain"), kind.value), ["a", "b"])], target="ascend") as k:
            assert k.executable.emitted.ops[0].kernel_type is kind
    with pytest.raises(sk.GraphError, match="unknown kernel type"):
        as_type(made(source, "plain"), "KERNEL_TYPE_MIX_AIC_1_3")


def test_names_that_the_emitted_code_uses_itself_are_linked_under_others(tmp_path: Path) -> None:
    names = ("vector", "word", "trap", "preload_it", "sk_load", "core")
    (tmp_path / "odd.cpp").write_text("\n".join(f'extern "C" void {name}(uint64_t) {{}}' for name in names))
    ops = [sk.Op(made(tmp_path / "odd.cpp", name), ["a", "b"]) for name in names]
    with sk.compile(ops, options="split-mode=1", target="ascend") as k:
        for name in names:
            assert f"void kernel_{name}(uint64_t first_slot);" in k.source


def test_debug_replay_runs_every_op_alone_and_compares(source: Path) -> None:
    ops = [
        sk.Op(made(source, "copy"), ["x", "t"], "first"),
        sk.Op(made(source, "copy", core="cube"), ["t", "y"], "second"),
    ]
    x = np.arange(128, dtype=np.int32)
    with sk.compile(ops, options="debug-replay=1", target="ascend") as k:
        assert (k.emulate({"x": x}, seed=3)["y"] == x + 2).all()
        assert k.records()


def test_a_saved_kernel_is_loaded_and_emulated(source: Path, tmp_path: Path) -> None:
    x = np.arange(128, dtype=np.int32)
    with sk.compile([sk.Op(made(source, "copy"), ["x", "y"])], name="kept", target="ascend") as k:
        k.save(tmp_path / "kept")
    source.unlink()
    with sk.load(tmp_path / "kept") as again:
        assert (again.emulate({"x": x})["y"] == x + 1).all()


def test_a_dynamic_op_without_a_tiling_is_refused(source: Path) -> None:
    with sk.compile([sk.Op(made(source, "copy"), ["x", "y"], "late", task="dynamic")], target="ascend") as k:
        with pytest.raises(sk.LaunchError, match="'late' is dynamic"):
            k.emulate({"x": np.arange(128, dtype=np.int32)})
        made_by = k.emulate({"x": np.arange(128, dtype=np.int32)}, tiling={"late": lambda inputs: (0, 3)})
        assert made_by["y"][127] == 128
        with pytest.raises(sk.LaunchError):
            k.emulate({"x": np.arange(128, dtype=np.int32)}, tiling={"late": lambda inputs: (5, 3)})


def test_ops_alone_are_not_launched_either(source: Path) -> None:
    ops = [sk.Op(made(source, "copy"), ["x", "y"])]
    with sk.compile(ops, target="ascend") as k, pytest.raises(sk.UnsupportedError, match="launches nothing"):
        k.unfused()


def test_debug_replay_names_the_op_that_differs(source: Path, tmp_path: Path) -> None:
    """A kernel whose result depends on how large the launch is."""
    (tmp_path / "sly.cpp").write_text(
        '#include "kernel_operator.h"\n#include <superkernel/subkernel.h>\n'
        'extern "C" void sly(uint64_t slots) {\n'
        "    int32_t local[16];\n"
        "    for (auto& one : local) one = (int32_t)get_block_num();\n"
        "    for (int64_t at = sk::block_idx() * 16; at < 128; at += sk::block_num() * 16)\n"
        "        (sk::buffer<int32_t>(slots, 1) + at).copy_out(local, 16);\n}\n"
    )
    wide = sk.SubKernel.from_source(source, "copy", block_dim=8, params=["in:x:int32[128]", "out:y:int32[128]"])
    ops = [sk.Op(wide, ["x", "t"], "first"), sk.Op(made(tmp_path / "sly.cpp", "sly"), ["t", "y"], "second")]
    with sk.compile(ops, options="debug-replay=1", target="ascend") as k, pytest.raises(sk.LaunchError) as caught:
        k.emulate({"x": np.arange(128, dtype=np.int32)})
    assert "'second' is the first whose output 'y' differs" in str(caught.value)


def test_only_targets_with_an_emulator_emulate(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cpu.cpp").write_text('#include <cstdint>\nextern "C" void k(uint64_t) {}\n')
    kernel = sk.SubKernel.from_source(tmp_path / "cpu.cpp", "k", block_dim=1, params=["in:x:int32[4]"])
    with sk.compile([sk.Op(kernel, ["a"])]) as k, pytest.raises(sk.UnsupportedError, match="no emulator"):
        k.emulate({"a": np.zeros(4, np.int32)})
