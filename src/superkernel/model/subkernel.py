"""subkernel: what a user says about a compiled kernel -> SubKernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Required, TypedDict, Unpack

from ..errors import BuildError, GraphError, UnsupportedError, nearest, shown
from .binary import Binary, Core, Form
from .json_value import JsonValue, parse_json
from .kernel_json import read_entry
from .params import Param, check_name, check_text, scalar_bits
from .plain_values import checked_path, truth_value, whole_number
from .staged_input import StagedInput

Extent = tuple[int, int, int]  # x, y, z
EarlyStartPromise = bool | tuple[str, ...] | None  # names: parameters that are read before wait_previous()
Libraries = Sequence[str | PathLike[str]]
MOST_HOST_BLOCKS = 65535  # of a kernel whose blocks run on host threads or AI cores
MOST_BLOCKS = 2**31 - 1
_ONE_THREAD: Extent = (1, 1, 1)


class ShownFacts:
    """What only a target understands of a sub-kernel; str() of it is one line, which the page of a graph shows."""


class KernelDescription(TypedDict, total=False):
    """What a user may say of a kernel in any form; SubKernel.from_source shows the defaults."""

    block_dim: int | None
    params: Required[Sequence[str | Param]]
    core: str
    op_type: str | None
    sync_all: bool | None
    early_start: bool | Sequence[str] | Mapping[int, bool | Sequence[str]] | None
    variants: Mapping[int, str] | None
    threads: Sequence[int]
    grid: Sequence[int] | None
    shared: int
    pure: bool
    scratch: int


@dataclass(frozen=True)
class SubKernel:
    """A compiled kernel for one target: binary and metadata. None: the target finds it in the object."""

    name: str
    binary: Binary
    block_dim: int
    params: tuple[Param, ...]
    core: Core = Core.ANY
    op_type: str | None = None
    sync_all: bool | None = None
    # True or names: every call waits inside, and reads before that only these parameters; pairs: per tiling key
    early_start: EarlyStartPromise | tuple[tuple[int, EarlyStartPromise], ...] = None
    variants: tuple[tuple[int, str], ...] = ()  # tiling key -> symbol, for dynamic ops
    libraries: tuple[str, ...] = ()  # what else it must be linked with: absolute paths, or names as after -l
    waits_inside: bool | None = None  # every variant waits by itself, as declared or as the target found
    signals_inside: bool | None = None  # calls set_next(); found by the target
    may_fail: bool | None = None  # calls fail(); found by the target
    code_bytes: int = 0  # found by the target
    # a promise: it touches only its parameters, writes all of its outputs, and the same inputs give the same bits
    pure: bool = False
    target_facts: Hashable = None  # what only its target understands
    threads: Extent = _ONE_THREAD  # of one block
    grid: Extent | None = None  # its product is block_dim; None becomes (block_dim, 1, 1)
    shared: int = 0  # bytes of shared memory that one block gets at launch
    scratch: int = 0  # bytes of global memory of its own that one block gets at launch
    staged_input: StagedInput | None = None  # what it can take from a ring that the target fills

    def __post_init__(self) -> None:
        _check_shape(self)
        _check_kernel(self)

    @classmethod
    def from_source(
        cls,
        path: str | Path,
        name: str,
        *,
        block_dim: int | None = None,
        params: Sequence[str | Param],
        core: str = "any",
        op_type: str | None = None,
        sync_all: bool | None = None,
        early_start: bool | Sequence[str] | Mapping[int, bool | Sequence[str]] | None = None,
        flags: Sequence[str] = (),
        variants: Mapping[int, str] | None = None,
        libraries: Libraries = (),
        keyed_by_text: bool = False,
        threads: Sequence[int] = _ONE_THREAD,
        grid: Sequence[int] | None = None,
        shared: int = 0,
        pure: bool = False,
    ) -> SubKernel:
        """A kernel in a source file, compiled when it is first needed, with `flags` added to the compiler's.

        keyed_by_text: the source includes no header that may change under the same name, so that an object compiled
        from the same text is reused without preprocessing.
        """
        if not _is_list_of(flags, str):
            raise GraphError(f"sub-kernel {shown(name)}: flags is a list of strings, not {shown(flags)}")
        for flag in flags:
            check_text(flag, f"sub-kernel {shown(name)}: a flag")
        if (by_text := truth_value(keyed_by_text)) is None:
            raise GraphError(
                f"sub-kernel {shown(name)}: keyed_by_text is {shown(keyed_by_text)}; True or False is needed"
            )
        binary = Binary(Form.SOURCE, _existing(path, name, "source"), tuple(flags), by_text)
        shape = block_dim, threads, grid, shared
        return _make(cls, name, binary, params, core, op_type, sync_all, early_start, variants, *shape, pure, libraries)

    @classmethod
    def from_object(
        cls, path: str | Path, name: str, *, libraries: Libraries = (), **description: Unpack[KernelDescription]
    ) -> SubKernel:
        """A kernel in an ELF relocatable object; described as by from_source."""
        binary = Binary(Form.OBJECT, _existing(path, name, "object"))
        return _make(cls, name, binary, libraries=libraries, **description)

    @classmethod
    def from_ptx(cls, path: str | Path, name: str, **description: Unpack[KernelDescription]) -> SubKernel:
        """A kernel in a PTX file (for the cuda target): `grid` blocks of `threads` threads.

        shared and scratch are the bytes per block that its compiler asked for beside the PTX (Triton: metadata.shared,
        metadata.global_scratch_size); threads may be left out where the PTX says how many it was compiled for.
        """
        return _make(cls, name, Binary(Form.PTX, _existing(path, name, "ptx")), **description)

    @classmethod
    def from_json(cls, path: str | Path) -> SubKernel:
        """A kernel whose file holds the fields of one `kernels` entry of ops.json; `symbol` defaults to its stem."""
        file = checked_path(path, "the file of a sub-kernel", GraphError)
        return cls.from_entry(parse_json(file), file.parent, file.stem)

    @classmethod
    def from_entry(cls, entry: JsonValue, folder: Path, name: str) -> SubKernel:
        """A kernel described by one entry of `kernels`; its paths are relative to `folder`."""
        constructors: Mapping[Form, Callable[..., SubKernel]] = {
            Form.SOURCE: cls.from_source,
            Form.OBJECT: cls.from_object,
            Form.PTX: cls.from_ptx,
        }
        return read_entry(entry, folder, name, constructors)

    @property
    def type_name(self) -> str:
        """What cache-maintenance options and statistics call this kernel."""
        return self.op_type or self.name

    @property
    def tiling_variants(self) -> tuple[tuple[int, str], ...]:
        return self.variants or ((0, self.name),)

    def early_start_of(self, key: int) -> EarlyStartPromise:
        """What is declared of one variant; None: nothing."""
        declared = self.early_start
        if declared is None or isinstance(declared, bool):
            return declared
        per_key = {item[0]: item[1] for item in declared if isinstance(item, tuple)}
        return per_key.get(key) if per_key else tuple(item for item in declared if isinstance(item, str))

    @property
    def read_before_wait(self) -> tuple[str, ...]:
        """The parameters that some variant reads before its wait."""
        declared = [self.early_start_of(key) for key, _ in self.tiling_variants]
        return tuple(dict.fromkeys(name for names in declared if isinstance(names, tuple) for name in names))

    def __str__(self) -> str:
        return f"{self.name}<{self.block_dim}>({', '.join(map(str, self.params))})"


def _existing(path: str | PathLike[str], name: str, what: str) -> Path:
    if not isinstance(path, str | PathLike):
        raise GraphError(f"sub-kernel {shown(name)}: the path of its {what} is {shown(path)}; a path is needed")
    try:
        found = Path(path).resolve()
        if found.is_file():
            return found
    except (OSError, ValueError) as reason:
        raise BuildError(f"sub-kernel {shown(name)}: {what} file {shown(str(path))}: {reason}") from reason
    raise BuildError(f"sub-kernel {shown(name)}: {what} file {shown(str(path))} does not exist or is not a file")


def _make(
    cls: type[SubKernel],
    name: str,
    binary: Binary,
    params: Sequence[str | Param],
    core: str = "any",
    op_type: str | None = None,
    sync_all: bool | None = None,
    early_start: bool | Sequence[str] | Mapping[int, bool | Sequence[str]] | None = None,
    variants: Mapping[int, str] | None = None,
    block_dim: int | None = None,
    threads: Sequence[int] = _ONE_THREAD,
    grid: Sequence[int] | None = None,
    shared: int = 0,
    pure: bool = False,
    libraries: Libraries = (),
    scratch: int = 0,
) -> SubKernel:
    where = f"sub-kernel {shown(name)}: "
    cores = [c.value for c in Core]
    if not isinstance(core, str) or core not in cores:
        raise GraphError(f"{where}unknown core kind {shown(core)}{nearest(core, cores)}; kinds are {', '.join(cores)}")
    if not _is_list_of(params, object):
        raise GraphError(f"{where}params is a list of strings, not {shown(params)}")
    extent = None if grid is None else _extent(grid, "grid", where)
    if block_dim is None and extent is not None:
        block_dim = math.prod(extent)
    if block_dim is None:
        most = _most_blocks(binary, grid)
        raise GraphError(
            f"{where}block_dim is None; it must be a whole number from 1 to {most}, or give grid=(x, y, z)"
        )
    return cls(
        name,
        binary,
        block_dim,
        tuple(Param.parse(p, where) for p in params),
        Core(core),
        op_type,
        sync_all,
        _early_start(early_start, variants, where),
        _variants(variants, where),
        _libraries(libraries, name),
        threads=_extent(threads, "threads", where),
        grid=extent,
        shared=shared,
        pure=pure,
        scratch=scratch,
    )


def _early_start(
    given: object, variants: Mapping[int, str] | None, where: str
) -> EarlyStartPromise | tuple[tuple[int, EarlyStartPromise], ...]:
    if not isinstance(given, Mapping):
        return _promise(given, where)
    for key in given:
        if key not in (variants or {}):
            known = f"the keys are {', '.join(map(str, variants))}" if variants else "the kernel has no variants"
            raise GraphError(f"{where}early_start of tiling key {shown(key)}: {known}")
    return tuple((key, _promise(given[key], where)) for key in sorted(given))


def _promise(given: object, where: str) -> EarlyStartPromise:
    if given is None or isinstance(given, bool):
        return given
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Sequence) and _is_list_of(given, str):
        return tuple(given)
    raise GraphError(
        f"{where}early_start is True, False, a list of parameter names, or one of these per tiling key, not "
        f"{shown(given)}"
    )


def _variants(given: object, where: str) -> tuple[tuple[int, str], ...]:
    """Pairs of tiling key and symbol, in the order of the keys; what is wrong with them the kernel says."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise GraphError(f"{where}variants maps tiling keys to symbols; it cannot be {shown(given)}")
    pairs = [(key if (whole := whole_number(key)) is None else whole, symbol) for key, symbol in given.items()]
    return tuple(sorted(pairs, key=lambda pair: pair[0] if isinstance(pair[0], int) else 0))


