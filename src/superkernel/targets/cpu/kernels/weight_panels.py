"""targets.cpu.kernels.weight_panels: ops and the names of weights in, ops that read weights in panels out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ....model.op import Op, Place, place_of
from ...packaging import WeightPanels
from .matmul import MATMUL, PANELS, matmul_kernel

# As in panels.h: the rows and the least columns of problems that are computed so, and the columns of a panel.
_ROWS, _LEAST_COLUMNS = (12, 24), 33
_WIDTH = 32
_WEIGHT = 1  # the index of b among the arguments of a matmul


def with_weight_panels(ops: Sequence[Op], weights: Collection[str]) -> tuple[list[Op], dict[str, WeightPanels]]:
    """Matmuls of 12 or 24 rows read a weight in panels, unless an op reads the same weight in another way."""
    uses: dict[str, set[WeightPanels | None]] = {}
    for op in ops:
        for index, argument in enumerate(op.args):
            if isinstance(argument, str | Place) and (name := place_of(argument).name) in weights:
                uses.setdefault(name, set()).add(_panels(op) if index == _WEIGHT else None)
    stored = {name: panels for name, (panels, *others) in uses.items() if panels is not None and not others}
    return [_reading_panels(op) if _weight_of(op) in stored else op for op in ops], stored


def _weight_of(op: Op) -> str | None:
    argument = op.args[_WEIGHT] if len(op.args) > _WEIGHT else None
    return place_of(argument).name if isinstance(argument, str | Place) else None


def _panels(op: Op) -> WeightPanels | None:
    """How the weight of a matmul is stored in panels; None: the kernel does not compute the op so."""
    named = dict(zip((param.name for param in op.kernel.params), op.args, strict=True))
    if op.kernel != matmul_kernel("float32", "beta" in named, op.kernel.block_dim, MATMUL):
        return None
    m, n, k, alpha = (named[name] for name in ("m", "n", "k", "alpha"))
    row_stride, column_stride, weight = named["b_row"], named["b_column"], named["b"]
    assert isinstance(weight, str | Place)
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int) and isinstance(column_stride, int)):
        return None
    if m not in _ROWS or n < _LEAST_COLUMNS or k < 2 or row_stride != 1 or alpha == 0:
        return None
    return WeightPanels(place_of(weight).offset, n, k, column_stride, _WIDTH)


def _reading_panels(op: Op) -> Op:
    """The weight begins where its buffer does."""
    name = _weight_of(op)
    assert name is not None
    adds = any(param.name == "beta" for param in op.kernel.params)
    kernel = matmul_kernel(PANELS, adds, op.kernel.block_dim, MATMUL)
    return replace(op, kernel=kernel, args=[*op.args[:_WEIGHT], Place(name), *op.args[_WEIGHT + 1 :]])
