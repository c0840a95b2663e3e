"""frontend.kept: programs that Inductor generated, kept on disk by the graph they were generated for."""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from ... import __version__
from ...cache import Cache, digest
from ...errors import BuildError
from ...targets.native.toolchain import cpu_features
from ..capture.marks import source_line
from . import inductor
from .inductor import CompilerFlags, Generated, compiler_flags, lower


def generate(module: GraphModule, inputs: Sequence[Any], threads: int, cache: Cache) -> Generated | None:
    """What Inductor generates for the graph; from the cache if it did so before."""
    key = key_of(module, inputs, threads)
    if key is not None and (kept := _recalled(key, cache)) is not None:
        return kept
    generated = lower(_copy(module), inputs, threads)
    if key is not None and generated is not None and not generated.constants:
        _keep(key, generated, cache)
    return generated


def _copy(module: GraphModule) -> GraphModule:
    """Inductor changes the graph it is given."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return GraphModule(module, graph)


def flags(cache: Cache) -> CompilerFlags:
    """How Inductor compiles here. To know that it tries the processor out in other processes, each importing torch."""
    environment = [f"{name}={os.environ.get(name, '')}" for name in ("CXX", "ATEN_CPU_CAPABILITY")]
    key = digest("flags", _machine(), cpu_features(), sys.prefix, torch.__file__, *environment)
    entry = cache.get(key, ".json")
    if entry is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(entry.read_text())
            return CompilerFlags(tuple(kept["flags"]), tuple(kept["libraries"]))
    found = compiler_flags()
    _write(key, json.dumps(asdict(found)), cache)
    return found


def key_of(module: GraphModule, inputs: Sequence[Any], threads: int) -> str | None:
    """Everything that decides what is generated; None: something is in the graph whose text does not say what it is."""
    from torch._inductor import config

    lines = []
    for node in module.graph.nodes:
        if node.op == "get_attr" or not _has_a_name(node):
            return None
        value = tree_map(_described, node.meta.get("val"))
        lines.append(f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {value} {source_line(node)}")
    described = [str(_described(value)) for value in inputs]
    return digest("generated", _machine(), _seam(), str(threads), config.get_hash().hex(), *described, *lines)


def _has_a_name(node: Node) -> bool:
    """A name that means the same thing in another process."""
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    return isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.device} {tuple(value.shape)} {tuple(value.stride())} {value.storage_offset()}"
    return value


@cache
def _seam() -> str:
    """What we ask of Inductor is part of what it answers."""
    return digest(Path(inductor.__file__).read_bytes())


@cache
def _machine() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{torch.__version__} {torch.version.git_version} {__version__} {capability}"


def _keep(key: str, generated: Generated, cache: Cache) -> None:
    _write(key, json.dumps(asdict(generated)), cache)


def _write(key: str, text: str, cache: Cache) -> None:
    def write(path: Path) -> None:
        path.write_text(text)

    with suppress(BuildError):  # the next process finds it out again
        cache.make(key, ".json", write)


def _recalled(key: str, cache: Cache) -> Generated | None:
    entry = cache.get(key, ".json")
    if entry is None:
        return None
    try:
        kept = json.loads(entry.read_text())
        origins = {name: tuple(lines) for name, lines in kept["origins"].items()}
        return Generated(kept["text"], {}, origins)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
