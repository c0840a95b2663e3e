"""targets.ascend.emulator.modules: emitted kernels and their sub-kernels -> shared objects, one per class of cores."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache as remembered
from pathlib import Path
from tempfile import TemporaryDirectory

from superkernel.cache import Cache, digest
from superkernel.errors import BuildError, UnsupportedError
from superkernel.model.binary import Binary, Form
from superkernel.targets.native.loading import load_shared
from superkernel.targets.native.objects import (
    CompileJob,
    compile_sources,
    isolate,
    link_shared,
    object_key,
    unique_name,
)
from superkernel.targets.native.toolchain import Toolchain, find_toolchain, run

from ..archive import is_archive, members
from ..core_types import CoreClass
from ..facts import facts_of, pointer_count
from ..kernel_description import EmittedKernel, EmittedOp
from .library import INCLUDE, Library, load_library

# where subkernel.h is: what sub-kernels include on the chip as well
_INCLUDES = (INCLUDE, Path(__file__).parent.parent / "include")
_EMULATED = ("-DSK_EMULATED", "-w", "-O1")
_AS_FUNCTION = ("-include", "superkernel/as_function.h")


@dataclass(frozen=True)
class Body:
    """A function of a sub-kernel: where its code is, and what it is called there."""

    binary: Binary
    symbol: str
    members: tuple[str, ...] = ()  # of an archive
    pointers: int | None = None  # it takes so many; None: the index of its first slot


@dataclass(frozen=True)
class Isolated:
    """An object that shows one function, under a name that no other object uses."""

    name: str
    path: Path


@dataclass(frozen=True)
class HostModule:
    """The loaded shared object of one class, with the entries of kernels that have it."""

    path: Path
    library: ctypes.CDLL = field(hash=False, compare=False)

    def address(self, symbol: str) -> int:
        return ctypes.addressof(ctypes.c_char.in_dll(self.library, symbol))

    @property
    def function_count(self) -> int:
        return ctypes.c_int64.in_dll(self.library, "sk_function_count").value


def build_modules(
    kernels: Sequence[EmittedKernel], cache: Cache, stand_ins: bool = False
) -> dict[CoreClass, HostModule]:
    """One shared object per class for all these kernels, whose names must differ; those that lack the class have no
    entry in it. Their sub-kernels are compiled once each; with `stand_ins` the emulator's take their place."""
    library, tools = load_library(cache), find_toolchain()
    modules = {}
    for core_class in CoreClass:
        having = [kernel for kernel in kernels if core_class in kernel.launch.classes]
        if having:
            modules[core_class] = _build(core_class, having, library, tools, cache, stand_ins)
    return modules


def _build(
    core_class: CoreClass,
    kernels: Sequence[EmittedKernel],
    library: Library,
    tools: Toolchain,
    cache: Cache,
    stand_ins: bool,
) -> HostModule:
    functions = _functions(core_class, kernels)
    defines = tuple(dict.fromkeys(define for kernel in kernels for define in kernel.defines[core_class]))
    bodies = {} if stand_ins else dict.fromkeys(body for body, _ in functions.values())
    objects = _objects(bodies, defines, tools, cache)
    used = () if stand_ins else (lib for kernel in kernels for op in kernel.ops for lib in op.kernel.libraries)
    libraries = tuple(dict.fromkeys(used))
    text = "\n".join([_entries(kernels), _told(core_class), _wrappers(functions, objects)])
    key = digest(
        "emulated", text, *(object_key(o.path) for o in objects.values()), str(library.path), *libraries, *defines,
        tools.identity,
    )  # fmt: skip

    def build(output: Path) -> None:
        with TemporaryDirectory() as folder:
            source, entries = Path(folder, "entries.cpp"), Path(folder, "entries.o")
            source.write_text(text)
            includes = [f"-I{path}" for path in _INCLUDES]
            flags = ["-std=c++17", "-fPIC", "-g0", "-fno-gnu-unique", *_EMULATED, *defines, *includes]
            name = ", ".join(kernel.name for kernel in kernels[:3])
            run([*tools.cxx, *flags, "-c", str(source), "-o", str(entries)], what=f"compiling the entry of {name}")
            joined = [entries, *(o.path for o in objects.values())]
            merged = Path(folder, "merged.o")
            run([tools.ld, "-r", *map(str, joined), "-o", str(merged)], what=f"merging {name}")
            link_shared(merged, output, tools, ["-Wl,-Bsymbolic"], [library.path, *libraries])

    path = cache.make(key, ".so", build)
    return HostModule(path, _loaded(path))


@remembered
def _loaded(path: Path) -> ctypes.CDLL:
    return load_shared(path)


def _functions(core_class: CoreClass, kernels: Iterable[EmittedKernel]) -> dict[str, tuple[Body, int]]:
    """What the entries call -> the code behind it, and which copy of it."""
    found: dict[str, tuple[Body, int]] = {}
    for kernel in kernels:
        for op in kernel.ops:
            for variant in op.variants.get(core_class, ()):
                for copy, function in enumerate(variant.functions):
                    body = _body(op, core_class, variant.key, copy)
                    if found.setdefault(function, (body, copy)) != (body, copy):
                        raise BuildError(
                            f"super_kernel_scope {kernel.name!r}: {function!r} stands for two different functions"
                        )
    return found


def _body(op: EmittedOp, core_class: CoreClass, key: int, copy: int) -> Body:
    """Copies share their code, unless they are precompiled."""
    code = facts_of(op.kernel).of_class(core_class).get(key)
    objects = code.objects if code is not None else ()
    if code is not None and 0 < copy <= len(code.split):
        objects = code.split[copy - 1]
    archived = op.kernel.binary.form is Form.OBJECT and is_archive(op.kernel.binary.path)
    return Body(op.kernel.binary, op.symbols[core_class][key], objects if archived else (), pointer_count(op.kernel))


