"""targets.native.objects: C and C++ sources in, objects out; objects in, one shared object with one symbol out."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path

from superkernel.cache import Cache, digest
from superkernel.errors import BuildError
from superkernel.targets.native.elf import Binding, demote_unique, read_object
from superkernel.targets.native.preprocessed import preprocess, recorded_key, write_record
from superkernel.targets.native.symbols import base_name
from superkernel.targets.native.toolchain import Toolchain, cpu_features, demangle, run

# No kernel's symbol is ever replaced by another library's, so calls inside a file may be inlined; and a sum of
# products is rounded as written, so that results do not depend on whether the machine has fused multiply-add.
_COMMON = (
    "-O3", "-march=native", "-fPIC", "-ffunction-sections", "-fno-gnu-unique", "-fvisibility=default",
    "-fno-semantic-interposition", "-ffp-contract=off", "-g0",
)  # fmt: skip
CXX_FLAGS = (*_COMMON, "-std=c++17")
C_FLAGS = (*_COMMON, "-x", "c", "-std=gnu11")
LANGUAGE_FLAGS = {".cpp": CXX_FLAGS, ".cc": CXX_FLAGS, ".cxx": CXX_FLAGS, ".c": C_FLAGS}

# Groups: of two inline functions with one name a linker keeps one, unless they are taken out of their groups.
# -d: tentative definitions get their memory here, else they stay shared by name.
_RELOCATABLE = ("-r", "-d", "--force-group-allocation", "--no-demangle")
# Data for -flto would make the last link compile everything again, under the old names.
_WITHOUT_LTO = ("--remove-section=.gnu.lto_*", "--remove-section=.gnu.debuglto_*")
# What nothing reachable from the entry calls is left out, such as the other kernels of a file. A compiler may link its
# C++ library statically: none of that is for others to see.
_SHARED = (
    "-shared", "-fPIC", "-Wl,--no-undefined", "-Wl,--no-demangle", "-Wl,-z,now", "-Wl,--gc-sections",
    "-Wl,--as-needed", "-Wl,--exclude-libs,ALL",
)  # fmt: skip
# Join objects into the file that is the last word; then make every symbol local that is defined there, except some.
_RelinkCommands = tuple[tuple[str, ...], tuple[str, ...]]
_UNDEFINED = re.compile(r"(?:undefined reference to|hidden symbol|undefined symbol:) ?[`'\"]?([\w.$@]+)")


@dataclass(frozen=True)
class CompileJob:
    """One source to compile, with flags after the default ones."""

    source: Path
    flags: tuple[str, ...] = ()
    keyed_by_text: bool = False


def compile_source(
    source: Path,
    flags: Sequence[str],
    toolchain: Toolchain,
    cache: Cache,
    include_dirs: Sequence[Path] = (),
    log: list[str] | None = None,
    keyed_by_text: bool = False,
    precompiled_header: Path | None = None,
) -> Path:
    """The object of a C or C++ source, compiled unless the same text was compiled before in the same way.

    The text is what the preprocessor makes of the source; or with `keyed_by_text` the source itself, in which case of
    all its headers only those in `include_dirs` are looked at. A precompiled header, with what the source includes
    anyway, saves time and changes nothing else.
    """
    options = _options(source, flags)
    command = [*toolchain.cxx, *options, *_include_options(include_dirs)]
    where = str(source.absolute())
    made_with = (shlex.join(options), toolchain.identity, cpu_features(), versions())
    if keyed_by_text:
        key = digest("compile", text_key([source], include_dirs), *made_with)
    else:
        record = digest("record", where, text_key([source], include_dirs), *made_with)
        if toolchain.missing:
            key = recorded_key(record, source, cache)
        else:
            text, headers = preprocess(command, source)
            key = digest("compile", text, *made_with)
            write_record(record, key, headers, cache)

    def build(output: Path) -> None:
        compilation, what = ["-c", where, "-o", str(output)], f"compiling {source}"
        if precompiled_header is not None:
            with suppress(BuildError):  # source or header: the compilation without the header tells
                run([*command, "-include", str(precompiled_header), *compilation], what=what)
                return
        run([*command, *compilation], what=what)

    compiled = cache.make(key, ".o", build)
    _note(log, [*command, "-c", where, "-o", str(compiled)])
    return compiled


def cxx_command(flags: Sequence[str], toolchain: Toolchain, include_dirs: Sequence[Path]) -> list[str]:
    """The call with which C++ sources are compiled, without the files."""
    return [*toolchain.cxx, *CXX_FLAGS, *flags, *_include_options(include_dirs)]


def _include_options(include_dirs: Sequence[Path]) -> list[str]:
    return [f"-I{Path(directory).absolute()}" for directory in include_dirs]


def compile_sources(
    jobs: Sequence[CompileJob],
    toolchain: Toolchain,
    cache: Cache,
    include_dirs: Sequence[Path] = (),
    progress: Callable[[str], None] | None = None,
    log: list[str] | None = None,
) -> list[Path]:
    """The objects of all jobs, compiled side by side; after a failure no further job starts."""

    def compile_one(job: CompileJob) -> Path:
        return compile_source(job.source, job.flags, toolchain, cache, include_dirs, log, job.keyed_by_text)

    if not jobs:
        return []
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), len(jobs)), "superkernel-compile") as pool:
        running = [pool.submit(compile_one, job) for job in jobs]
        try:
            for done, finished in enumerate(as_completed(running), 1):
                if finished.exception() is not None:
                    break
                if progress is not None:
                    progress(f"compiled {jobs[running.index(finished)].source.name} ({done} of {len(jobs)})")
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    # Jobs start in order, so the ones before the first failure were not cancelled.
    return [finished.result() for finished in running]


def isolate(
    object_path: Path, symbol: str, unique: str, toolchain: Toolchain, cache: Cache, log: list[str] | None = None
) -> Path:
    """A copy of the object in which `symbol` is called `unique` and nothing else can be seen by other objects."""
    key = digest("isolate", object_key(object_path), symbol, unique, toolchain.identity, versions())

    def commands(output: Path) -> _RelinkCommands:
        return _relink_commands([object_path], [unique], output, toolchain, f"--redefine-sym={symbol}={unique}")

    def build(output: Path) -> None:
        if symbol not in {function.name for function in read_object(object_path, toolchain.architecture).functions}:
            raise BuildError(f"{object_path} does not define a function {symbol!r} that others can call")
        _relink(commands(output), f"isolating {symbol} of {object_path}")
        _check_position_independent(output, object_path, toolchain)

    compiled = cache.make(key, ".o", build)
    _note(log, *commands(compiled))
    return compiled


def text_key(files: Sequence[Path], include_dirs: Sequence[Path]) -> str:
    """The digest of files and folders, and of the environment variables that name further include folders."""
    folders = [_folder_key(Path(directory).absolute()) for directory in include_dirs]
    elsewhere = [os.environ.get(name, "") for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")]
    try:
        return digest("text", *(path.read_bytes() for path in files), *folders, *elsewhere)
    except OSError as reason:
        raise BuildError(f"cannot read source: {reason}") from reason


def _folder_key(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest(*(part for path in files for part in (str(path.relative_to(folder)), path.read_bytes())))


def object_key(path: Path) -> str:
    """The digest of a file's contents."""
    try:
        return digest(path.read_bytes())
    except FileNotFoundError as reason:
        raise BuildError(f"object file {path} does not exist") from reason
    except OSError as reason:
        raise BuildError(f"cannot read object file {path}: {reason}") from reason