def _libraries(given: Libraries, name: str) -> tuple[str, ...]:
    """A string without a slash is a name; anything else is a file."""
    if not _is_list_of(given, str | PathLike):
        raise GraphError(
            f"sub-kernel {shown(name)}: libraries is a list of files, or of names as after -l, not {shown(given)}"
        )
    found: dict[str, None] = {}
    for library in given:
        if isinstance(library, str) and "/" not in library:
            check_name(library, f"sub-kernel {shown(name)}: a library")
            if library.startswith("-"):
                raise GraphError(
                    f"sub-kernel {shown(name)}: library {shown(library)}: give a file, or the name that follows -l"
                )
            found[library] = None
        else:
            _existing(library, name, "library")
            found[str(Path(library).absolute())] = None  # not resolved: links to it lie in the same folder
    return tuple(found)


def _is_list_of(value: object, kind: type | UnionType) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes | bytearray)
        and all(isinstance(item, kind) for item in value)
    )


def _extent(given: object, field: str, where: str) -> Extent:
    listed = (
        ()
        if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence)
        else tuple(map(whole_number, given))
    )
    x, y, z = listed if len(listed) == 3 else (None, None, None)
    if x is None or y is None or z is None or min(x, y, z) < 1:
        raise GraphError(f"{where}{field} is {shown(given)}; it must be three whole numbers (x, y, z) from 1")
    if x * y * z > MOST_BLOCKS:
        raise GraphError(f"{where}{field} is {shown(given)}; the product of its numbers must not exceed {MOST_BLOCKS}")
    return x, y, z


