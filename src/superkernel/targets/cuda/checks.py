"""targets.cuda.checks: assemblers of this machine -> checks: what can be assembled."""

from __future__ import annotations

from ..checks import Check, CheckState
from .assemble import INSTALL, find_assemblers


def check_assembler() -> Check:
    found = find_assemblers()
    if not found:
        return Check(
            "ptx assembler", CheckState.MISSING, "neither ptxas nor nvJitLink", f"{INSTALL}; only target cuda needs it"
        )
    return Check("ptx assembler", CheckState.OK, ", ".join(assembler.identity for assembler in found))


def checks() -> tuple[Check, ...]:
    return (check_assembler(),)
