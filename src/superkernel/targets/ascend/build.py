"""targets.ascend.build: an emitted super kernel -> the commands that make its object, as data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ...model.binary import Form
from ...model.subkernel import SubKernel
from .archive import is_archive, members
from .core_types import CUBE, CoreClass
from .facts import Code, cube_or_vector, facts_of, split_name
from .kernel_description import EmittedKernel, EmittedOp
from .meta_section import meta_section
from .tools import FLAGS, HOME, INCLUDES, Tool

Words = tuple[str, ...]
BUILD_SCRIPT = "build.sh"
WORK = "work"
INCLUDE = f"{WORK}/include"  # where sub-kernels that come as sources find the header of this package
HEADERS = f"{INCLUDE}/superkernel"
# Of two copies' sections in a COMDAT group a linker would keep one, which the other copy may not refer to.
_UNGROUPED = ("--remove-section=.group",)
_HEADERS = tuple(Path(__file__).parent / "include" / "superkernel" / name for name in ("subkernel.h", "as_function.h"))


class Stage(Enum):
    """What a command is for, in the order of the build."""

    UNPACK = "unpack the objects of the sub-kernels"
    COMPILE = "compile for one class of cores"
    MEASURE = "measure the code"
    RENAME = "one copy per function name, with nothing else to be seen from outside"
    MERGE_OBJECTS = "merge the sub-kernels of one class"
    MERGE = "merge: cube entry, cube objects, vector entry, vector objects"
    LINK = "link at address 0"
    LOCALISE = "make every symbol but the entry local"


@dataclass(frozen=True)
class Command:
    """One call of a tool, in the folder of the build. Paths are relative to it."""

    stage: Stage
    tool: Tool
    arguments: tuple[str, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    folder: str = "."

    def line(self) -> str:
        """As it stands in the script."""
        call = f'"${self.tool.value}"' + (f" ${FLAGS}" if self.tool is Tool.COMPILER else "")
        text = f"{call} {shlex.join(self.arguments)}"
        return text if self.folder == "." else f"(cd {shlex.quote(self.folder)} && {text})"


@dataclass(frozen=True)
class Input:
    """A file of the user's, under the name it has in the folder of the build."""

    path: Path
    name: str


@dataclass(frozen=True)
class DataFile:
    """The contents of a section that the build adds to the object."""

    name: str
    section: str
    content: bytes

    def line(self) -> str:
        """As it stands in the script."""
        octal = "".join(f"\\{byte:03o}" for byte in self.content)
        return f"printf '{octal}' > {shlex.quote(self.name)}"


@dataclass(frozen=True)
class BuildPlan:
    name: str
    entries: tuple[str, ...]  # the symbols that stay visible
    inputs: tuple[Input, ...]
    commands: tuple[Command, ...]
    product: str
    headers: tuple[Input, ...] = ()  # saved beside the source, and copied to HEADERS
    data_files: tuple[DataFile, ...] = ()

    def lines(self) -> tuple[str, ...]:
        return tuple(command.line() for command in self.commands)

    def script(self) -> str:
        """The whole build for a machine with CANN; run it in its folder."""
        includes = " ".join(f"-I${HOME}/{folder}" for folder in INCLUDES)
        lines = [
            "#!/bin/sh",
            f"# Builds {self.product} from {self.name}_kernel.cpp and the sub-kernels beside it. Needs CANN.",
            "set -eu",
            'cd "$(dirname "$0")"',
            f': "${{{HOME}:?set it to the folder of the CANN toolkit}}"',
            f'TOOLS="${{TOOLS:-${HOME}/compiler/ccec_compiler/bin}}"',
            'BISHENG="${BISHENG:-$TOOLS/bisheng}"',
            'LD="${LD:-$TOOLS/ld.lld}"',
            'OBJCOPY="${OBJCOPY:-$TOOLS/llvm-objcopy}"',
            'AR="${AR:-$TOOLS/llvm-ar}"',
            'SIZE="${SIZE:-$TOOLS/llvm-size}"',
            f'{FLAGS}="${{{FLAGS}:-{includes}}}"',
            f"mkdir -p {' '.join(sorted({shlex.quote(folder) for folder in self.folders()}))}",
            *(f"cp {header.name} {HEADERS}/" for header in self.headers),
            *(file.line() for file in self.data_files),
        ]
        stage = None
        for command in self.commands:
            if command.stage is not stage:
                lines += ["", f"# {command.stage.value}"]
                stage = command.stage
            lines.append(command.line())
        return "\n".join(lines) + "\n"

    def folders(self) -> set[str]:
        folders = {WORK, HEADERS} if self.headers else {WORK}
        return folders | {command.folder for command in self.commands if command.folder != "."}