def _nbytes(given: object, field: str, where: str) -> int:
    nbytes = whole_number(given)
    if nbytes is None or not 0 <= nbytes <= MOST_BLOCKS:
        raise GraphError(
            f"{where}{field} is {shown(given)}; it must be a whole number of bytes from 0 to {MOST_BLOCKS}"
        )
    return nbytes


def _most_blocks(binary: Binary, grid: object) -> int:
    return MOST_HOST_BLOCKS if grid is None and binary.form is not Form.PTX else MOST_BLOCKS


def _check_shape(kernel: SubKernel) -> None:
    """Checks block_dim, grid, threads and shared, and brings each to its one form."""
    where = f"sub-kernel {shown(kernel.name)}: "
    most = _most_blocks(kernel.binary, kernel.grid)
    blocks = whole_number(kernel.block_dim)
    if blocks is None or not 1 <= blocks <= most:
        raise GraphError(f"{where}block_dim is {shown(kernel.block_dim)}; it must be a whole number from 1 to {most}")
    grid = (blocks, 1, 1) if kernel.grid is None else _extent(kernel.grid, "grid", where)
    if math.prod(grid) != blocks:
        raise GraphError(f"{where}block_dim is {blocks}, but grid {grid} has {math.prod(grid)} blocks; give only grid")
    shape = {"block_dim": blocks, "grid": grid, "threads": _extent(kernel.threads, "threads", where)}
    sizes = {field: _nbytes(getattr(kernel, field), field, where) for field in ("shared", "scratch")}
    for field, value in (shape | sizes).items():
        object.__setattr__(kernel, field, value)


