"""targets.native.symbols: an object and the name of a function in C or C++ -> its symbol."""

from __future__ import annotations

from collections.abc import Sequence

from superkernel.errors import BuildError, nearest
from superkernel.targets.native.elf import Binding, Function, ObjectFile
from superkernel.targets.native.toolchain import demangle

_SHOWN = 20
_CLOSING = {"<": ">", "(": ")", "{": "}", "[": "]"}


def find_symbol(object_file: ObjectFile, name: str) -> str:
    """The symbol of the function that `name` means: a symbol, or a C++ name with or without scope and parameters."""
    symbols = [function.name for function in object_file.functions]
    if name in symbols:
        return name
    matches = _matching(name, symbols)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise BuildError(_ambiguous(object_file, name, matches))
    raise BuildError(_why_none(object_file, name))


def base_name(symbol: str) -> str:
    """The bare name of a function: `add` for the symbol of `void ns::add<float>(float*)`."""
    return _spellings(demangle([symbol])[symbol])[-1]


def argument_list(demangled: str) -> tuple[str, ...]:
    """The types between the last parentheses: `float*` and `int` for `void ns::add<float>(float*, int)`."""
    text = demangled.replace("(anonymous namespace)", "{anonymous}")
    _, begin = _name_span(text)
    inner = text[begin + 1 : _closing(text, begin) - 1] if begin < len(text) else ""
    types, start, at = [], 0, 0
    while at < len(inner):
        if inner[at] in _CLOSING:
            at = _closing(inner, at)
        elif inner[at] == ",":
            types.append(inner[start:at])
            start = at = at + 1
        else:
            at += 1
    listed = tuple(piece.strip() for piece in (*types, inner[start:]))
    return () if listed in (("",), ("void",)) else listed


def _matching(name: str, symbols: Sequence[str]) -> list[str]:
    """The symbols that `name` fits, at the most precise spelling at which it fits any."""
    spelled = {symbol: _spellings(text) for symbol, text in demangle(symbols).items()}
    for precision in range(4):
        if matches := [symbol for symbol in symbols if spelled[symbol][precision] == name]:
            return matches
    return []


def _spellings(demangled: str) -> tuple[str, str, str, str]:
    """From precise to short: `void ns::add<float>(float*)`, `ns::add<float>`, `ns::add`, `add`."""
    if "operator" in demangled:  # its brackets are part of the name; no kernel is called so
        return (demangled,) * 4
    instance = _without_signature(demangled)
    qualified = _without_brackets(instance)
    return demangled, instance, qualified, qualified.rpartition("::")[2]


def _without_signature(demangled: str) -> str:
    """Cut the return type off the front and the parameters off the end."""
    text = demangled.replace("(anonymous namespace)", "{anonymous}")
    start, end = _name_span(text)
    return text[start:end]


def _name_span(text: str) -> tuple[int, int]:
    """Where the name of a demangled function begins and ends."""
    start = at = 0
    while at < len(text):
        if text[at] in _CLOSING:
            end = _closing(text, at)
            if text[at] == "(" and not text[end:].removeprefix(" const").startswith("::"):
                return start, at
            at = end
        else:
            start = at + 1 if text[at] == " " else start
            at += 1
    return start, len(text)


def _without_brackets(text: str) -> str:
    kept, at = "", 0
    while at < len(text):
        if text[at] in "<(":
            at = _closing(text, at)
        else:
            kept += text[at]
            at += 1
    return kept


def _closing(text: str, at: int) -> int:
    """The position behind the bracket that closes the one at `at`."""
    opening, closing, depth = text[at], _CLOSING[text[at]], 0
    for end in range(at, len(text)):
        depth += (text[end] == opening) - (text[end] == closing)
        if not depth:
            return end + 1
    return len(text)


def _why_none(object_file: ObjectFile, name: str) -> str:
    static = _static_matches(name, object_file.local_functions)
    if len(static) > 1:
        return _ambiguous(object_file, name, static)
    if static:
        return (
            f"{name!r} in {object_file.path} is static (or in an anonymous namespace), so nothing can link to it: "
            'declare it extern "C" without static'
        )
    strong_first = sorted(object_file.functions, key=lambda function: function.binding is Binding.WEAK)
    names = demangle(function.name for function in strong_first)
    spelled = [spelling for text in names.values() for spelling in _spellings(text)[2:]]
    hint = nearest(name, spelled)
    return f"{object_file.path} does not define a function {name!r}{hint}; {_listing(list(names.values()))}"


def _static_matches(name: str, functions: Sequence[Function]) -> list[str]:
    """Local functions of that name. Compilers split and clone functions under names with a dot: those count as one."""
    whole = [function.name for function in functions if "." not in function.name]
    pieces = {function.name.partition(".")[0] for function in functions if "." in function.name} - set(whole)
    candidates = [*whole, *sorted(pieces)]
    return [symbol for symbol in candidates if symbol == name] or _matching(name, candidates)


def _ambiguous(object_file: ObjectFile, name: str, symbols: Sequence[str]) -> str:
    names = demangle(symbols)
    candidates = ", ".join(
        text if text == symbol else f"{text} [{symbol}]" for symbol in symbols if (text := names[symbol])
    )
    return f"{name!r} is ambiguous in {object_file.path}: it could be {candidates}; give the symbol in full"


def _listing(names: list[str]) -> str:
    if not names:
        return "it defines no function that others can call"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it defines {', '.join(names[:_SHOWN])}{more}"
