"""frontend.export.weight_sources: the inputs and constants of a program -> where they lie in the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from ...package.manifest import PackagePlace, PlaceKind
from ...targets.packaging import WeightPanels
from ..capture.partition import GraphPart, graph_attribute
from ..lowering.program_trace import ProgramTrace, Storage, StorageOrigin
from .stored_weights import StoredWeights
from .trace_entry import GraphInput, TracedEntry, is_dense


@dataclass
class WeightSources:
    """Storages of the program that it does not allocate: inputs, states, weights."""

    part: GraphPart
    entry: TracedEntry
    trace: ProgramTrace
    weights: StoredWeights
    panels: Mapping[str, WeightPanels] = field(default_factory=dict)  # weights that are stored in panels

    def packable(self) -> set[str]:
        """The names of weights that ops alone read, and that may be stored in another order."""
        returned = {view.storage.name for view in self.trace.outputs}
        found = {storage.name: self._weight(storage) for storage in self.trace.storages}
        return {
            name
            for name, weight in found.items()
            if weight is not None and name not in returned and weight[1].dtype is torch.float32 and is_dense(weight[1])
        }

    def place(self, storage: Storage, offset: int, nbytes: int) -> PackagePlace:
        weight = self._weight(storage)
        if weight is None:
            source = self._source(self.part.inputs[storage.index])
            return PackagePlace(source.kind, offset, nbytes, source.index, source.name)
        name, tensor = weight
        if (panels := self.panels.get(storage.name)) is not None:
            stored = self.weights.add_panels(name, tensor, panels)
            return PackagePlace(PlaceKind.WEIGHT, 0, self.weights.tensors[stored].nbytes, name=stored)
        return PackagePlace(PlaceKind.WEIGHT, offset, nbytes, name=self.weights.add(name, tensor))

    def _weight(self, storage: Storage) -> tuple[str, torch.Tensor] | None:
        """The name and the value of a weight; None: an input or a state."""
        if storage.origin is StorageOrigin.CONSTANT:
            return f"constant.{storage.name}", self.trace.constants[storage.index]
        if storage.origin is not StorageOrigin.INPUT:
            return None
        node = self.part.inputs[storage.index]
        if node.op == "get_attr":
            return f"constant.{node.target}", graph_attribute(self.entry.module, node)
        source = self._source(node)
        return (source.name, self.entry.tensors[source.name]) if source.kind is PlaceKind.WEIGHT else None

    def _source(self, node: Node) -> GraphInput:
        placeholders = self.entry.module.graph.find_nodes(op="placeholder")
        source: GraphInput = self.entry.sources[placeholders.index(node)]
        return source
