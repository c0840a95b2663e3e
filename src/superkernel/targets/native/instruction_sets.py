"""targets.native.instruction_sets: a linked library -> the instruction sets that its code uses, as Linux names them.

The code is disassembled, and the assembler is asked which of its instructions each instruction set allows. The
assembler's tables decide, not ours: an instruction that no set in the list allows makes the answer "unknown".
"""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...cache import Cache, digest
from ...errors import BuildError
from .objects import object_key
from .toolchain import run

_VERSION = "used instruction sets 2"  # of what follows
_BASELINE = "generic64"  # what every x86-64 processor has
# extensions of the assembler -> flags in /proc/cpuinfo; the first row that allows an instruction counts
_EXTENSIONS: Mapping[str, str] = {
    "popcnt": "popcnt", "cx16": "cx16", "lahf_sahf": "lahf_lm", "sse3": "pni", "ssse3": "ssse3", "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "lzcnt": "abm", "movbe": "movbe", "bmi": "bmi1", "bmi2": "bmi2", "adx": "adx", "aes": "aes", "pclmul": "pclmulqdq",
    "sha": "sha_ni", "rdrnd": "rdrand", "rdseed": "rdseed", "fsgsbase": "fsgsbase", "rdtscp": "rdtscp",
    "rdpid": "rdpid", "prfchw": "3dnowprefetch", "clflushopt": "clflushopt", "clwb": "clwb", "xsave": "xsave",
    "xsaveopt": "xsaveopt", "xsavec": "xsavec", "xsaves": "xsaves", "avx": "avx", "f16c": "f16c", "fma": "fma",
    "avx2": "avx2", "sse4a": "sse4a", "fma4": "fma4", "xop": "xop", "tbm": "tbm", "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq", "gfni": "gfni", "gfni+avx": "gfni avx", "avx_vnni": "avx_vnni", "avx_ifma": "avx_ifma",
    "avx512f": "avx512f", "avx512vl": "avx512vl", "avx512cd": "avx512cd", "avx512bw": "avx512bw",
    "avx512dq": "avx512dq", "avx512cd+avx512vl": "avx512cd avx512vl", "avx512bw+avx512vl": "avx512bw avx512vl",
    "avx512dq+avx512vl": "avx512dq avx512vl", "avx512ifma": "avx512ifma", "avx512ifma+avx512vl": "avx512ifma avx512vl",
    "avx512vbmi": "avx512vbmi", "avx512vbmi+avx512vl": "avx512vbmi avx512vl", "avx512_vbmi2": "avx512_vbmi2",
    "avx512_vbmi2+avx512vl": "avx512_vbmi2 avx512vl", "avx512_vnni": "avx512_vnni",
    "avx512_vnni+avx512vl": "avx512_vnni avx512vl", "avx512_bitalg": "avx512_bitalg",
    "avx512_bitalg+avx512vl": "avx512_bitalg avx512vl", "avx512_vpopcntdq": "avx512_vpopcntdq",
    "avx512_vpopcntdq+avx512vl": "avx512_vpopcntdq avx512vl", "avx512_bf16": "avx512_bf16",
    "avx512_bf16+avx512vl": "avx512_bf16 avx512vl", "avx512_fp16": "avx512_fp16",
    "avx512_fp16+avx512vl": "avx512_fp16 avx512vl", "vaes+avx512f": "vaes avx512f", "vaes+avx512vl": "vaes avx512vl",
    "vpclmulqdq+avx512f": "vpclmulqdq avx512f", "vpclmulqdq+avx512vl": "vpclmulqdq avx512vl",
    "gfni+avx512f": "gfni avx512f", "gfni+avx512vl": "gfni avx512vl", "amx_tile": "amx_tile", "amx_int8": "amx_int8",
    "amx_bf16": "amx_bf16", "serialize": "serialize", "waitpkg": "waitpkg", "movdiri": "movdiri",
    "movdir64b": "movdir64b", "cldemote": "cldemote", "rtm": "rtm",
}  # fmt: skip
_LINE = re.compile(r"\s+[0-9a-f]+:\t((?:[0-9a-f]{2} )+)\s*\t(.+)")
_COMMENT = re.compile(r"\s*[#<].*")
_BRANCH = re.compile(r"((?:\w+ )*(?:j\w+|call\w*|loop\w*|xbegin))\s+[0-9a-f]+")
_NUMBER = re.compile(r"-?0x[0-9a-f]+")
_NOTHING = re.compile(r"(?:nop[wlq]?|endbr64|endbr32)\b.*")  # these do nothing where they are unknown
# no instruction set decides whether these are allowed, and the assembler takes some for mistakes
_PREFIXES = re.compile(r"^(?:(?:bnd|notrack|data16|cs|ds|es|ss|rex(?:\.\w+)?) +)+")
_LEGACY_PREFIXES = frozenset(("26", "2e", "36", "3e", "64", "65", "66", "67", "f0", "f2", "f3"))
_REFUSED = re.compile(r"\{standard input\}:([0-9]+): Error: ")
_PROBE = "vaddps %ymm0,%ymm0,%ymm0"  # an assembler that allows this everywhere checks nothing


