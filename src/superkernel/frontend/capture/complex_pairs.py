"""frontend.capture.complex_pairs: an AOTAutograd graph in; the same out, its complex values pairs of real ones.

Inductor leaves every operator on complex numbers to torch. Rotary embeddings that are written with them become real
arithmetic here. An operator without a rule stays as it is, and reads complex tensors that are views of pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

aten, prims = torch.ops.aten, torch.ops.prims

_COPIED_META = ("custom", "stack_trace", "nn_module_stack", "source_fn_stack", "original_aten", "from_node", "seq_nr")
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
# Operators that are applied to both parts.
_BY_PART = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default, aten.transpose.int,
        aten.t.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
        aten.expand.default, aten.slice.Tensor, aten.select.int, aten.index.Tensor, aten.index_select.default,
        aten.clone.default, aten.alias.default, aten.detach.default, aten.cat.default, aten.repeat.default,
        aten.flip.default, aten.embedding.default, aten.gather.default, aten.where.self, aten.sum.default,
        aten.sum.dim_IntList, aten.mean.dim, aten.neg.default,
    }
)  # fmt: skip


@dataclass(frozen=True)
class ComplexPair:
    """The real and the imaginary part of a complex value: nodes, or numbers. None: it has no imaginary part."""

    real: Any
    imaginary: Any


class NoRule(Exception):
    """There is no rule for an operator, or not for these arguments."""


@dataclass
class ComplexSplitter:
    """Writes real operators beside the complex ones."""

    graph: Graph
    pairs: dict[Node, ComplexPair] = field(default_factory=dict)
    computed: set[Node] = field(default_factory=set)  # nodes whose pair is computed without them
    wholes: dict[Node, Node] = field(default_factory=dict)  # complex views of computed pairs
    removable: set[Node] = field(default_factory=set)  # nodes to remove where nothing reads them
    current: Node | None = None  # whose mark and line new nodes get

    def run(self) -> None:
        for node in list(self.graph.nodes):
            self.current = node
            if node.op == "output" or (node.op == "call_function" and _touches_complex(node)):
                with self.graph.inserting_before(node):
                    self._rewrite(node)
        for node in reversed(list(self.graph.nodes)):
            if node in self.removable and not node.users:
                self.graph.erase_node(node)

    def _rewrite(self, node: Node) -> None:
        try:
            found = self._apply_rule(node)
            if isinstance(found, ComplexPair):
                found = ComplexPair(self._fitted(found.real, node), self._fitted(found.imaginary, node))
        except NoRule:
            node.args, node.kwargs = map_arg(node.args, self.whole), map_arg(node.kwargs, self.whole)
            return
        self.removable.add(node)
        if isinstance(found, ComplexPair):
            self.pairs[node] = found
            self.computed.add(node)
        else:
            node.replace_all_uses_with(found)

    def _apply_rule(self, node: Node) -> ComplexPair | Node:
        if node.target in _BY_PART and _is_complex(node):
            return self._by_part(node)
        rule = _RULES.get(node.target)
        if rule is None:
            raise NoRule
        return rule(self, *node.args, **node.kwargs)

    def _by_part(self, node: Node) -> ComplexPair:
        if node.kwargs.get("dtype") is not None:
            raise NoRule

        def apply(part: Callable[[ComplexPair], Any]) -> Node:
            def of(used: Node) -> Node:
                if _is_complex(used):
                    return part(self.both_parts(used))
                if used.meta["val"].is_floating_point():  # a real value among complex ones
                    raise NoRule
                return used

            args, kwargs = map_arg(node.args, of), map_arg(node.kwargs, of)
            if node.target is aten.view.default and not _can_view(*args):
                args = (self.emit(aten.clone.default, args[0], memory_format=torch.contiguous_format), args[1])
            return self.emit(node.target, *args, **kwargs)

        return ComplexPair(apply(lambda pair: pair.real), apply(lambda pair: pair.imaginary))

    def both_parts(self, node: Node) -> ComplexPair:
        """The pair of a complex node, with zeros where it has no imaginary part."""
        pair = self.split(node)
        if pair.imaginary is None:
            real = pair.real.meta["val"]
            # not zeros_like, which Inductor decomposes before its passes
            zeros = self.emit(aten.full.default, list(real.shape), 0, dtype=real.dtype, device=real.device)
            pair = self.pairs[node] = ComplexPair(pair.real, zeros)
        return pair

    def _fitted(self, part: Any, node: Node) -> Any:
        """A part of a result in the element type and the shape of the result."""
        if part is None:
            return None
        result = node.meta["val"]
        dtype = _REAL[result.dtype]
        if not isinstance(part, Node):
            raise NoRule
        if part.meta["val"].dtype is not dtype:
            part = self.emit(prims.convert_element_type.default, part, dtype)
        if part.meta["val"].shape != result.shape:
            part = self.emit(aten.expand.default, part, list(result.shape))
        return part

    def emit(self, operator: Any, *args: Any, **kwargs: Any) -> Node:
        """A new node with the mark and the line of the current one."""
        node = self.graph.call_function(operator, args, kwargs)
        assert self.current is not None
        node.meta = {name: self.current.meta[name] for name in _COPIED_META if name in self.current.meta}
        values, keywords = map_arg((args, kwargs), lambda used: used.meta["val"])
        graph_values = (used.meta.get("val") for used in self.graph.nodes)
        with next(value.fake_mode for value in graph_values if isinstance(value, FakeTensor)):
            node.meta["val"] = operator(*values, **keywords)
        self.removable.add(node)
        return node

    def split(self, value: Any) -> ComplexPair:
        """The pair of a node or of a number."""
        if isinstance(value, complex):
            return ComplexPair(value.real, value.imag)
        if not isinstance(value, Node) or not _is_complex(value):
            return ComplexPair(value, None)
        if value not in self.pairs:
            if value.meta["val"].is_conj():
                raise NoRule
            both = self.emit(aten.view_as_real.default, value)
            self.pairs[value] = self.selected(both)
        return self.pairs[value]

    def selected(self, both: Node) -> ComplexPair:
        last = both.meta["val"].dim() - 1
        return ComplexPair(self.emit(aten.select.int, both, last, 0), self.emit(aten.select.int, both, last, 1))

    def whole(self, node: Node) -> Node:
        """The complex node for an operator without a rule, or for a result of the graph."""
        if node not in self.computed:
            return node
        if node not in self.wholes:
            self.wholes[node] = self.emit(aten.view_as_complex.default, self.stacked(node))
        return self.wholes[node]

    def stacked(self, node: Node) -> Node:
        """Both parts side by side, as they lie in the memory of a complex tensor."""
        pair = self.both_parts(node)
        last = pair.real.meta["val"].dim()
        parts = [self.emit(aten.unsqueeze.default, part, last) for part in (pair.real, pair.imaginary)]
        return self.emit(aten.cat.default, parts, last)

    def add(self, left: Any, right: Any, subtract: bool = False) -> Any:
        """None stands for zero."""
        if right is None:
            return left
        if left is None or not isinstance(left, Node):
            negated = self.negate(right) if subtract else right
            return negated if left is None else self._sum(negated, left)
        return self.emit(aten.sub.Tensor, left, right) if subtract else self.emit(aten.add.Tensor, left, right)

    def _sum(self, left: Any, right: Any) -> Any:
        return self.emit(aten.add.Tensor, left, right) if isinstance(left, Node) else left + right

    def multiply(self, left: Any, right: Any) -> Any:
        """None stands for zero."""
        if left is None or right is None:
            return None
        if not isinstance(left, Node):
            left, right = right, left
        return self.emit(aten.mul.Tensor, left, right) if isinstance(left, Node) else left * right

    def negate(self, value: Any) -> Any:
        return self.emit(aten.neg.default, value) if isinstance(value, Node) else None if value is None else -value


def split_complex(graph: Graph) -> None:
    """Rewrite complex arithmetic to real arithmetic as far as there are rules."""
    if any(_is_complex(node) for node in graph.nodes):
        ComplexSplitter(graph).run()


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in _REAL


def _touches_complex(node: Node) -> bool:
    return _is_complex(node) or any(_is_complex(used) for used in node.all_input_nodes)


def _can_view(node: Node, shape: Any) -> bool:
    value = node.meta["val"]
    try:
        with value.fake_mode:
            value.view(shape)
    except RuntimeError:
        return False
    return True


def _product(splitter: ComplexSplitter, left: Any, right: Any) -> ComplexPair:
    a, b = splitter.split(left), splitter.split(right)
    real = splitter.add(splitter.multiply(a.real, b.real), splitter.multiply(a.imaginary, b.imaginary), subtract=True)
    imaginary = splitter.add(splitter.multiply(a.real, b.imaginary), splitter.multiply(a.imaginary, b.real))
    return ComplexPair(real, imaginary)


def _sum(subtract: bool) -> Rule:
    def rule(splitter: ComplexSplitter, left: Any, right: Any, *, alpha: Any = 1) -> ComplexPair:
        if alpha != 1:
            raise NoRule
        a, b = splitter.split(left), splitter.split(right)
        return ComplexPair(splitter.add(a.real, b.real, subtract), splitter.add(a.imaginary, b.imaginary, subtract))

    return rule


def _quotient(splitter: ComplexSplitter, left: Any, right: Any) -> ComplexPair:
    a, b = splitter.split(left), splitter.split(right)
    if not isinstance(a.real, Node) or b.imaginary is not None:
        raise NoRule
    parts = [part if part is None else splitter.emit(aten.div.Tensor, part, b.real) for part in (a.real, a.imaginary)]
    return ComplexPair(*parts)


def _matmul(operator: Any) -> Rule:
    def rule(splitter: ComplexSplitter, left: Node, right: Node) -> ComplexPair:
        a, b = splitter.split(left), splitter.split(right)

        def product(x: Node | None, y: Node | None) -> Node | None:
            return None if x is None or y is None else splitter.emit(operator, x, y)

        real = splitter.add(product(a.real, b.real), product(a.imaginary, b.imaginary), subtract=True)
        return ComplexPair(real, splitter.add(product(a.real, b.imaginary), product(a.imaginary, b.real)))

    return rule


def _polar(splitter: ComplexSplitter, size: Node, angle: Node) -> ComplexPair:
    parts = [splitter.emit(operator, angle) for operator in (aten.cos.default, aten.sin.default)]
    return ComplexPair(*(splitter.multiply(size, part) for part in parts))


def _exponential(splitter: ComplexSplitter, value: Node) -> ComplexPair:
    pair = splitter.both_parts(value)
    return _polar(splitter, splitter.emit(aten.exp.default, pair.real), pair.imaginary)


def _conjugate(splitter: ComplexSplitter, value: Node) -> ComplexPair:
    pair = splitter.split(value)
    return ComplexPair(pair.real, splitter.negate(pair.imaginary))


def _square(splitter: ComplexSplitter, value: Node, exponent: Any) -> ComplexPair:
    if exponent != 2:
        raise NoRule
    return _product(splitter, value, value)


def _convert(splitter: ComplexSplitter, value: Node, dtype: torch.dtype) -> ComplexPair | Node:
    pair = splitter.split(value)
    real = _REAL.get(dtype, dtype)
    parts = [
        part if part is None else splitter.emit(prims.convert_element_type.default, part, real)
        for part in (pair.real, pair.imaginary)
    ]
    return ComplexPair(*parts) if dtype in _REAL else parts[0]


def _size(splitter: ComplexSplitter, value: Node) -> Node:
    pair = splitter.both_parts(value)
    return splitter.emit(aten.hypot.default, pair.real, pair.imaginary)


def _angle(splitter: ComplexSplitter, value: Node) -> Node:
    pair = splitter.both_parts(value)
    return splitter.emit(aten.atan2.default, pair.imaginary, pair.real)


def _parts_in_memory(splitter: ComplexSplitter, value: Node) -> Node:
    if value not in splitter.computed:
        raise NoRule  # it is a view of memory
    return splitter.stacked(value)


Rule = Callable[..., "ComplexPair | Node"]
_RULES: dict[Any, Rule] = {
    aten.mul.Tensor: _product,
    aten.add.Tensor: _sum(subtract=False),
    aten.sub.Tensor: _sum(subtract=True),
    aten.div.Tensor: _quotient,
    aten.mm.default: _matmul(aten.mm.default),
    aten.bmm.default: _matmul(aten.bmm.default),
    aten.polar.default: _polar,
    aten.complex.default: lambda splitter, real, imaginary: ComplexPair(real, imaginary),
    aten.exp.default: _exponential,
    aten.pow.Tensor_Scalar: _square,
    aten.view_as_complex.default: ComplexSplitter.selected,
    aten.view_as_real.default: _parts_in_memory,
    aten._conj.default: _conjugate,
    aten._conj_physical.default: _conjugate,
    aten.resolve_conj.default: ComplexSplitter.split,
    aten.abs.default: _size,
    aten.angle.default: _angle,
    prims.convert_element_type.default: _convert,
}
