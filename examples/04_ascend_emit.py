"""04 Ascend: emit a super kernel for AI cores, look at its code, and run that code on an emulated chip.

    1. pow -> isinf                     two kernels on vector cores
    2. add_100 -> ... -> add_400        four kernels on 40 vector cores: the shape of add_skp
    3. the same adds on two streams     cube cores and vector cores side by side, and a picture of their lanes

No NPU and no CANN is needed: the emitted text is compiled for this machine and run core by core, under random delays.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import numpy as np

import superkernel as sk

KERNELS = Path(__file__).resolve().parent / "kernels" / "ascend_samples.cpp"
ELEMENTS = 7680  # as in the kernels
FLOATS = f"float32[{ELEMENTS}]"
SEEDS = range(5)  # 0: cores as fast as they are; others: delays, caches and core ids as the seed says

Memory = dict[str, np.ndarray]


def kernel(name: str, blocks: int, params: list[str], core: str = "vector") -> sk.SubKernel:
    return sk.SubKernel.from_source(
        KERNELS, name, block_dim=blocks, params=params, core=core, sync_all=False, early_start=False
    )


def pow_isinf() -> list[sk.Op]:
    power = kernel(
        "pow_kernel",
        2,
        [f"in:in1:{FLOATS}", f"in:in2:{FLOATS}", f"out:out1:{FLOATS}", f"workspace:ws:float64[{ELEMENTS}]"],
    )
    infinite = kernel("isinf_kernel", 2, [f"in:in1:{FLOATS}", f"out:out1:bool[{ELEMENTS}]", "workspace:ws:uint32[16]"])
    return [
        sk.Op(power, ["input1", "input2", "pow_output", "pow_workspace"], name="pow"),
        sk.Op(infinite, ["pow_output", "output", "isinf_workspace"], name="isinf"),
    ]


def add(name: str, blocks: int, core: str = "vector") -> sk.SubKernel:
    return kernel(name, blocks, [f"in:x:{FLOATS}", f"in:y:{FLOATS}", f"out:z:{FLOATS}"], core)


def four_adds() -> list[sk.Op]:
    names = ["x", "a_out", "b_out", "c_out", "d_out"]
    symbols = ["add_100", "add_200", "add_300", "add_400"]
    return [
        sk.Op(add(symbol, 40), [source, "y", target], name=symbol)
        for symbol, source, target in zip(symbols, names, names[1:], strict=False)
    ]


def two_streams() -> list[sk.Op]:
    """Stream 0 on vector cores, stream 1 on cube cores; the last add needs both."""
    return [
        sk.Op(add("add_100", 16), ["x", "y", "a_out"], name="add_100", stream=0),
        sk.Op(add("add_200", 8, "cube"), ["x", "x", "b_out"], name="add_200", stream=1),
        sk.Op(add("add_300", 8, "cube"), ["b_out", "y", "c_out"], name="add_300", stream=1),
        sk.Op(add("add_100", 16), ["a_out", "y", "e_out"], name="add_again", stream=0),
        sk.Op(add("add_400", 16), ["e_out", "c_out", "d_out"], name="add_400", stream=0),
    ]


def expected(outputs: Memory, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """What numpy says of the outputs that there are."""
    with np.errstate(over="ignore"):
        power = np.power(x, y)
    if "pow_output" in outputs:
        return {"pow_output": power, "output": np.isinf(power)}
    if "e_out" in outputs:
        return {
            "a_out": x + y,
            "b_out": x + x,
            "c_out": x + x + y,
            "e_out": x + y + y,
            "d_out": (x + y + y) + (x + x + y),
        }
    return {"a_out": x + y, "b_out": x + y + y, "c_out": x + y + y + y, "d_out": x + y + y + y + y}


def check(outputs: Memory, x: np.ndarray, y: np.ndarray) -> list[str]:
    """What is wrong with the outputs, compared with numpy; nothing, if all is well."""
    wrong = []
    for name, value in expected(outputs, x, y).items():
        same = (
            np.array_equal(outputs[name], value)
            if value.dtype == bool
            else np.allclose(outputs[name], value, rtol=1e-5)
        )
        if not same:
            wrong.append(f"{name} is not what numpy computes")
    return wrong


def shown(source: str) -> str:
    """The part of the emitted file that is worth a look: from the sub-kernels on."""
    return source[source.index("// the sub-kernels") :]


def draw(k: sk.SuperKernel, folder: Path) -> Path:
    """The lanes of the last emulated launch, as a page."""
    folder.mkdir(parents=True, exist_ok=True)
    return report(k, folder / "ascend_lanes.html")


def report(k: sk.SuperKernel, path: Path) -> Path:
    """Emulated ticks are shown as microseconds: they compare, they do not measure."""
    from superkernel.observe.profile import SUPER_KERNEL, Profile, ProfiledKernel, ProfiledLaunch, ProfiledOp
    from superkernel.observe.report import ReportData, ReportedRun, write_report

    launch, ticks = k.executable.emitted.launch, k.records()
    spans = tuple(replace(s, begin_ns=1000 * s.begin_ns, end_ns=1000 * s.end_ns) for s in ticks)
    end = max(span.end_ns for span in spans)
    ops = tuple(ProfiledOp(op.name, op.kernel.type_name, op.blocks) for op in k.executable.emitted.ops)
    kernel = ProfiledKernel(k.name, k.name, str(k.options), ops, plan=str(k.plan), source=k.source)
    machine = {
        "chip": f"{k.executable.emitted.chip.name}, emulated",
        "cores": f"cube 0 to {launch.cubes - 1}, vector {launch.cubes} to {launch.cubes + launch.vectors - 1}",
        "time": "ticks of the emulator, shown as microseconds; they say nothing of a chip's speed",
    }
    ran = ProfiledLaunch(k.name, SUPER_KERNEL, 0, end, k.name, kernel=0, spans=spans)
    run = ReportedRun(k.name, Profile((ran,), (kernel,), machine))
    return write_report(path, ReportData(f"{k.name} on an emulated chip", (run,)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("prof_result"), help="where the picture goes")
    chosen = parser.parse_args()
    random = np.random.default_rng(1)
    x = random.uniform(2, 10, ELEMENTS).astype(np.float32)
    y = np.where(np.arange(ELEMENTS) % 2, random.uniform(200, 300, ELEMENTS), 2.5).astype(np.float32)
    wrong = []
    samples = (
        ("pow_isinf", pow_isinf(), "", ["pow_output", "output"]),
        ("add_skp", four_adds(), "", ["a_out", "b_out", "c_out", "d_out"]),
        ("add_lanes", two_streams(), "stream-fusion=1", ["a_out", "b_out", "c_out", "e_out", "d_out"]),
    )
    for number, (name, ops, options, outputs) in enumerate(samples, 1):
        with sk.compile(ops, name=name, options=options, target="ascend", outputs=outputs) as k:
            print(f"{number}. {name}: {k.executable.emitted.launch}")
            print(indent(f"{k.layout}\n\n{shown(k.source)}", "   "))
            given = {"input1": x, "input2": y} if name == "pow_isinf" else {"x": x, "y": y}
            for seed in SEEDS:
                wrong += [f"{name}, seed {seed}: {text}" for text in check(k.emulate(given, seed=seed), x, y)]
            print(f"   emulated with {len(SEEDS)} seeds: {'wrong' if wrong else 'right every time'}")
            if name == "add_lanes":
                k.emulate(given, seed=0)
                print(f"   the lanes over time: {draw(k, chosen.output)}")
    if wrong:
        print(f"execute sample failed: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    print("execute sample success")
    return 0


if __name__ == "__main__":
    sys.exit(main())
