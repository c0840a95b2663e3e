"""Objects of packages: the order of instruction sets, what each needs, and symbols that no library supplies."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from superkernel.errors import BuildError, OptionError
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.model.subkernel import SubKernel
from superkernel.runtime.package_kernel import build_for_package
from superkernel.targets import find_target
from superkernel.targets.cpu import instruction_sets
from superkernel.targets.native.march import level_features

PACKAGING = find_target("cpu").package_support
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")

SOURCE = """
#include <cstdint>
namespace c10::detail { [[noreturn]] void torchCheckFail(const char*, const char*, uint32_t, const char*); }
extern "C" void checked(const float* x, float* y) {
    if (x[0] < 0) c10::detail::torchCheckFail("checked", "kernel.cpp", 1, "negative");
    y[0] = x[0] + 1;
}
extern "C" double cblas_ddot(int, const double*, int, const double*, int);
extern "C" void library(const double* x, double* y) { y[0] = cblas_ddot(2, x, 1, x, 1); }
"""


def build(name: str, folder: Path, dtype: str) -> Path:
    source = folder / "kernel.cpp"
    source.write_text(SOURCE)
    assert PACKAGING is not None
    (native,) = PACKAGING.instruction_sets(["native"])
    kernel = SubKernel.from_source(
        source, name, block_dim=1, params=[f"in:x:{dtype}[2]", f"out:y:{dtype}[1]"], op_type=f"Op{name}"
    )
    target = PACKAGING.for_instruction_set(native)
    return build_for_package([Op(kernel, ["x", "y"])], "part", Options(), target, 1).executables[0].binary


def test_functions_of_failed_checks_are_part_of_the_object_and_hidden(tmp_path: Path) -> None:
    from elftools.elf.elffile import ELFFile

    with build("checked", tmp_path, "float32").open("rb") as file:
        elf = ELFFile(file)
        shown = [symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()]
        needed = [tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert "sk_stop_slot" in shown and not any("torchCheckFail" in name for name in shown)
    assert not any("superkernel" in name for name in needed), "programs may link the library statically"


def test_any_other_symbol_is_refused_with_its_op(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"cblas_ddot \(used by op Oplibrary\).*a package runs without torch"):
        build("library", tmp_path, "float64")


@X86
def test_the_most_demanding_instruction_set_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["x86-64-v3", "native", "x86-64-v4"]
    monkeypatch.setattr(instruction_sets, "lacking_here", lambda march, toolchain: [])
    names = [found.name for found in instruction_sets.instruction_sets(wanted)]
    assert names[0].startswith("native-") and names[1:] == ["x86-64-v4", "x86-64-v3"]
    monkeypatch.setattr(instruction_sets, "lacking_here", lambda m, t: ["avx512f"] if m == "x86-64-v4" else [])
    names = [found.name for found in instruction_sets.instruction_sets(wanted)]
    assert names[0] == "x86-64-v4" and names[1].startswith("native-") and names[2] == "x86-64-v3"


@X86
def test_a_level_needs_all_that_it_promises() -> None:
    assert {"avx2", "fma", "f16c", "sse4_2"} <= {*level_features("x86-64-v3")} < {*level_features("x86-64-v4")}
    with pytest.raises(OptionError, match="packages have objects for native, x86-64-v3, x86-64-v4"):
        instruction_sets.instruction_sets(["x86-64-v2"])
