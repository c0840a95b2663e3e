"""targets.cpu.package_link: a merged object -> a shared object that needs no library of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import BuildError
from ..native import objects
from ..native.build_context import BuildContext
from ..native.import_library import stand_in
from ..native.toolchain import demangle

LIBRARY = "libsuperkernel.so.1"  # what the loader calls the library of packages
# what it supplies: failed checks of generated kernels, such as an index out of bounds
_CHECKS = ("c10::detail::torchCheckFail(", "c10::detail::torchInternalAssertFail(")


def link_for_package(
    merged: Path,
    beside: Sequence[Path],
    output: Path,
    context: BuildContext,
    users: Mapping[str, str],
    log: list[str],
) -> None:
    """Link without naming the library, which programs may link statically: what it supplies stays undefined.

    `users`: undefined symbol -> the op that needs it. The error for a symbol that the library lacks names both.
    """
    names = demangle(users)
    supplied = [symbol for symbol in users if names[symbol].startswith(_CHECKS)]
    origin = {symbol: Path(f"op {user}") for symbol, user in users.items()}
    files = [str(path.absolute()) for path in beside]
    try:
        if supplied:  # a link that the library completes finds every other undefined symbol
            trial, library = output.with_suffix(".trial.so"), stand_in(LIBRARY, supplied, context, [])
            try:
                objects.link_shared(merged, trial, context.toolchain, files, ["m"], origin, imported=[library])
            finally:
                trial.unlink(missing_ok=True)
            files.append("-Wl,--unresolved-symbols=ignore-all")
        objects.link_shared(merged, output, context.toolchain, files, ["m"], origin, log)
    except BuildError as failure:
        message = f"{failure.message}; a package runs without torch, and its library supplies error checks only"
        raise BuildError(message, failure.command, failure.stderr) from failure
