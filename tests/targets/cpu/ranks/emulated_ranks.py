"""The kernels of collectives called for all ranks of a group in one process, one rank and block after the other."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import superkernel
from superkernel.model import window_layout as layout
from superkernel.model.op import Op, Place
from superkernel.model.ranks import RankGroup
from superkernel.model.tensor_arg import TensorArg
from superkernel.targets.collectives import CollectiveTerms
from superkernel.targets.cpu.kernels.collectives import collective_ops

INCLUDE = Path(superkernel.__file__).parent / "targets" / "cpu" / "include"
STUBS = """
static int block, blocks;
static char failure[256];
extern "C" {
int sk_block_idx() { return block; }
int sk_block_num() { return blocks; }
void sk_fail(const char* message) { __builtin_strcpy(failure, message); }
void set_block(int which, int count) { block = which; blocks = count; failure[0] = 0; }
const char* last_failure() { return failure; }
}
"""
Arrays = list[Any]  # of each rank


@cache
def _library(source: Path, flags: tuple[str, ...], folder: Path) -> ctypes.CDLL:
    output = folder / f"{abs(hash((source, flags)))}.so"
    command = ["g++", "-std=c++17", "-march=native", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags]
    command += [f"-I{INCLUDE}", f"-I{source.parent}", "-x", "c++", "-", "-o", str(output)]
    subprocess.run(command, input=f'{STUBS}\n#include "{source}"\n', text=True, check=True)
    library = ctypes.CDLL(str(output))
    library.last_failure.restype = ctypes.c_char_p
    return library


def call(op: Op, memory: Mapping[str, Any], blocks: int, folder: Path) -> str:
    """All blocks of an op; the message of fail(), if it was called."""
    binary = op.kernel.binary
    library = _library(Path(binary.path), tuple(binary.flags), folder)
    arguments: list[Any] = []
    for argument in op.args:
        if isinstance(argument, Place):
            arguments.append(ctypes.c_void_p(memory[argument.name].ctypes.data + argument.offset))
        elif isinstance(argument, str):
            arguments.append(ctypes.c_void_p(memory[argument].ctypes.data))
        else:
            arguments.append(ctypes.c_int64(int(argument)))
    message = ""
    for block in range(blocks):
        library.set_block(block, blocks)
        library[op.kernel.name](*arguments)
        message = message or library.last_failure().decode()
    return message


def aligned(nbytes: int, alignment: int = 4096, apart: int = 0) -> Any:
    """Zeros that begin `apart` bytes behind a multiple of the alignment."""
    whole = np.zeros(nbytes + 2 * alignment, np.uint8)
    begin = -whole.ctypes.data % alignment + apart
    return whole[begin : begin + nbytes]


class EmulatedGroup:
    """A collective of all ranks of a group; every rank has a tensor x and a tensor y."""

    def __init__(
        self, terms: Sequence[CollectiveTerms], dtype: str, shapes_in: Sequence[Any], shapes_out: Sequence[Any],
        *, in_place: bool = False, cores: int = 7,
    ) -> None:  # fmt: skip
        self.ranks, self.in_place = len(terms), in_place
        self.ops = []
        for rank, stated in enumerate(terms):
            group = RankGroup("tp", tuple(range(self.ranks)), rank)
            x = tensor("x", dtype, shapes_in[rank])
            y = x if in_place else tensor("y", dtype, shapes_out[rank])
            self.ops.append(collective_ops(stated, x, y, group, "c", cores))
        slots = [dict(made.windows) for made in self.ops]
        self.windows = {}
        for name in slots[0]:
            placed = layout.WindowLayout(self.ranks, max(sizes[name] for sizes in slots))
            self.windows[name] = aligned(placed.nbytes)
            words = self.windows[name][: self.ranks * layout.RANK_LINE].view(np.uint64).reshape(self.ranks, -1)
            words[:, layout.STRIDE // 8] = placed.stride

    def run(self, xs: Arrays, ys: Arrays, blocks: int, round_number: int, folder: Path) -> str:
        """One round; results are written to `ys`, or to `xs` in place."""
        for window in self.windows.values():
            words = window[: self.ranks * layout.RANK_LINE].view(np.uint32).reshape(self.ranks, -1)
            words[:, layout.ROUND // 4] = round_number
        steps = [[made.start for made in self.ops]]
        for number in range(max(len(made.finish) for made in self.ops)):
            steps.append([made.finish[number : number + 1] for made in self.ops])
        failure = ""
        for step in steps:
            for rank, ops in enumerate(step):
                for op in ops:
                    memory = {"x": xs[rank], "y": ys[rank], **self.windows}
                    failure = call(op, memory, blocks, folder) or failure
        return failure


def tensor(name: str, dtype: str, shape: Any, offset: int = 0) -> TensorArg:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return TensorArg(name, offset, dtype, tuple(shape), tuple(strides))
