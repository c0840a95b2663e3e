"""targets.cpu: options that change how a kernel is built, never what it computes: the source shows them."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from targets.cpu.small import KERNELS, N, binary_of, compile_ops, differs, launched, numbers, small

from superkernel import Op, SubKernel
from superkernel.targets.cpu import build
from superkernel.targets.cpu.build import INCLUDE

pytestmark = pytest.mark.slow

OPS = [
    Op(small("mix", 4), ["a", "b", "t"]),
    Op(small("early", 4), ["t", "b", "u"]),
    Op(small("chain", 1), ["u", "v"]),
    Op(small("mix", 4), ["v", "a", "w"]),
]

# option -> what the emitted source must show
SHOWN = {
    "split-mode=4": r"mix_\w+_copies\[\]\)\(.*\) = \{mix_\w+, mix_\w+_copy1, mix_\w+_copy2, mix_\w+_copy3\};",
    "func-align=256": r"aligned\(256\)",
    "preload-code=max": r"\[0-1\] preload the code of mix, early, chain\n",
    "preload-code=per-func": r"preload the code of early\n",
    "prefetch-weights=1": r"core\.prefetch\(slot\[at::mix_y\], bytes\[at::mix_y\], core\.id\(\), 2, 262144\);",
    "prefetch-weights=64K": r"core\.prefetch\(.*, 65536\);",
    "dcci-before-kernel-start=mix,early": r"fence before early\n +core\.fence\(\);",
    "dcci-after-kernel-end=chain": r"fence after chain\n +(if .*\n +)?core\.fence\(\);",
    "debug-sync-all=1": r"barrier after chain \(debug\)",
    "debug-dcci-all=1": r"fence after mix \(debug\)\n +core\.fence\(\);",
    "profiling=1": r"core\.record\(0\);",
    "early-start=0": r"core\.barrier\(",
    "early-start=2": r"core\.wait\(",
    "debug-aiv-num=1": r"4 ops on 1 core",
}


@pytest.mark.parametrize("option", SHOWN)
def test_the_source_shows_an_option_and_results_stay(option: str) -> None:
    with compile_ops(OPS, "optional", option) as k:
        assert re.search(SHOWN[option], k.source), k.source
        assert not differs(k, numbers("a", "b"), launches=20)


@pytest.mark.parametrize(
    ("option", "hidden"),
    [
        ("preload-code=none", "preload("),
        ("func-align=0", "aligned"),
        ("dcci-before-kernel-start=mix:dcci-disable-on-kernel=mix", "fence"),
        ("", "fence"),
        ("", "prefetch("),
        ("", "record"),
    ],
)
def test_the_source_shows_nothing_of_what_is_off(option: str, hidden: str) -> None:
    with compile_ops(OPS, "plain", option) as k:
        assert hidden not in k.source
        assert launched(k, k, numbers("a", "b"))["w"].any()


def test_func_align_aligns_the_entry() -> None:
    with compile_ops(OPS, "aligned", "func-align=1024") as k:
        listing = subprocess.run(["nm", "-D", str(binary_of(k))], capture_output=True, text=True, check=True).stdout
        (address,) = re.findall(r"([0-9a-f]+) T sk_aligned\n", listing)
        assert int(address, 16) % 1024 == 0


def test_compile_options_reach_the_compiler() -> None:
    with compile_ops(OPS, "debuggable", "compile-options=-g,-DUNUSED=1") as k:
        assert any("-g -DUNUSED=1" in command for command in k.executable.commands)
        sections = subprocess.run(
            ["readelf", "-S", str(binary_of(k))], capture_output=True, text=True, check=True
        ).stdout
        assert ".debug_info" in sections
        assert not differs(k, numbers("a", "b"), launches=5)


@pytest.mark.parametrize("options", ["", "split-mode=3:stream-fusion=1"])
def test_one_function_under_several_descriptions(options: str) -> None:
    """Other names, sizes and block counts of one function; and a scalar of another type, which C++ tells apart."""
    described = [
        (2, (f"in:x:int64[{N}]", f"out:z:int64[{N}]", "scalar:choice")),
        (4, (f"in:x:int64[{N}]", f"out:z:int64[{N}]", "scalar:choice")),
        (2, ("in:a", "out:b", "scalar:count:int64")),
        (1, ("in:x", "out:z", "scalar:choice:float32")),
    ]
    kernels = [
        SubKernel.from_source(KERNELS / "promises.cpp", "plain", block_dim=blocks, params=params)
        for blocks, params in described
    ]
    names = ("a", "t", "u", "v", "w")
    ops = [Op(kernel, [*pair, 5]) for kernel, pair in zip(kernels, pairwise(names), strict=True)]
    with compile_ops(ops, "described_twice", options) as k:
        for run in (k, k.unfused()):
            arrays = numbers(*names)
            run(arrays)
            np.testing.assert_array_equal(arrays["w"], arrays["a"] + 4)


@pytest.mark.parametrize("options", ["", "split-mode=4"])
def test_one_symbol_is_exported(options: str) -> None:
    with compile_ops(OPS, "only", options) as k:
        listing = subprocess.run(
            ["nm", "-D", "--defined-only", str(binary_of(k))], capture_output=True, text=True, check=True
        ).stdout
        assert [line.split()[-1] for line in listing.splitlines()] == ["sk_only"]


@pytest.mark.parametrize("options", ["", "split-mode=2"])
def test_two_objects_that_define_the_same_names_do_not_mix(tmp_path: Path, options: str) -> None:
    """One kernel name, one helper and one variable in both files, each with its own meaning."""
    text = """
