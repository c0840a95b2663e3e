"""targets.cuda.kernels.streaming_gemv: shapes and dtypes of a matrix and 1 to 8 vectors -> the op that multiplies them.

    gemv = StreamingGemv(rows=4096, columns=4096)            # weights bfloat16, activations float32
    op = gemv.op("w", "x", "y")                              # y[1, 4096] = x[1, 4096] @ w[4096, 4096].T

The kernel asks for its first weights before its wait point: in a super kernel they arrive while earlier ops finish.
There are two kernels. One vector: a row is split among warps, whose slices of x stay in registers. Several vectors, or
a row that does not divide: x is staged in shared memory, and a warp multiplies whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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
_WARPS, _LANES, _CHUNK_BYTES, _VECTOR_BYTES, _BARRIER_BYTES, _SLICE_COLUMNS = 8, 32, 4096, 16, 8, 2048
_SHARED_BYTES = 216 << 10  # of the 227 KB of an SM: the rest is the super kernel's
_STAGED_BYTES = 64 << 10  # at most, for activations
_LIMITS = {"rows": 2**31 - 1, "columns": 2**31 - 1, "batch": MOST_VECTORS, "blocks": 2**16 - 1, "most_slots": 64}


@dataclass(frozen=True)
class StreamingGemv:
    """y[batch, rows] = x[batch, columns] @ w[rows, columns].T, summed in float32; int8 weights with a scale per row."""

    rows: int
    columns: int
    batch: int = 1
    weights: str = "bfloat16"
    activations: str = "float32"  # of x and y
    blocks: int = 132  # one per SM
    most_slots: int = 6  # chunks in the ring of a warp

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
        if self.slots < min(2, self.most_slots):
            raise GraphError(
                f"streaming GEMV: {self.rows} rows on {self.blocks} blocks leave no shared memory for weights: "
                "give more blocks, or split the rows"
            )

    @property
    def _vector(self) -> int:
        """The weights that a lane reads at once."""
        return _VECTOR_BYTES // WEIGHT_BYTES[self.weights]

    @property
    def splits(self) -> int:
        """The warps that share a row, whose slices of x stay in registers; 0: x is staged in shared memory."""
        if self.batch > 1:
            return 0
        for count in (1, 2, 4, 8):
            if self.columns % (count * self._vector) == 0 and self.columns // count <= _SLICE_COLUMNS:
                return count
        return 0

    @property
    def _compiled_batch(self) -> int:
        return next(size for size in _BATCHES if size >= self.batch)

    @property
    def panel(self) -> int:
        """The columns whose activations are staged together: all of them, if they fit; 0: they are not staged."""
        if self.splits:
            return 0
        span = _LANES * self._vector
        fitting = _STAGED_BYTES // (4 * self._compiled_batch) // span * span
        return min(-(-self.columns // span) * span, fitting)

    @property
    def _slot_bytes(self) -> int:
        return _SLICE_COLUMNS * WEIGHT_BYTES[self.weights] if self.splits else _CHUNK_BYTES

    @property
    def _unringed_bytes(self) -> int:
        """Shared memory without the ring: activations that are staged, and partial sums."""
        if self.splits:
            return 4 * _WARPS * -(-self.rows // (self.blocks * (_WARPS // self.splits)))
        rows_of_a_warp = -(-self.rows // (self.blocks * _WARPS))
        partial = 4 * _WARPS * rows_of_a_warp * self._compiled_batch if self.panel < self.columns else 0
        return 4 * self._compiled_batch * self.panel + partial

    @property
    def slots(self) -> int:
        """The chunks in the ring of a warp."""
        left = max(0, _SHARED_BYTES - self._unringed_bytes)
        return min(self.most_slots, left // (_WARPS * (self._slot_bytes + _BARRIER_BYTES)))

    @property
    def shared(self) -> int:
        """The bytes of shared memory of a block."""
        return self.slots * _WARPS * (self._slot_bytes + _BARRIER_BYTES) + self._unringed_bytes

    @property
    def weight_bytes(self) -> int:
        return self.rows * self.columns * WEIGHT_BYTES[self.weights]

    @property
    def _scalars(self) -> dict[str, int]:
        """The scalar parameters of the kernel, without those of the following op."""
        shape = {"rows": self.rows, "columns": self.columns}
        how = {"splits": self.splits} if self.splits else {"batch": self.batch, "panel": self.panel}
        return shape | how | {"slots": self.slots, "type": _ACTIVATION_CODES[self.activations]}

    def _scalars_ahead(self, chunks: int) -> dict[str, int]:
        """The parameters by which an earlier op prefetches weights of this op."""
        how = {"next_splits": self.splits} if self.splits else {"next_panel": self.panel}
        return {"next_rows": self.rows, "next_columns": self.columns} | how | {"prefetch": chunks}

    @cached_property
    def kernel(self) -> SubKernel:
        """The sub-kernel; shapes that share an entry share its code."""
        symbol = f"streaming_gemv_{self.weights}_{'sliced' if self.splits else self._compiled_batch}"
        params = [f"in:w:{self.weights}[{self.rows},{self.columns}]"]
        params += [f"in:scale:float32[{self.rows}]"] if self.weights == "int8" else []
        params += [
            f"in:x:{self.activations}[{self.batch},{self.columns}]",
            f"out:y:{self.activations}[{self.batch},{self.rows}]",
            "in:next",
            *(f"scalar:{name}:int32" for name in (*self._scalars, *self._scalars_ahead(0))),
        ]
        return SubKernel.from_ptx(
            _PTX / f"{symbol}.ptx",
            symbol,
            params=params,
            grid=(self.blocks, 1, 1),
            threads=(_WARPS * _LANES, 1, 1),
            shared=self.shared,
            op_type="StreamingGemv",
            pure=True,
        )

    def op(
        self,
        w: str | Place,
        x: str | Place,
        y: str | Place,
        *,
        scale: str | Place | None = None,
        following: tuple[str | Place, StreamingGemv] | None = None,
        prefetch: int | None = None,
        name: str | None = None,
        stream: int = 0,
    ) -> Op:
        """One multiplication. `scale` belongs to int8 weights.

        `following`: the weights that the next such op reads, and its shape. While the last chunks of this op leave the
        ring, the first `prefetch` chunks of every warp's part of those are asked for: by default a ring full.
        """
        if (scale is None) == (self.weights == "int8"):
            raise GraphError(f"streaming GEMV: {self.weights} weights {'need' if scale is None else 'have no'} scale")
        next_w, next_gemv = (w, self) if following is None else following
        if (next_gemv.weights, next_gemv.blocks, not next_gemv.splits) != (self.weights, self.blocks, not self.splits):
            raise GraphError(
                "streaming GEMV: the following op must have the same blocks, dtype of weights and number of vectors"
            )
        chunks = 0 if following is None else next_gemv.slots if prefetch is None else prefetch
        arguments: list[Argument] = [w, *([] if scale is None else [scale]), x, y, next_w]
        arguments += [*self._scalars.values(), *next_gemv._scalars_ahead(chunks).values()]
        return Op(self.kernel, arguments, name=name, stream=stream)
