"""Graphs that GE and torchair dumped: scopes, segments, streams, events and refusals, from a sample written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from superkernel.errors import GraphError, OptionError, SuperKernelError, UnsupportedError
from superkernel.frontend.explain import explain_place
from superkernel.frontend.report import CompileReport
from superkernel.targets.ascend.operators.text_format import Message, read_message
from superkernel.tools.cli import app

SAMPLE = Path(__file__).parent / "dumps" / "ge_proto_moe.txt"
TEXT = SAMPLE.read_text()
NO_ENTRY = "not fusible on ascend: the table of CANN's op types has no entry for it"
Changed = Callable[..., CompileReport]


def explained(path: Path, **options: Any) -> CompileReport:
    return explain_place(str(path), {"target": "ascend", **options})


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """The report of the sample with some texts replaced."""

    def report(*replacements: tuple[str, str], **options: Any) -> CompileReport:
        text = TEXT
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "ge_proto_changed.txt"
        path.write_text(text)
        return explained(path, **options)

    return report


def plain(message: Message) -> dict[str, Any]:
    """As `atc --mode=5` writes JSON: repeated fields are lists."""
    repeated = {"graph", "op", "attr", "input", "input_desc", "output_desc", "dim"}
    made = {}
    for name, values in message.fields.items():
        items = [plain(value) if isinstance(value, Message) else value for value in values]
        made[name] = items if name in repeated else items[0]
    return made


def facts(report: CompileReport) -> Any:
    """The report as data, without the name of the file."""
    return json.loads(re.sub(r'"[^"]*: op (\w+)', r'"op \1', json.dumps(report.to_dict())))


def test_the_sample_gives_an_op_list_per_segment_of_each_scope() -> None:
    report = explained(SAMPLE)
    first, second = report.scopes
    assert (first.name, first.options, second.name) == ("sk1", "stream-fusion=1:early-start=0", "sk2")
    assert [[op.name for op in segment.ops] for segment in first.segments] == [
        ["MatMulV3_1", "Exp_Exp_3", "Neg_6"],
        ["Abs_8"],
    ]
    assert [segment.reason for segment in first.segments] == [f"ended by MyCustom: {NO_ENTRY}", "ended with the scope"]
    assert [(found.op, found.reason) for found in first.unfusible] == [("MyCustom", NO_ENTRY)]
    assert report.outside == 1 and "1 op outside of scopes;" in str(report)


def test_parameters_are_the_memory_behind_them() -> None:
    matmul, exponential, _ = explained(SAMPLE).scopes[0].segments[0].ops
    assert matmul.listed is not None and exponential.listed is not None
    assert str(matmul.listed) == (
        "in:x1=arg0_1 float16[16,64], in:x2=weight float16[64,32], out:y=MatMulV3_1 float16[16,32]"
    )
    assert str(exponential.listed) == "in:x=MatMulV3_1 float16[512], out:y=Exp_Exp_3 float16[512]"  # through a Reshape


def test_streams_and_events_are_those_of_the_dump() -> None:
    segment = explained(SAMPLE).scopes[0].segments[0]
    found = [(op.listed.stream, op.listed.send, op.listed.recv) for op in segment.ops if op.listed is not None]
    assert found == [(0, (), ()), (0, ("7",), ()), (1, (), ("7",))]
    assert segment.kernel.graph.edges[-1].consumer == 2


def test_the_same_as_json_gives_the_same_report(tmp_path: Path) -> None:
    path = tmp_path / "ge_proto_moe.json"
    path.write_text(json.dumps(plain(read_message(SAMPLE))))
    assert facts(explained(path)) == facts(explained(SAMPLE))


def test_json_may_have_attributes_by_key(tmp_path: Path) -> None:
    content = plain(read_message(SAMPLE))
    for op in content["graph"][0]["op"]:
        op["attr"] = {entry["key"]: entry["value"] for entry in op.get("attr", [])}
    path = tmp_path / "by_key.json"
    path.write_text(json.dumps(content))
    assert facts(explained(path)) == facts(explained(SAMPLE))


def test_torchair_dumps_the_ops_of_one_graph(tmp_path: Path) -> None:
    body = TEXT[TEXT.index("graph {") + len("graph {") : TEXT.rindex("}")]
    path = tmp_path / "dynamo_optimized_graph_1.txt"
    path.write_text(body)
    assert facts(explained(path)) == facts(explained(SAMPLE))


def test_the_shell_explains_a_dump() -> None:
    result = CliRunner().invoke(app, ["explain", str(SAMPLE), "--target", "ascend", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["scopes"][1]["segments"][0]["ops"][0]["op_type"] == "ReduceMean"
    refused = CliRunner().invoke(app, ["explain", str(SAMPLE)])
    assert refused.exit_code == 1 and "target 'cpu' reads no dumped graphs: use --target ascend" in refused.output


def test_a_graph_without_scopes_is_one_scope(changed: Changed) -> None:
    none = [("_super_kernel_scope", "_other")] * TEXT.count("_super_kernel_scope")
    assert [scope.name for scope in changed(*none).scopes] == ["graph"]
    assert changed(*none, fuse="marked").scopes == []


def test_the_strict_check_refuses_or_bypasses(changed: Changed) -> None:
    options = 'value { s: "stream-fusion=1:" "early-start=0" }'
    with pytest.raises(UnsupportedError, match=r"super_kernel_scope 'sk1': strict-scope-check=abort: MyCustom: not"):
        changed((options, 'value { s: "strict-scope-check=abort" }'))
    (segment,) = changed((options, 'value { s: "strict-scope-check=bypass" }')).scopes[0].segments
    assert not segment.fused and segment.reason.startswith("strict-scope-check=bypass: MyCustom")


def test_a_foreign_op_cuts_a_scope(changed: Changed) -> None:
    scope = '    attr { key: "_super_kernel_scope" value { s: "sk1" } }\n'
    body = TEXT[TEXT.index('name: "Exp/Exp_3"') : TEXT.index('name: "Send_4"')]
    report = changed((body, body.replace(scope, "")))
    reasons = [segment.reason for segment in report.scopes[0].segments]
    assert reasons[0] == "ended by Exp, which lies outside of the scope"


def test_other_collectives_cut_and_the_strict_check_lets_them_pass(changed: Changed) -> None:
    report = changed(('MyCustom"\n', 'HcomBroadcast"\n'), ("early-start=0", "strict-scope-check=abort"))
    assert report.scopes[0].segments[0].reason == "ended by HcomBroadcast: collective"


@pytest.mark.parametrize("kind", ["HcomAllReduce", "HcomAllGather", "HcomReduceScatter", "HcomAllToAll", "AlltoAll"])
def test_collectives_that_cann_fuses_are_ops_of_the_list(changed: Changed, kind: str) -> None:
    cut, report = changed(), changed(('MyCustom"\n', f'{kind}"\n'), ("early-start=0", "strict-scope-check=abort"))
    assert len(report.scopes[0].segments) == len(cut.scopes[0].segments) - 1
    assert not report.scopes[0].unfusible


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("dim: 512", "dim: -1", "the size of its parameter x is not known before it runs"),
        ("DT_FLOAT16 shape { dim: 512", "DT_STRING shape { dim: 512", "its parameter x has the element type DT_STRING"),
    ],
)
def test_an_op_that_cannot_be_fused_is_named(changed: Changed, old: str, new: str, reason: str) -> None:
    at = TEXT.index('name: "Exp/Exp_3"')
    block = TEXT[at : TEXT.index('name: "Send_4"')]
    unfusible = changed((block, block.replace(old, new, 1))).scopes[0].unfusible
    assert (unfusible[0].op, unfusible[0].reason) == ("Exp", reason)
    assert unfusible[0].origins[0].endswith("ge_proto_changed.txt: op Exp/Exp_3")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name: "Neg_6"', 'title: "Neg_6"', r"line 65: name is missing"),
        ('name: "Abs_8"', 'name: "Neg_6"', r"line 86: two ops are called 'Neg_6'"),
        ('input: "Sin_9:0"', 'input: "Sun_9:0"', r"op 'ReduceMeanD_10' reads 'Sun_9', which is no op of the graph"),
        ('input: ""', 'input: "weight:0"', r"op 'MatMulV3_1' has 3 inputs and 2 descriptions of inputs"),
        ("id: 2", "id: two", r"id is 'two'; a whole number is needed"),
        ("id: 2", "id: 2 id: 3", r"id stands 2 times; once is allowed"),
        ('key: "event_id" value { i: 7 }', 'key: "event"', r"op 'Send_4' has no attribute event_id"),
        ("version: 1", "version 1", r"line 3: '1' where ':' or '{' is expected"),
        ("version: 1", "version: }", r"line 3: '}' where a value is expected"),
        ("version: 1", "version: @", r"line 3: '@' is not protobuf's text format"),
        ('type: "NetOutput"', 'type: "NetOutput" }}}', r"'}' where a field is expected"),
        ("graph {", "grapes {", r"has neither graph nor op"),
        ("graph {", "graph: 5 more {", r"graph is 5; a message is needed"),
    ],
)
def test_a_wrong_dump_is_refused_with_its_line(changed: Changed, old: str, new: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        changed((old, new))


def test_options_that_contradict_each_other_are_refused(changed: Changed) -> None:
    block = 'name: "Abs_8"\n    type: "Abs"\n'
    other = 'attr { key: "_super_kernel_options" value { s: "early-start=1" } }\n'
    with pytest.raises(OptionError, match=r"super_kernel_scope 'sk1': is given different options: .* by MatMulV3_1"):
        changed((block, block + other))
    with pytest.raises(OptionError, match=r"super_kernel_scope 'sk1': .*early-strat.*op MatMulV3_1"):
        changed(("early-start=0", "early-strat=0"))


def test_a_file_that_is_no_dump_is_refused(tmp_path: Path) -> None:
    for name, text in {"empty.txt": "", "list.json": "[1]", "half.json": "{", "words.txt": "hello world"}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(GraphError, match=name):
            explained(tmp_path / name)


def test_text_format_is_read_as_protobuf_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("""a: "x\\n\\101\\x42\\"" 'y'  # comment
      b: [1, -0x10, 2.5e1]; c < d: true e: NAME >, c { } f: inf""")
    message = read_message(path)
    assert message.fields["a"] == ['x\nAB"y'] and message.fields["b"] == [1, -16, 25.0]
    assert [inner.fields for inner in message.messages("c")] == [{"d": [True], "e": ["NAME"]}, {}]


@given(
    st.integers(0, len(TEXT) - 1), st.integers(1, 40), st.sampled_from(['"', "{", "}", ":", "", "0", "\\", "dim: 3"])
)
def test_any_damage_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, at: int, cut: int, new: str) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.txt"
    path.write_text(TEXT[:at] + new + TEXT[at + cut :])
    try:
        from superkernel.targets import find_target

        support = find_target("ascend").model_support
        assert support is not None and support.operators is not None
        assert support.operators.read_graphs(path)
    except SuperKernelError as refusal:
        assert "damaged.txt" in str(refusal)