#include <stdint.h>
#include <superkernel/kernel.h>
int64_t factor = {factor};
int64_t helper(int64_t x) {{ return factor * x + {add}; }}
struct Common {{ static int64_t of(int64_t x) {{ static int64_t kept = {add}; return helper(x) + kept; }} }};
extern "C" void kernel(const int64_t* x, int64_t* z) {{
    for (int i = sk::block_idx(); i < 48; i += sk::block_num()) z[i] = Common::of(x[i]);
}}
"""
    kernels = []
    for i, (factor, add) in enumerate(((3, 5), (7, 11))):
        path = tmp_path / f"same{i}.cpp"
        path.write_text(text.format(factor=factor, add=add))
        params = ["in:x:int64[48]", "out:z:int64[48]"]
        kernels.append(SubKernel.from_source(path, "kernel", block_dim=2, params=params))
    ops = [Op(kernels[0], ["a", "t"]), Op(kernels[1], ["t", "u"]), Op(kernels[0], ["u", "v"])]
    with compile_ops(ops, "same", options) as k:
        for _ in range(3):
            arrays = numbers("a")
            found, alone = launched(k, k, arrays), launched(k.unfused(), k, arrays)
            t = 3 * arrays["a"] + 10
            u = 7 * t + 22
            for memory in (found, alone):
                assert (memory["t"] == t).all() and (memory["u"] == u).all() and (memory["v"] == 3 * u + 10).all()


def test_other_headers_of_the_run_time_give_another_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same emitted source must not find a binary that was made for another layout of the launch's state."""
    folder = Path(shutil.copytree(INCLUDE, tmp_path / "include"))
    monkeypatch.setattr(build, "INCLUDE", folder)
    with compile_ops(OPS, "layouts") as k:
        before, source = binary_of(k), k.source
    header = folder / "superkernel" / "state.h"
    header.write_text(header.read_text().replace("struct Launch {", "struct Launch {\n    int64_t more[8] = {};"))
    with compile_ops(OPS, "layouts") as k:
        assert (k.source, binary_of(k) != before) == (source, True)


def test_replay_passes_on_kernels_that_are_right() -> None:
    dynamic = small("twice", 4, variants={2: "twice", 3: "thrice"})
    ops = [
        *OPS,
        Op(small("total", 2), ["w", "ws", "x"], send=["told"]),
        Op(dynamic, ["x", "z"], name="d", task="dynamic", tiling=lambda inputs: (3, 2), recv=["go"]),
        Op(small("fold"), ["z", "t"]),
    ]
    with compile_ops(ops, "replayed", "debug-replay=1:feed-sync-all=1:debug-watchdog=200") as k:
        for seed in range(5):
            arrays = numbers("a", "b", "z", seed=seed)
            before = arrays["z"].copy()
            k.events["go"].set()
            made = k(arrays)
            assert set(made) == set()  # every name is read, or was passed
            assert not (arrays["z"] == before).all()
            assert (k.events["told"].is_set(), k.events["go"].is_set()) == (True, False)
