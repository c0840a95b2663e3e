"""superkernel emulate: a list in CANN's form, with device objects, on the emulator; one screen, or one JSON object."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from targets.ascend.device_lists import DeviceKernel, Entry, write_list
from typer.testing import CliRunner

from superkernel.targets.ascend import target as ascend_target
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.plan import AscendPlan
from superkernel.tools.cli import app

VEC = DeviceKernel("vec", KernelType.AIV_ONLY, 6, ("in:x", "out:y"))
CUBE = DeviceKernel("cube", KernelType.AIC_ONLY, 4, ("in:x", "out:y"))


def called(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


@pytest.fixture
def ops(tmp_path: Path) -> Path:
    return write_list(tmp_path, [Entry(VEC, ("a", "b")), Entry(CUBE, ("b", "c"), recv=(4,)), Entry(VEC, ("c", "d"))])


def test_one_screen_says_what_ran_and_what_its_syncs_cost(ops: Path) -> None:
    status, said = called("emulate", ops, "--seeds", "3")
    assert status == 0, said
    lines = said.splitlines()
    assert len(lines) < 12
    assert "3 ops" in said and "4 cube and 8 vector cores" in said and "1 cube-vector" in said
    assert re.search(r"[0-9]+ flag actions, 0\.[0-9]+ of the 18 that one full barrier per op would take", said)
    assert "stand-ins took the place" in said and "3 of 3 seeds passed" in said


def test_the_same_as_json(ops: Path) -> None:
    status, said = called("emulate", ops, "--seeds", "2", "--json", "--options", "early-start=0")
    fields = json.loads(said)
    assert status == 0 and fields["ok"] and (fields["seeds"], fields["passed"], fields["failures"]) == (2, 2, [])
    assert fields["ops"] == 3 and fields["barrier_actions"] == 18 and "early-start=0" in fields["options"]
    assert "stand-ins" in fields["emulation_notes"][0]


def without_a_wait(plan: AscendPlan) -> EmittedKernel:
    emitted = emit(plan)
    head, entry, body = emitted.source.partition("__global__")
    return replace(emitted, source=head + entry + re.sub(r"wait_flag_dev\(vectors_to_cube_flag\);", "", body, count=1))


def without_a_reset(plan: AscendPlan) -> EmittedKernel:
    emitted = emit(plan)
    source = re.sub(r"sk_publish\(word\(slots, \d+\), 0\);", ";", emitted.source, count=1)
    assert source != emitted.source
    return replace(emitted, source=source)


def test_a_seed_is_two_launches_in_a_row(ops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend_target, "emit", without_a_reset)
    status, said = called("emulate", ops, "--seed", "0")
    assert status == 1 and "launch 2: event 4 is 1 at the begin: the launch before did not reset it" in said


def test_a_failing_seed_is_named_with_what_happened(ops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend_target, "emit", without_a_wait)
    page = tmp_path / "failed.html"
    status, said = called("emulate", ops, "--seeds", "4", "--report", page)
    assert status == 1 and "0 of 4 seeds passed" in said
    assert "seed 0 failed: super_kernel_scope 'ops': emulated with seed=0: " in said and "so did seeds 1, 2, 3" in said
    assert "seed 0 failed" in page.read_text()
    status, said = called("emulate", ops, "--seed", "2", "--json")
    fields = json.loads(said)
    assert status == 1 and not fields["ok"]
    assert [failure["seed"] for failure in fields["failures"]] == [2]


def test_the_report_shows_lanes_and_waits(ops: Path, tmp_path: Path) -> None:
    status, said = called("emulate", ops, "--seeds", "1", "--report", tmp_path / "page.html")
    assert status == 0 and f"report: {tmp_path / 'page.html'}" in said
    page = (tmp_path / "page.html").read_text()
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found is not None
    timeline = json.loads(found[1])["timelines"][0]
    assert timeline["cores"][:5] == ["cube 0", "cube 1", "cube 2", "cube 3", "vector 0"]
    assert "vector 3.1" in timeline["cores"]
    spans = timeline["choices"][0]["spans"]
    kinds = [timeline["kinds"][span[3]] for span in spans]
    assert {"kernel", "op", "wait"} <= set(kinds)
    waits = {timeline["names"][span[4]] for span in spans if timeline["kinds"][span[3]] == "wait"}
    assert {"cube_1", "vec_2"} <= waits
    assert "auto_gen_ops_kernel" in page and "ticks of the emulator" in page


def test_a_list_of_sources_has_stand_ins_too(tmp_path: Path) -> None:
    (tmp_path / "turn.cpp").write_text(
        'extern "C" __aicore__ void turn(uint64_t first_slot) { no_host_knows_this(); }\n'
    )
    kernel = {"source": "turn.cpp", "symbol": "turn", "block_dim": 4, "params": ["in:x", "out:y"], "core": "vector"}
    listed = [{"kernel": "turn", "args": ["a", "b"]}, {"kernel": "turn", "args": ["b", "c"]}]
    (tmp_path / "ops.json").write_text(json.dumps({"name": "turns", "kernels": {"turn": kernel}, "ops": listed}))
    status, said = called("emulate", tmp_path / "ops.json", "--seeds", "2")
    assert status == 0 and "2 of 2 seeds passed" in said, said


def test_another_chip(ops: Path) -> None:
    status, said = called("emulate", ops, "--seeds", "1", "--chip", "a2")
    assert status == 0 and "chip a2" in said


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--target", "cpu"], "has no emulator"),
        (["--chip", "a9"], "known chips are"),
        (["--options", "stream-fusin=1"], "stream-fusion"),
    ],
)
def test_what_is_wrong_is_named(ops: Path, words: list[str], wanted: str) -> None:
    status, said = called("emulate", ops, *words)
    assert status == 1 and wanted in said


def test_a_report_that_cannot_be_written_is_named(ops: Path, tmp_path: Path) -> None:
    status, said = called("emulate", ops, "--seeds", "1", "--report", tmp_path)
    assert status == 1 and "it is a folder" in said
