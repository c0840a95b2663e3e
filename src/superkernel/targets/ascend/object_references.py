"""targets.ascend.object_references: objects of a sub-kernel and a function in them -> the names it may come to call.

Device code is not read: what a function refers to are the relocations between its first and its last byte. A static
function that no relocation names may be called by every function of its section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .archive import objects as parsed_objects
from .calling_convention import SyncProtocol
from .elf_object import ElfObject, Symbol, SymbolKind

Node = tuple[str, int, int]  # object, section, number of a function there, or one of these two
_LOOSE = -1  # what belongs to no function, such as a table
_SECTION = -2  # any place in the section
_OUR_BARRIERS = ("sk_sync_all", "sk_emu_sync_all")
_OF_SUBKERNEL_H = ("sk_early_start", "sk_feed", "sk_emu_")  # how the symbols begin that it refers to


def calls_barrier(path: Path, objects: Sequence[str], symbol: str, barriers: Sequence[str]) -> bool:
    """Whether a function may come to call one of the barriers, under its name in C or as a C++ compiler mangles it."""
    known = (*barriers, *_OUR_BARRIERS)
    patterns = [re.compile(rf"(?<![0-9]){len(name)}{re.escape(name)}") for name in known]
    names = reachable_names(path, objects, symbol)
    return any(name in known or any(pattern.search(name) for pattern in patterns) for name in names)


def protocol_of_object(path: Path, objects: Sequence[str], symbol: str) -> SyncProtocol:
    names = reachable_names(path, objects, symbol)
    ours = any(name.startswith(_OF_SUBKERNEL_H) for name in names)
    return SyncProtocol.SUBKERNEL_H if ours else SyncProtocol.CANN


def reachable_names(path: Path, objects: Sequence[str], symbol: str) -> frozenset[str]:
    """Symbols that a function refers to, directly and through others, in these members of an archive or in all."""
    graph = _ReferenceGraph()
    for name, parsed in parsed_objects(path, tuple(objects)).items():
        graph.add(name, parsed)
    return graph.reachable(symbol)


@dataclass
class _Function:
    begin: int
    end: int
    local: bool
    named: bool = False  # by a relocation


@dataclass
class _ReferenceGraph:
    functions: dict[tuple[str, int], list[_Function]] = field(default_factory=dict)  # object and section
    defined: dict[str, list[Node]] = field(default_factory=dict)  # global name
    names: dict[Node, set[str]] = field(default_factory=dict)  # what a node refers to by name
    nodes: dict[Node, set[Node]] = field(default_factory=dict)  # and what else

    def add(self, name: str, parsed: ElfObject) -> None:
        places = [self._function(name, symbol) for symbol in parsed.symbols]
        for relocation in parsed.relocations:
            symbol, place = parsed.symbols[relocation.symbol], places[relocation.symbol]
            for source in self._at(name, relocation.section, relocation.offset):
                self._refer(source, symbol, place, name)

    def reachable(self, symbol: str) -> frozenset[str]:
        pending = list(self.defined.get(symbol, ()))
        seen: set[Node] = set()
        found: set[str] = set()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            fresh = self.names.get(node, set()) - found
            found |= fresh
            pending += self.nodes.get(node, ())
            pending += (target for name in fresh for target in self.defined.get(name, ()))
            pending += self._neighbours(node)
        return frozenset(found)

    def _function(self, name: str, symbol: Symbol) -> Node | None:
        """Where a symbol is defined, if it is a function."""
        section, local = symbol.section, symbol.local
        if section is None or not symbol.name or (symbol.kind is SymbolKind.NONE and local):
            return None  # from elsewhere, a section, a label
        if symbol.kind not in (SymbolKind.FUNCTION, SymbolKind.NONE):
            if not local:
                self.defined.setdefault(symbol.name, []).append((name, section, _LOOSE))
            return None
        listed = self.functions.setdefault((name, section), [])
        listed.append(_Function(symbol.value, symbol.value + symbol.size, local))
        node = name, section, len(listed) - 1
        if not local:
            self.defined.setdefault(symbol.name, []).append(node)
        return node

    def _at(self, name: str, section: int, offset: int) -> Iterator[Node]:
        """The functions that a byte belongs to."""
        listed = self.functions.get((name, section), [])
        held = [(name, section, i) for i, function in enumerate(listed) if function.begin <= offset < function.end]
        yield from held or [(name, section, _LOOSE)]

    def _refer(self, source: Node, symbol: Symbol, place: Node | None, name: str) -> None:
        if symbol.name and not symbol.local:
            self.names.setdefault(source, set()).add(symbol.name)
        elif place is not None:
            self.functions[place[:2]][place[2]].named = True
            self.nodes.setdefault(source, set()).add(place)
        elif symbol.section is not None:  # a section, or data in it
            self.nodes.setdefault(source, set()).add((name, symbol.section, _SECTION))

    def _neighbours(self, node: Node) -> Iterator[Node]:
        """What a jump inside the section may reach without a relocation; from any place there, all static functions."""
        name, section, number = node
        for i, function in enumerate(self.functions.get((name, section), ())):
            if function.local and (not function.named or number == _SECTION):
                yield name, section, i
        yield name, section, _LOOSE
