"""targets.cpu.build: sub-kernels -> objects and what they need; emitted source and objects -> one shared object."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...cache import Cache, digest
from ...errors import BuildError, SuperKernelError, UnsupportedError
from ...model.binary import Form
from ...model.subkernel import SubKernel, refuse_thread_blocks
from ..native import objects
from ..native.architectures import architecture_of, baseline_flags, this_architecture
from ..native.build_context import BuildContext
from ..native.import_library import import_library, is_large
from ..native.march import NATIVE
from ..native.object_facts import facts_of
from ..native.objects import CXX_FLAGS, CompileJob, text_key, versions
from ..native.precompiled import precompiled
from ..native.signatures import check_signature
from ..native.toolchain import cpu_features, demangle, run
from .actions import LinkedKernel
from .embedded_facts import facts_source, facts_symbol
from .emit import side_by_side
from .emit_lines import parameter_types
from .package_link import CHECKS, EXCEPTIONS, ONE_SEGMENT, link_for_package
from .runtime.openmp import openmp
from .vector_functions import compile_vector_functions, sources_key, sources_of, vector_functions

INCLUDE = Path(__file__).parent / "include"
CROSS_INCLUDE = Path(__file__).parent / "cross_include"
HOST = Path(__file__).parent / "runtime" / "host"
_ENTRY_INCLUDE = "#include <superkernel/entry.h>"
# without exceptions the entry needs nothing of the C++ library
_ENTRY_FLAGS = ("-O2", "-fno-exceptions", "-Wno-unused-variable")
_TILING_PARAMETERS = "(sk_tiling_args const*, sk_tiling_result*)"
# one host library serves kernels for every processor of the architecture
_HOST_FLAGS = ("-O2", *baseline_flags(this_architecture()))


def build_context(progress: Callable[[str], None] | None = None, march: str = NATIVE) -> BuildContext:
    return BuildContext(Cache(), (INCLUDE, *cross_includes(march)), progress, march=march)


def cross_includes(march: str) -> tuple[Path, ...]:
    """Headers in place of torch's that are written for this machine's architecture."""
    return () if architecture_of(march) == this_architecture() else (CROSS_INCLUDE,)


@dataclass(frozen=True)
class CompiledKernel:
    """A sub-kernel with its object: every None of its description is answered."""

    kernel: SubKernel
    object: Path
    contents: str  # the object's digest
    symbols: tuple[tuple[int, str], ...]  # tiling key -> symbol in the object
    unique: tuple[str, ...]  # what each is called when it stands beside others
    undefined: frozenset[str]  # what the object needs from elsewhere
    signatures: tuple[str | None, ...] = ()  # per symbol, as C++ spells it; None: a C function has none


def compile_kernels(kernels: Iterable[SubKernel], context: BuildContext) -> dict[SubKernel, CompiledKernel]:
    """Compile what is source, read what is there, and look up what each kernel refers to."""
    kernels = list(kernels)
    for kernel in kernels:
        if kernel.binary.form is Form.PTX:
            raise UnsupportedError(
                f"sub-kernel {kernel.name!r}: PTX is for target='cuda'; the cpu target takes sources and objects"
            )
        refuse_thread_blocks(kernel, "cpu")
    sources = dict.fromkeys(k.binary for k in kernels if k.binary.form is Form.SOURCE)
    march = context.march_flags if sources else ()
    jobs = [CompileJob(file.path, (*march, *file.flags), keyed_by_text=file.keyed_by_text) for file in sources]
    compiled = {}
    if jobs:
        tools, folders = context.toolchain, context.include_dirs
        found = objects.compile_sources(jobs, tools, context.cache, folders, context.progress, context.commands)
        compiled = dict(zip(sources, found, strict=True))
    paths = {kernel: compiled.get(kernel.binary, kernel.binary.path) for kernel in kernels}
    contents = {path: objects.object_key(path) for path in dict.fromkeys(paths.values())}
    return {kernel: _inspect(kernel, path, contents[path], context) for kernel, path in paths.items()}


def _inspect(kernel: SubKernel, path: Path, contents: str, context: BuildContext) -> CompiledKernel:
    keys, names = zip(*kernel.tiling_variants, strict=True)
    # errors name the user's file
    facts = facts_of(path, contents, names, kernel.binary.path, context.cache, context.toolchain.architecture)
    declared = [kernel.early_start_of(key) for key in keys]
    resolved = replace(
        kernel,
        sync_all="sk_sync_all" in facts.called if kernel.sync_all is None else kernel.sync_all,
        waits_inside=all(
            found if says is None else says is not False for says, found in zip(declared, facts.waits, strict=True)
        ),
        signals_inside=facts.signals and False not in declared,
        may_fail="sk_fail" in facts.called,
        code_bytes=facts.code_bytes,
    )
    symbols = tuple(zip(keys, facts.symbols, strict=True))
    return CompiledKernel(resolved, path, contents, symbols, facts.unique, facts.undefined, facts.signatures)


def check_signatures(compiled: Iterable[CompiledKernel]) -> None:
    """Refuses a sub-kernel whose parameters are not those of its C++ function."""
    for part in compiled:
        for signature in part.signatures:
            if signature is not None:
                check_signature(part.kernel, signature)


def check_tiling_function(function: CompiledKernel) -> None:
    """A C++ symbol shows the types of the parameters; a C symbol does not."""
    symbol = function.symbols[0][1]
    signature = demangle([symbol])[symbol]
    if signature != symbol and not signature.endswith(_TILING_PARAMETERS):
        raise BuildError(
            f"{function.kernel.binary.path}: the tiling function is {signature}; declare it as "
            f"int {function.kernel.name}(const sk_tiling_args* in, sk_tiling_result* out)"
        )


def name_symbols(
    compiled: Sequence[CompiledKernel], copies: int
) -> dict[SubKernel, tuple[CompiledKernel, LinkedKernel]]:
    """What the emitted code will call: per tiling key, the names of the copies.

    Descriptions of one function share its name. Where they pass scalars of other types, C++ takes them for different
    functions, and each gets a name and a copy of the code.
    """
    signatures: dict[str, list[tuple[str, ...]]] = {}
    named = {}
    for part in compiled:
        signature = tuple(parameter_types(part.kernel))
        variants = []
        for (key, _), unique in zip(part.symbols, part.unique, strict=True):
            known = signatures.setdefault(unique, [])
            if signature not in known:
                known.append(signature)
            number = known.index(signature)
            name = f"{unique}_as{number}" if number else unique
            variants.append((key, (name, *(f"{name}_copy{i}" for i in range(1, copies)))))
        named[part.kernel] = part, LinkedKernel(tuple(variants), part.kernel.code_bytes)
    return named


def entry_name(name: str) -> str:
    return "sk_" + re.sub(r"\W", "_", name, flags=re.ASCII)


def link(
    entries: Mapping[str, str],
    parts: Sequence[tuple[CompiledKernel, LinkedKernel]],
    compile_options: Sequence[str],
    context: BuildContext,
    libraries: Sequence[str | Path] = (),
    check: Callable[[], None] = lambda: None,
    for_package: bool = False,
    facts: Mapping[str, str] | None = None,
) -> Path:
    """Compile the entries (name -> source), give every sub-kernel a unique name, merge, hide the rest, link.

    `check` is called before a new binary is made, not for one that the cache has. `for_package`: instead of
    `libraries`, the library of packages supplies what is undefined. `facts`: a text for each entry, in the binary.
    """
    facts = facts or {}
    source = side_by_side(list(entries.values()))
    source += "".join(facts_source(entry, text) for entry, text in facts.items())
    shown = [*entries, *map(facts_symbol, facts)]
    flags = (*_ENTRY_FLAGS, *context.march_flags, *compile_options)
    named = sorted(
        {
            (unique, compiled.object, symbol, compiled.contents)
            for compiled, linked in parts
            for (_, symbol), (_, names) in zip(compiled.symbols, linked.variants, strict=True)
            for unique in names
        }
    )
    origin = {name: compiled.kernel.binary.path for compiled, _ in parts for name in compiled.undefined}
    users = {name: part.kernel.op_type or part.kernel.name for part, _ in parts for name in part.undefined}
    functions = sources_of(origin, context.architecture)
    needed = [*libraries, *([openmp().path] if any(n.startswith(("GOMP_", "omp_")) for n in origin) else [])]
    needed = [CHECKS, EXCEPTIONS] if for_package else needed

    def build(output: Path, log: list[str]) -> None:
        check()
        tools, cache, merged = context.toolchain, context.cache, output.with_suffix(".merged.o")
        text = cache.make(digest("entry", source), ".cpp", lambda path: path.write_text(source))
        folders = context.include_dirs
        header = precompiled(_ENTRY_INCLUDE, objects.cxx_command(flags, tools, folders), context)
        compiled = [objects.compile_source(text, flags, tools, cache, folders, log, True, header)]
        compiled += [objects.isolate(path, symbol, unique, tools, cache, log) for unique, path, symbol, _ in named]
        try:
            objects.merge(compiled, shown, merged, tools, log)
            beside = compile_vector_functions(functions, context, log)
            if for_package:
                link_for_package(merged, beside, output, context, users, log)
            else:
                _link_shared(merged, beside, output, context, needed, origin, log)
        finally:
            merged.unlink(missing_ok=True)

    # everything that goes in: on a hit nothing is compiled
    parts_key = [part for unique, _, symbol, contents in named for part in (unique, symbol, contents)]
    libraries_key = (*map(objects.library_key, needed), *sources_key(functions), *(ONE_SEGMENT if for_package else ()))
    key = _key("super kernel", *shown, "", source, *flags, "", *parts_key, "", *libraries_key, context=context)
    return _built(key, build, context.commands, context.cache)


def _link_shared(
    merged: Path,
    beside: Sequence[Path],
    output: Path,
    context: BuildContext,
    libraries: Sequence[str | Path],
    origin: Mapping[str, Path],
    log: list[str],
) -> None:
    """Link with import libraries in the place of large ones; where that fails, the libraries themselves say why."""
    link = partial(objects.link_shared, merged, output, context.toolchain, [str(path.absolute()) for path in beside])
    wanted = origin.keys() - vector_functions().keys()
    large = [Path(library) for library in libraries if is_large(library)]
    if large:
        commands: list[str] = []
        with suppress(BuildError, LookupError):
            found = {library: import_library(library, wanted, context, commands) for library in large}
            small = [library for library in libraries if not is_large(library)]
            imported = [path for path in found.values() if path is not None]
            folders = dict.fromkeys(library.parent for library, path in found.items() if path is not None)
            link(["m", *small], origin, commands, imported=imported, folders=folders)
            log += commands
            return
    link(["m", *libraries], origin, log)


def _key(*parts: str, context: BuildContext) -> str:
    """With what every shared object depends on: the headers of entry and host library must be the same."""
    headers = text_key((), context.include_dirs)
    return digest(*parts, headers, *CXX_FLAGS, context.toolchain.identity, cpu_features(), versions())


def _built(key: str, build: Callable[[Path, list[str]], None], commands: list[str], cache: Cache) -> Path:
    """A shared object; `commands` gets the commands that built it, in this process or another."""
    log: list[str] = []
    shared_object = cache.make(key, ".so", lambda output: build(output, log))
    recorded = cache.make(key, ".json", lambda output: output.write_text(json.dumps(log)))
    commands.extend(json.loads(recorded.read_text()))
    return shared_object


_hosts: dict[tuple[Path, str], tuple[Path, list[str]]] = {}


def host_library(context: BuildContext) -> Path:
    """The run time's host side, compiled once; a process looks at its sources once."""
    at = _host_place(context)
    if not _host_is_known(context):
        commands: list[str] = []
        _hosts[at] = _build_host(context, commands), commands
    path, commands = _hosts[at]
    context.commands.extend(commands)
    return path


