"""PTX kernels through the doors of users: SubKernel.from_ptx, a JSON file, ops.json; facts hold what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import superkernel as sk
from superkernel.targets import find_target
from superkernel.targets.cuda.facts import complete, facts_of

PTX = """.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry scale(.param .u64 .ptr .global .align 1 scale_0, .param .u64 .ptr .global .align 1 scale_1,
 .param .f32 scale_2, .param .u64 .ptr .global .align 1 scale_3, .param .u64 .ptr .global .align 1 scale_4)
.reqntid 64, 2
{
.reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %rd<6>;
ld.param.u64 %rd0, [scale_0]; ld.param.u64 %rd1, [scale_1]; ld.param.f32 %f0, [scale_2]; ld.param.u64 %rd3, [scale_3];
mov.u32 %r0, global_smem; st.shared.f32 [%r0], %f0; st.global.f32 [%rd3], %f0;
ld.global.f32 %f1, [%rd0]; mul.f32 %f1, %f1, %f0; st.global.f32 [%rd1], %f1; ret;
}
"""
ENTRY: dict[str, Any] = {
    "ptx": "scale.ptx",
    "symbol": "scale",
    "grid": [2, 3, 1],
    "shared": 512,
    "scratch": 128,
    "params": ["in:x", "out:y", "scalar:factor:float32"],
}


def check(kernel: sk.SubKernel) -> None:
    completed = complete(kernel)
    facts = facts_of(completed)
    assert (completed.threads, completed.grid, completed.block_dim) == ((64, 2, 1), (2, 3, 1), 6)
    assert (facts.dynamic_shared, facts.scratch, facts.layout.scratch) == (512, 128, (3, 4))
    assert facts.layout.types == ("u64", "u64", "f32", "u64", "u64") and facts.layout.offsets == (0, 8, 16, 24, 32)
    assert str(facts) == "64 x 2 threads, 512 bytes of shared memory, 128 bytes of scratch memory per block"


def test_from_ptx(tmp_path: Path) -> None:
    path = tmp_path / "scale.ptx"
    path.write_text(PTX)
    described = {key: value for key, value in ENTRY.items() if key not in ("ptx", "symbol")}
    check(sk.SubKernel.from_ptx(path, "scale", **described))
    check(sk.SubKernel.from_ptx(path, "scale", threads=(64, 2, 1), **described))


def test_a_json_file(tmp_path: Path) -> None:
    (tmp_path / "scale.ptx").write_text(PTX)
    (tmp_path / "scale.json").write_text(json.dumps(ENTRY))
    check(sk.SubKernel.from_json(tmp_path / "scale.json"))


def test_ops_json(tmp_path: Path) -> None:
    (tmp_path / "scale.ptx").write_text(PTX)
    ops = [{"kernel": "scale", "args": ["a", "b", 2.0]}, {"kernel": "scale", "args": ["b", "c", 3.0]}]
    (tmp_path / "ops.json").write_text(json.dumps({"target": "cuda", "kernels": {"scale": ENTRY}, "ops": ops}))
    read = find_target("cuda").read_ops(tmp_path / "ops.json")
    assert len(read.ops) == 2
    check(read.ops[0].kernel)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("int main() {}", sk.BuildError, "scale.ptx:1: 'int main() {}': this is no PTX, which begins with .version"),
        (PTX.replace(" scale(", " scales("), sk.BuildError, "has no entry of that name (did you mean 'scales'?)"),
        (PTX.replace("ret;", "bar.sync 2; ret;"), sk.UnsupportedError, "bar.sync 2: a named barrier other than 0"),
        (PTX.replace("st.global.f32 [%rd1]", "st.global.f32 [%rd0]"), sk.GraphError, "writes parameter 'x'"),
    ],
)
def test_compile_refuses_a_bad_file_with_its_line(tmp_path: Path, text: str, kind: type[Exception], words: str) -> None:
    (tmp_path / "scale.ptx").write_text(text)
    (tmp_path / "scale.json").write_text(json.dumps(ENTRY))
    kernel = sk.SubKernel.from_json(tmp_path / "scale.json")
    with pytest.raises(kind) as refused:
        sk.compile([sk.Op(kernel, ["a", "b", 2.0])], target="cuda")
    assert words in str(refused.value) and str(tmp_path / "scale.ptx") in str(refused.value)
