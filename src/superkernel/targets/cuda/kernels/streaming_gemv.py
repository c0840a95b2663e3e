"""targets.cuda.kernels.streaming_gemv: shapes and dtypes of a matrix and 1 to 8 vectors -> the op that multiplies them.

    gemv = StreamingGemv(rows=4096, columns=4096)            # weights bfloat16, activations float32
    op = gemv.op("w", "x", "y")                              # y[1, 4096] = x[1, 4096] @ w[4096, 4096].T

The kernel asks for its first weights before its wait point: in a super kernel they arrive while earlier ops finish.
One vector: a block reads groups of rows through one ring, and warps keep their slices of x in registers. Several
vectors, or many columns: x is staged in shared memory, and a warp multiplies whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ....errors import GraphError, nearest, shown
from ....model.op import Argument, Op, Place
from ....model.plain_values import whole_number
from ....model.staged_input import StagedInput
from ....model.subkernel import SubKernel

MOST_VECTORS = 8
WEIGHT_BYTES = {"bfloat16": 2, "float16": 2, "int8": 1}
_ACTIVATION_CODES = {"float32": 0, "bfloat16": 1, "float16": 2}  # as in the source
_PTX = Path(__file__).parent / "ptx"
BATCHES = (1, 2, 4, 8)  # vectors that the entries for staged activations are compiled for
# as in the source
_WARPS, _LANES, _CHUNK_BYTES, _VECTOR_BYTES, _BARRIER_BYTES = 8, 32, 4096, 16, 8
_MOST_GROUPS = 64  # of a round: their partial sums are kept
_SHARED_BYTES = 216 << 10  # of the 227 KB of an SM: the rest is the super kernel's
_STAGED_BYTES = 64 << 10  # at most, for activations
_LIMITS = {"rows": 2**31 - 1, "columns": 2**31 - 1, "batch": MOST_VECTORS, "blocks": 2**16 - 1}
_LIMITS |= {
    "ring_bytes": 192 << 10,
    "early_bytes": 192 << 10,
    "flying_bytes": 192 << 10,
    "flying_behind_bytes": 192 << 10,
}


@dataclass(frozen=True)
class RowSlices:
    """How the warps of a block share a group of rows, of one vector; an entry is compiled for each."""

    columns: int  # at most
    parts: int  # slices of a row, each of a warp
    steps: int  # vectors of a slice that a lane reads
    rows: int  # of a group

    @property
    def kind(self) -> str:
        """In the name of the entry."""
        return f"columns{self.columns}"

    @property
    def sets(self) -> int:
        """Groups that are multiplied at the same time."""
        return _WARPS // self.parts

    @property
    def chunk_bytes(self) -> int:
        """Shared memory of a group."""
        return self.parts * self.steps * self.rows * _LANES * _VECTOR_BYTES


# by bytes of a weight; chunks of 16 KB
SLICES = {
    2: (RowSlices(1024, 4, 1, 8), RowSlices(2048, 4, 2, 4), RowSlices(4096, 4, 4, 2), RowSlices(8192, 8, 4, 1)),
    1: (RowSlices(2048, 4, 1, 8), RowSlices(4096, 4, 2, 4), RowSlices(8192, 8, 2, 2)),
}


@dataclass(frozen=True)
class StreamingGemv:
    """y[batch, rows] = x[batch, columns] @ w[rows, columns].T, summed in float32; int8 weights with a scale per row."""

    rows: int
    columns: int
    batch: int = 1
    weights: str = "bfloat16"
    activations: str = "float32"  # of x and y
    blocks: int = 132  # one per SM
    idle_blocks: int = 0  # the last blocks, which multiply nothing: their SMs run other ops just before
    ring_bytes: int = 160 << 10  # of weights that a block holds, at most
    early_bytes: int = 128 << 10  # of those, asked for before the wait
    flying_bytes: int = 48 << 10  # of those, on their way at a time: more would queue, and syncs behind them
    flying_behind_bytes: int = 48 << 10  # the same behind the wait

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
        idle = whole_number(self.idle_blocks)
        if idle is None or not 0 <= idle < self.blocks or (idle and self.slices is None):
            raise GraphError(
                f"streaming GEMV: idle_blocks={shown(self.idle_blocks)}; it must be a whole number from 0 to "
                f"{self.blocks - 1}, and 0 where x is staged in shared memory (several vectors, or many columns)"
            )
        object.__setattr__(self, "idle_blocks", idle)
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
    def slices(self) -> RowSlices | None:
        """None: activations are staged in shared memory."""
        fitting = (found for found in SLICES[WEIGHT_BYTES[self.weights]] if self.columns <= found.columns)
        found = next(fitting, None) if self.batch == 1 else None
        return found if found is not None and self.columns % (found.parts * self._vector) == 0 else None

    @property
    def _compiled_batch(self) -> int:
        return next(size for size in BATCHES if size >= self.batch)

    @property
    def panel(self) -> int:
        """The columns whose activations are staged together: all of them, if they fit; 0: they are not staged."""
        if self.slices is not None:
            return 0
        span = _LANES * self._vector
        fitting = _STAGED_BYTES // (4 * self._compiled_batch) // span * span
        return min(-(-self.columns // span) * span, fitting)

    @property
    def _chunk_bytes(self) -> int:
        """Weights of one slot of the ring; of all warps where activations are staged."""
        return _WARPS * _CHUNK_BYTES if self.slices is None else self.slices.chunk_bytes

    @property
    def _slot_bytes(self) -> int:
        """Shared memory of one slot of the ring, with its barriers."""
        return self._chunk_bytes + _BARRIER_BYTES * (_WARPS if self.slices is None else 2)

    @property
    def _unringed_bytes(self) -> int:
        """Shared memory without the ring: activations that are staged, and partial sums."""
        if self.slices is not None:
            return _VECTOR_BYTES + 4 * _MOST_GROUPS * self.slices.rows * self.slices.parts
        rows_of_a_warp = -(-self.rows // (self.blocks * _WARPS))
        partial = 4 * _WARPS * rows_of_a_warp * self._compiled_batch if self.panel < self.columns else 0
        return 4 * self._compiled_batch * self.panel + partial

    @property
    def slots(self) -> int:
        """The chunks in the ring of a block, or of each warp where activations are staged: these fly all at once."""
        room = min(self.ring_bytes, max(0, _SHARED_BYTES - self._unringed_bytes))
        if self.slices is None:
            return min(room, 2 * self.flying_bytes) // self._chunk_bytes
        return room // self._chunk_bytes // self.slices.sets * self.slices.sets

    @property
    def shared(self) -> int:
        """The bytes of shared memory of a block."""
        return self.slots * self._slot_bytes + self._unringed_bytes

    @property
    def weight_bytes(self) -> int:
        return self.rows * self.columns * WEIGHT_BYTES[self.weights]

    def kernel(self) -> SubKernel:
        """The sub-kernel; shapes that share an entry share its code."""
        kind = self._compiled_batch if self.slices is None else self.slices.kind
        symbol = f"streaming_gemv_{self.weights}_{kind}"
        params = [f"in:w:{self.weights}[{self.rows},{self.columns}]"]
        params += [f"in:scale:float32[{self.rows}]"] if self.weights == "int8" else []
        params += [f"in:x:{self.activations}[{self.batch},{self.columns}]"]
        params += [f"out:y:{self.activations}[{self.batch},{self.rows}]"]
        params += [f"scalar:{name}:int32" for name in self._scalars]
        kernel = SubKernel.from_ptx(
            _PTX / f"{symbol}.ptx",
            symbol,
            params=params,
            grid=(self.blocks, 1, 1),
            threads=(_LANES * (_WARPS + (0 if self.slices is None else 1)), 1, 1),
            shared=self.shared,
            op_type="StreamingGemv",
            pure=True,
        )
        return replace(kernel, staged_input=self._staged_input)

    @property
    def _staged_input(self) -> StagedInput | None:
        """The weights, in groups of rows."""
        if self.slices is None or self.slots < self.slices.sets:
            return None
        return StagedInput(
            "w",
            "staged",
            self.slices.rows * self.columns * WEIGHT_BYTES[self.weights],
            self.blocks - self.idle_blocks,
            self.slots,
            self.slices.chunk_bytes,
            self._scalars["flying_behind"],
            _WARPS,
        )

    @property
    def _scalars(self) -> dict[str, int]:
        """The scalar parameters of the kernel."""
        shape, code = {"rows": self.rows, "columns": self.columns}, {"type": _ACTIVATION_CODES[self.activations]}
        if self.slices is None:
            return shape | {"batch": self.batch, "panel": self.panel, "slots": self.slots} | code
        early = max(1, min(self.slots, self.early_bytes // self._chunk_bytes))
        flying, behind = (
            max(1, min(self.slots, size // self._chunk_bytes)) for size in (self.flying_bytes, self.flying_behind_bytes)
        )
        shape |= {"idle": self.idle_blocks}
        return (
            shape
            | {"slots": self.slots, "early": early, "flying": flying, "flying_behind": behind, "most": _MOST_GROUPS}
            | {"staged": 0}
            | code
        )

    def op(
        self,
        w: str | Place,
        x: str | Place,
        y: str | Place,
        *,
        scale: str | Place | None = None,
        name: str | None = None,
        stream: int = 0,
    ) -> Op:
        """One multiplication. `scale` belongs to int8 weights."""
        if (scale is None) == (self.weights == "int8"):
            raise GraphError(f"streaming GEMV: {self.weights} weights {'need' if scale is None else 'have no'} scale")
        arguments: list[Argument] = [w, *([] if scale is None else [scale]), x, y, *self._scalars.values()]
        op = Op(self.kernel(), arguments, name=name, stream=stream)
        of_x = _VECTOR_BYTES if self.activations == "float32" else _VECTOR_BYTES // 2
        for param, given, multiple in (("w", w, _VECTOR_BYTES), ("x", x, of_x)):
            if isinstance(given, Place) and given.offset % multiple:
                raise GraphError(
                    f"streaming GEMV: {param} is {shown(str(given))}; it is read {multiple} bytes at a time, so that "
                    f"the offset must be a multiple of {multiple}"
                )
        return op
