"""targets.cpu.build: sub-kernels -> objects and what they need; emitted source and objects -> one shared object."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...cache import Cache, digest
from ...errors import UnsupportedError
from ...subkernel import Form, SubKernel
from .elf import read_object, symbol_size
from .emit import LinkedKernel
from .objects import (
    INCLUDE,
    CompileJob,
    compile_source,
    compile_sources,
    isolate,
    library_key,
    link_shared,
    merge,
    object_key,
    unique_name,
)
from .openmp import openmp
from .reach import references
from .symbols import find_symbol
from .toolchain import Toolchain, find_toolchain, run

HOST = Path(__file__).parent / "host"
# without exceptions the entry needs nothing of the C++ library
_ENTRY_FLAGS = ("-O2", "-fno-exceptions", "-Wno-unused-variable")
_HOST_FLAGS = ("-O2", f"-I{HOST}")
Progress = Callable[[str], None]


@dataclass
class Workshop:
    """A tool chain, a cache, and the commands that were run."""

    cache: Cache
    progress: Progress | None = None
    commands: list[str] = field(default_factory=list)

    @property
    def toolchain(self) -> Toolchain:
        return find_toolchain()


@dataclass(frozen=True)
class Compiled:
    """A sub-kernel with its object: every None of its description is answered."""

    kernel: SubKernel
    object: Path
    symbols: tuple[tuple[int, str], ...]  # tiling key -> symbol in the object


def compile_kernels(kernels: Sequence[SubKernel], shop: Workshop) -> dict[SubKernel, Compiled]:
    """Compile what is source, read what is there, and look up what each kernel refers to."""
    for kernel in kernels:
        if kernel.binary.form is Form.PTX:
            raise UnsupportedError(
                f"sub-kernel {kernel.name!r}: PTX is for target='cuda'; the cpu target takes sources and objects"
            )
    sources = dict.fromkeys(k.binary for k in kernels if k.binary.form is Form.SOURCE)
    jobs = [CompileJob(binary.path, binary.flags) for binary in sources]
    made = compile_sources(jobs, shop.toolchain, shop.cache, (INCLUDE,), shop.progress, shop.commands) if jobs else []
    objects = dict(zip(sources, made, strict=True))
    return {kernel: _inspect(kernel, objects.get(kernel.binary, kernel.binary.path)) for kernel in kernels}


def _inspect(kernel: SubKernel, path: Path) -> Compiled:
    facts = replace(read_object(path), path=kernel.binary.path)  # what is wrong is told of the user's own file
    symbols = tuple((key, find_symbol(facts, name)) for key, name in kernel.tiling_variants)
    called = frozenset().union(*(references(path, symbol) for _, symbol in symbols))
    may_wait = kernel.early_start is not False
    resolved = replace(
        kernel,
        sync_all="sk_sync_all" in called if kernel.sync_all is None else kernel.sync_all,
        waits_inside=may_wait and "sk_wait_previous" in called,
        signals_inside=may_wait and "sk_set_next" in called,
        may_fail="sk_fail" in called,
        code_bytes=max(symbol_size(facts, symbol) for _, symbol in symbols),
    )
    return Compiled(resolved, path, symbols)


def name_symbols(compiled: Compiled, copies: int) -> LinkedKernel:
    """What the emitted code will call: per tiling key, the names of the copies."""
    variants = []
    for key, symbol in compiled.symbols:
        unique = unique_name(symbol, compiled.object)
        variants.append((key, (unique, *(f"{unique}_copy{i}" for i in range(1, copies)))))
    return LinkedKernel(tuple(variants), compiled.kernel.code_bytes)


def entry_name(name: str) -> str:
    return "sk_" + re.sub(r"\W", "_", name, flags=re.ASCII)


def link(
    source: str,
    entry: str,
    parts: Sequence[tuple[Compiled, LinkedKernel]],
    compile_options: Sequence[str],
    shop: Workshop,
    libraries: Sequence[str | Path] = (),
) -> Path:
    """Compile the entry, give every sub-kernel a name of its own, merge, hide all but the entry, link."""
    flags = (*_ENTRY_FLAGS, *compile_options)
    wanted = {
        (unique, compiled.object, symbol)
        for compiled, linked in parts
        for (_, symbol), (_, names) in zip(compiled.symbols, linked.variants, strict=True)
        for unique in names
    }
    named = sorted(wanted)
    text = shop.cache.make(digest("entry", source), ".cpp", lambda path: _write(path, source))
    objects = [compile_source(text, flags, shop.toolchain, shop.cache, (INCLUDE,), log=shop.commands)]
    objects += [
        isolate(path, symbol, unique, shop.toolchain, shop.cache, shop.commands) for unique, path, symbol in named
    ]
    origin = {
        name: compiled.kernel.binary.path for compiled, _ in parts for name in read_object(compiled.object).undefined
    }
    needed = [*libraries, *([openmp().path] if any(n.startswith(("GOMP_", "omp_")) for n in origin) else [])]

    def build(output: Path) -> None:
        merged = output.with_suffix(".merged.o")
        try:
            merge(objects, entry, merged, shop.toolchain, shop.commands)
            link_shared(merged, output, shop.toolchain, (), ["m", *needed], origin, shop.commands)
        finally:
            merged.unlink(missing_ok=True)

    # by the objects, not by the source: the headers of the run time are in them, and must be those of the host library
    key = digest("super kernel", entry, *map(object_key, objects), *map(library_key, needed), shop.toolchain.identity)
    return shop.cache.make(key, ".so", build)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


_hosts: dict[tuple[Path, str], tuple[Path, list[str]]] = {}


def host_library(shop: Workshop) -> Path:
    """The run time's host side, compiled once; a process looks at its sources once."""
    at = (shop.cache.directory, shop.toolchain.identity)
    if at not in _hosts or not _hosts[at][0].is_file():
        commands: list[str] = []
        _hosts[at] = _build_host(shop, commands), commands
    path, commands = _hosts[at]
    shop.commands.extend(commands)
    return path


def _build_host(shop: Workshop, log: list[str]) -> Path:
    sources = sorted(HOST.glob("*.cpp"))
    jobs = [CompileJob(path, _HOST_FLAGS) for path in sources]
    objects = compile_sources(jobs, shop.toolchain, shop.cache, (INCLUDE,), None, log)
    key = digest("host", *map(object_key, objects), shop.toolchain.identity)

    def build(output: Path) -> None:
        command = [*shop.toolchain.cxx, "-shared", "-fPIC", *map(str, objects), "-lpthread", "-o", str(output)]
        run(command, what="linking the run time", log=log)

    return shop.cache.make(key, ".so", build)
