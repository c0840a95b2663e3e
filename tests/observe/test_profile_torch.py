"""sk.profile of models that torch.compile compiled: our launches, Inductor's, torch's; beside torch's own profiler."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.observe import store  # noqa: E402
from superkernel.observe.calls import call_kinds  # noqa: E402
from superkernel.observe.timeline import merge_files  # noqa: E402

pytestmark = pytest.mark.slow

FUSED, UNFUSED = {"profit_gate": 0}, {"fuse": "off"}


def model(x: Any, w: Any) -> Any:
    x = x.transpose(0, 1).contiguous()
    with sk.super_kernel("inner"):
        x = torch.relu(x @ w) @ w
    return torch.mm(x, w).mean(0)


def compiled(options: dict[str, Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="superkernel", options=options, fullgraph=True, dynamic=False)


@pytest.fixture(scope="module")
def given() -> tuple[Any, ...]:
    return torch.randn(32, 16), torch.randn(32, 32)


def table(folder: Path) -> dict[tuple[str, str], int]:
    with (folder / "op_statistic.csv").open(newline="") as file:
        return {(row["OP Type"], row["Core Type"]): int(row["Count"]) for row in csv.DictReader(file)}


@torch.no_grad()
def test_fused_and_unfused_runs_show_the_same_launches_outside(given: tuple[Any, ...], tmp_path: Path) -> None:
    results = []
    for name, options in (("fused", FUSED), ("unfused", UNFUSED)):
        call = compiled(options)
        call(*given)
        with sk.profile(tmp_path / name):
            results += [call(*given), call(*given)]
        call(*given)
    assert all(torch.equal(result, results[0]) for result in results)
    outside = {("Transpose", "torch"): 2, ("MatMul", "torch"): 2, ("ReduceMean", "torch"): 2}
    assert table(tmp_path / "fused") == outside | {("SuperKernel", "any"): 2}
    assert table(tmp_path / "unfused") == outside | {("MatMul", "any"): 4, ("Relu", "any"): 2}
    fused, unfused = store.read(tmp_path / "fused"), store.read(tmp_path / "unfused")
    assert fused.runs_by_identity == unfused.runs_by_identity and set(fused.runs_by_identity.values()) == {2}
    (kernel,) = fused.kernels
    assert (kernel.scope, kernel.fused, kernel.reason) == ("inner", True, "ended with the scope")
    assert "torch.relu(x @ w)" in kernel.ops[0].origin or __file__ in kernel.ops[0].origin
    (before,), (after,) = call_kinds(unfused), call_kinds(fused)  # one graph, called twice each way
    assert before.signature == after.signature and len(before.calls) == len(after.calls) == 2
    assert (before.launches, after.launches) == (6, 4) and after.host_us > 0
    first = kernel.ops[0]
    assert (first.bytes_read, first.bytes_written) == (4 * (16 * 32 + 32 * 32), 4 * 16 * 32)


@torch.no_grad()
def test_compiled_inside_a_profile(given: tuple[Any, ...], tmp_path: Path) -> None:
    call = compiled(FUSED)
    with sk.profile(tmp_path / "p", detail=True) as p:
        call(*given)
    assert p.result is not None
    assert table(tmp_path / "p")["SuperKernel", "any"] == 1
    spans = [span for launch in p.result.launches for span in launch.spans]
    assert {span.op for span in spans if span.what == "op"} == {op.name for op in p.result.kernels[0].ops}


@torch.no_grad()
def test_an_operator_that_splits_a_scope_is_a_launch_with_the_reason(tmp_path: Path) -> None:
    def splits(x: Any) -> Any:
        with sk.super_kernel("s"):
            return torch.linalg.inv(x * 2) + 1

    torch._dynamo.reset()
    call = torch.compile(splits, backend="superkernel", options=FUSED, fullgraph=True, dynamic=False)
    x = torch.eye(8)
    call(x)
    with sk.profile(tmp_path / "p") as p:
        call(x)
    assert p.result is not None
    by_torch = [launch for launch in p.result.launches if launch.core_type == "torch"]
    assert any("inv" in launch.name for launch in by_torch), by_torch
    assert "s" in {launch.scope for launch in by_torch}, by_torch
    assert any("linalg_inv" in why for kernel in p.result.kernels for why in kernel.unfusible)
    assert {launch.scope for launch in by_torch if launch.reason} == {"s"}


@torch.no_grad()
@pytest.mark.parametrize("options", [FUSED, UNFUSED])
def test_launches_show_in_torchs_own_trace_on_the_same_clock(
    given: tuple[Any, ...], tmp_path: Path, options: dict[str, Any]
) -> None:
    call = compiled(options)
    call(*given)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs,
        sk.profile(tmp_path / "p", detail=True) as p,
    ):
        call(*given)
    theirs.export_chrome_trace(str(tmp_path / "torch.json"))
    assert p.result is not None
    merged = json.loads(merge_files(tmp_path / "p", tmp_path / "torch.json", tmp_path / "both.json").read_text())
    events = [event for event in merged["traceEvents"] if event.get("ph") == "X"]
    ours = [event for event in events if event.get("cat") == "launch"]
    assert len(ours) == len(p.result.launches) > 0
    for launch in ours:  # each lies in an annotation of its name; half a millisecond for clocks that were read apart
        around = [e for e in events if e.get("cat") == "user_annotation" and e["name"] == launch["name"]]
        assert any(
            e["ts"] - 500 <= launch["ts"] and launch["ts"] + launch["dur"] <= e["ts"] + e["dur"] + 500 for e in around
        ), (launch, around)
    assert any(event.get("cat") == "op" for event in events)


def test_what_is_no_trace_cannot_be_merged(tmp_path: Path) -> None:
    with sk.profile(tmp_path / "p"):
        pass
    with pytest.raises(sk.OptionError, match="not a trace that can be read"):
        merge_files(tmp_path / "p", tmp_path / "none.json", tmp_path / "out.json")
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(sk.OptionError, match="no trace with traceEvents"):
        merge_files(tmp_path / "p", tmp_path / "bad.json", tmp_path / "out.json")
