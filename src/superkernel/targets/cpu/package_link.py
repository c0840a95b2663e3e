"""targets.cpu.package_link: a merged object -> a shared object that needs no library of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import BuildError
from ..native import objects
from ..native.architectures import baseline_flags
from ..native.build_context import BuildContext
from ..native.objects import CompileJob
from ..native.toolchain import demangle

# failed checks of generated kernels, such as an index out of bounds; part of every object that has one
CHECKS = Path(__file__).parent / "package_objects" / "kernel_checks.cpp"
# where exceptions of kernels end; part of every object that uses the C++ library
EXCEPTIONS = CHECKS.with_name("exceptions.cpp")
# Code and constants in one segment, and nothing else within the same 2 MB of addresses: libsuperkernel can put them on
# a huge page. Without read-only relocations, whose alignment would fill the file up to 2 MB.
ONE_SEGMENT = ("-Wl,-z,noseparate-code", "-Wl,-z,norelro", "-Wl,-z,max-page-size=0x200000")
_CHECKS = ("c10::detail::torchCheckFail(", "c10::detail::torchInternalAssertFail(")
_CXX_LIBRARY = ("_Z", "__cxa_throw", "__gxx_personality")  # how its symbols begin


def link_for_package(
    merged: Path,
    beside: Sequence[Path],
    output: Path,
    context: BuildContext,
    users: Mapping[str, str],
    log: list[str],
) -> None:
    """`users`: undefined symbol -> the op that needs it. The error for a symbol that nothing supplies names both."""
    checks = {symbol for symbol, name in demangle(users).items() if name.startswith(_CHECKS)}
    sources = [CHECKS] if checks else []
    if any(symbol.startswith(_CXX_LIBRARY) for symbol in set(users) - checks):
        sources.append(EXCEPTIONS)
    flags = ("-O2", *baseline_flags(context.architecture))
    jobs = [CompileJob(source, flags, keyed_by_text=True) for source in sources]
    files = [*beside, *objects.compile_sources(jobs, context.toolchain, context.cache, (), None, log)]
    origin = {symbol: Path(f"op {user}") for symbol, user in users.items()}
    paths = [*ONE_SEGMENT, *(str(path.absolute()) for path in files)]
    try:
        objects.link_shared(merged, output, context.toolchain, paths, ["m"], origin, log)
    except BuildError as failure:
        message = f"{failure.message}; a package runs without torch, and error checks alone are supplied"
        raise BuildError(message, failure.command, failure.stderr) from failure
