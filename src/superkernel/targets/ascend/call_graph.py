"""targets.ascend.call_graph: the text of a sub-kernel -> which of our functions it can come to call.

There is no device object to look into before the device compiler has run, so the text must do: functions are found by
their bodies, and a function that is named in a body is taken to be called from it.
"""

from __future__ import annotations

import re
from functools import lru_cache

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_HEAD = re.compile(r"([A-Za-z_]\w*)\s*\([^;{}()]*\)[\w\s]*\{")
_WORD = re.compile(r"\bsk(?:_|::)(\w+)|([A-Za-z_]\w*)")
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
