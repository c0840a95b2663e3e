"""targets.cuda.body_variables: an entry and its module -> where its variables lie in a super kernel, and their names.

Shared variables get offsets from the base of the slot: dynamic shared memory first, which some layouts need at a
multiple of 1024 bytes. Tables of the module are carried along under names of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...errors import UnsupportedError
from .ptx import TYPE_BYTES, Entry, Module, Variable, walk, walk_statements

NAME = re.compile(r"(?<![\w$%.])%?[A-Za-z_$][\w$]*(?:\.[xyzw]\b)?", re.ASCII)
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]")
_ALIGNED = 16  # bytes: least alignment of a variable in shared memory


def identifier(text: str) -> str:
    """A name of the user as part of PTX names."""
    return _NOT_A_NAME.sub("_", text)


@dataclass(frozen=True)
class BodyVariables:
    """The variables that one body uses."""

    body: str
    origin: str  # of the module, for errors
    shared: Mapping[str, int]  # variable -> offset from the slot's base
    shared_bytes: int
    carried: tuple[Variable, ...]  # of the module, in global or constant memory

    @cached_property
    def names(self) -> dict[str, str]:
        """Variable -> what stands for it in the body: a register with its address, or its new name."""
        found = {name: f"%sk_shared_{index}" for index, name in enumerate(self.shared)}
        return found | {variable.name: self._new_name(variable) for variable in self.carried}

    def _new_name(self, variable: Variable) -> str:
        return f"sk_{self.body}_{identifier(variable.name)}"

    def declarations(self) -> Iterator[str]:
        """Of what is carried along."""
        for variable in self.carried:
            if variable.linkage == "extern":
                raise UnsupportedError(
                    f"{self.origin}:{variable.line}: variable {variable.name!r} is defined in another module; compile "
                    "the kernel together with it"
                )
            size = TYPE_BYTES.get(variable.type, 1)
            extent = f"[{(variable.nbytes or 0) // size}]" if variable.array else ""
            initializer = NAME.sub(lambda found: self.names.get(found[0], found[0]), variable.initializer)
            value = f" = {initializer}" if initializer else ""
            declared = f".{variable.space} .align {variable.align} .{variable.type}"
            yield f"{declared} {self._new_name(variable)}{extent}{value};"


def find_variables(entry: Entry, module: Module, dynamic_shared: int, body: str) -> BodyVariables:
    """What an entry refers to, directly or through the initial value of another variable."""
    used = {name for i in walk(entry.statements) for operand in i.operands for name in NAME.findall(operand)}
    of_module = {variable.name: variable for variable in module.variables}
    pending = [name for name in of_module if name in used]
    found: dict[str, Variable] = {}
    while pending:
        variable = of_module[pending.pop(0)]
        if variable.name not in found:
            found[variable.name] = variable
            pending += [name for name in NAME.findall(variable.initializer) if name in of_module]
    local = [statement for statement in walk_statements(entry.statements) if isinstance(statement, Variable)]
    shared: dict[str, int] = {}
    end = _rounded(dynamic_shared, _ALIGNED)
    for variable in (*found.values(), *local):
        if variable.space == "shared" and variable.nbytes is None:
            shared[variable.name] = 0
        elif variable.space == "shared":
            end = _rounded(end, max(variable.align, _ALIGNED))
            shared[variable.name] = end
            end += variable.nbytes or 0
    carried = tuple(variable for variable in found.values() if variable.space != "shared")
    return BodyVariables(body, module.origin, shared, end, carried)


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