def _host_place(context: BuildContext) -> tuple[Path, str]:
    return context.cache.directory, context.toolchain.identity


def _host_is_known(context: BuildContext) -> bool:
    known = _hosts.get(_host_place(context))
    return known is not None and known[0].is_file()


@contextmanager
def host_library_beside(context: BuildContext) -> Iterator[None]:
    """While an entry is made, the host library is compiled beside it, unless it is there."""
    if _host_is_known(context):
        yield
        return
    beside = threading.Thread(target=build_host_quietly, args=(replace(context, commands=[]),), name="superkernel-host")
    beside.start()
    try:
        yield
    finally:
        beside.join()


def build_host_quietly(context: BuildContext) -> None:
    with suppress(SuperKernelError):  # the compilation that needs the run time reports the error
        host_library(context)


def _build_host(context: BuildContext, commands: list[str]) -> Path:
    def build(output: Path, log: list[str]) -> None:
        jobs = [CompileJob(path, _HOST_FLAGS, keyed_by_text=True) for path in sorted(HOST.glob("*.cpp"))]
        folders = (*context.include_dirs, HOST)
        compiled = objects.compile_sources(jobs, context.toolchain, context.cache, folders, None, log)
        # Where libstdc++ is an archive, only what is used of it is linked: other parts need younger processors.
        flags = ("-shared", "-fPIC", "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL")
        command = [*context.toolchain.cxx, *flags, *map(str, compiled), "-lpthread", "-o", str(output)]
        run(command, what="linking the run time", log=log)

    return _built(_key("host", text_key((), (HOST,)), *_HOST_FLAGS, context=context), build, commands, context.cache)
