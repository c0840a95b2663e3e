"""targets.cpu.embedded_facts: a plan -> a text in its object, with which libsuperkernel compares a manifest.

A manifest is data that anyone can edit; what code does with a wrong number of cores or too small a buffer cannot be
foreseen. So the object itself says what it was compiled for.
"""

from __future__ import annotations

from ...plan import Plan
from .numbering import Numbering

_VERSION = 1
_LINE = 100  # characters of a literal on one line of the source


def facts_symbol(entry: str) -> str:
    return f"{entry}_facts"


def embedded_facts(plan: Plan, numbers: Numbering) -> str:
    """Version, cores, rendezvous, counters, bytes of copies, whether a team is needed; slots; sources.

    A slot is `source:literal`, a source is the bytes that it must have at least, and w if it is written. As in
    code.cpp of libsuperkernel.
    """
    counts = (_VERSION, plan.cores, len(numbers.rendezvous), len(numbers.counters), numbers.copies_bytes)
    literals = [slot.literal + slot.addend for slot in numbers.layout.slots]
    slots = ",".join(
        f"{source}:{literal}" for source, literal in zip(numbers.slot_sources(plan), literals, strict=True)
    )
    buffers = (plan.graph.buffers.get(name) for name in numbers.sources)
    sources = ",".join(
        "0" if buffer is None or buffer.scalar else f"{buffer.least_bytes}{'w' if buffer.written else ''}"
        for buffer in buffers
    )
    return " ".join((*map(str, counts), str(int(bool(numbers.rendezvous))), f"[{slots}]", f"[{sources}]"))


def facts_source(entry: str, facts: str) -> str:
    """The definition of the text in C++."""
    symbol, pieces = facts_symbol(entry), [facts[i : i + _LINE] for i in range(0, len(facts), _LINE)]
    literals = "\n".join(f'    "{piece}"' for piece in pieces)
    return (
        f"// what the entry {entry} was compiled for\n"
        f'extern "C" {{\nextern const char {symbol}[];\n'
        f'__attribute__((visibility("default"))) const char {symbol}[] =\n{literals};\n}}\n'
    )
