"""frontend.lowering.lowering_cache: programs that Inductor generated, on disk by the graph they were generated for."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from ...cache import Cache, digest
from ...errors import BuildError
from ...version import __version__
from ..capture.source_lines import source_line
from . import inductor
from .inductor import GeneratedProgram


def cached_program(
    module: GraphModule,
    inputs: Sequence[Any],
    config: Mapping[str, Any],
    machine: str,
    generate: Callable[[GraphModule], GeneratedProgram | None],
    store: Cache,
) -> GeneratedProgram | None:
    """What Inductor generates for the graph with this configuration; `machine` is what else decides the text.

    Without an entry, `generate` is called with a copy of the graph, which Inductor changes.
    """
    key = _key(module, inputs, config, machine)
    if key is not None and (found := _read(key, store)) is not None:
        return found
    generated = generate(inductor.copied_module(module))
    if key is not None and generated is not None and not generated.constants:
        write_entry(key, json.dumps(asdict(generated)), store)
    return generated


def _key(module: GraphModule, inputs: Sequence[Any], config: Mapping[str, Any], machine: str) -> str | None:
    """Everything that decides the text; None: the graph holds something that its printed form does not identify."""
    from torch._inductor import config as inductor_config

    lines = []
    for node in module.graph.nodes:
        if node.op == "get_attr" or not _has_stable_name(node):
            return None
        value = tree_map(_described, node.meta.get("val"))
        lines.append(f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {value} {source_line(node)}")
    described = [str(_described(value)) for value in inputs]
    request = (package_versions(), machine, _interface(), repr(sorted(config.items())))
    return digest("generated", *request, inductor_config.get_hash().hex(), *described, *lines)


def _has_stable_name(node: Node) -> bool:
    """Its target has a name that means the same in another process."""
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    return isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.device} {tuple(value.shape)} {tuple(value.stride())} {value.storage_offset()}"
    return value


@cache
def _interface() -> str:
    """What we ask of Inductor is part of what it answers."""
    return digest(Path(inductor.__file__).read_bytes())


@cache
def package_versions() -> str:
    return f"{torch.__version__} {torch.version.git_version} {__version__}"


def write_entry(key: str, text: str, store: Cache) -> None:
    """Keep a text; where the cache cannot be written, the next process computes it again."""
    with suppress(BuildError):
        store.make(key, ".json", lambda path: path.write_text(text))


def _read(key: str, store: Cache) -> GeneratedProgram | None:
    entry = store.get(key, ".json")
    if entry is None:
        return None
    try:
        fields = json.loads(entry.read_text())
        origins = {name: tuple(lines) for name, lines in fields["origins"].items()}
        return GeneratedProgram(fields["text"], {}, origins)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
