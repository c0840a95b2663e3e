"""targets.native.signatures: the C++ signature of a function and declared parameters -> a BuildError if they differ.

Only mangled symbols carry a signature; a function that is declared extern "C" is taken at the user's word.
"""

from __future__ import annotations

import re

from ...errors import BuildError
from ...model.params import Kind, Param
from ...model.subkernel import SubKernel
from .symbols import argument_list

_INTEGERS = {
    "bool": 1, "char": 1, "signed char": 1, "unsigned char": 1, "short": 2, "unsigned short": 2, "int": 4,
    "unsigned int": 4, "long": 8, "unsigned long": 8, "long long": 8, "unsigned long long": 8,
}  # fmt: skip
_FLOATS = {"float": 4, "double": 8, "long double": 16}
_BUILT_IN = {name: ("integer", size) for name, size in _INTEGERS.items()} | {
    name: ("float", size) for name, size in _FLOATS.items()
}
_SCALARS = {
    "bool": "bool", "int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short",
    "int32": "int", "uint32": "unsigned int", "int64": "long", "uint64": "unsigned long", "float32": "float",
    "float64": "double",
}  # fmt: skip
_ADDRESS = ("integer", 8)  # memory may be passed as a number


def check_signature(kernel: SubKernel, signature: str) -> None:
    """Refuses parameters that differ from `signature`, a demangled function, in number or in how they are passed.

    Integers of one size count as the same, and of a type that is no built-in one nothing is known.
    """
    types = argument_list(signature)
    where = f"sub-kernel {kernel.name!r} of {kernel.binary.path}: "
    if len(types) != len(kernel.params):
        declared = ", ".join(map(str, kernel.params)) or "none"
        raise BuildError(
            f"{where}params are {declared} ({len(kernel.params)}), but the function is {signature}, "
            f"with {len(types)} parameters"
        )
    for number, (param, type_name) in enumerate(zip(kernel.params, types, strict=True), 1):
        if not _passed_alike(param, type_name):
            expected = _SCALARS[param.dtype or "int64"] if param.kind is Kind.SCALAR else "a pointer"
            raise BuildError(
                f"{where}parameter {number} is declared {str(param)!r} ({expected}), but is {type_name} in {signature}"
            )


def _passed_alike(param: Param, type_name: str) -> bool:
    plain = re.sub(r"\b(const|volatile)\b", "", type_name).strip()
    is_address = plain.endswith(("*", "&", "]")) or "(*" in plain
    built_in = _BUILT_IN.get(plain)
    if param.kind is not Kind.SCALAR:
        return is_address or built_in is None or built_in == _ADDRESS
    if is_address:
        return False
    return built_in is None or built_in == _BUILT_IN[_SCALARS[param.dtype or "int64"]]
