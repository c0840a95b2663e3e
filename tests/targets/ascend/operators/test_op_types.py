"""The table of CANN's op types: every torch operator and argument that it names exists, and each name stands once."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import superkernel.ops  # noqa: F401  (defines the operators of superkernel::)
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.operators.op_types import BY_OPERATOR, OP_TYPES, TYPE_BY_NAME, Operator, find_op_type

DEFINED_HERE = [operator for _, operator in BY_OPERATOR.values() if not operator.name.startswith("npu::")]


def arguments_of(operator: Operator) -> set[str]:
    schemas = torch._C._jit_get_schemas_for_operator(operator.name)
    assert schemas, f"torch has no operator {operator.name}"
    return {argument.name for schema in schemas for argument in schema.arguments}


@pytest.mark.parametrize("operator", DEFINED_HERE, ids=lambda operator: operator.name)
def test_an_operator_of_the_table_has_the_arguments_that_are_renamed(operator: Operator) -> None:
    assert {argument for argument, _ in operator.inputs} <= arguments_of(operator)


def test_each_type_and_each_operator_stands_once() -> None:
    operators = Counter(operator.name for row in OP_TYPES for operator in row.operators)
    assert len(TYPE_BY_NAME) == len(OP_TYPES) and max(operators.values()) == 1


def test_static_compilation_has_other_names_for_the_same_types() -> None:
    assert find_op_type("ReduceMeanD") is TYPE_BY_NAME["ReduceMean"]
    assert find_op_type("MatMulD") is None


def test_matmuls_run_on_cube_cores_and_grouped_ones_on_both() -> None:
    assert TYPE_BY_NAME["MatMulV3"].type is KernelType.AIC_ONLY
    assert TYPE_BY_NAME["GroupedMatmul"].type is KernelType.MIX_AIC_1_2
    assert TYPE_BY_NAME["MoeGatingTopK"].type is KernelType.AIV_ONLY