def used_features(library: Path, cache: Cache) -> frozenset[str] | None:
    """The flags of /proc/cpuinfo that a processor needs for this code; None: unknown."""
    disassembler, assembler = shutil.which("objdump"), shutil.which("as")
    if platform.machine() != "x86_64" or disassembler is None or assembler is None:
        return None

    def build(output: Path) -> None:
        output.write_text(json.dumps(sorted(_find(library, disassembler, assembler))))

    tools = [run([tool, "--version"], what=f"asking {tool} for its version") for tool in (disassembler, assembler)]
    try:
        found = cache.make(digest(_VERSION, object_key(library), *tools), ".json", build)
    except _UnknownInstructionError:
        return None
    return frozenset(json.loads(found.read_text()))


class _UnknownInstructionError(Exception):
    """An instruction that no set in the list allows, or tools that give no answer."""


def _find(library: Path, disassembler: str, assembler: str) -> set[str]:
    command = [disassembler, "-d", "--insn-width=16", "-M", "att", str(library)]
    try:
        instructions = _distinct(run(command, what=f"disassembling {library}").splitlines())
        left = _not_allowed(instructions, _BASELINE, assembler)
        if _not_allowed([_PROBE], _BASELINE, assembler) != [_PROBE]:
            raise _UnknownInstructionError
    except BuildError as reason:
        raise _UnknownInstructionError from reason
    found = {"lahf_lm"} if any(line in ("sahf", "lahf") for line in instructions) else set()
    for extension, flags in _EXTENSIONS.items():
        if not left:
            break
        try:
            refused = _not_allowed(left, f"{_BASELINE}+{extension}", assembler)
        except BuildError:  # an assembler that does not know the extension
            continue
        if len(refused) < len(left):
            found.update(flags.split())
            left = refused
    if left:
        raise _UnknownInstructionError
    return found


def _distinct(lines: Iterable[str]) -> list[str]:
    """Each kind of instruction once, in the assembler's language, with small numbers and no symbols."""
    found: dict[str, None] = {}
    for line in lines:
        parsed = _LINE.fullmatch(line)
        if parsed is None:
            continue
        text = _PREFIXES.sub("", _COMMENT.sub("", parsed[2]).strip())
        if not text or _NOTHING.fullmatch(text):
            continue
        branch = _BRANCH.fullmatch(text)
        text = f"{branch[1]} 0" if branch else _NUMBER.sub("0x1", text)
        opcode = next((byte for byte in parsed[1].split() if byte not in _LEGACY_PREFIXES), "")
        # the same words may stand for an older encoding: the one that is there is asked for
        found["{evex} " + text if opcode == "62" and not text.startswith("{evex}") else text] = None
    return list(found)


def _not_allowed(instructions: list[str], march: str, assembler: str) -> list[str]:
    """The instructions that the assembler refuses for this processor; BuildError: it gives no answer."""
    command = [assembler, "--64", f"-march={march}", "-o", "/dev/null", "-"]
    try:
        run(command, what="looking up instruction sets", text="\n".join(instructions) + "\n")
    except BuildError as failure:
        refused = {int(number) for number in _REFUSED.findall(failure.stderr)}
        if not refused:
            raise
        return [line for number, line in enumerate(instructions, 1) if number in refused]
    return []