def refuse_thread_blocks(kernel: SubKernel, target: str) -> None:
    """For targets whose blocks are single threads of control: refuses a launch shape that means nothing there."""
    where = f"sub-kernel {shown(kernel.name)}: "
    if kernel.threads != _ONE_THREAD:
        raise UnsupportedError(
            f"{where}threads={kernel.threads}: a block of the {target} target is one thread; "
            f"leave threads out and give grid or block_dim"
        )
    if kernel.shared:
        raise UnsupportedError(
            f"{where}shared={kernel.shared}: the {target} target has no shared memory; "
            f"leave shared out and use a workspace parameter"
        )
    if kernel.scratch:
        raise UnsupportedError(
            f"{where}scratch={kernel.scratch}: the {target} target has no scratch memory of a kernel; "
            f"leave scratch out and use a workspace parameter"
        )
    if kernel.block_dim > MOST_HOST_BLOCKS:
        raise UnsupportedError(
            f"{where}{kernel.block_dim} blocks: the {target} target runs at most {MOST_HOST_BLOCKS}; "
            f"lower grid and let each block do more"
        )


def _check_kernel(kernel: SubKernel) -> None:
    where = f"sub-kernel {shown(kernel.name)}: "
    check_name(kernel.name, "the name of a sub-kernel's symbol")
    if kernel.op_type is not None:
        check_name(kernel.op_type, f"{where}op_type")
    if truth_value(kernel.pure) is None:
        raise GraphError(f"{where}pure is {shown(kernel.pure)}; it must be True or False")
    if kernel.sync_all is not None and truth_value(kernel.sync_all) is None:
        raise GraphError(f"{where}sync_all is {shown(kernel.sync_all)}; it must be True, False or None")
    names = [p.name for p in kernel.params]
    for name in names:
        if names.count(name) > 1:
            raise GraphError(f"{where}two parameters are called {shown(name)}")
    for param in kernel.params:
        if param.block and param.elements is not None and param.elements % kernel.block_dim:
            raise GraphError(
                f"{where}parameter {shown(str(param))} promises @block, but {param.elements} elements do not divide "
                f"into {kernel.block_dim} equal parts"
            )
    for name in kernel.read_before_wait:
        if name not in names:
            raise GraphError(f"{where}early_start names {shown(name)}, which is no parameter{nearest(name, names)}")
    staged = kernel.staged_input
    for name in () if staged is None else (staged.param, staged.flag):
        if name not in names:
            raise GraphError(f"{where}staged_input names {shown(name)}, which is no parameter{nearest(name, names)}")
    for key, symbol in kernel.variants:
        if whole_number(key) is None:
            raise GraphError(
                f"{where}variants maps whole-number tiling keys to symbols, not {shown(key)} to {shown(symbol)}"
            )
        check_name(symbol, f"{where}variants: the symbol of key {shown(key)}")
        scalar_bits(key, "int64", f"{where}tiling key", GraphError)
