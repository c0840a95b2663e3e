"""The printed report: one screen of advice, then the detail with what repeats printed once. Reports built by hand."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from superkernel.frontend.capture.fusibility import Cause, Unfusible
from superkernel.frontend.gate_conditions import GateConditions
from superkernel.frontend.graph_breaks import GraphBreak
from superkernel.frontend.part_verdict import PartChoice, PartVerdict
from superkernel.frontend.report import CompileReport
from superkernel.frontend.scope_report import OpReport, ScopeReport, SegmentReport

LAYERS = 12
FILE = "/opt/python/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py"
LAYER = [
    ("fused_add_mean_mul_pow_rsqrt", 88, "hidden_states = hidden_states.to(torch.float32)"),
    ("mm", 251, "query_states = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)"),
    ("mm", 252, "key_states = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)"),
    ("mm", 253, "value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)"),
    ("fused_add_cat_cos_index_copy_mul_neg_sin_slice_transpose_unsqueeze_view", 148, "q_embed = (q * cos) + ..."),
    ("_scaled_dot_product_flash_attention_for_cpu", 280, "attn_output, attn_weights = attention_interface("),
    ("mm", 290, "attn_output = self.o_proj(attn_output)"),
    ("fused_add_mean_mul_pow_rsqrt", 88, "hidden_states = hidden_states.to(torch.float32)"),
    ("mm", 172, "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"),
    ("mm", 172, "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"),
    ("fused_mul_silu", 172, "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"),
    ("mm", 172, "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"),
]


class Gate:
    """What a report reads of a profit gate."""

    def __init__(self, chosen: str | None = None, **medians_us: float) -> None:
        self.chosen, self.medians_us = chosen, medians_us
        self.conditions: GateConditions | None = None


def layer_ops(number: int) -> list[OpReport]:
    return [
        OpReport(f"{name}_{12 * number + at}", name, 2, (f"{FILE}:{line}: {code}", "other"))
        for at, (name, line, code) in enumerate(LAYER)
    ]


def llama(**facts: Any) -> CompileReport:
    ops = [op for number in range(LAYERS) for op in layer_ops(number)]
    ops = [OpReport("fused_embedding", "k", 2, ()), *ops, OpReport("mm", "k", 2, ())]
    gate = Gate("fused", fused=800.0, unfused=1000.0)
    segment = SegmentReport(tuple(ops), True, "ended with the graph", {"flag": 70, "counter": 99}, 300, 1 << 25, gate)
    return CompileReport([ScopeReport("graph", "", 1, "inference", [segment])], 1, **facts)


def missing(operator: str, line: int = 3, cause: Cause = Cause.NO_KERNEL) -> Unfusible:
    return Unfusible(operator, "no cpu sub-kernel is registered for it", (f"model.py:{line}: x = f(x)",), cause)


def segment(
    *ops: str, obstacle: Unfusible | None = None, gate: Gate | None = None, fused: bool = True
) -> SegmentReport:
    reason = "ended with the graph" if obstacle is None else f"ended by {obstacle.op}: {obstacle.reason}"
    reports = tuple(OpReport(name, name, 2, ()) for name in ops)
    return SegmentReport(reports, fused, reason, gate=gate, obstacle=obstacle)


def one_scope(*segments: SegmentReport, unfusible: tuple[Unfusible, ...] = (), **facts: Any) -> CompileReport:
    return CompileReport([ScopeReport("a", "", 1, "inference", list(segments), list(unfusible))], 1, **facts)


def test_twelve_layers_fit_a_screen() -> None:
    lines = llama().text(100).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    assert lines[0] == "verdict: fused: 1 super kernel"
    assert lines[1] == "launches per call: 146 -> 1"
    assert lines[2] == "measured: 800.0 us, unfused 1000.0 us: 1.25x as fast"
    assert "graph breaks: none" in lines
    assert "    12 ops x 12:" in lines
    assert sum("py:290: attn_output = self" in line for line in lines) == 1
    assert any("  2 blocks  modeling_llama.py:148: q_embed" in line for line in lines)
    assert not any("site-packages" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_lines_are_as_wide_as_the_terminal_at_most(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(llama(notes=["a note " * 30])).splitlines()
    assert width - 15 < max(map(len, lines)) <= width


@pytest.mark.parametrize(("load", "warned"), [(None, False), (1.0, False), (8.9, True)])
def test_times_of_a_busy_machine_are_shown_with_a_warning(load: float | None, warned: bool) -> None:
    gate = Gate("fused", fused=1.0, unfused=1680.0)
    gate.conditions = GateConditions("2026-11-16 10:52", load)
    lines = one_scope(segment("a", "b", gate=gate)).text(200).splitlines()
    warnings = [line for line in lines if line.startswith("warning: the machine was busy")]
    assert bool(warnings) is warned
    if warned:
        assert "measured 2026-11-16 10:52 at load 8.9" in warnings[0] and "cache clear --gate" in warnings[0]
        assert lines[lines.index(warnings[0]) - 1].startswith("measured: ")


def test_the_three_costliest_splits_come_with_what_to_do() -> None:
    often, seldom, foreign = (
        missing("aten::often"),
        missing("aten::seldom", 7),
        missing("aten::foreign", 9, Cause.OUTSIDE_SCOPE),
    )
    number = missing("aten::item", 11, Cause.DATA_DEPENDENT_NUMBER)
    segments = [segment("mm", obstacle=often) for _ in range(LAYERS)]
    segments += [
        segment("mm", obstacle=foreign),
        segment("add", obstacle=foreign),
        segment("mm", obstacle=number),
        segment("mm", obstacle=seldom),
    ]
    report = one_scope(*segments, unfusible=(*[often] * LAYERS, number, seldom))
    text = report.text(100)
    assert "verdict: partly fused: 16 super kernels, 14 operators of torch" in text
    assert "splits: 16, the costliest 3" in text
    assert (
        "  1. aten::often x 12, 24 launches more: no cpu sub-kernel is registered for it\n    model.py:3: x = f(x)"
        in text
    )
    assert 'do: register a kernel, sk.register_kernel("aten::often")' in text
    assert "  2. aten::item, 2 launches more" in text and "do: keep the value in a tensor (no .item())" in text
    assert (
        "  3. aten::foreign x 2, 2 launches more: " in text and "do: move the op out of the middle of the scope" in text
    )
    assert [split.op for split in report.advice.splits][3] == "aten::seldom"
    assert [split["launches"] for split in report.to_dict()["splits"]] == [24, 2, 2, 1]
    assert "  segments 1 to 12 (x 12): 1 op, fused; ended by aten::often" in text
    assert text.count("unfusible aten::often") == 1 and "unfusible aten::often" in text and ") x 12" in text


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_remedy(cause: Cause) -> None:
    found = missing("aten::often", cause=cause)
    report = one_scope(segment("mm", obstacle=found), segment("mm"), unfusible=(found,))
    (split,) = report.advice.splits
    assert split.remedy and f"do: {split.remedy}" in report.text(200)


def test_gradients_are_a_split() -> None:
    forward, backward = (
        ScopeReport("a", "", 1, "forward", [segment("mm")]),
        ScopeReport("a", "", 2, "backward", [segment("mm", "add")]),
    )
    text = CompileReport([forward, backward], 2).text(100)
    assert "launches of all 2 graphs: 3 -> 2" in text
    assert "1. 2 graphs for training, 1 launch more: inputs or weights need gradients" in text
    assert "do: call the model under torch.no_grad()" in text


def test_sizes_that_depend_on_data_are_to_be_marked_static() -> None:
    found = Unfusible("aten.nonzero.default", "its size depends on data", ("model.py:5: y",), Cause.DATA_DEPENDENT_SIZE)
    text = one_scope(SegmentReport((), False, str(found), obstacle=found)).text(100)
    assert text.startswith("verdict: not fused: aten.nonzero.default: its size depends on data (model.py:5: y)")
    assert "do: give it a fixed size: torch._dynamo.mark_static" in text and "launches" not in text.splitlines()[1]


def test_the_verdict_says_what_is_launched() -> None:
    slower = segment("mm", "add", gate=Gate("unfused", fused=20.0, unfused=10.0))
    assert one_scope(slower).advice.verdict == "not fused: launching op by op was measured to be faster here"
    assert (one_scope(slower).advice.launches_before, one_scope(slower).advice.launches_after) == (2, 2)
    both = one_scope(slower, segment("mm"), outside=3)
    assert both.advice.verdict == "partly fused: 1 super kernel, 3 ops outside of scopes, 1 segment not fused"
    assert "measured: 10.0 us, unfused 10.0 us: 1.00x as fast, in 1 of 2 segments" in str(both)
    undecided = one_scope(segment("mm", "add", gate=Gate()))
    assert "measured: not yet: the first calls of the model measure" in str(undecided)
    wanted = "nothing was fused: no scope contains an op to launch"
    assert one_scope(unfusible=()).advice.verdict == wanted
    only_torch = one_scope(unfusible=(missing("aten::often"),))
    assert only_torch.advice.verdict == "not fused: torch runs every op of the scopes"
    assert only_torch.advice.launches_after == 1 and "1. aten::often, 1 launch more" in str(only_torch)
    assert CompileReport([], 1, notes=["torch 9"]).advice.verdict == "nothing was fused: torch 9"
    off = SegmentReport((OpReport("mm", "mm", 1, ()),), False, "fuse=off: every op is a launch of its own")
    assert one_scope(off).advice.verdict == "not fused: fuse=off: every op is a launch of its own"


def test_what_is_left_to_torch_is_compared_with_inductor() -> None:
    verdict = PartVerdict(PartChoice.INDUCTOR, {"fused": 30.0, "unfused": 40.0, "inductor": 20.0}, GateConditions.now())
    left_out, other = segment("mm", "add"), segment("add")
    for report in (left_out, other):  # two segments of one part
        report.apply(verdict)
    text = one_scope(left_out, other).text(100)
    assert text.startswith("verdict: not fused: left out: stock Inductor is faster: 20.0 us, as super kernels 30.0 us")
    assert "stock Inductor: 20.0 us, super kernels 30.0 us: 0.67x as fast" in text
    faster = Unfusible("aten::convolution", "torch's function is faster", (), Cause.LIBRARY_FASTER)
    text = one_scope(segment("mm", obstacle=faster), segment("mm"), unfusible=(faster,)).text(100)
    assert "1. aten::convolution, 2 launches more: torch's function is faster\n    do: nothing: it is faster" in text


def test_graph_breaks_have_lines_and_hints() -> None:
    breaks = [
        GraphBreak(f"reason {at}", "because", "do not print" if at else "", f"model.py:{at}: print(x)")
        for at in range(7)
    ]
    text = llama(graph_breaks=breaks).text(100)
    assert "graph breaks: 7\n  model.py:0: print(x)\n    reason 0\n  model.py:1: print(x)" in text
    assert "    reason 1\n    do: do not print\n" in text
    assert "  and 2 more, in to_dict() and --json" in text
    nothing = CompileReport(skipped=[GraphBreak("no LSTM", "Dynamo has none.", "set allow_rnn")])
    assert str(nothing).startswith("verdict: nothing was compiled: no LSTM: Dynamo has none; set allow_rnn")
    assert "found no tensor operation" in str(CompileReport())


def test_scopes_of_equal_layers_are_printed_once() -> None:
    scopes = [ScopeReport(f"layer{at}", "", 1, "inference", [segment(f"mm_{at}", "add")]) for at in range(LAYERS)]
    text = CompileReport(scopes, 1).text(100)
    assert "scope 'layer0' in graph 1 (inference): 1 segment x 12" in text and "layer1'" not in text
    assert "launches per call: 24 -> 12" in text


def test_notebooks_show_the_verdict_and_fold_the_detail() -> None:
    bad = "<script>alert(1)</script>"
    shown = llama(notes=[bad])._repr_html_()
    assert "<b>verdict: fused: 1 super kernel</b>" in shown
    assert "<details><summary>segments and ops</summary>" in shown and "12 ops x 12:" in shown
    assert bad not in shown and "&lt;script&gt;alert(1)" in shown