def library_key(library: str | Path) -> str:
    """A library and, where it is a file, when it was written: it may be an archive, whose code becomes ours."""
    try:
        file = os.stat(library)
    except OSError:  # a name, or a file whose absence the linker reports
        return str(library)
    return f"{library} {file.st_size} {file.st_mtime_ns}"


def unique_name(symbol: str, path: Path) -> str:
    """A C identifier for the function `symbol` of the object `path`: other contents or another symbol, another name."""
    readable = re.sub(r"\W", "_", base_name(symbol), flags=re.ASCII)
    prefix = "" if re.match(r"[A-Za-z]", readable) else "k"
    return f"{prefix}{readable}_{digest(symbol, object_key(path))[:8]}"


def merge(
    objects: Sequence[Path], entries: Sequence[str], output: Path, toolchain: Toolchain, log: list[str] | None = None
) -> None:
    """Join the objects into one in which they find each other and only the entries can be seen from outside."""
    commands = _relink_commands(objects, entries, output, toolchain)
    _note(log, *commands)
    try:
        _relink(commands, f"merging the objects of {', '.join(entries)}")
    except BuildError as failure:
        if duplicates := _defined_twice(objects, toolchain.architecture):
            raise BuildError("; ".join(duplicates), failure.command, failure.stderr) from failure
        raise


