"""subkernel: what a user says about a compiled kernel and its uses -> SubKernel, Place, Op."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any

from ..errors import BuildError, GraphError, nearest
from .events import Event
from .params import MOST_BYTES, Kind, Number, Param, check_name, scalar_bits


class Core(Enum):
    ANY = "any"
    CUBE = "cube"
    VECTOR = "vector"
    MIX = "mix"


class Task(Enum):
    NORMAL = "normal"
    DYNAMIC = "dynamic"


class Form(Enum):
    """How the binary of a sub-kernel was handed in."""

    SOURCE = "source"
    OBJECT = "object"
    PTX = "ptx"


@dataclass(frozen=True)
class Binary:
    """Where the code of a sub-kernel is."""

    form: Form
    path: Path
    flags: tuple[str, ...] = ()
    # Its headers are those of installed packages, whose versions are in the key: the text alone says what it is.
    keyed_by_text: bool = False


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
    early_start: bool | tuple[str, ...] | None = None  # names: parameters that are read before wait_previous()
    variants: tuple[tuple[int, str], ...] = ()  # tiling key -> symbol, for dynamic ops
    libraries: tuple[str, ...] = ()  # what else it must be linked with: absolute paths, or names as after -l
    waits_inside: bool | None = None  # calls wait_previous(); found by the target
    signals_inside: bool | None = None  # calls set_next(); found by the target
    may_fail: bool | None = None  # calls fail(); found by the target
    code_bytes: int = 0  # found by the target
    target_facts: Hashable = None  # what only its target understands

    def __post_init__(self) -> None:
        _check_kernel(self)

    @classmethod
    def from_source(
        cls,
        path: str | Path,
        name: str,
        *,
        block_dim: int,
        params: Sequence[str | Param],
        core: str = "any",
        op_type: str | None = None,
        sync_all: bool | None = None,
        early_start: bool | Sequence[str] | None = None,
        flags: Sequence[str] = (),
        variants: Mapping[int, str] | None = None,
        libraries: Sequence[str | PathLike[str]] = (),
        keyed_by_text: bool = False,
    ) -> SubKernel:
        """A kernel in a source file, compiled when it is first needed, with `flags` added to the compiler's.

        keyed_by_text: it includes no header that may change under the same name, so an object that was made of the same
        text before is taken without preprocessing.
        """
        if not _is_list_of(flags, str):
            raise GraphError(f"sub-kernel {name!r}: flags is a list of strings, not {flags!r}")
        binary = Binary(Form.SOURCE, _existing(path, name, "source"), tuple(flags), bool(keyed_by_text))
        return _make(cls, name, binary, block_dim, params, core, op_type, sync_all, early_start, variants, libraries)

    @classmethod
    def from_object(
        cls,
        path: str | Path,
        name: str,
        *,
        block_dim: int,
        params: Sequence[str | Param],
        core: str = "any",
        op_type: str | None = None,
        sync_all: bool | None = None,
        early_start: bool | Sequence[str] | None = None,
        variants: Mapping[int, str] | None = None,
        libraries: Sequence[str | PathLike[str]] = (),
    ) -> SubKernel:
        """A kernel in an ELF relocatable object."""
        binary = Binary(Form.OBJECT, _existing(path, name, "object"))
        return _make(cls, name, binary, block_dim, params, core, op_type, sync_all, early_start, variants, libraries)

    @classmethod
    def from_ptx(
        cls,
        path: str | Path,
        name: str,
        *,
        block_dim: int,
        params: Sequence[str | Param],
        core: str = "any",
        op_type: str | None = None,
        sync_all: bool | None = None,
        early_start: bool | Sequence[str] | None = None,
        variants: Mapping[int, str] | None = None,
    ) -> SubKernel:
        """A kernel in a PTX file (for the cuda target)."""
        binary = Binary(Form.PTX, _existing(path, name, "ptx"))
        return _make(cls, name, binary, block_dim, params, core, op_type, sync_all, early_start, variants)

    @classmethod
    def from_json(cls, path: str | Path) -> SubKernel:
        """A kernel described by the fields of one `kernels` entry of ops.json, in a file of its own."""
        from .opsfile import read_kernel

        return read_kernel(Path(path))

    @property
    def type_name(self) -> str:
        """What cache-maintenance options and statistics call this kernel."""
        return self.op_type or self.name

    @property
    def tiling_variants(self) -> tuple[tuple[int, str], ...]:
        return self.variants or ((0, self.name),)

    @property
    def read_before_wait(self) -> tuple[str, ...]:
        return self.early_start if isinstance(self.early_start, tuple) else ()

    def __str__(self) -> str:
        return f"{self.name}<{self.block_dim}>({', '.join(map(str, self.params))})"


def _existing(path: str | PathLike[str], name: str, what: str) -> Path:
    if not isinstance(path, str | PathLike):
        raise GraphError(f"sub-kernel {name!r}: the path of its {what} is {path!r}; a path is needed")
    try:
        found = Path(path).resolve()
        if found.is_file():
            return found
    except (OSError, ValueError) as reason:
        raise BuildError(f"sub-kernel {name!r}: {what} file {str(path)!r}: {reason}") from reason
    raise BuildError(f"sub-kernel {name!r}: {what} file {str(path)!r} does not exist or is not a file")


def _make(
    cls: type[SubKernel],
    name: str,
    binary: Binary,
    block_dim: int,
    params: Sequence[str | Param],
    core: str,
    op_type: str | None,
    sync_all: bool | None,
    early_start: bool | Sequence[str] | None,
    variants: Mapping[int, str] | None,
    libraries: Sequence[str | PathLike[str]] = (),
) -> SubKernel:
    where = f"sub-kernel {name!r}: "
    cores = [c.value for c in Core]
    if core not in cores:
        raise GraphError(f"{where}unknown core kind {core!r}{nearest(str(core), cores)}; kinds are {', '.join(cores)}")
    if not _is_list_of(params, object):
        raise GraphError(f"{where}params is a list of strings, not {params!r}")
    if isinstance(early_start, str):
        early_start = (early_start,)
    if early_start is not None and not isinstance(early_start, bool) and not _is_list_of(early_start, str):
        raise GraphError(f"{where}early_start is True, False or a list of parameter names, not {early_start!r}")
    if variants is not None and not isinstance(variants, Mapping):
        raise GraphError(f"{where}variants maps tiling keys to symbols; it cannot be {variants!r}")
    return cls(
        name,
        binary,
        block_dim,
        tuple(Param.parse(p, where) for p in params),
        Core(core),
        op_type,
        sync_all,
        early_start if early_start is None or isinstance(early_start, bool) else tuple(early_start),
        tuple(sorted((variants or {}).items(), key=lambda variant: _key_order(variant[0]))),
        _libraries(libraries, name),
    )


def _libraries(given: Sequence[str | PathLike[str]], name: str) -> tuple[str, ...]:
    """A string without a slash is a name; anything else is a file."""
    if not _is_list_of(given, str | PathLike):
        raise GraphError(f"sub-kernel {name!r}: libraries is a list of files, or of names as after -l, not {given!r}")
    found: dict[str, None] = {}
    for one in given:
        if isinstance(one, str) and "/" not in one:
            check_name(one, f"sub-kernel {name!r}: a library")
            if one.startswith("-"):
                raise GraphError(f"sub-kernel {name!r}: library {one!r}: give a file, or the name that follows -l")
            found[one] = None
        else:
            _existing(one, name, "library")
            found[str(Path(one).absolute())] = None  # not resolved: its other names lie beside it
    return tuple(found)


def _is_list_of(value: object, kind: type | UnionType) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, kind) for item in value)


def _key_order(key: object) -> int:
    return key if isinstance(key, int) else 0  # what is no key is refused below


def _check_kernel(kernel: SubKernel) -> None:
    where = f"sub-kernel {kernel.name!r}: "
    check_name(kernel.name, "the name of a sub-kernel's symbol")
    if kernel.op_type is not None:
        check_name(kernel.op_type, f"{where}op_type")
    if kernel.sync_all not in (None, True, False):
        raise GraphError(f"{where}sync_all is {kernel.sync_all!r}; it must be True, False or None")
    if (
        not isinstance(kernel.block_dim, int)
        or isinstance(kernel.block_dim, bool)
        or not 1 <= kernel.block_dim <= 65535
    ):
        raise GraphError(f"{where}block_dim is {kernel.block_dim!r}; it must be a whole number from 1 to 65535")
    names = [p.name for p in kernel.params]
    for name in names:
        if names.count(name) > 1:
            raise GraphError(f"{where}two parameters are called {name!r}")
    for param in kernel.params:
        if param.block and param.elements is not None and param.elements % kernel.block_dim:
            raise GraphError(
                f"{where}parameter {str(param)!r} promises @block, but {param.elements} elements do not divide "
                f"into {kernel.block_dim} equal parts"
            )
    for name in kernel.read_before_wait:
        if name not in names:
            raise GraphError(f"{where}early_start names {name!r}, which is no parameter{nearest(name, names)}")
    for key, symbol in kernel.variants:
        if not isinstance(key, int) or isinstance(key, bool) or not isinstance(symbol, str) or not symbol:
            raise GraphError(f"{where}variants maps whole-number tiling keys to symbols, not {key!r} to {symbol!r}")
        scalar_bits(key, "int64", f"{where}tiling key", GraphError)


@dataclass(frozen=True)
class Place:
    """An address inside a named buffer, `offset` bytes from its beginning."""

    name: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.offset}" if self.offset else self.name

    def seen_as(self, param: Param) -> Param:
        """What `param` says of the buffer: a part of it says nothing of the whole, nor of which block touches what."""
        return replace(param, dtype=None, shape=None, block=False) if self.offset else param


Argument = str | Place | Number


def place_of(argument: str | Place) -> Place:
    """A name is the place where its buffer begins."""
    return argument if isinstance(argument, Place) else Place(argument)


EventId = int | str | Event


@dataclass(frozen=True)
class Tiling:
    """What a control agent decides for one run of a dynamic op."""

    key: int
    blocks: int


TilingFunction = Callable[[dict[str, Any]], "Tiling | tuple[int, int]"]


@dataclass(frozen=True, eq=False)
class Op:
    """One use of a sub-kernel. The same argument name is the same memory, at whatever offset."""

    kernel: SubKernel
    args: Sequence[Argument]
    name: str | None = None
    stream: int = 0
    send: Sequence[EventId] = ()
    recv: Sequence[EventId] = ()
    task: str | Task = Task.NORMAL
    tiling: TilingFunction | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, SubKernel):
            raise GraphError(f"an op needs a SubKernel, not {self.kernel!r}")
        where = f"op {self.name or self.kernel.name!r}: "
        if self.name is not None:
            check_name(self.name, f"op of {self.kernel.name!r}: its name")
        if isinstance(self.args, str) or not isinstance(self.args, Sequence):
            raise GraphError(f"{where}args is a list of names, not {self.args!r}")
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "send", _event_ids(self.send, where + "send"))
        object.__setattr__(self, "recv", _event_ids(self.recv, where + "recv"))
        if not isinstance(self.stream, int) or isinstance(self.stream, bool) or self.stream < 0:
            raise GraphError(f"{where}stream is {self.stream!r}; it must be a whole number from 0")
        tasks = [t.value for t in Task]
        if not isinstance(self.task, Task):
            if self.task not in tasks:
                raise GraphError(
                    f"{where}unknown task {self.task!r}{nearest(str(self.task), tasks)}; tasks are normal, dynamic"
                )
            object.__setattr__(self, "task", Task(self.task))
        if self.tiling is not None and not callable(self.tiling):
            raise GraphError(f"{where}tiling must be a function, not {self.tiling!r}")
        if self.tiling is not None and self.task is not Task.DYNAMIC:
            raise GraphError(f"{where}a tiling function belongs to task='dynamic'")
        if self.kernel.variants and self.task is not Task.DYNAMIC:
            raise GraphError(f"{where}a sub-kernel with variants belongs to task='dynamic'")
        _check_arguments(self, where)

    @property
    def dynamic(self) -> bool:
        return self.task is Task.DYNAMIC


def _event_ids(ids: EventId | Sequence[EventId], where: str) -> tuple[EventId, ...]:
    if not isinstance(ids, int | str | Event | Sequence):
        raise GraphError(f"{where}: {ids!r} is no event id; use numbers, names or Events")
    listed = (ids,) if isinstance(ids, int | str | Event) else tuple(ids)
    for one in listed:
        if isinstance(one, bool) or not isinstance(one, int | str | Event):
            raise GraphError(f"{where}: {one!r} is no event id; use a number, a name or an Event")
        if isinstance(label := one.name if isinstance(one, Event) else one, str):
            check_name(label, f"{where}: the event")
    if len(set(listed)) != len(listed):
        raise GraphError(f"{where}: an event id stands twice in {listed!r}")
    return listed


def _check_arguments(op: Op, where: str) -> None:
    params = op.kernel.params
    if len(op.args) != len(params):
        expected = ", ".join(f"{p.kind.value}:{p.name}" for p in params)
        raise GraphError(f"{where}{len(op.args)} arguments for {len(params)} parameters ({expected})")
    for arg, param in zip(op.args, params, strict=True):
        if isinstance(arg, Place):
            _check_place(arg, param, f"{where}the argument for {param.name!r}")
        elif isinstance(arg, str):
            check_name(arg, f"{where}the argument for {param.name!r}")
        elif param.kind is not Kind.SCALAR or not isinstance(arg, int | float):
            raise GraphError(f"{where}the argument for {param.name!r} ({param.kind.value}) must be a name, not {arg!r}")
        else:
            scalar_bits(arg, param.dtype, f"{where}scalar {param.name!r}", GraphError)


def _check_place(place: Place, param: Param, what: str) -> None:
    check_name(place.name, what)
    if param.kind is Kind.SCALAR:
        raise GraphError(f"{what} is the place {str(place)!r}; a scalar is passed as a number, or by its name alone")
    offset = place.offset
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MOST_BYTES:
        raise GraphError(
            f"{what}: the offset in {place.name!r} is {offset!r}; it must be a whole number of bytes from 0"
        )
