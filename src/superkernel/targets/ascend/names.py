"""targets.ascend.names: sub-kernels -> the function names that the entry calls, one per class, tiling key and copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import GraphError
from ...model.subkernel import SubKernel
from .chips import Chip
from .core_types import CoreClass
from .facts import check_identifier, cube_or_vector, facts_of, pointer_count, split_name
from .kernel_description import Variant

# What the emitted code calls its own variables and functions, and the primitives it uses: a sub-kernel with such a name
# is linked under another.
_OURS = """
slots block vector core key first_slot workspace place area task records word pointer on_cube on_vector cube_lane
vector_lane cube_flag vector_flag vectors_to_cube_flag cube_to_vectors_flag arrive_cubes arrive_vectors vectors_to_cube
cube_to_vectors profiling_header get_block_idx get_subblockid get_subblockdim get_block_num get_coreid get_para_base
get_sys_cnt set_ffts_base_addr ffts_cross_core_sync wait_flag_dev pipe_barrier dcci preload trap GM_ADDR KernelMetaType
pipe_t cache_line_t dcci_dst_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t
""".split()  # noqa: SIM905
_OUR_BEGINNINGS = (
    *("sk_", "SK_", "call_", "preload_", "check_", "key_", "blocks_"),
    *("__", "PIPE_", "KERNEL_", "CACHELINE_", "SINGLE_CACHE_", "ENTIRE_DATA_"),
)


@dataclass(frozen=True)
class KernelFunctions:
    """One sub-kernel as it is linked."""

    label: str  # of the functions that choose one of its bodies
    variants: dict[CoreClass, tuple[Variant, ...]]
    symbols: dict[CoreClass, dict[int, str]]  # tiling key -> name in its own object
    copies: int
    pointers: int | None = None  # it takes so many pointers; None: the index of its first slot

    @property
    def function(self) -> str:
        """The only function of a sub-kernel that has one body."""
        return next(iter(self.variants.values()))[0].functions[0]


def linked_name(chip: Chip, name: str) -> str:
    """What a super kernel is called in its object, its descriptor and its files; a name of that form stays."""
    before, _, behind = chip.toolkit.kernel_name.partition("{name}")
    return name if name.startswith(before) and name.endswith(behind) else f"{before}{name}{behind}"


def entry_name(name: str) -> str:
    return f"auto_gen_{name}_kernel"


def name_functions(name: str, kernels: Sequence[tuple[SubKernel, int]]) -> dict[SubKernel, KernelFunctions]:
    """Names for each sub-kernel in so many copies; of two equal names the second is changed. Uses of one function with
    several block counts share it."""
    check_identifier(name, f"super_kernel_scope {name!r}: the super kernel's name")
    taken = {entry_name(name), *_OURS}
    labels: set[str] = set()
    named: dict[SubKernel, KernelFunctions] = {}
    linked: dict[tuple[SubKernel, int], KernelFunctions] = {}
    for kernel, copies in kernels:
        alike = replace(kernel, block_dim=1, grid=None), copies
        if alike in linked and not kernel.variants:
            named[kernel] = linked[alike]
            continue
        facts = facts_of(kernel)
        shared = _shared_symbols(kernel)
        variants: dict[CoreClass, tuple[Variant, ...]] = {}
        symbols: dict[CoreClass, dict[int, str]] = {}
        for core_class in facts.op_class.classes:
            codes = facts.of_class(core_class)
            if not codes:
                where = f"sub-kernel {kernel.name!r} ({facts.type.value})"
                raise GraphError(f"{where} has no function for {core_class.value} cores")
            suffixes = dict.fromkeys(shared, f"_{cube_or_vector(core_class)}")
            variants[core_class] = tuple(
                Variant(key, _fresh(code.symbol + suffixes.get(code.symbol, ""), copies, taken))
                for key, code in sorted(codes.items())
            )
            symbols[core_class] = {key: code.symbol for key, code in codes.items()}
        label = _fresh(facts.codes[0][2].symbol, 1, labels)[0]
        named[kernel] = linked[alike] = KernelFunctions(label, variants, symbols, copies, pointer_count(kernel))
    return named


def _shared_symbols(kernel: SubKernel) -> set[str]:
    """Symbols that one kernel uses on both classes: linked together they must differ."""
    facts = facts_of(kernel)
    per_class = [{code.symbol for code in facts.of_class(core_class).values()} for core_class in facts.op_class.classes]
    return set.intersection(*per_class) if len(per_class) > 1 else set()


def _fresh(base: str, copies: int, taken: set[str]) -> tuple[str, ...]:
    number = 1
    while True:
        stem = base if number == 1 else f"kernel_{base}" if number == 2 else f"kernel{number}_{base}"
        names = (stem, *(split_name(stem, copy) for copy in range(1, copies)))
        if taken.isdisjoint(names) and not stem.startswith(_OUR_BEGINNINGS):
            taken.update(names)
            return names
        number += 1
