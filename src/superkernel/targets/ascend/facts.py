"""targets.ascend.facts: what only this target knows of a sub-kernel: its type, its functions, its debug needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...cache import digest
from ...errors import GraphError, nearest, shown
from ...model.binary import Core, Form
from ...model.subkernel import SubKernel, refuse_thread_blocks
from ..native.c_names import is_c_identifier
from .archive import check_function, code_bytes, read_binary
from .call_graph import always_calls, calls
from .calling_convention import (
    CallingConvention,
    SyncProtocol,
    check_pointers,
    convention_of_text,
    protocol_of_text,
)
from .chips import Chip
from .core_types import CUBE, CoreClass, KernelType, OpClass, kernel_type
from .object_references import calls_barrier, protocol_of_object
from .processors import device_objects

PRINTING = ("printf", "assert", "timestamp")  # debug options that need a dump area
CORE_OF = {OpClass.AIC: Core.CUBE, OpClass.AIV: Core.VECTOR, OpClass.MIX: Core.MIX}
_TYPE_OF_CORE = {
    Core.ANY: KernelType.AIV_ONLY,
    Core.VECTOR: KernelType.AIV_ONLY,
    Core.CUBE: KernelType.AIC_ONLY,
    Core.MIX: KernelType.MIX_AIC_1_2,
}


@dataclass(frozen=True)
class Code:
    """One function of a sub-kernel for one core class, and the objects it is in."""

    symbol: str
    objects: tuple[str, ...] = ()  # members of the sub-kernel's archive; empty: the sub-kernel's own file
    split: tuple[tuple[str, ...], ...] = ()  # the objects of copies 1, 2, ... where they are precompiled


@dataclass(frozen=True)
class AscendFacts:
    type: KernelType
    codes: tuple[tuple[CoreClass, int, Code], ...]  # class, tiling key (0: static), function
    split_mode: int | None = None
    flags_declared: bool = False  # its early-start flags cannot be switched off
    fence_before: bool = False
    fence_after: bool = False
    fence_never: bool = False
    debug_options: tuple[str, ...] = ()
    debug_bytes: int = 0
    origin: str = ""  # the metadata file
    saved_as: str = ""  # what its binary is called beside a saved super kernel
    convention: CallingConvention = CallingConvention.SLOT_INDEX
    protocol: SyncProtocol = SyncProtocol.SUBKERNEL_H

    @property
    def op_class(self) -> OpClass:
        return self.type.op_class

    @property
    def prints(self) -> bool:
        """Whether it was compiled to print, assert or take time stamps itself."""
        return any(option in PRINTING for option in self.debug_options)

    def of_class(self, core_class: CoreClass) -> dict[int, Code]:
        return {key: code for found, key, code in self.codes if found is core_class}


def facts_of(kernel: SubKernel) -> AscendFacts:
    """Those that metadata gave, or what the fields of a SubKernel say."""
    if isinstance(kernel.target_facts, AscendFacts):
        return kernel.target_facts
    return _typed_facts(kernel, _TYPE_OF_CORE[kernel.core])


def _typed_facts(kernel: SubKernel, kind: KernelType) -> AscendFacts:
    classes, variants = kind.op_class.classes, kernel.tiling_variants
    return AscendFacts(kind, tuple((core_class, key, Code(name)) for core_class in classes for key, name in variants))


def as_type(kernel: SubKernel, text: str, *, call: str | None = None) -> SubKernel:
    """A sub-kernel built in Python as one of CANN's kernel types; `core` alone cannot say 1:1.

    call: how an object is called that comes without metadata: slot_index, or pointers. A source says that itself.
    """
    where = f"sub-kernel {kernel.name!r}: "
    kind = kernel_type(text, where)
    facts = _typed_facts(kernel, kind)
    if call is not None:
        conventions = [known.value for known in CallingConvention]
        if call not in conventions:
            known = ", ".join(conventions)
            raise GraphError(f"{where}call is {shown(call)}{nearest(call, conventions)}; it must be one of {known}")
        if kernel.binary.form is Form.SOURCE:
            raise GraphError(f"{where}call={call!r}: a source says by its declaration how it is called; leave call out")
        facts = replace(facts, convention=CallingConvention(call))
        if facts.convention is CallingConvention.POINTERS:
            check_pointers(kernel.params, len(kernel.params), where)
    return replace(kernel, core=CORE_OF[kind.op_class], target_facts=facts)


def pointer_count(kernel: SubKernel) -> int | None:
    """How many pointers its functions take; None: they take the index of their first slot."""
    return len(kernel.params) if facts_of(kernel).convention is CallingConvention.POINTERS else None


def check_identifier(name: str, what: str) -> None:
    if not is_c_identifier(name):
        raise GraphError(
            f"{what} is {name!r}, which is no C identifier: use letters, digits and _, not beginning with a digit"
        )


def complete(kernel: SubKernel, chip: Chip) -> SubKernel:
    """The sub-kernel with all that plan and emitter ask for filled in; refuses what this target cannot take."""
    where = f"sub-kernel {kernel.name!r}: "
    if kernel.binary.form is Form.PTX:
        raise GraphError(f"{where}PTX is for NVIDIA GPUs; the ascend target takes sources, objects and archives")
    refuse_thread_blocks(kernel, "ascend")
    saved_as = f"{digest(read_binary(kernel.binary.path))[:8]}_{kernel.binary.path.name}"
    facts = replace(facts_of(kernel), saved_as=saved_as)
    for _, _, code in facts.codes:
        check_identifier(code.symbol, f"{where}its symbol")
    text = _text(kernel.binary.path) if kernel.binary.form is Form.SOURCE else ""
    symbols = {code.symbol for _, _, code in facts.codes}
    if kernel.binary.form is Form.SOURCE:
        convention = convention_of_text(text, sorted(symbols), kernel.params, where)
        facts = replace(facts, convention=convention, protocol=protocol_of_text(text))
    largest = 0  # bytes of a function; a source can only be measured by the device compiler
    if kernel.binary.form is Form.OBJECT and not facts.origin:  # metadata has been compared with its objects
        facts = _of_object(kernel.binary.path, facts, chip, f"sub-kernel {kernel.name!r}")
    if kernel.binary.form is Form.OBJECT and not kernel.code_bytes:
        largest = max(code_bytes(kernel.binary.path, code.objects) for _, _, code in facts.codes)

    def syncs_all(code: Code) -> bool:
        if kernel.binary.form is Form.SOURCE:
            return calls(text, code.symbol, "sync_all")
        return calls_barrier(kernel.binary.path, code.objects, code.symbol, chip.toolkit.barrier_functions)

    def waits_or_signals(known: bool | None, found: Callable[[str], bool]) -> bool:
        """As metadata says; or for every variant as the user says, or as its text does."""
        if known is not None:
            return known
        declared = [(kernel.early_start_of(key), code.symbol) for _, key, code in facts.codes]
        return all(found(symbol) if says is None else says is not False for says, symbol in declared)

    return replace(
        kernel,
        target_facts=facts,
        sync_all=any(syncs_all(code) for _, _, code in facts.codes) if kernel.sync_all is None else kernel.sync_all,
        waits_inside=waits_or_signals(kernel.waits_inside, lambda symbol: always_calls(text, symbol, "wait_previous")),
        signals_inside=waits_or_signals(kernel.signals_inside, lambda symbol: always_calls(text, symbol, "set_next")),
        may_fail=False,
        code_bytes=kernel.code_bytes or largest,
    )


def _of_object(path: Path, facts: AscendFacts, chip: Chip, where: str) -> AscendFacts:
    """What an object says that comes without metadata."""
    device_objects(path, (), chip, where)
    protocols = []
    for _, _, code in facts.codes:
        check_function(path, code.objects, (code.symbol,), where)
        protocols.append(protocol_of_object(path, code.objects, code.symbol))
    ours = SyncProtocol.SUBKERNEL_H in protocols
    return replace(facts, protocol=SyncProtocol.SUBKERNEL_H if ours else SyncProtocol.CANN)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # the compiler will say why


def facts_to_json(kernel: SubKernel) -> Any:
    """As a saved super kernel keeps them."""
    facts = facts_of(kernel)
    fields = asdict(replace(facts, codes=()))
    codes = [[core_class.value, key, code.symbol, code.objects, code.split] for core_class, key, code in facts.codes]
    chosen = {"convention": facts.convention.value, "protocol": facts.protocol.value}
    return fields | {"type": facts.type.value, "codes": codes} | chosen


def facts_from_json(fields: Any) -> AscendFacts:
    codes = tuple(
        (CoreClass(core_class), int(key), Code(symbol, tuple(objects), tuple(map(tuple, split))))
        for core_class, key, symbol, objects, split in fields["codes"]
    )
    typed = {
        "type": KernelType(fields["type"]),
        "codes": codes,
        "debug_options": tuple(fields["debug_options"]),
        "convention": CallingConvention(fields["convention"]),
        "protocol": SyncProtocol(fields["protocol"]),
    }
    return AscendFacts(**(fields | typed))


def split_name(function: str, copy: int) -> str:
    """What copy 1, 2, ... of a function is called."""
    return f"{function}_split{copy}"


def cube_or_vector(core_class: CoreClass) -> str:
    """The suffix of what exists once per class in one object."""
    return "mix_aic" if core_class is CUBE else "mix_aiv"
