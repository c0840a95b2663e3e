"""targets.cuda.refusals: a PTX entry -> an UnsupportedError with the line of what no super kernel can contain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import UnsupportedError
from .ptx import Entry, Instruction, Module, Variable, registers_in, special_registers, walk, walk_statements

_CLUSTER_DIRECTIVES = ("explicitcluster", "reqnctapercluster", "maxclusterrank", "blocksareclusters")
_CLUSTER_NAMES = ("mapa", "getctarank", "clusterlaunchcontrol")
_TEXTURE = ("tex", "tld4", "txq", "suld", "sust", "sured", "suq")
_CALLED = {
    "__assertfail": "a device-side assert",
    "vprintf": "a device-side printf",
    "malloc": "a device-side malloc",
    "free": "a device-side free",
    "cudaLaunchDeviceV2": "dynamic parallelism",
    "cudaLaunchDevice": "dynamic parallelism",
    "cudaGetParameterBufferV2": "dynamic parallelism",
}
_LAUNCH_SIZES = ("%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size")


@dataclass(frozen=True)
class UnsupportedConstruct:
    construct: str
    line: int
    advice: str


def refuse_unsupported(module: Module, entry: Entry, threads: int, where: str) -> None:
    """Refuses an entry for the first construct, in the order of the text, that a super kernel cannot contain."""
    found = min(find_unsupported(module, entry, threads), key=lambda refused: refused.line, default=None)
    if found is not None:
        raise UnsupportedError(f"{where}{module.origin}:{found.line}: {found.construct}; {found.advice}")


def find_unsupported(module: Module, entry: Entry, threads: int) -> Iterator[UnsupportedConstruct]:
    """`threads`: of one block."""
    for directive in entry.directives:
        sizes = directive.text.replace(",", " ").split()[1:]
        if directive.name in _CLUSTER_DIRECTIVES and not (sizes and set(sizes) == {"1"}):
            yield _cluster(f"a kernel with clusters ({directive.text})", directive.line)
    for instruction in walk(entry.statements):
        yield from _refused_instruction(instruction, threads)
    yield from _refused_variables(module, entry)


def _cluster(construct: str, line: int) -> UnsupportedConstruct:
    return UnsupportedConstruct(
        construct, line, "the blocks of a super kernel run alone: compile it without clusters (Triton: num_ctas=1)"
    )


def _refused_instruction(instruction: Instruction, threads: int) -> Iterator[UnsupportedConstruct]:
    name, opcode, line = instruction.name, instruction.opcode, instruction.line
    modifiers = instruction.modifiers
    for register in special_registers(instruction):
        plain = register.partition(".")[0]
        if plain.startswith(("%cluster", "%nclusterid", "%is_explicit_cluster")):
            yield _cluster(f"a read of {register}", line)
        elif plain.startswith("%envreg"):
            yield UnsupportedConstruct(
                f"a read of {register}, the state of a cooperative launch (cooperative groups' grid.sync())",
                line,
                "let the grid meet through a counter in a buffer (sync_all), or split the kernel into two ops there",
            )
        elif plain in _LAUNCH_SIZES:
            yield UnsupportedConstruct(
                f"a read of {register}, which a super kernel does not have per op", line, "pass the size as a scalar"
            )
    asynchronous = name in ("st", "red") and "async" in modifiers  # to shared memory of another block
    clustered = name in _CLUSTER_NAMES or opcode.startswith("barrier.cluster") or "multicast::cluster" in modifiers
    if clustered or asynchronous:
        yield _cluster(opcode, line)
    elif name == "setmaxnreg":
        yield UnsupportedConstruct(
            opcode, line, "warps of a super kernel keep their registers: compile it without warp specialisation"
        )
    elif name in ("bar", "barrier") and modifiers[:1] != ("warp",):
        yield from _refused_barrier(instruction, threads)
    elif name == "call":
        yield _call(instruction)
    elif name == "tcgen05":
        yield UnsupportedConstruct(
            opcode, line, "tensor memory belongs to a whole launch: leave this kernel out of the super kernel"
        )
    elif name in _TEXTURE:
        yield UnsupportedConstruct(
            f"{opcode} (textures and surfaces)", line, "read the data through a pointer parameter"
        )


def _refused_barrier(instruction: Instruction, threads: int) -> Iterator[UnsupportedConstruct]:
    opcode, line = instruction.opcode, instruction.line
    reduces = "red" in instruction.modifiers
    operands = instruction.operands[1:] if reduces else instruction.operands
    barrier = operands[0] if operands else "0"
    count = operands[1] if len(operands) > (2 if reduces else 1) else str(threads)
    if barrier != "0":
        yield UnsupportedConstruct(
            f"{opcode} {barrier}: a named barrier other than 0",
            line,
            "they belong to the super kernel: compile the kernel without warp specialisation",
        )
    elif "arrive" in instruction.modifiers or count != str(threads):
        yield UnsupportedConstruct(
            f"{opcode} {', '.join(instruction.operands)}: a barrier of some of the {threads} threads of a block",
            line,
            "only barriers of a whole block are kept: use __syncthreads(), or __syncwarp() within a warp",
        )


def _call(instruction: Instruction) -> UnsupportedConstruct:
    operands = [operand for operand in instruction.operands if not operand.startswith("(")]
    function = operands[0] if operands else ""
    known = _CALLED.get(function)
    what = f"{known} (a call of {function})" if known else f"a call of {function}"
    return UnsupportedConstruct(
        what,
        instruction.line,
        "functions are not called from a super kernel: compile the kernel without it"
        if known
        else "functions are not called from a super kernel: let the compiler inline it (no -G; __forceinline__)",
    )


def _refused_variables(module: Module, entry: Entry) -> Iterator[UnsupportedConstruct]:
    """Variables of the module that the host would have to fill, or that other modules define."""
    tables = {variable.name: variable for variable in module.variables if variable.space in ("global", "const")}
    declared = {statement.name for statement in walk_statements(entry.statements) if isinstance(statement, Variable)}
    for instruction in walk(entry.statements):
        for operand in instruction.operands:
            for name in registers_in(operand):
                table = tables.get(name)
                if table is None or name in declared:
                    continue
                if table.type.endswith("ref"):
                    yield UnsupportedConstruct(
                        f"the texture reference {name}", instruction.line, "read the data through a pointer parameter"
                    )
                elif table.linkage == "extern" or not table.initializer:
                    yield UnsupportedConstruct(
                        f"the variable {name}, which has no initial value in the PTX",
                        instruction.line,
                        "pass its memory as a parameter",
                    )
