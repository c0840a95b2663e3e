"""targets.cuda.kernels.streaming_gemv: shapes and dtypes of a matrix and 1 to 8 vectors -> the op that multiplies them.

    gemv = StreamingGemv(rows=4096, columns=4096)            # weights bfloat16, activations float32
    op = gemv.op("w", "x", "y", tickets="tickets")           # y[1, 4096] = x[1, 4096] @ w[4096, 4096].T

The kernel asks for its first weights before its wait point: in a super kernel they arrive while earlier ops finish.
One vector: a block reads groups of rows through one ring, and warps keep their slices of x in registers. Groups beyond
the first ones are handed out by tickets, if the op has a counter for them: one uint32 that is 0 before and after every
launch, and that ops may share. Several vectors, or weights of int8: x is staged in shared memory, and a warp multiplies
whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ....errors import GraphError, nearest, shown
from ....model.op import Argument, Op, Place
from ....model.plain_values import whole_number
from ....model.subkernel import SubKernel

MOST_VECTORS = 8
WEIGHT_BYTES = {"bfloat16": 2, "float16": 2, "int8": 1}
_ACTIVATION_CODES = {"float32": 0, "bfloat16": 1, "float16": 2}  # as in the source
_PTX = Path(__file__).parent / "ptx"
_BATCHES = (1, 2, 4, 8)  # vectors that the entries for staged activations are compiled for
# as in the source
_WARPS, _LANES, _CHUNK_BYTES, _VECTOR_BYTES, _BARRIER_BYTES = 8, 32, 4096, 16, 8
_STEPS = (1, 2, 4)  # vectors of a slice that a lane reads
_MOST_GROUPS = 32  # of a round: their partial sums are kept
_SHARED_BYTES = 216 << 10  # of the 227 KB of an SM: the rest is the super kernel's
_STAGED_BYTES = 64 << 10  # at most, for activations
_LIMITS = {"rows": 2**31 - 1, "columns": 2**31 - 1, "batch": MOST_VECTORS, "blocks": 2**16 - 1}
_LIMITS |= {"ring_bytes": 192 << 10, "early_bytes": 192 << 10}


@dataclass(frozen=True)
class StreamingGemv:
    """y[batch, rows] = x[batch, columns] @ w[rows, columns].T, summed in float32; int8 weights with a scale per row."""

    rows: int
    columns: int
    batch: int = 1
    weights: str = "bfloat16"
    activations: str = "float32"  # of x and y
    blocks: int = 132  # one per SM
    ring_bytes: int = 128 << 10  # of weights on their way to a block, at most
    early_bytes: int = 64 << 10  # of those, asked for before the wait: a sync takes longer behind more of them

    def __post_init__(self) -> None:
        for field, known in (("weights", WEIGHT_BYTES), ("activations", _ACTIVATION_CODES)):
            given = getattr(self, field)
            if given not in known:
                raise GraphError(
                    f"streaming GEMV: {field}={shown(given)}{nearest(given, known)}; it can be {', '.join(known)}"
                )
        for field, most in _LIMITS.items():
            number = whole_number(getattr(self, field))
            if number is None or not 1 <= number <= most:
                raise GraphError(
                    f"streaming GEMV: {field}={shown(getattr(self, field))}; it must be a whole number from 1 to {most}"
                )
            object.__setattr__(self, field, number)
        if self.columns % self._vector:
            raise GraphError(
                f"streaming GEMV: columns={self.columns}; copies take 16 bytes, so that it must be a multiple of "
                f"{self._vector} for {self.weights} weights"
            )
        if self.slots < 2:
            raise GraphError(
                f"streaming GEMV: {self.rows} rows of {self.columns} columns on {self.blocks} blocks, with a ring of "
                f"{self.ring_bytes} bytes: there is no shared memory for two chunks. Give more blocks or a larger ring"
            )

    @property
    def _vector(self) -> int:
        """The weights that a lane reads at once."""
        return _VECTOR_BYTES // WEIGHT_BYTES[self.weights]

    @property
    def steps(self) -> int:
        """Vectors of a warp's slice of a row that a lane reads; 0: activations are staged in shared memory.

        Weights of int8 are always multiplied by staged activations: as slices, two kernels of them would fill a super
        kernel's limit of PTX.
        """
        slice_columns, rest = divmod(self.columns, _WARPS)
        if self.batch > 1 or self.weights == "int8" or rest or slice_columns % self._vector:
            return 0
        return next((steps for steps in _STEPS if slice_columns <= steps * _LANES * self._vector), 0)

    @property
    def rows_of_group(self) -> int:
        """The rows that one copy brings."""
        return 2 if self.steps == _STEPS[-1] else 4

    @property
    def groups(self) -> int:
        return -(-self.rows // self.rows_of_group)

    @property
    def _compiled_batch(self) -> int:
        return next(size for size in _BATCHES if size >= self.batch)

    @property
    def panel(self) -> int:
        """The columns whose activations are staged together: all of them, if they fit; 0: they are not staged."""
        if self.steps:
            return 0
        span = _LANES * self._vector
        fitting = _STAGED_BYTES // (4 * self._compiled_batch) // span * span
        return min(-(-self.columns // span) * span, fitting)

    @property
    def _slot_bytes(self) -> int:
        """Shared memory of one slot of the ring, of all warps, with its barriers."""
        if self.steps:
            return self.steps * self.rows_of_group * _WARPS * _LANES * _VECTOR_BYTES + 2 * _BARRIER_BYTES + 4
        return _WARPS * (_CHUNK_BYTES + _BARRIER_BYTES)

    @property
    def _unringed_bytes(self) -> int:
        """Shared memory without the ring: activations that are staged, and partial sums."""
        if self.steps:
            return 4 + _MOST_GROUPS * (4 + 4 * self.rows_of_group * _WARPS)
        rows_of_a_warp = -(-self.rows // (self.blocks * _WARPS))
        partial = 4 * _WARPS * rows_of_a_warp * self._compiled_batch if self.panel < self.columns else 0
        return 4 * self._compiled_batch * self.panel + partial

    @property
    def slots(self) -> int:
        """The chunks in the ring of a block, or of each warp where activations are staged."""
        return min(self.ring_bytes, max(0, _SHARED_BYTES - self._unringed_bytes)) // (self._slot_bytes & ~1023)

    @property
    def shared(self) -> int:
        """The bytes of shared memory of a block."""
        return self.slots * self._slot_bytes + self._unringed_bytes

    @property
    def weight_bytes(self) -> int:
        return self.rows * self.columns * WEIGHT_BYTES[self.weights]

    def kernel(self, tickets: bool = False) -> SubKernel:
        """The sub-kernel, with or without a counter of tickets; shapes that share an entry share its code."""
        kind = ("tickets" if tickets else "fixed") if self.steps else self._compiled_batch
        symbol = f"streaming_gemv_{self.weights}_{kind}"
        params = [f"in:w:{self.weights}[{self.rows},{self.columns}]"]
        params += [f"in:scale:float32[{self.rows}]"] if self.weights == "int8" else []
        params += [f"in:x:{self.activations}[{self.batch},{self.columns}]"]
        params += [f"out:y:{self.activations}[{self.batch},{self.rows}]"]
        params += ["inout:tickets:uint32[1]"] if tickets else []
        params += [f"scalar:{name}:int32" for name in self._scalars(tickets)]
        return SubKernel.from_ptx(
            _PTX / f"{symbol}.ptx",
            symbol,
            params=params,
            grid=(self.blocks, 1, 1),
            threads=(_LANES * (_WARPS + (1 if self.steps else 0)), 1, 1),
            shared=self.shared,
            op_type="StreamingGemv",
            pure=not tickets,
        )

    def _scalars(self, tickets: bool) -> dict[str, int]:
        """The scalar parameters of the kernel."""
        shape, code = {"rows": self.rows, "columns": self.columns}, {"type": _ACTIVATION_CODES[self.activations]}
        if not self.steps:
            return shape | {"batch": self.batch, "panel": self.panel, "slots": self.slots} | code
        early = max(1, min(self.slots, self.early_bytes // (self._slot_bytes & ~1023)))
        fixed = min(early, self.groups // self.blocks) if tickets else -(-self.groups // self.blocks)
        return shape | {"steps": self.steps, "slots": self.slots, "fixed": fixed, "most": _MOST_GROUPS} | code

    def op(
        self,
        w: str | Place,
        x: str | Place,
        y: str | Place,
        *,
        scale: str | Place | None = None,
        tickets: str | Place | None = None,
        name: str | None = None,
        stream: int = 0,
    ) -> Op:
        """One multiplication. `scale` belongs to int8 weights, `tickets` to one vector: see the top of this file."""
        if (scale is None) == (self.weights == "int8"):
            raise GraphError(f"streaming GEMV: {self.weights} weights {'need' if scale is None else 'have no'} scale")
        counted = tickets is not None and bool(self.steps)
        arguments: list[Argument] = [w, *([] if scale is None else [scale]), x, y]
        arguments += [tickets] if tickets is not None and counted else []
        arguments += self._scalars(counted).values()
        return Op(self.kernel(counted), arguments, name=name, stream=stream)
