"""targets.ascend.operators.host_kernels: calls of host kernels -> a sub-kernel for the emulated chip that makes them.

Every core of the op copies all inputs to its local memory, makes all the calls there, and stores its own part of each
result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ....cache import Cache, digest
from ....model.op import Op
from ....model.params import DTYPES, Kind
from ....model.subkernel import SubKernel
from ...native.objects import compile_source, isolate, merge, object_key, unique_name
from ...native.toolchain import find_toolchain
from ...operator_library import HostCall, HostPlace, HostProgram
from ..emulator.library import INCLUDE
from ..facts import as_type, facts_of

_SUPPORT = Path(__file__).parent / "host_op.cpp"
_FLAGS = ("-O1", "-w")
_DECLARATIONS = """#include <stdint.h>
extern "C" {
char* host_op_take(uint64_t bytes);
void host_op_give_back(char* taken);
void host_op_read(uint64_t first_slot, int parameter, char* local, uint64_t bytes);
void host_op_begin(int count);
int host_op_next(void);
void host_op_write_part(uint64_t first_slot, int parameter, const char* local, uint64_t bytes, uint64_t vectors);
}"""


def host_op(op: Op, program: HostProgram) -> Op:
    """The op with a sub-kernel that computes it on the emulated chip: same blocks, same cores, same arguments."""
    tools, cache = find_toolchain(), Cache()
    isolated = {}
    for call in dict.fromkeys(program.calls):
        name = unique_name(call.kernel.name, call.object)
        isolated[call.kernel] = (name, isolate(call.object, call.symbol, name, tools, cache))
    symbol = op.kernel.name
    kind = facts_of(op.kernel).type
    names = {kernel: name for kernel, (name, _) in isolated.items()}
    text = "\n".join(_lines(symbol, program, names, kind.vectors_per_cube))
    support = compile_source(_SUPPORT, (*_FLAGS, "-DSK_EMULATED"), tools, cache, (INCLUDE,))
    objects = [support, *dict.fromkeys(path for _, path in isolated.values())]
    key = digest("host op", text, *_FLAGS, *map(object_key, objects), tools.identity)

    def build(output: Path) -> None:
        with TemporaryDirectory() as folder:
            source = Path(folder, f"{symbol}.cpp")
            source.write_text(text)
            wrapper = compile_source(source, _FLAGS, tools, cache)
            merge([wrapper, *objects], [symbol], output, tools)

    path = cache.make(key, ".o", build)
    kernel = SubKernel.from_object(
        path, symbol, block_dim=op.kernel.block_dim, params=op.kernel.params, core=op.kernel.core.value,
        op_type=op.kernel.op_type, sync_all=False, early_start=False,
        libraries=tuple(dict.fromkeys(library for call in program.calls for library in call.kernel.libraries)),
    )  # fmt: skip
    return replace(op, kernel=as_type(kernel, kind.value))


def _lines(symbol: str, program: HostProgram, names: dict[SubKernel, str], vectors: int) -> Iterator[str]:
    """Plain C with the functions of host_op.cpp: no header, since most of a small source's time goes to headers."""
    yield _DECLARATIONS
    yield 'extern "C" {'
    for kernel, name in names.items():
        yield f"void {name}({', '.join(_ctype(param.kind, param.dtype) for param in kernel.params)});"
    yield "}"
    yield f'extern "C" void {symbol}(uint64_t first_slot) {{'
    for number, nbytes in enumerate(program.buffers):
        yield f"    char* const b{number} = host_op_take({nbytes});"
    for read in program.reads:
        yield f"    host_op_read(first_slot, {read.parameter}, {_address(read.place)}, {read.nbytes});"
    for call in program.calls:
        arguments = ", ".join(_arguments(call))
        yield f"    for (host_op_begin({call.kernel.block_dim}); host_op_next();) {names[call.kernel]}({arguments});"
    for write in program.writes:
        transfer = f"first_slot, {write.parameter}, {_address(write.place)}, {write.nbytes}, {vectors}"
        yield f"    host_op_write_part({transfer});"
    for number in range(len(program.buffers)):
        yield f"    host_op_give_back(b{number});"
    yield "}\n"


def _address(place: HostPlace) -> str:
    return f"b{place.buffer} + {place.offset}"


def _ctype(kind: Kind, dtype: str | None) -> str:
    return DTYPES[dtype][1] if kind is Kind.SCALAR and dtype is not None else "void*"


def _arguments(call: HostCall) -> Iterator[str]:
    for param, argument in zip(call.kernel.params, call.arguments, strict=True):
        if isinstance(argument, HostPlace):
            yield _address(argument)
        else:
            ctype = _ctype(param.kind, param.dtype)
            yield f"static_cast<{ctype}>({_number(argument)})"


def _number(value: float | int | bool) -> str:
    """A C++ expression for the number, exact."""
    if isinstance(value, float):
        special = '__builtin_nan("")' if math.isnan(value) else f"{'-' if value < 0 else ''}__builtin_inf()"
        return value.hex() if math.isfinite(value) else special
    return f"{int(value)}LL" if int(value) > -(2**63) else "(-9223372036854775807LL - 1)"
