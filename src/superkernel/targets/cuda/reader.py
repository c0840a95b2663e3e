"""targets.cuda.reader: the text of a PTX file -> Module; a BuildError names the file and line of what cannot be read.

Reads what Triton, nvcc and NVRTC write. Comments, line numbers and debug sections are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...errors import BuildError, shown
from .ptx import (
    TYPE_BYTES,
    Directive,
    Entry,
    Instruction,
    Label,
    Module,
    PtxFunction,
    PtxParam,
    RegisterDeclaration,
    Scope,
    Statement,
    ThreadCount,
    Variable,
)

_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_SPACE = re.compile(r"\s*")
_STATEMENT = re.compile(
    r"""
    (?P<debug>\.(?:loc|file)\b[^\n]*)
  | (?P<directive>\.[a-z_]\w*(?:"[^"]*"|[^";])*;)
  | (?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)
  | (?:@\s*(?P<guard>!?\s*%?[\w$]+)\s+)?(?P<opcode>[a-z]\w*(?:[.:][\w:]+)*)\s*(?P<operands>[^;]*);
  | (?P<brace>[{}])
    """,
    re.VERBOSE | re.ASCII,
)
_BRACKET = re.compile(r"[\[\](){},]")
_SIMPLE_OPERAND = re.compile(r"[-!~]?\s*[\w$%.+-]+(?:\s*\|\s*!?[\w$%]+)?", re.ASCII)
_HEADER = re.compile(r"\.(version|target|address_size)\b([^\n]*)")
_LINKAGES = ("extern", "visible", "weak", "common")
_FUNCTION = re.compile(r"(?:\.(?:extern|visible|weak)\s+)*\.(entry|func)\b")
_FUNCTION_HEAD = re.compile(
    r"(?:\s*\.attribute\s*\([^()]*(?:\([^()]*\))?[^()]*\))?\s*(?:\((?P<returned>[^()]*)\))?\s*(?:\.noreturn\s+)?"
    r"(?P<name>[A-Za-z_$%][\w$]*)\s*(?:\((?P<params>[^()]*)\))?",
    re.ASCII,
)
_DECLARATION_WORD = re.compile(r"\.attribute\s*\([^)]*\)|\.align\s+(?P<align>\d+)|\.(?P<word>[A-Za-z_]\w*)", re.ASCII)
_DECLARATOR = re.compile(
    r"(?P<name>%?[A-Za-z_$][\w$]*)\s*(?P<extents>(?:\[\s*\w*\s*\]\s*)*)(?:<(?P<count>\d+)>)?", re.ASCII
)
_DIRECTIVE = re.compile(r'\.pragma\s*"[^"]*"\s*;|\.[a-z_]\w*(?:\s+"[^"]*"|[^.;{}"])*', re.ASCII)
_SECTION = re.compile(r"\.section\b[^{]*\{")
_SPACES = ("reg", "shared", "global", "const", "local", "param", "tex")
_MOST_DIGITS = 18


class _Reader:
    """A position in the text of one file. Comments have become blanks, so that lines are those of the file."""

    def __init__(self, text: str, origin: str) -> None:
        self.text = _COMMENT.sub(_blank_comment, text)
        self.origin = origin
        self.at = 0
        self._line, self._line_at = 1, 0

    def line(self) -> int:
        """The line of the current position, which only ever moves forward."""
        self._line += self.text.count("\n", self._line_at, self.at)
        self._line_at = self.at
        return self._line

    def error(self, message: str) -> BuildError:
        return BuildError(f"{self.origin}:{self.line()}: {message}")

    def skip_blanks(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def here(self) -> str:
        """The next few words, for a message."""
        return shown(self.text[self.at : self.at + 60].split("\n", maxsplit=1)[0].strip())

    def statements(self) -> tuple[Statement, ...]:
        """Everything up to the } of a body whose { has been read, and that }."""
        opened: list[tuple[list[Statement], int]] = [([], self.line())]
        text = self.text
        while True:
            self.skip_blanks()
            found = _STATEMENT.match(text, self.at)
            if found is None:
                what = f"{self.here()} is no PTX statement" if self.at < len(text) else "the body has no closing }"
                raise self.error(what)
            kind = found.lastgroup
            if kind == "operands":
                statements = opened[-1][0]
                operands = found["operands"]
                statements.append(
                    Instruction(
                        found["opcode"],
                        self._operands(operands) if operands else (),
                        _without_blanks(found["guard"]),
                        self.line(),
                    )
                )
            elif kind == "label":
                opened[-1][0].append(Label(found["label"], self.line()))
            elif kind == "directive":
                opened[-1][0].extend(self._directive(found["directive"][:-1].strip()))
            elif kind == "brace" and found["brace"] == "{":
                opened.append(([], self.line()))
            elif kind == "brace":
                statements, line = opened.pop()
                if not opened:
                    self.at = found.end()
                    return tuple(statements)
                opened[-1][0].append(Scope(tuple(statements), line))
            self.at = found.end()

    def _operands(self, text: str) -> tuple[str, ...]:
        text = text.strip()
        if not text:
            return ()
        if _BRACKET.search(text) is None:
            pieces = [text]
        elif "[" not in text and "{" not in text and "(" not in text:
            pieces = text.split(",")
        else:
            pieces = list(_top_level_pieces(text))
        operands = []
        for piece in pieces:
            operand = piece.strip()
            if not operand:
                raise self.error(f"an operand is missing in {shown(text)}")
            if operand[0] in "[({":
                if "\n" in operand or "\t" in operand:
                    operand = " ".join(operand.split())
                if operand.count("{") != operand.count("}") or operand.count("[") != operand.count("]"):
                    raise self.error(f"a bracket is missing in {shown(operand)}")
            elif not operand.isalnum() and _SIMPLE_OPERAND.fullmatch(operand) is None:
                raise self.error(f"{shown(operand)} is no operand; is a ; missing?")
            operands.append(operand)
        return tuple(operands)

    def _directive(self, text: str) -> list[Statement]:
        """A declaration of registers or variables, or anything else that begins with a dot."""
        line = self.line()
        word = text[1:].split(maxsplit=1)[0]
        if word in _SPACES or word in _LINKAGES:
            return list(self.declarations(text, line))
        return [Directive(f"{' '.join(text.split())};", line)]

    def declarations(self, text: str, line: int) -> Iterator[RegisterDeclaration | Variable]:
        """`.reg .b32 %r<10>` or `.shared .align 4 .b8 x[16]`, without the ;."""
        head, equals, initializer = text.partition("=")
        align, words, at = None, [], 0
        while found := _DECLARATION_WORD.match(head, at):
            if found["align"]:
                align = self._number(found["align"])
            elif found["word"]:
                words.append(found["word"])
            at = found.end() + len(head[found.end() :]) - len(head[found.end() :].lstrip())
        linkage = next((word for word in words if word in _LINKAGES), "")
        space = next((word for word in words if word in _SPACES), "")
        types = [word for word in words if word in TYPE_BYTES or word == "pred"]
        vector = next((word for word in words if word in ("v2", "v4", "v8")), "")
        if space == "tex":
            space, types = "global", ["texref"]
        if not space or len(types) != 1:
            raise self.error(f"{shown(text)} is no declaration of a register or variable")
        kind = f"{vector}.{types[0]}" if vector else types[0]
        for piece in head[at:].split(","):
            found = _DECLARATOR.fullmatch(piece.strip())
            if found is None:
                raise self.error(f"{shown(piece.strip())} in {shown(text)} is no name of a register or variable")
            if space == "reg":
                count = None if found["count"] is None else self._number(found["count"])
                yield RegisterDeclaration(kind, found["name"], count, line)
                continue
            size = TYPE_BYTES[types[0]] * (int(vector[1:]) if vector else 1)
            nbytes = self._extent(found["extents"], initializer, size)
            yield Variable(
                space,
                found["name"],
                kind,
                align or size,
                nbytes,
                initializer.strip() if equals else "",
                line,
                bool(found["extents"]),
                linkage,
            )

    def _extent(self, extents: str, initializer: str, size: int) -> int | None:
        """The bytes of a variable; None: `[]` without a value."""
        if not extents:
            return size
        count = 1
        for extent in re.findall(r"\[\s*(\w*)\s*\]", extents):
            if extent:
                count *= self._number(extent)
            elif initializer:
                count *= initializer.count(",") + 1
            else:
                return None
        return count * size

    def _number(self, text: str) -> int:
        try:
            if len(text) > _MOST_DIGITS:
                raise ValueError
            return int(text.rstrip("U"), 0) if not text.isdigit() else int(text)
        except ValueError:
            raise self.error(f"{shown(text)} is no whole number") from None

    def params(self, text: str) -> tuple[PtxParam, ...]:
        """The parameters of an entry; the position is at its header."""
        found = []
        line = self.line()
        for piece in text.split(",") if text.strip() else ():
            line += piece[: len(piece) - len(piece.lstrip())].count("\n")
            words = piece.split()
            pointer = ".ptr" in words
            if pointer:  # .ptr .global .align 1: of the memory that it points to
                start = words.index(".ptr")
                words = [*words[:start], words[-1]]
            (declared,) = self.declarations(" ".join(words), line)
            if not isinstance(declared, Variable) or declared.space != "param" or declared.nbytes is None:
                raise self.error(f"{shown(piece.strip())} is no parameter of an entry")
            maybe = None if declared.type in ("u64", "b64", "s64") and not declared.array else False
            kind = True if pointer else maybe
            found.append(
                PtxParam(declared.name, declared.type, declared.align, declared.nbytes, kind, declared.array, line)
            )
            line += piece.strip().count("\n")
        return tuple(found)

    def function(self, kind: str, begin: int) -> Entry | PtxFunction | None:
        """An .entry or .func; the position is behind that word, `begin` that of its first word."""
        line = self.line()
        found = _FUNCTION_HEAD.match(self.text, self.at)
        if found is None:
            raise self.error(f".{kind} is followed by {self.here()}, which is no name")
        params = self.params(found["params"] or "") if kind == "entry" else ()
        self.at = found.end()
        directives = []
        while True:
            self.skip_blanks()
            if self.text.startswith((";", "{"), self.at):
                break
            directive = _DIRECTIVE.match(self.text, self.at)
            if directive is None:
                raise self.error(f"{self.here()} between the parameters and the body of {shown(found['name'])}")
            if not directive[0].startswith((".loc", ".file")):
                directives.append(Directive(" ".join(directive[0].split()), self.line()))
            self.at = directive.end()
        defined = self.text[self.at] == "{"
        head = " ".join(self.text[begin : self.at].split())
        self.at += 1
        statements = self.statements() if defined else None
        if kind == "func":
            return PtxFunction(found["name"], head, statements, line)
        if statements is None:
            return None
        required, most = self._threads(directives, "reqntid"), self._threads(directives, "maxntid")
        return Entry(found["name"], params, statements, required, most, tuple(directives), line)

    def _threads(self, directives: list[Directive], name: str) -> ThreadCount | None:
        given = [directive.text for directive in directives if directive.name == name]
        if not given:
            return None
        counts = [self._number(count.strip()) for count in given[0].split(maxsplit=1)[1].split(",")]
        x, y, z = (*counts, 1, 1, 1)[:3]
        return x, y, z

    def module(self, original: str) -> Module:
        header: dict[str, str] = {}
        variables: list[Variable] = []
        entries: list[Entry] = []
        functions: dict[str, PtxFunction] = {}
        while True:
            self.skip_blanks()
            if self.at == len(self.text):
                break
            if found := _HEADER.match(self.text, self.at):
                header[found[1]] = found[2].strip()
            elif "version" not in header:
                raise self.error(f"{self.here()}: this is no PTX, which begins with .version")
            elif found := _FUNCTION.match(self.text, self.at):
                begin, self.at = self.at, found.end()
                function = self.function(found[1], begin)
                if isinstance(function, Entry):
                    if any(entry.name == function.name for entry in entries):
                        raise BuildError(
                            f"{self.origin}:{function.line}: a second entry is called {shown(function.name)}"
                        )
                    entries.append(function)
                elif function is not None and (function.name not in functions or function.statements is not None):
                    functions[function.name] = function
                continue
            elif found := _SECTION.match(self.text, self.at):
                self.at = found.end()
                end = self.text.find("}", self.at)
                if end < 0:
                    raise self.error("the section has no closing }")
                self.at = end + 1
                continue
            else:
                found = _STATEMENT.match(self.text, self.at)
                if found is None or found.lastgroup not in ("debug", "directive"):
                    raise self.error(f"{self.here()} is no PTX")
                if found.lastgroup == "directive":
                    for declared in self._directive(found["directive"][:-1].strip()):
                        if isinstance(declared, Variable):
                            variables.append(declared)
            self.at = found.end()
        if "version" not in header or "target" not in header:
            missing = "version" if "version" not in header else "target"
            raise self.error(f"this is no PTX: .{missing} is missing")
        version = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", header["version"])
        if version is None:
            raise BuildError(f"{self.origin}: .version {shown(header['version'])} is no version such as 8.7")
        return Module(
            (int(version[1]), int(version[2])),
            header["target"].split(",")[0].strip(),
            self._number(header.get("address_size", "32")),
            tuple(variables),
            tuple(entries),
            tuple(functions.values()),
            original,
            self.origin,
        )


def _blank_comment(found: re.Match[str]) -> str:
    text = found[0]
    return text if text[0] == '"' else "\n" * text.count("\n") or " "


def _without_blanks(text: str | None) -> str | None:
    return None if text is None else "".join(text.split())


def _top_level_pieces(text: str) -> Iterator[str]:
    depth = start = 0
    for found in _BRACKET.finditer(text):
        character = found[0]
        if character == ",":
            if not depth:
                yield text[start : found.start()]
                start = found.end()
        else:
            depth += 1 if character in "[({" else -1
    yield text[start:]


def read_ptx(text: str, origin: str = "PTX") -> Module:
    """The module that a PTX text describes; errors call the text `origin`."""
    return _Reader(text.rstrip("\0"), origin).module(text)  # NVRTC ends its text with a NUL


def read_ptx_file(path: Path) -> Module:
    try:
        content = path.read_bytes()
    except OSError as reason:
        raise BuildError(f"{path}: {reason.strerror}") from reason
    if content.startswith((b"\x7fELF", b"\x50\xed\x55\xba")):
        raise BuildError(f"{path}: this is a cubin or fatbin; give the PTX text that it was assembled from (nvcc -ptx)")
    try:
        return read_ptx(content.decode(), str(path))
    except UnicodeDecodeError as reason:
        line = content[: reason.start].count(b"\n") + 1
        raise BuildError(f"{path}:{line}: this is no PTX, which is text: {reason.reason}") from reason
