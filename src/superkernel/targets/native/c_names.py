"""targets.native.c_names: names of the user -> C++ identifiers and string literals."""

from __future__ import annotations

import re
from collections.abc import Sequence

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# the keywords of C++20, `main`, and names that compilers define as macros
_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await
co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do
double dynamic_cast else enum explicit export extern false float for friend goto if inline int linux long main mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
requires return short signed sizeof static static_assert static_cast struct switch template this thread_local throw
true try typedef typeid typename union unix unsigned using virtual void volatile wchar_t while xor xor_eq
"""
_KEYWORDS = frozenset(_WORDS.split())
# and names of headers and namespaces in the emitted file
_RESERVED = _KEYWORDS | {
    "alloca",
    "at",
    "errno",
    "offsetof",
    "sched_priority",
    "sk",
    "std",
    "stderr",
    "stdin",
    "stdout",
}
_MACRO = re.compile(r"[A-Z0-9_]+$|[A-Z]{2,}[A-Z0-9]*_")  # FLT_MAX, SYS_read


def is_c_identifier(name: str) -> bool:
    return _IDENTIFIER.fullmatch(name) is not None and name not in _KEYWORDS


def c_identifiers(names: Sequence[str]) -> list[str]:
    """One C++ identifier per name: no two alike, none that the language or a header reserves."""
    found: dict[str, None] = {}
    for name in names:
        word = re.sub(r"\W", "_", name, flags=re.ASCII)
        word = word if word[0].isalpha() else f"n{word}"
        word = f"{word}_x" if _MACRO.match(word) or word.endswith("_t") else word  # headers may define that name
        while word in _RESERVED or word in found:
            word += "_"
        found[word] = None
    return list(found)


def c_string(text: str) -> str:
    """A string literal with the UTF-8 bytes of `text`."""
    plain = frozenset(range(0x20, 0x7F)) - {ord('"'), ord("\\"), ord("?")}
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'
