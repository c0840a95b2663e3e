"""frontend.lowering.cpp_compiler: the flags with which Inductor compiles C++ kernels for a processor."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...cache import Cache, digest
from ...errors import UnsupportedError
from .lowering_cache import package_versions, write_entry

NATIVE = "native"  # this machine
_chosen = threading.local()  # vector_isa: in place of what Inductor would choose


@dataclass(frozen=True)
class CompilerFlags:
    """Flags with which our kernels round as Inductor's do, and the libraries that have what they call."""

    flags: tuple[str, ...]
    libraries: tuple[str, ...]


def cached_compiler_flags(machine_key: str, march: str, store: Cache) -> CompilerFlags:
    """The flags, from the cache if possible: to find them, Inductor starts processes that import torch."""
    environment = [f"{name}={os.environ.get(name, '')}" for name in ("CXX", "ATEN_CPU_CAPABILITY")]
    made_with = (package_versions(), cpu_capability(march), machine_key, march)
    key = digest("flags", *made_with, sys.prefix, torch.__file__, *environment)
    entry = store.get(key, ".json")
    if entry is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            fields = json.loads(entry.read_text())
            return CompilerFlags(tuple(fields["flags"]), tuple(fields["libraries"]))
    found = compiler_flags(march)
    write_entry(key, json.dumps(asdict(found)), store)
    return found


def cpu_capability(march: str = NATIVE) -> str:
    """The instruction set for which Inductor generates vector code; on this machine the one that torch uses."""
    return str(torch.backends.cpu.get_cpu_capability()) if march == NATIVE else march


@cache
def compiler_flags(march: str = NATIVE) -> CompilerFlags:
    from torch._inductor import cpu_vec_isa
    from torch._inductor.cpp_builder import CppTorchOptions

    with vectorized_for(march):
        options = CppTorchOptions(vec_isa=cpu_vec_isa.pick_vec_isa(), warning_all=False)
    flags = [f"-{flag}" for flag in options.get_cflags() if flag not in ("shared", "fopenmp", "g1", "pedantic", "Wall")]
    flags += [f"-D{definition.strip()}" for definition in options.get_definitions() if "PRECOMPILE" not in definition]
    flags += [f"-I{folder}" for folder in options.get_include_dirs()]
    flags += [word for text in options.get_passthrough_args() for word in text.split()]
    libraries_folder = Path(torch.__file__).parent / "lib"
    libraries = tuple(str(libraries_folder / name) for name in ("libc10.so", "libtorch_cpu.so"))
    return CompilerFlags(tuple(dict.fromkeys(flags)), libraries)


@contextmanager
def vectorized_for(march: str) -> Iterator[None]:
    """Inside, Inductor writes vector code for `march`, in this thread; without it, for what works on this machine."""
    if march == NATIVE:
        probe_instruction_sets()
        yield
        return
    _install_choice()
    _chosen.vector_isa = _vector_isa(march)
    try:
        yield
    finally:
        _chosen.vector_isa = None


def _vector_isa(march: str) -> Any:
    """Inductor's description of a level of the architecture, whether or not this machine has it."""
    from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512, VecNEON

    described = {"x86-64-v3": VecAVX2, "x86-64-v4": VecAVX512, "aarch64": VecNEON}.get(march)
    if described is None:
        raise UnsupportedError(
            f"no vector code is generated for {march}: choose native, x86-64-v3, x86-64-v4 or aarch64"
        )

    class ChosenInstructionSet(described):  # type: ignore[misc, valid-type]
        """Inductor asks whether the set works on this machine, which does not matter here."""

        __hash__ = described.__hash__

        def __bool__(self) -> bool:
            return True

    return ChosenInstructionSet()


@cache
def _install_choice() -> None:
    """Inductor asks for the instruction set by this function; threads that chose none get its own answer."""
    from torch._inductor import cpu_vec_isa

    stock = cpu_vec_isa.pick_vec_isa

    def pick_vec_isa() -> Any:
        chosen = getattr(_chosen, "vector_isa", None)
        return stock() if chosen is None else chosen

    cpu_vec_isa.pick_vec_isa = pick_vec_isa


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