def _objects(bodies: Iterable[Body], defines: tuple[str, ...], tools: Toolchain, cache: Cache) -> dict[Body, Isolated]:
    """Per function an object that shows nothing else."""
    bodies = list(bodies)
    binaries = list(dict.fromkeys(body.binary for body in bodies))
    sources = [binary for binary in binaries if binary.form is Form.SOURCE]
    jobs = [CompileJob(binary.path, (*binary.flags, *defines, *_EMULATED, *_AS_FUNCTION)) for binary in sources]
    compiled = dict(zip(sources, compile_sources(jobs, tools, cache, _INCLUDES), strict=True))
    objects = {}
    for body in bodies:
        if body.binary.form is Form.PTX:
            raise UnsupportedError(f"{body.binary.path}: PTX is for the cuda target")
        path = compiled.get(body.binary, body.binary.path)
        if body.members or (body.binary.form is Form.OBJECT and is_archive(path)):
            path = _unpacked(path, body.members, tools, cache)
        name = unique_name(body.symbol, path)
        objects[body] = Isolated(name, isolate(path, body.symbol, name, tools, cache))
    return objects


def _unpacked(archive: Path, wanted: tuple[str, ...], tools: Toolchain, cache: Cache) -> Path:
    """Members of an archive, joined into one object; none named: all."""
    contents = members(archive)
    chosen = {name: contents[name] for name in wanted or contents}

    def build(output: Path) -> None:
        with TemporaryDirectory() as folder:
            paths = [Path(folder, f"{place}.o") for place in range(len(chosen))]
            for path, content in zip(paths, chosen.values(), strict=True):
                path.write_bytes(content)
            run([tools.ld, "-r", *map(str, paths), "-o", str(output)], what=f"joining members of {archive}")

    return cache.make(digest("unpacked", *chosen.values(), tools.identity), ".o", build)


def _entries(kernels: Sequence[EmittedKernel]) -> str:
    """Each emitted file in a separate namespace; functions that are extern "C" are the same in all of them."""
    lines = ['#include "kernel_operator.h"', "#include <cstdint>"]
    for number, kernel in enumerate(kernels):
        lines += [f"namespace emitted_{number} {{", f'#line 1 "{kernel.name}_kernel.cpp"', kernel.source, "}"]
    return "\n".join(lines)


def _told(core_class: CoreClass) -> str:
    """What the entry tells sub-kernels that include subkernel.h; the emulator sets it for the core that goes on."""
    names = told_names(core_class)
    return "\n".join(['extern "C" {', *(f"uint64_t {name} = 0;" for name in names), "}"])


def told_names(core_class: CoreClass) -> tuple[str, str]:
    """The variables of subkernel.h: what a sub-kernel waits and arrives for, and its control word."""
    return f"sk_early_start_{core_class.value}", f"sk_feed_{core_class.value}"


def _wrappers(functions: Mapping[str, tuple[Body, int]], objects: Mapping[Body, Isolated]) -> str:
    """A wrapper for every function that the entries call, which reports the call; and the tables of the wrappers."""
    lines = ['#line 1 "wrappers.cpp"', 'extern "C" {']
    takes = {isolated.name: body.pointers for body, isolated in objects.items()}
    lines += [f"void {name}({_taken(pointers)});" for name, pointers in takes.items()]
    for function, (body, copy) in functions.items():
        if body not in objects:
            lines.append(_stand_in_wrapper(function, copy, body.pointers))
            continue
        name = objects[body].name
        if body.pointers is None:
            lines.append(f'void {function}(uint64_t slot) {{ sk_emu_call("{function}", {copy}, slot, {name}); }}')
        else:
            lines.append(_pointer_wrapper(function, copy, name, body.pointers))
    lines.append("}")
    table = ", ".join(f'{{"{function}", (const void*){function}}}' for function in functions)
    lines += [
        f'extern "C" const SkFunction sk_functions[] = {{{table or "{nullptr, nullptr}"}}};',
        f'extern "C" const int64_t sk_function_count = {len(functions)};',
    ]
    return "\n".join(lines)


def _taken(pointers: int | None) -> str:
    return "uint64_t" if pointers is None else ", ".join(["uint8_t*"] * pointers)


def _pointer_wrapper(function: str, copy: int, name: str, pointers: int) -> str:
    """Says with which pointers a function is called, which are those of one op."""
    passed = ", ".join(f"(uint8_t*)p[{place}]" for place in range(pointers))
    return (
        f"static void run_{function}([[maybe_unused]] const uint64_t* p) {{ {name}({passed}); }}\n"
        f"{_with_pointers(function, copy, f'run_{function}', pointers)}"
    )


def _with_pointers(function: str, copy: int, body: str, pointers: int) -> str:
    takes = ", ".join(f"uint8_t* p{place}" for place in range(pointers))
    listed = ", ".join(f"(uint64_t)p{place}" for place in range(pointers))
    return (
        f"void {function}({takes}) {{ const uint64_t p[] = {{{listed or 0}}}; "
        f'sk_emu_call_with("{function}", {copy}, p, {pointers}, {body}); }}'
    )


def _stand_in_wrapper(function: str, copy: int, pointers: int | None) -> str:
    if pointers is not None:
        return _with_pointers(function, copy, "sk_emu_stand_in_with", pointers)
    return f'void {function}(uint64_t slot) {{ sk_emu_call("{function}", {copy}, slot, sk_emu_stand_in_body); }}'
