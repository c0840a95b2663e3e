"""targets.ascend.call_graph: the text of a sub-kernel -> which of our functions it may call, and calls on every path.

There is no device object to look into before the device compiler has run, so the text must do: functions are found by
their bodies, and a function that is named in a body is taken to be called from it.
"""

from __future__ import annotations

import re
from functools import lru_cache

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_HEAD = re.compile(r"([A-Za-z_]\w*)\s*\([^;{}()]*\)[\w\s]*\{")
_WORD = re.compile(r"\bsk(?:_|::)(\w+)|([A-Za-z_]\w*)")
_TOKEN = re.compile(r"(?:sk::)?\w+|\S")
_EMPTY_CALL = re.compile(r"\s*\(\s*\)\s*;")
_LEAVES = frozenset({"return", "goto", "throw", "co_return", "abort", "exit", "#", "asm", "__asm__"})
_CONTROL = ("if", "for", "while", "switch", "catch")


def calls(text: str, symbol: str, function: str) -> bool:
    """Whether `symbol` may come to call sk_`function` (or sk::`function`); unknown symbols may call all there is."""
    bodies = _bodies(text)
    seen, waiting = {symbol}, [symbol] if symbol in bodies else list(bodies)
    while waiting:
        runtime_calls, others = bodies.get(waiting.pop(), (frozenset(), frozenset()))
        if function in runtime_calls:
            return True
        fresh = others & bodies.keys() - seen
        seen |= fresh
        waiting += fresh
    return False


def always_calls(text: str, symbol: str, function: str) -> bool:
    """Whether `symbol` is seen to call sk_`function` on every path: a statement of its body itself, before any return.

    Text that may hide a return, such as a preprocessor line or a second function of that name, decides against it.
    """
    plain = _COMMENT.sub(" ", text)
    heads = [head for head in _HEAD.finditer(plain) if head[1] == symbol]
    if len(heads) != 1:
        return False
    body = plain[heads[0].end() : _end(plain, heads[0].end())]
    depth, begin = 0, True
    for word in _TOKEN.finditer(body):
        if begin and not depth and word[0] in (f"sk_{function}", f"sk::{function}"):
            return _EMPTY_CALL.match(body, word.end()) is not None
        if word[0] in _LEAVES:
            return False
        depth += (word[0] in "{([") - (word[0] in "})]")
        begin = word[0] in ";{}"
    return False


@lru_cache(maxsize=64)
def _bodies(text: str) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Function -> the functions of subkernel.h, and the other words, that its body names; overloads are joined."""
    plain = _COMMENT.sub(" ", text)
    found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
    for head in _HEAD.finditer(plain):
        name = head[1]
        if name in _CONTROL:
            continue
        body = plain[head.end() : _end(plain, head.end())]
        pairs = _WORD.findall(body)
        runtime_calls, others = frozenset(p[0] for p in pairs if p[0]), frozenset(p[1] for p in pairs if p[1])
        known = found.get(name, (frozenset(), frozenset()))
        found[name] = known[0] | runtime_calls, known[1] | others
    return found


def _end(text: str, begin: int) -> int:
    """Where the brace that was opened before `begin` is closed."""
    depth = 1
    for place in range(begin, len(text)):
        if text[place] in "{}":
            depth += 1 if text[place] == "{" else -1
            if not depth:
                return place
    return len(text)
