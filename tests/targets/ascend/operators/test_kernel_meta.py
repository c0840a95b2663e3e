"""Compiled kernels of a model's ops: found in a folder of metadata by type, parameters, element types and shapes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import superkernel as sk
from superkernel.frontend.scope_report import SegmentReport
from superkernel.model.tensor_arg import ScratchBuffers
from superkernel.targets import find_target
from superkernel.tools.cli import app

X = torch.linspace(-2, 2, 64).reshape(4, 16)
ADD, SIN, MATMUL = "Add_5a", "te_sin_77", "MatMulV2_c0"


def model(x: Tensor, w: Tensor) -> Tensor:
    with sk.super_kernel("sk1"):
        return (x.sin() + x) @ w.t()


GIVEN = (X, torch.rand(8, 16))


def ops_of_the_model() -> list[sk.Op]:
    """As the front end describes them, in less time."""
    support = find_target("ascend").model_support
    assert support is not None
    kernels: Any = support.shipped_kernels()
    x, sine, total = (sk.TensorArg(name, 0, "float32", (4, 16), (16, 1)) for name in ("x", "s", "t"))
    weight = sk.TensorArg("w", 0, "float32", (16, 8), (1, 16))
    product = sk.TensorArg("p", 0, "float32", (4, 8), (8, 1))
    return [
        kernels["aten::sin"](self=x, out=sine),
        kernels["aten::add"](self=sine, other=x, alpha=1, out=total),
        kernels["aten::mm"](self=total, mat2=weight, out=product),
    ]


def segment_of(folder: Path, **options: Any) -> SegmentReport:
    settings = {"target": "ascend", "kernel_meta": str(folder), **options}
    (segment,) = sk.explain(model, *GIVEN, options=settings).scopes[0].segments
    return segment


def missing(folder: Path) -> dict[str, str]:
    """By op, what is missing."""
    support = find_target("ascend").model_support
    assert support is not None and support.operators is not None
    found = support.operators.find_kernels(ops_of_the_model(), folder, ScratchBuffers("scratch"))
    return {str(known.op.name): known.missing for known in found if known.missing}


@pytest.fixture(scope="session")
def device_object(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("kernels") / "kernels.cpp"
    functions = "".join(f'extern "C" void {name}_func(uint64_t) {{}}\n' for name in (ADD, SIN, MATMUL))
    source.write_text("#include <cstdint>\n" + functions)
    subprocess.run(["g++", "-c", str(source), "-o", str(source.with_suffix(".o"))], check=True)
    return source.with_suffix(".o")


Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path, device_object: Path) -> Put:
    """Writes the metadata of a kernel with its object beside it; a change to None leaves a field out."""

    def written(name: str, params: list[str], kind: str = "AIV_ONLY", file: str = "", **changes: Any) -> Path:
        fields: dict[str, Any] = {
            "kernelName": name,
            "blockDim": 3,
            "sub_operator_kernel_type": f"KERNEL_TYPE_{kind}",
            "sub_operator_kernel_name": {"AiCore": {"func_name": f"{name}_func", "obj_files": f"{file or name}.o"}},
            "sub_operator_params": params,
            "sub_operator_early_start_set_flag": False,
            "sub_operator_early_start_wait_flag": False,
        }
        path = tmp_path / f"{file or name}.json"
        path.write_text(json.dumps({k: v for k, v in (fields | changes).items() if v is not None}))
        shutil.copyfile(device_object, path.with_suffix(".o"))
        return path

    return written


@pytest.fixture
def complete(put: Put, tmp_path: Path) -> Path:
    """A folder with the metadata of every op of the model."""
    put(SIN, ["x", "y"])
    put(ADD, ["in:x1", "in:x2", "out:y"], sub_operator_op_type="Add")
    put(MATMUL, ["x1", "x2", "y", "workspace"], "AIC_ONLY", workspace={"num": 1, "size": [4096]})
    return tmp_path


def test_the_super_kernel_is_made_of_the_kernels_in_the_folder(complete: Path) -> None:
    segment = segment_of(complete)
    assert [op.listed.metadata.name for op in segment.ops if op.listed and op.listed.metadata] == [
        f"{name}.json" for name in (SIN, ADD, MATMUL)
    ]
    assert [(op.kernel, op.blocks) for op in segment.ops] == [(name, 3) for name in (SIN, ADD, MATMUL)]
    assert f"{MATMUL}_func" in segment.kernel.source
    assert "bisheng was not found" in segment.kernel.executable.remarks[0]


def test_the_kinds_of_parameters_are_the_models(complete: Path) -> None:
    sine, _, matmul = segment_of(complete).kernel.graph.nodes
    assert [str(param) for param in sine.kernel.params] == ["in:x", "out:y"]
    assert [str(param) for param in matmul.kernel.params] == ["in:x1", "in:x2", "out:y", "workspace:workspace"]


def test_an_older_version_of_a_type_will_do_and_its_name_is_reported(complete: Path) -> None:
    assert [op.listed.op_type for op in segment_of(complete).ops if op.listed] == ["Sin", "Add", "MatMulV2"]


def test_the_dumped_op_list_compiles_to_the_same_super_kernel(complete: Path, put: Put, tmp_path: Path) -> None:
    put(SIN, ["in:x", "out:y"])  # the list itself does not say what is read and what is written
    put(MATMUL, ["in:x1", "in:x2", "out:y"], "AIC_ONLY")
    segment = segment_of(complete, dump=str(tmp_path / "dump"))
    (op_list,) = (tmp_path / "dump").rglob("op_list.json")
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["compile", str(op_list), "--target", "ascend", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert (out / "sk1_kernel.cpp").read_text() == segment.kernel.source


def test_what_is_missing_is_named_by_op(complete: Path) -> None:
    (complete / f"{ADD}.json").unlink()
    assert missing(complete) == {"Add": f"{complete} has no metadata of type Add; there are MatMulV2, Sin"}
    assert "without a compiled kernel: Add:" in str(
        sk.explain(model, *GIVEN, options={"target": "ascend", "kernel_meta": str(complete)})
    )
    remark, *_ = segment_of(complete).kernel.executable.remarks
    assert remark.startswith("sk1.o was not built: there is no compiled kernel of Add;")


def test_two_files_that_fit_are_ambiguous(complete: Path, put: Put) -> None:
    put(ADD, ["in:x1", "in:x2", "out:y"], file="Add_other")
    assert missing(complete) == {
        "Add": f"2 files of {complete} fit it: {ADD}.json, Add_other.json; leave one of them there"
    }


def test_shapes_and_types_tell_files_apart(complete: Path, put: Put) -> None:
    put(ADD, ["in:x1:float16[4,16]", "in:x2", "out:y"], file="Add_half")
    put(ADD, ["in:x1:float32[4,99]", "in:x2", "out:y"], file="Add_wide")
    (complete / f"{ADD}.json").unlink()
    assert missing(complete)["Add"] == (
        "no file of type Add fits: Add_half.json: its parameter x1 is float16, in the model it is float32; "
        "Add_wide.json: its parameter x1 is [4, 99], in the model it is [4, 16]"
    )
    put(ADD, ["in:x1:float32[4,16]", "in:x2", "out:y"])
    assert not missing(complete)


def test_support_info_tells_files_apart(complete: Path, put: Put) -> None:
    tensor = {"dtype": "float", "shape": [-1, 16]}
    put(
        ADD, ["x1", "x2", "y"], supportInfo={"inputs": [tensor, tensor], "outputs": [{"dtype": "float", "shape": [-2]}]}
    )
    assert not missing(complete)
    put(ADD, ["x1", "x2", "y"], supportInfo={"inputs": [tensor, tensor], "outputs": [{"dtype": "bf16"}]})
    assert "its parameter y is bf16, in the model it is float32" in missing(complete)["Add"]


def test_a_transposed_operand_is_compiled_as_it_lies_in_memory(complete: Path, put: Put) -> None:
    put(MATMUL, ["in:x1", "in:x2:float32[8,16]", "out:y"], "AIC_ONLY")
    assert not missing(complete)
    put(MATMUL, ["in:x1", "in:x2:float32[16,16]", "out:y"], "AIC_ONLY")
    assert "x2 is [16, 16], in the model it is [16, 8]" in missing(complete)["MatMulV3"]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (["x1", "y"], "it takes 2 parameters (x1, y), the model gives 3 (x1, x2, y)"),
        (["x1", "x2", "bias", "y"], "it takes 4 parameters (x1, x2, bias, y), the model gives 3 (x1, x2, y)"),
        (["x1", "x2", "y", "tiling"], "it takes 4 parameters (x1, x2, y, tiling), the model gives 3 (x1, x2, y)"),
        (["in:x1", "out:x2", "out:y"], "its parameter x2 is out, in the model it is in"),
    ],
)
def test_other_parameters_do_not_fit(complete: Path, put: Put, params: list[str], reason: str) -> None:
    put(ADD, params)
    assert missing(complete) == {"Add": f"no file of type Add fits: {ADD}.json: {reason}"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"blockDim": None}, "the field 'blockDim' is missing"),
        ({"sub_operator_kernel_type": "KERNEL_TYPE_AIX"}, "unknown kernel type 'KERNEL_TYPE_AIX'"),
        ({"supportInfo": [1]}, "supportInfo: a list is not an object"),
    ],
)
def test_a_wrong_field_is_named(complete: Path, put: Put, change: dict[str, Any], reason: str) -> None:
    put(ADD, ["x1", "x2", "y"], **change)
    assert reason in missing(complete)["Add"]


def test_an_object_that_is_not_there_is_named(complete: Path) -> None:
    (complete / f"{ADD}.o").unlink()
    assert missing(complete) == {"Add": f"no file of type Add fits: {ADD}.json: its object {ADD}.o is not beside it"}


def test_other_json_files_are_no_metadata_and_broken_ones_are_named(complete: Path) -> None:
    (complete / "notes.json").write_text("[1, 2]")
    (complete / f"{ADD}.json").write_text("{")
    assert "not JSON" in missing(complete)["Add"]


def test_the_type_may_stand_in_the_kernels_name() -> None:
    from superkernel.targets.ascend.operators.kernel_meta import _type_of_name

    names = ["te_add_rms_norm_12_1", "Add_12", "te_matmulv3_9", "GroupedMatmul_a_b", "te_unheard_of"]
    assert list(map(_type_of_name, names)) == ["AddRmsNorm", "Add", "MatMulV3", "GroupedMatmul", "te_unheard_of"]