@dataclass(frozen=True)
class Built:
    binary: Path | None
    status: str


def plan_build(emitted: EmittedKernel, flags: Sequence[str]) -> BuildPlan:
    return _BuildCommands(emitted, tuple(flags)).plan()


class _BuildCommands:
    def __init__(self, emitted: EmittedKernel, flags: tuple[str, ...]) -> None:
        self.emitted, self.flags = emitted, flags
        self.inputs: dict[Path, Input] = {}
        self.commands: dict[Command, None] = {}
        self.mixed = emitted.launch.mixed

    def plan(self) -> BuildPlan:
        emitted = self.emitted
        source = f"{emitted.name}_kernel.cpp"
        per_class = {core_class: self._objects(core_class) for core_class in emitted.launch.classes}
        merged: list[str] = []
        entries = []
        for core_class, objects in per_class.items():
            symbol = f"{emitted.entry}_{cube_or_vector(core_class)}" if self.mixed else emitted.entry
            renamed = (f"-D{emitted.entry}={symbol}",) if self.mixed else ()
            entry = f"{WORK}/{core_class.value}_entry.o"
            arguments = self._compile(core_class, source, entry, (*renamed, *self.flags))
            self._add(Stage.COMPILE, Tool.COMPILER, arguments, (source,), (entry,))
            joined = f"{WORK}/{core_class.value}_objects.o"
            self._add(Stage.MERGE_OBJECTS, Tool.LINKER, ("-r", "--unique", "-o", joined, *objects), objects, (joined,))
            merged += [entry, joined]
            entries.append(symbol)
        whole, linked, product = f"{WORK}/merged.o", f"{WORK}/linked.o", f"{emitted.name}.o"
        self._add(Stage.MERGE, Tool.LINKER, ("-r", "--unique", "-o", whole, *merged), tuple(merged), (whole,))
        # --unique has kept sections apart: a copy of an object brings only what its function needs
        kept = tuple(word for symbol in entries for word in ("-u", symbol))
        emulation = ("-m", emitted.chip.toolkit.linker_emulation)
        link = (*emulation, "-Ttext=0", "-e", entries[0], *kept, "--gc-sections", "-static", "-o", linked, whole)
        self._add(Stage.LINK, Tool.LINKER, link, (whole,), (linked,))
        data = tuple(self._meta_files(entries))
        added = tuple(f"--add-section={file.section}={file.name}" for file in data)
        keep = tuple(f"--keep-global-symbol={symbol}" for symbol in entries)
        reads = (linked, *(file.name for file in data))
        self._add(Stage.LOCALISE, Tool.EDITOR, (*keep, *added, linked, product), reads, (product,))
        stages = list(Stage)
        commands = tuple(sorted(self.commands, key=lambda command: stages.index(command.stage)))
        sources = any(op.kernel.binary.form is Form.SOURCE for op in emitted.ops)
        headers = tuple(Input(path, path.name) for path in _HEADERS) if sources else ()
        return BuildPlan(emitted.name, tuple(entries), tuple(self.inputs.values()), commands, product, headers, data)

    def _meta_files(self, entries: Sequence[str]) -> Iterator[DataFile]:
        """The contents of each entry's meta section, where the toolkit says what they are."""
        toolkit, launch = self.emitted.chip.toolkit, self.emitted.launch
        if toolkit.meta_fields:
            content = meta_section(
                toolkit.meta_fields, toolkit.meta_core_types, launch.classes, launch.type.cubes, launch.type.vectors
            )
            for symbol in entries:
                yield DataFile(f"{WORK}/{symbol}.meta", toolkit.meta_section.replace("{entry}", symbol), content)

    def _add(self, stage: Stage, tool: Tool, arguments: Words, reads: Words, makes: Words, folder: str = ".") -> None:
        """Once: several functions of a sub-kernel, and several classes, may ask for the same."""
        self.commands[Command(stage, tool, arguments, reads, makes, folder)] = None

    def _compile(self, core_class: CoreClass, source: str, output: str, more: tuple[str, ...]) -> tuple[str, ...]:
        toolkit = self.emitted.chip.toolkit
        architecture = f"{self.emitted.chip.architecture}-{'cube' if core_class is CUBE else 'vec'}"
        copies = any(op.copies > 1 for op in self.emitted.ops)  # calls may lead far
        options = (*toolkit.compiler_options, *(toolkit.far_call_options if copies else ()))
        return (
            *("-c", "-xcce", "-std=c++17", "-O2", "-ffunction-sections", "-fdata-sections"),
            *("--cce-aicore-only", toolkit.architecture_flag.replace("{architecture}", architecture)),
            *(word for option in options for word in ("-mllvm", option)),
            *self.emitted.defines[core_class],
            *self.emitted.cann_defines,
            *more,
            *(source, "-o", output),
        )

    def _objects(self, core_class: CoreClass) -> tuple[str, ...]:
        """An object per function that cores of this class call, in the order of the ops."""
        objects: dict[str, None] = {}
        seen: set[SubKernel] = set()
        for op in self.emitted.ops:
            if core_class in op.variants and op.kernel not in seen:
                seen.add(op.kernel)
                objects |= dict.fromkeys(self._of_kernel(op, core_class))
        return tuple(objects)

    def _of_kernel(self, op: EmittedOp, core_class: CoreClass) -> Iterator[str]:
        codes = facts_of(op.kernel).of_class(core_class)
        for variant in op.variants[core_class]:
            code = codes[variant.key]
            for copy, function in enumerate(variant.functions):
                ready = bool(copy and code.split)
                base = self._base(op.kernel, core_class, code, code.split[copy - 1] if ready else code.objects)
                output = f"{WORK}/{function}.o"
                # a precompiled copy may have its name already
                olds = (code.symbol, *((split_name(code.symbol, copy),) if ready else ()))
                edits = tuple(f"--redefine-sym={old}={function}" for old in olds if old != function)
                # llvm-objcopy looks for the old name, GNU objcopy for the new one
                keep = tuple(f"--keep-global-symbol={name}" for name in dict.fromkeys((*olds, function)))
                arguments = (*_UNGROUPED, *edits, *keep, base, output)
                self._add(Stage.RENAME, Tool.EDITOR, arguments, (base,), (output,))
                yield output

    def _base(self, kernel: SubKernel, core_class: CoreClass, code: Code, objects: tuple[str, ...]) -> str:
        """The object that has a function: compiled, unpacked, or given as it is."""
        given = self._input(kernel)
        if kernel.binary.form is Form.SOURCE:
            output = f"{WORK}/{given.rpartition('.')[0]}_{core_class.value}.o"
            flags = (
                f"-I{INCLUDE}",
                "-include",
                "superkernel/as_function.h",
                *self._header_flags(core_class),
                *kernel.binary.flags,
            )
            command = self._compile(core_class, given, output, flags)
            self._add(Stage.COMPILE, Tool.COMPILER, command, (given,), (output,))
            return output
        if not is_archive(kernel.binary.path):
            self._add(Stage.MEASURE, Tool.SIZER, ("-A", given), (given,), ())
            return given
        folder = f"{WORK}/{given}.d"
        objects = objects or tuple(members(kernel.binary.path))  # without metadata, any may have the function
        files = tuple(f"{folder}/{name}" for name in objects)
        self._add(Stage.UNPACK, Tool.ARCHIVER, ("x", f"../../{given}", *objects), (given,), files, folder)
        self._add(Stage.MEASURE, Tool.SIZER, ("-A", *files), files, ())
        if len(files) == 1:
            return files[0]
        joined = f"{folder}/{code.symbol}_{core_class.value}_joined.o"
        self._add(Stage.UNPACK, Tool.LINKER, ("-r", "-o", joined, *files), files, (joined,))
        return joined

    def _header_flags(self, core_class: CoreClass) -> Iterator[str]:
        """What subkernel.h cannot know of a chip that a JSON file describes."""
        chip = self.emitted.chip
        if core_class is CUBE:
            yield "-DSK_ON_CUBE"
        yield f"-DSK_CUBE_FLAG={chip.cube_flag}"
        yield f"-DSK_VECTOR_FLAG={chip.vector_flag}"
        yield f"-DSK_VECTORS_TO_CUBE_FLAG={chip.vectors_to_cube_flag}"
        yield f"-DSK_CUBE_TO_VECTORS_FLAG={chip.cube_to_vectors_flag}"

    def _input(self, kernel: SubKernel) -> str:
        path = kernel.binary.path
        if path not in self.inputs:
            self.inputs[path] = Input(path, facts_of(kernel).saved_as or path.name)
        return self.inputs[path].name
