"""Names are the user's: whatever is a line of text works, in the emitted code, the reports and the files."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime.given import KERNELS, VECTOR, vector

import superkernel as sk

ODD = [
    pytest.param("layer.0/add [x] (é)", id="punctuation"),
    pytest.param("*/ int main() { // \\", id="comment"),
    pytest.param('say "hi" % d {0}', id="quotes"),
    pytest.param("名前", id="letters"),
    pytest.param("1", id="digit"),
    pytest.param("x" * 500, id="long"),
    pytest.param("template", id="keyword"),
]


def named(kernel_name: str, op: str, buffers: tuple[str, str, str], params: tuple[str, str, str]) -> sk.SuperKernel:
    kinds = ("in", "in", "out")
    texts = [f"{kind}:{param}:{VECTOR}" for kind, param in zip(kinds, params, strict=True)]
    add = sk.SubKernel.from_source(KERNELS, "add", block_dim=1, params=texts)
    return sk.compile([sk.Op(add, list(buffers), name=op)], name=kernel_name)


@pytest.mark.parametrize("name", ODD)
def test_any_line_of_text_names_a_super_kernel_an_op_and_a_buffer(name: str, tmp_path: Path) -> None:
    with named(name, name, (name, "b", f"{name} "), ("x", "y", "z")) as k:
        assert (k({name: vector(), "b": vector(2)})[f"{name} "] == 3).all()
        k.save(tmp_path / "saved")
    with sk.load(tmp_path / "saved") as again:
        assert again.name == name
        assert (again({name: vector(), "b": vector(2)})[f"{name} "] == 3).all()


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("op", ("int", "class", "this")),  # keywords
        ("op", ("x-y", "x_y", "x.y")),  # alike as identifiers
        ("and", ("eq", "y", "z")),  # and_eq is an operator
        ("op", ("1", "2", "é")),
        ("a", ("b_c", "c", "d")),
    ],
    ids=["keywords", "alike", "operator", "no letters", "plain"],
)
def test_parameter_names_may_be_what_c_reserves(op: str, params: tuple[str, str, str]) -> None:
    with named("reserved", op, ("a", "b", "c"), params) as k:
        assert (k({"a": vector(), "b": vector(2)})["c"] == 3).all()


def test_slots_keep_apart_ops_whose_names_run_into_each_other() -> None:
    params = [f"in:x_y:{VECTOR}", f"in:y:{VECTOR}", f"out:z:{VECTOR}"]
    add = sk.SubKernel.from_source(KERNELS, "add", block_dim=1, params=params)
    ops = [sk.Op(add, ["a", "b", "c"], name="op"), sk.Op(add, ["c", "b", "d"], name="op_x")]
    with sk.compile(ops, name="together") as k:
        assert len(set(k.layout.names)) == 6
        assert (k({"a": vector(), "b": vector(2)})["d"] == 5).all()
