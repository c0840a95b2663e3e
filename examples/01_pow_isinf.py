"""01 pow and isinf: two kernels become one.

    input1 --+
             +--> pow --> isinf --> output
    input2 --+

The topology is written in strings: where pow's output and isinf's input have the same name, they are the same memory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent

import numpy as np

import superkernel as sk

KERNELS = Path(__file__).resolve().parent / "kernels"
ELEMENTS = 4096  # as in the kernels
BLOCKS = 2

# The memory of the sample. Names are all that connects the ops, and one name is one address.
MEMORY = {
    "input1": "float32",
    "input2": "float32",
    "pow_output": "float32",  # written by pow, read by isinf
    "pow_workspace": "float64",
    "output": "bool",
    "isinf_workspace": "uint32",
}


def sub_kernels() -> tuple[sk.SubKernel, sk.SubKernel]:
    """What is known of the two kernels: file, symbol, blocks, and parameters in the order of the C function."""
    power = sk.SubKernel.from_source(
        KERNELS / "pow.cpp",
        "pow_kernel",
        block_dim=BLOCKS,
        params=[
            f"in:in1:float32[{ELEMENTS}]@block",
            f"in:in2:float32[{ELEMENTS}]@block",
            f"out:out1:float32[{ELEMENTS}]@block",
            f"workspace:ws:float64[{ELEMENTS}]@block",
        ],
    )
    infinite = sk.SubKernel.from_source(
        KERNELS / "isinf.cpp",
        "isinf_kernel",
        block_dim=BLOCKS,
        params=[
            f"in:in1:float32[{ELEMENTS}]@block",
            f"out:out1:bool[{ELEMENTS}]@block",
            f"workspace:ws:uint32[{ELEMENTS}]@block",
        ],
    )
    return power, infinite


def topology(power: sk.SubKernel, infinite: sk.SubKernel) -> list[sk.Op]:
    """The ops in order, their arguments by name."""
    return [
        sk.Op(power, ["input1", "input2", "pow_output", "pow_workspace"], name="pow"),
        sk.Op(infinite, ["pow_output", "output", "isinf_workspace"], name="isinf"),
    ]


def allocate() -> dict[str, np.ndarray]:
    """One array per name; the powers of the inputs are finite for one half and overflow for the other."""
    memory = {name: np.zeros(ELEMENTS, dtype) for name, dtype in MEMORY.items()}
    random = np.random.default_rng(1)
    memory["input1"][:] = random.uniform(2, 10, ELEMENTS)
    memory["input2"][:] = np.where(np.arange(ELEMENTS) % 2, random.uniform(200, 300, ELEMENTS), 2.5)
    return memory


def check(memory: dict[str, np.ndarray]) -> list[str]:
    """What is wrong with the results, compared with numpy; nothing, if all is well."""
    with np.errstate(over="ignore"):
        power = np.power(memory["input1"], memory["input2"])
    wrong = []
    if not np.allclose(memory["pow_output"], power, rtol=1e-5):
        wrong.append("pow_output is not numpy.power(input1, input2)")
    if not np.array_equal(memory["output"], np.isinf(power)):
        wrong.append("output is not numpy.isinf(pow_output)")
    return wrong


def main() -> int:
    print("1. topology by strings")
    power, infinite = sub_kernels()
    ops = topology(power, infinite)
    for op in ops:
        print(f"   {op.name}({', '.join(map(str, op.args))})")

    print("2. compile the sub-kernels")
    with sk.compile(ops, name="pow_isinf", progress=lambda text: print(f"   {text}")) as k:
        print("3. compile the super kernel")
        print(indent(f"{k.layout}\n{k.plan}", "   "))

        print("4. memory allocated by name")
        memory = allocate()
        for name, array in memory.items():
            print(f"   {name:<16} {array.nbytes:>6} bytes of {array.dtype}")

        print("5. launch")
        k(memory)

        print("6. check against numpy")
        wrong = check(memory)
        infinities = int(memory["output"].sum())
        print(f"   {infinities} of {ELEMENTS} powers are infinite")
    print("7. release")
    memory.clear()
    print(f"   {k!r}")
    if wrong:
        print(f"execute sample failed: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    print("execute sample success")
    return 0


if __name__ == "__main__":
    sys.exit(main())
