"""targets.cpu.instrument: compiled sub-kernels -> the same for debug-check=1: objects that report every access."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...cache import Cache, digest
from ...model.binary import Form
from ...model.subkernel import SubKernel
from ..native import objects
from ..native.build_context import BuildContext
from ..native.compile_generated import compile_generated, text_of
from ..native.objects import CompileJob, versions
from ..native.toolchain import run
from .build import CompiledKernel

# Accesses become calls of __tsan_read4 and so on, which check_calls.h defines. Copies of memory stay calls under their
# names: some compilers define _FORTIFY_SOURCE, which replaces memcpy by __memcpy_chk.
INSTRUMENTED = (
    "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0", "-fno-builtin-memcpy", "-fno-builtin-memset",
    "-fno-builtin-memmove", "-fno-builtin-memcmp", "-U_FORTIFY_SOURCE",
)  # fmt: skip
CHECKING_ENTRY = ("-DSK_CHECK",)  # flags of the entry
_log = logging.getLogger("superkernel")
_logged: set[str] = set()
_RENAMED = ("memcpy", "memmove", "memset", "memcmp")
# instructions that intrinsics stand for, and that the compiler does not report
_UNREPORTED = re.compile(r"\t(v?p?gather\w+|v?p?scatter\w+|v?p?maskmov\w+|v?movnt\w+|v\w+ [^\t\n]*\(%[^\t\n]*\{%k\d\})")


@dataclass(frozen=True)
class Instrumented:
    parts: dict[SubKernel, CompiledKernel]
    remarks: tuple[str, ...]  # per sub-kernel: what is not checked


def instrument(parts: Sequence[CompiledKernel], context: BuildContext) -> Instrumented:
    """Sub-kernels compiled once more from their sources; those that are only objects stay as they are."""
    sources = dict.fromkeys(part.kernel.binary for part in parts if part.kernel.binary.form is Form.SOURCE)
    jobs = [
        CompileJob(binary.path, (*context.march_flags, *binary.flags, *INSTRUMENTED), binary.keyed_by_text)
        for binary in sources
    ]
    tools, cache, folders = context.toolchain, context.cache, context.include_dirs
    compiled = objects.compile_sources(jobs, tools, cache, folders, context.progress, context.commands)
    found = dict(zip(sources, compiled, strict=True))
    others = dict.fromkeys(part.kernel.binary for part in parts if part.kernel.binary not in found)
    texts = {binary: text for binary in others if (text := text_of(binary.path, cache)) is not None}
    for flags in dict.fromkeys(flags for _, flags in texts.values()):
        alike = {binary: text for binary, (text, given) in texts.items() if given == flags}
        generated = compile_generated(list(alike.values()), (*flags, *INSTRUMENTED), context)
        found |= dict(zip(alike, generated, strict=True))
    checked = {part.kernel: part for part in parts}
    remarks = list(unchecked_objects([part.kernel for part in parts]))
    for part in parts:
        if part.kernel.binary in found:
            path = _with_checked_copies(found[part.kernel.binary], context)
            checked[part.kernel] = replace(part, object=path, contents=objects.object_key(path))
            if unreported := _unreported(path):
                name = part.kernel.name
                remarks.append(f"debug-check: sub-kernel {name!r}: accesses by {', '.join(unreported)} are not checked")
    remarks = list(dict.fromkeys(remarks))
    for remark in remarks:
        if remark not in _logged:
            _logged.add(remark)
            _log.warning(remark)
    return Instrumented(checked, tuple(remarks))


def unchecked_objects(kernels: Sequence[SubKernel]) -> tuple[str, ...]:
    """A sentence for each sub-kernel whose accesses cannot be checked, because its source is not known."""
    given = [kernel for kernel in dict.fromkeys(kernels) if kernel.binary.form is Form.OBJECT]
    unknown = [kernel for kernel in given if text_of(kernel.binary.path, Cache()) is None]
    names = dict.fromkeys(kernel.name for kernel in unknown)
    return tuple(
        f"debug-check: sub-kernel {name!r} is given as an object: its accesses are not checked" for name in names
    )


def _with_checked_copies(path: Path, context: BuildContext) -> Path:
    """The object with memcpy and its like replaced by functions that check both sides."""
    renames = [f"--redefine-sym={name}=sk_checked_{name}" for name in _RENAMED]
    key = digest("checked copies", objects.object_key(path), *renames, context.toolchain.identity, versions())

    def build(output: Path) -> None:
        command = [context.toolchain.objcopy, *renames, str(path), str(output)]
        run(command, what=f"renaming the functions that copy memory in {path}")

    return context.cache.make(key, ".o", build)


def _unreported(path: Path) -> tuple[str, ...]:
    """The instructions of an object that touch memory without a report."""
    program = shutil.which("objdump")
    if program is None:
        return ()
    code = run([program, "-d", "--no-show-raw-insn", str(path)], what=f"reading the code of {path}")
    return tuple(sorted({found.split()[0] for found in _UNREPORTED.findall(code)}))