def link_shared(
    merged: Path,
    output: Path,
    toolchain: Toolchain,
    flags: Sequence[str] = (),
    libraries: Sequence[str | Path] = (),
    origin: Mapping[str, Path] | None = None,
    log: list[str] | None = None,
    imported: Sequence[Path] = (),
    folders: Iterable[Path] = (),
) -> None:
    """Make a shared object that can be loaded; `libraries` are files, or names as after -l.

    `origin` says which of the user's files refers to a symbol, for the message if nothing defines it. `imported` are
    import libraries; the libraries they stand for are found in `folders` when the shared object is loaded.
    """
    needed = [option for library in libraries for option in _library(library)]
    needed += [*map(str, imported), *(option for folder in folders for option in _found_in(folder))]
    command = [*toolchain.cxx, *_SHARED, *flags, str(merged.absolute()), *needed, "-o", str(output.absolute())]
    try:
        run(command, what=f"linking {output}", log=log)
    except BuildError as failure:
        if symbols := list(dict.fromkeys(_UNDEFINED.findall(failure.stderr))):
            raise BuildError(_undefined(symbols, origin or {}), failure.command, failure.stderr) from failure
        raise


def _options(source: Path, flags: Sequence[str]) -> tuple[str, ...]:
    if not source.is_file():
        reason = "is not a file" if source.exists() else "does not exist"
        raise BuildError(f"source {source} {reason}")
    language = LANGUAGE_FLAGS.get(source.suffix)
    if language is None:
        raise BuildError(f"source {source} does not end in one of {', '.join(LANGUAGE_FLAGS)}: is it C or C++?")
    return (*language, *flags)


@remembered
def versions() -> str:
    """The versions of this package and of torch, whose headers and libraries kernels may use; never imports torch."""
    return " ".join(f"{package}={_version(package)}" for package in ("superkernel", "torch"))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _note(log: list[str] | None, *commands: Sequence[str]) -> None:
    if log is not None:
        log.extend(shlex.join(command) for command in commands)


def _relink_commands(
    objects: Sequence[Path], keep: Sequence[str], output: Path, toolchain: Toolchain, rename: str = ""
) -> _RelinkCommands:
    output = output.absolute()
    joined = output.with_name(output.name + ".joined")
    inputs = [str(path.absolute()) for path in objects]
    required = [] if rename else [f"--require-defined={name}" for name in keep]
    edits = [*([rename] if rename else []), *(f"--keep-global-symbol={name}" for name in keep), *_WITHOUT_LTO]
    join = (toolchain.ld, *_RELOCATABLE, *required, *inputs, "-o", str(joined))
    return join, (toolchain.objcopy, *edits, str(joined), str(output))


def _relink(commands: _RelinkCommands, what: str) -> None:
    join, edit = commands
    joined = Path(join[-1])
    try:
        run(join, what=what)
        demote_unique(joined)
        run(edit, what=what)
    finally:
        joined.unlink(missing_ok=True)


def _check_position_independent(isolated: Path, path: Path, toolchain: Toolchain) -> None:
    """Found out here, where the user's file is known: later there is only the merged object to complain about."""
    trial = isolated.with_name(isolated.name + ".trial")
    command = [toolchain.ld, "-shared", "--unresolved-symbols=ignore-all", str(isolated), "-o", str(trial)]
    try:
        run(command, what=f"linking {path} alone")
    except BuildError as failure:  # the whole link reports other failures: a trial lacks the start-up files
        if "recompile with -fPIC" in failure.stderr:
            message = f"object file {path} is not position independent: compile it with -fPIC"
            raise BuildError(message, failure.command, failure.stderr) from failure
    finally:
        trial.unlink(missing_ok=True)


def _defined_twice(objects: Sequence[Path], architecture: str | None) -> list[str]:
    definers = defaultdict(list)
    for path in objects:
        for function in read_object(path, architecture).functions:
            if function.binding is Binding.GLOBAL:
                definers[function.name].append(str(path))
    names = demangle(definers)
    return [
        f"the function {names[symbol]!r} is defined more than once: in {' and in '.join(paths)}"
        for symbol, paths in definers.items()
        if len(paths) > 1
    ]


def _library(library: str | Path) -> tuple[str, ...]:
    """A library that is a file is also found there when the shared object is loaded."""
    if isinstance(library, str) and os.sep not in library:
        return (f"-l{library}",)
    path = Path(library).absolute()
    return (str(path), *_found_in(path.parent))


def _found_in(folder: Path) -> tuple[str, ...]:
    return ("-Xlinker", "-rpath", "-Xlinker", str(folder))


def _undefined(symbols: Sequence[str], origin: Mapping[str, Path]) -> str:
    names = demangle(symbols)
    described = [names[symbol] + (f" (used by {origin[symbol]})" if symbol in origin else "") for symbol in symbols]
    return f"undefined: {', '.join(described)}: define it in the kernel's own file, or link the library that has it"
