"""Super kernels for tests on a GPU; programs that tests run in a child: `-m targets.cuda.gpu_programs NAME`."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from targets.cuda.gpu_kernels import write_gather, write_kernel

import superkernel as sk

N = 4096


def scale(folder: Path, source: str, target: str, factor: float = 1.0, plus: float = 1.0, **more: Any) -> sk.Op:
    return sk.Op(write_kernel(folder, "scale", N), [source, target, factor, plus, N], **more)


def chain(folder: Path, length: int = 6) -> list[sk.Op]:
    """x -> t1 -> ... -> y; every third op reads all that the op before it wrote."""
    names = ["x", *(f"t{i}" for i in range(1, length)), "y"]
    ops = []
    for number, (source, target) in enumerate(itertools.pairwise(names)):
        if number % 3 == 1:
            center = write_kernel(folder, "center", N)
            ops.append(sk.Op(center, [source, target, 1.0 / N, N], name=f"center{number}"))
        else:
            ops.append(scale(folder, source, target, 0.5, 1.0, name=f"scale{number}"))
    return ops


def random_ops(folder: Path, seed: int, count: int = 14) -> list[sk.Op]:
    """A random graph: every op reads what any earlier op wrote, or an input."""
    choose = random.Random(seed)
    names, ops = ["x", "w"], []
    for number in range(count):
        target = f"b{number}"
        kind = choose.choice(("scale", "add", "center"))
        if kind == "add":
            ops.append(sk.Op(write_kernel(folder, "add", N), [choose.choice(names), choose.choice(names), target, N]))
        elif kind == "center":
            ops.append(sk.Op(write_kernel(folder, "center", N), [choose.choice(names), target, 1.0 / N, N]))
        else:
            ops.append(scale(folder, choose.choice(names), target, choose.choice((0.5, -1.0)), 0.25))
        names.append(target)
    return ops


def cluster_chain(folder: Path, blocks: Sequence[int]) -> list[sk.Op]:
    """x -> t0 -> ... -> y by ops of so many blocks of 1024 threads, each of which needs all blocks of the op before."""
    names = ["x", *(f"t{number}" for number in range(len(blocks) - 1)), "y"]
    return [
        sk.Op(write_gather(folder, count), [names[number], names[number + 1]], name=f"gather{number}")
        for number, count in enumerate(blocks)
    ]


def compile_ops(ops: Sequence[sk.Op], options: str = "", **more: Any) -> sk.SuperKernel:
    return sk.compile(ops, name="gpu", options=options, target="cuda", **more)


def floats(seed: int = 0) -> Any:
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(N, device="cuda", generator=generator)


# programs of a child process


def stalled_wait() -> None:
    """A launch waits for an event that never comes; the watchdog ends it, and the next launch works.

    The warp that asks for inputs ahead ends with the slots.
    """
    with tempfile.TemporaryDirectory() as folder:
        ops = [scale(Path(folder), "x", "t"), scale(Path(folder), "t", "y", recv=(7,))]
        kernel = compile_ops(ops, "debug-watchdog=1:prefetch-weights=1")
        x = floats()
        kernel({"x": x})
        try:
            kernel.synchronize()
        except sk.SuperKernelError as error:
            print(f"refused: {error}")
        kernel.events["7"].set()
        outputs = kernel({"x": x})
        kernel.synchronize()
        print("next launch:", bool((outputs["y"] == (x + 1) + 1).all()), "event:", kernel.events["7"].is_set())
        kernel.close()


def stalled_graph() -> None:
    """A launch in a graph waits for ever; the watchdog ends it and resets its state: the next replay works."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        ops = [scale(Path(folder), "x", "t"), scale(Path(folder), "t", "y", recv=(7,))]
        kernel = compile_ops(ops, "debug-watchdog=1")
        x, y = floats(), torch.zeros(N, device="cuda")
        kernel.events["7"].set()
        kernel({"x": x, "y": y})
        torch.cuda.synchronize()
        y.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel({"x": x, "y": y})
        graph.replay()
        torch.cuda.synchronize()  # returns when the watchdog has ended the launch
        end = time.monotonic() + 60
        error = ""
        while not error and time.monotonic() < end:  # the state is reset by the thread of the watchdog
            try:
                kernel.synchronize()
                time.sleep(0.05)
            except sk.LaunchError as raised:
                error = str(raised)
        print(f"refused: {error}")
        kernel.events["7"].set()
        graph.replay()
        torch.cuda.synchronize()
        print("next replay:", bool((y == (x + 1) + 1).all()))
        kernel.close()


def endless() -> None:
    """A sub-kernel does not return; the watchdog ends the process."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = compile_ops(
            [sk.Op(write_kernel(Path(folder), "endless", N, 4), ["y", "go"])],
            "debug-watchdog=1:debug-watchdog-action=exit",
        )
        outputs = kernel({"go": 0})  # torch is not imported here: an array of the run time
        kernel.synchronize()
        print("first launch:", float(outputs["y"].to_numpy()[0]), flush=True)
        kernel({"go": 1})
        kernel.synchronize()
        print("not reached")


def interrupted() -> None:
    """Ctrl-C while waiting: the launch is aborted, and the next one works."""
    with tempfile.TemporaryDirectory() as folder:
        ops = [scale(Path(folder), "x", "t"), scale(Path(folder), "t", "y", recv=(7,))]
        kernel = compile_ops(ops, "debug-watchdog=0")
        x = floats()
        kernel({"x": x})
        threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
        begin = time.monotonic()
        try:
            kernel.synchronize()
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begin < 30)
        kernel.events["7"].set()
        outputs = kernel({"x": x})
        kernel.synchronize()
        print("next launch:", bool((outputs["y"] == (x + 1) + 1).all()))
        kernel.close()


def stray() -> None:
    """A sub-kernel stores outside of all memory: the error names the launch and says that the context is lost."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = compile_ops([sk.Op(write_kernel(Path(folder), "stray", N, 1), ["y", "offset"])])
        kernel({"offset": 0})
        kernel.synchronize()
        kernel({"offset": 1 << 45})
        for _ in range(2):
            try:
                kernel.synchronize()
            except sk.LaunchError as error:
                print(f"refused: {error}")
        sys.stdout.flush()
        os._exit(0)  # torch would report the lost context while the interpreter ends


def sanitized() -> None:
    """Some launches under compute-sanitizer: chains, a random graph, eager and captured."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        for ops, options in ((chain(Path(folder)), ""), (random_ops(Path(folder), 1, 8), ":prefetch-weights=1")):
            kernel = compile_ops(ops, f"debug-watchdog=0{options}")
            buffers = {name: floats() for name in ("x", "w") if name in kernel.graph.buffers}
            for _ in range(3):
                outputs = kernel(buffers)
            torch.cuda.synchronize()
            alone = kernel.unfused()(buffers)
            print("equal:", all(torch.equal(outputs[name], alone[name]) for name in outputs))
            kernel.close()


if __name__ == "__main__":
    {
        "stalled_wait": stalled_wait,
        "stalled_graph": stalled_graph,
        "endless": endless,
        "interrupted": interrupted,
        "stray": stray,
        "sanitized": sanitized,
    }[sys.argv[1]]()
