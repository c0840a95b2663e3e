"""Objects for other processors: Inductor writes vector code for them, whatever this machine has."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import superkernel as sk
from superkernel.frontend.lowering import cpp_compiler
from superkernel.package.manifest import read_manifest

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")


def test_flags_and_vectors_are_those_of_the_level() -> None:
    from torch._inductor import cpu_vec_isa

    native = str(cpu_vec_isa.pick_vec_isa())
    widths = {}
    for march in ("x86-64-v3", "x86-64-v4"):
        with cpp_compiler.vectorized_for(march):
            widths[march] = cpu_vec_isa.pick_vec_isa().bit_width()
            assert cpu_vec_isa.pick_vec_isa()
    assert widths == {"x86-64-v3": 256, "x86-64-v4": 512}
    assert str(cpu_vec_isa.pick_vec_isa()) == native, "outside, Inductor chooses as before"
    flags = cpp_compiler.compiler_flags("x86-64-v4").flags
    assert "-mavx512f" in flags and "-DCPU_CAPABILITY_AVX512" in flags
    assert "-mavx512f" not in cpp_compiler.compiler_flags("x86-64-v3").flags


@pytest.mark.conformance
def test_a_package_has_objects_for_every_level(tmp_path: Path) -> None:
    def gated(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w) * x.softmax(-1).sum(-1, keepdim=True)

    march = ["native", "x86-64-v3", "x86-64-v4"]
    package = sk.export(gated, (torch.randn(8, 64), torch.randn(64, 64)), tmp_path / "levels.sk", march=march)
    manifest = read_manifest(package)
    (objects,) = manifest.objects.values()
    assert {found.isa.partition("-")[0] for found in objects} == {"native", "x86"}
    code = {
        found.isa: subprocess.run(
            ["objdump", "-d", package / found.file], check=True, capture_output=True, text=True
        ).stdout
        for found in objects
    }
    assert "%zmm" in code["x86-64-v4"] and "%zmm" not in code["x86-64-v3"] and "%ymm" in code["x86-64-v3"]
    features = {found.isa: {*found.features} for found in objects}
    assert "avx512f" in features["x86-64-v4"] and "avx512f" not in features["x86-64-v3"]
