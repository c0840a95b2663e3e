"""From a model to an op list: scopes, cuts and reasons as on the CPU, ops in CANN's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import superkernel as sk
from superkernel import ops
from superkernel.errors import OptionError, UnsupportedError
from superkernel.frontend.scope_report import OpReport
from superkernel.targets import find_target
from superkernel.tools.cli import app

ASCEND = {"target": "ascend"}
X = torch.linspace(-2, 2, 64).reshape(4, 16)


def listed(model: Any, *inputs: Any, **options: Any) -> list[OpReport]:
    """The ops of the only segment of a model."""
    report = sk.explain(model, *inputs, options=ASCEND | options)
    (segment,) = report.scopes[0].segments
    return list(segment.ops)


def types(model: Any, *inputs: Any) -> list[str]:
    return [op.listed.op_type for op in listed(model, *inputs) if op.listed is not None]


def quantised(x: Tensor, weight: Tensor, scale: Tensor, pertoken: Tensor) -> Any:
    with sk.super_kernel("sp1"):
        product = ops.quant_matmul(x, weight.t(), scale, pertoken_scale=pertoken, output_dtype=torch.bfloat16)
        return ops.dequant_swiglu_quant(product, quant_mode=1)


def test_ops_have_canns_names_and_parameters() -> None:
    given = (torch.ones(4, 32, dtype=torch.int8), torch.ones(64, 32, dtype=torch.int8), torch.rand(64), torch.rand(4))
    matmul, swiglu = listed(quantised, *given)
    assert matmul.listed is not None and swiglu.listed is not None
    assert (matmul.name, matmul.listed.op_type, matmul.listed.core) == (*["QuantBatchMatmulV3"] * 2, "mix")
    assert [(p.kind, p.name, p.dtype, p.shape) for p in matmul.listed.params] == [
        ("in", "x1", "int8", (4, 32)),
        ("in", "x2", "int8", (32, 64)),
        ("in", "scale", "float32", (64,)),
        ("in", "pertoken_scale", "float32", (4,)),
        ("out", "y", "bfloat16", (4, 64)),
    ]
    assert [p.name for p in swiglu.listed.params] == ["x", "y", "scale"]
    assert swiglu.listed.params[0].buffer == matmul.listed.params[-1].buffer
    assert swiglu.listed.attributes == {"activate_left": False, "quant_mode": 1}
    assert "quant_matmul(x, weight.t()" in matmul.origins[0]


def test_operators_that_cann_has_stay_whole() -> None:
    def model(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        hidden = torch.nn.functional.layer_norm(torch.nn.functional.silu(x), (16,))
        return torch.softmax(torch.addmm(bias, hidden, weight), -1)

    assert types(model, X, torch.rand(16, 8), torch.rand(8)) == ["Swish", "LayerNormV3", "MatMulV3", "SoftmaxV2"]


def test_an_operator_without_a_type_of_its_own_is_decomposed() -> None:
    assert types(lambda x: torch.nn.functional.mse_loss(x, x + 1), X) == ["Add", "Sub", "Pow", "ReduceMean"]


def test_what_cann_cannot_read_is_moved_once() -> None:
    def model(x: Tensor) -> Tensor:
        turned = x.t()
        return (turned.exp() * turned.abs()).sum()

    assert types(model, X) == ["Transpose", "Exp", "Abs", "Mul", "ReduceSum"]


def test_copies_are_named_after_what_they_do() -> None:
    assert types(lambda x: x[:, ::2].contiguous(), X) == ["StridedSlice"]
    assert types(lambda x: x[:, :1].expand(4, 16).contiguous(), X) == ["BroadcastTo"]
    assert types(lambda x: x.to(torch.float16), X) == ["Cast"]


def test_an_output_keeps_the_strides_that_the_graph_states() -> None:
    def model(x: Tensor) -> Tensor:
        return x.t().exp()

    report = sk.explain(model, X, options=ASCEND)
    assert [op.name for op in report.scopes[0].segments[0].ops] == ["Transpose", "Exp", "Transpose_2"]


def test_a_matmul_reads_transposed_weights_where_they_are() -> None:
    assert types(lambda x, w: x @ w.t(), X, torch.rand(8, 16)) == ["MatMulV3"]


def cut(x: Tensor) -> Tensor:
    with sk.super_kernel("a"):
        return x.sin().logcumsumexp(0).cos()


def test_an_operator_without_an_entry_cuts_the_scope() -> None:
    report = sk.explain(cut, X, options=ASCEND)
    (scope,) = report.scopes
    reason = "not fusible on ascend: the table of CANN's op types has no entry for it"
    assert [[op.name for op in segment.ops] for segment in scope.segments] == [["Sin"], ["Cos"]]
    assert scope.segments[0].reason == f"ended by aten::logcumsumexp: {reason}"
    assert [(found.op, found.reason) for found in scope.unfusible] == [("aten::logcumsumexp", reason)]


def test_the_strict_check_refuses_it() -> None:
    with pytest.raises(UnsupportedError, match=r"super_kernel_scope 'a': strict-scope-check=abort.*logcumsumexp"):
        sk.explain(cut, X, options=ASCEND | {"options": "strict-scope-check=abort"})


def test_ai_cores_do_not_compute_float64() -> None:
    report = sk.explain(lambda x: x.double().sin().float(), X, options=ASCEND)
    assert {found.reason for found in report.scopes[0].unfusible} == {
        "Cast: its result is float64, which AI cores do not compute",
        "Sin: x is float64, which AI cores do not compute",
        "Cast: x is float64, which AI cores do not compute",
    }


def test_the_super_kernel_is_planned_and_printed_without_kernels() -> None:
    report = sk.explain(lambda x: (x.sin() @ x.t()).cos(), X, options=ASCEND)
    (segment,) = report.scopes[0].segments
    assert segment.launches == "emulated" and segment.syncs
    assert "MatMulV3_" in segment.kernel.source and "__aicore__" in segment.kernel.source
    remark = segment.kernel.executable.remarks[0]
    assert remark.startswith("graph.o was not built: there is no compiled kernel of Sin, MatMulV3, Cos;")


def test_a_registered_kernel_comes_first(tmp_path: Path) -> None:
    from superkernel.frontend.registry import _registered

    source = tmp_path / "mine.cpp"
    source.write_text('#include <superkernel/host_kernel.h>\nextern "C" void mine(uint64_t) {}\n')
    kernel = sk.SubKernel.from_source(source, "mine", block_dim=2, params=["in:x", "out:y"], op_type="MySin")

    @sk.register_kernel("aten::sin", target="ascend")
    def sine(self: Any, *, out: Any) -> sk.Op:
        return sk.Op(kernel, [self, out])

    try:
        sine_op, cosine_op = listed(lambda x: x.sin().cos(), X)
    finally:
        del _registered["aten::sin", "ascend"]
    assert sine_op.listed is not None and cosine_op.listed is not None
    assert (sine_op.listed.op_type, sine_op.listed.missing) == ("MySin", "")
    assert "kernel_meta" in cosine_op.listed.missing


def test_the_text_has_the_op_list() -> None:
    text = str(sk.explain(lambda x: x.sin().sum(0), X, options=ASCEND))
    assert "segment 1: 2 ops, one super kernel, emulated; ended with the graph" in text
    assert "      in:x=arg0 float32[4,16], out:y=sin float32[4,16]\n" in text
    assert "      attributes: dim=[0], keepdim=False\n" in text
    assert "without a compiled kernel: all 2 ops: no folder of metadata was named" in text


def test_the_report_is_data_too() -> None:
    report = json.loads(json.dumps(sk.explain(lambda x: x.sin(), X, options=ASCEND).to_dict()))
    (op,) = report["scopes"][0]["segments"][0]["ops"]
    assert (op["op_type"], op["core"], op["stream_id"], op["task_type"]) == ("Sin", "vector", 0, "normal")
    assert op["params"][0] == {"kind": "in", "name": "x", "buffer": "arg0", "dtype": "float32", "shape": [4, 16]}
    assert op["json_path"] is None and op["missing"]


def test_the_shell_takes_the_target(tmp_path: Path) -> None:
    place = tmp_path / "net.py"
    place.write_text("import torch\ndef net(x): return x.sin()\ndef net_inputs(): return (torch.ones(4),)\n")
    result = CliRunner().invoke(app, ["explain", f"{place}:net", "--target", "ascend", "--json"])
    assert result.exit_code == 0, result.output
    (op,) = json.loads(result.stdout)["scopes"][0]["segments"][0]["ops"]
    assert op["op_type"] == "Sin"


def test_other_targets_have_no_metadata(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'kernel_meta' has no meaning on target 'cpu'"):
        sk.explain(lambda x: x.sin(), X, options={"kernel_meta": str(tmp_path)})
    with pytest.raises(OptionError, match="'kernel_meta' cannot be '/nowhere'; allowed: an existing folder"):
        sk.explain(lambda x: x.sin(), X, options=ASCEND | {"kernel_meta": "/nowhere"})


def test_a_chip_may_be_named() -> None:
    wide = torch.zeros(256, 1024)
    for chip, vectors in (("a2", 40), ("a3", 48)):
        (op,) = listed(lambda x: x.exp(), wide, chip=chip)
        assert op.blocks == vectors
    with pytest.raises(OptionError, match="the cpu target has no chips"):
        sk.explain(lambda x: x.exp(), X, options={"chip": "a2"})
    with pytest.raises(OptionError, match="backend option 'chip' cannot be 5"):
        sk.explain(lambda x: x.exp(), X, options=ASCEND | {"chip": 5})


def test_the_target_offers_models() -> None:
    support = find_target("ascend").model_support
    assert support is not None and support.operators is not None
