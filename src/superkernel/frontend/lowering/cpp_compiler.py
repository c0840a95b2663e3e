"""frontend.lowering.cpp_compiler: the flags with which Inductor compiles C++ kernels on this machine."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch

from ...cache import Cache, digest
from .lowering_cache import package_versions, write_entry


@dataclass(frozen=True)
class CompilerFlags:
    """Flags and libraries with which our kernels round as Inductor's do."""

    flags: tuple[str, ...]
    libraries: tuple[str, ...]


def cached_compiler_flags(machine_key: str, store: Cache) -> CompilerFlags:
    """The flags, from the cache if possible: to find them, Inductor starts processes that import torch."""
    environment = [f"{name}={os.environ.get(name, '')}" for name in ("CXX", "ATEN_CPU_CAPABILITY")]
    key = digest("flags", package_versions(), cpu_capability(), machine_key, sys.prefix, torch.__file__, *environment)
    entry = store.get(key, ".json")
    if entry is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            fields = json.loads(entry.read_text())
            return CompilerFlags(tuple(fields["flags"]), tuple(fields["libraries"]))
    found = compiler_flags()
    write_entry(key, json.dumps(asdict(found)), store)
    return found


def cpu_capability() -> str:
    """The instruction set for which torch, and so Inductor, generates vector code."""
    return str(torch.backends.cpu.get_cpu_capability())


@cache
def compiler_flags() -> CompilerFlags:
    from torch._inductor.cpp_builder import CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    probe_instruction_sets()
    options = CppTorchOptions(vec_isa=pick_vec_isa(), warning_all=False)
    flags = [f"-{flag}" for flag in options.get_cflags() if flag not in ("shared", "fopenmp", "g1", "pedantic", "Wall")]
    flags += [f"-D{definition.strip()}" for definition in options.get_definitions() if "PRECOMPILE" not in definition]
    flags += [f"-I{folder}" for folder in options.get_include_dirs()]
    flags += [word for text in options.get_passthrough_args() for word in text.split()]
    libraries_folder = Path(torch.__file__).parent / "lib"
    libraries = tuple(str(libraries_folder / name) for name in ("libc10.so", "libtorch_cpu.so"))
    return CompilerFlags(tuple(dict.fromkeys(flags)), libraries)


@cache
def probe_instruction_sets() -> None:
    """Let Inductor find out which instruction sets work here.

    It probes them in sequence, each with a compiler and a process that loads the result, and remembers the answers;
    probed in parallel they take less than half the time.
    """
    from torch._inductor import cpu_vec_isa

    flags = cpu_vec_isa.x86_isa_checker()
    present = [isa for isa in cpu_vec_isa.supported_vec_isa_list if all(flag in flags for flag in str(isa).split())]
    if present:
        with ThreadPoolExecutor(len(present), "superkernel-processor") as pool:
            list(pool.map(bool, present))
