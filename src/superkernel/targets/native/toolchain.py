"""targets.native.toolchain: the machine's compiler, linker and object editor, and how they are run."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from superkernel.cache import Cache, default_directory, digest
from superkernel.errors import BuildError

COMPILERS = ("g++", "c++", "clang++")
LINKERS = ("ld.bfd", "ld")  # only GNU ld takes section groups apart in a relocatable link
_TOOLS = ("g++", "gcc", "clang", "ld", "objcopy")  # in the name of the file that a program really is
Log = list[str] | None  # gets the commands that are run
_INSTALL = (
    "install it, for example: apt-get install g++ binutils (Debian, Ubuntu), dnf install gcc-c++ binutils (Fedora)"
)
_ASKED = "toolchain, links C++"  # what is known of programs that were asked
_LAST = digest("last toolchain")
_FEATURE_LINES = ("flags", "Features", "features", "isa")  # x86, Arm, s390, RISC-V


_NEEDS_CXX_LIBRARY = "int* made(int n) { if (n < 0) throw n; return new int(n); }\n"


@dataclass(frozen=True)
class Toolchain:
    """The programs that make objects; `identity` changes when any of them does."""

    cxx: tuple[str, ...]  # several words where CXX says so: "ccache g++"
    ld: str
    objcopy: str
    identity: str
    architecture: str | None = None  # of its objects, as in an ELF header; None: this machine's
    missing: bool = False  # nothing can be compiled here; `identity` is that of the last build into this cache


def find_toolchain() -> Toolchain:
    """CXX, or the first C++ compiler on PATH, with GNU ld and objcopy.

    Where there are none, what the last toolchain left in the cache can still be found by its identity.
    """
    chosen, directory = os.environ.get("CXX", "").strip(), default_directory()
    try:
        found = _find(chosen, os.environ.get("PATH", os.defpath))
    except BuildError:
        identity = None if chosen else _last_identity(directory)
        if identity is None:
            raise
        return Toolchain(COMPILERS[:1], LINKERS[-1], "objcopy", identity, missing=True)
    _remember(directory, found.identity)
    return found


def _last_identity(directory: Path) -> str | None:
    return Cache(directory).read_text(_LAST, ".txt")


@cache
def _remember(directory: Path, identity: str) -> None:
    with suppress(BuildError):  # no cache: the build itself reports that
        store = Cache(directory)
        if store.read_text(_LAST, ".txt") != identity:
            store.write_text(_LAST, ".txt", identity)


def find_cross_toolchain(triple: str, architecture: str) -> Toolchain:
    """Tools on PATH that compile for another architecture: `triple`-g++ and GNU binutils with the same prefix."""
    return _find_cross(triple, architecture, os.environ.get("PATH", os.defpath))


@cache
def _find_cross(triple: str, architecture: str, search: str) -> Toolchain:
    hint = f"install them, for example: apt-get install g++-{triple} (Debian, Ubuntu)"

    def find(names: Sequence[str]) -> str:
        return _first([f"{triple}-{name}" for name in names], f"a tool that compiles for {triple}", search, hint)

    cxx, ld, objcopy = (find(COMPILERS[:1]),), find(LINKERS), find(("objcopy",))
    return Toolchain(cxx, ld, objcopy, _identity(cxx, ld, objcopy), architecture)


@cache
def _find(chosen: str, search: str) -> Toolchain:
    cxx = _chosen_compiler(chosen, search) if chosen else (_first(COMPILERS, "a C++ compiler", search),)
    ld = _first(LINKERS, "the GNU linker", search)
    objcopy = _first(("objcopy",), "GNU objcopy", search)
    return Toolchain(cxx, ld, objcopy, _identity(cxx, ld, objcopy))


def _identity(cxx: tuple[str, ...], ld: str, objcopy: str) -> str:
    """What the programs say of themselves; asked once for the same files, where files are all there is to it."""
    stamps = [_stamp(program) for program in (cxx[0], ld, objcopy)]
    if len(cxx) > 1 or None in stamps:
        return _ask(cxx, ld, objcopy)
    try:
        cache, key = Cache(), digest(_ASKED, *filter(None, stamps))
    except BuildError:  # no cache: the build itself reports that
        return _ask(cxx, ld, objcopy)
    answer = cache.read_text(key, ".txt")
    if answer is None:
        answer = _ask(cxx, ld, objcopy)
        cache.write_text(key, ".txt", answer)
    return answer


def _stamp(program: str) -> str | None:
    """Which file a program is; None: a script or a wrapper such as ccache, behind which anything may be."""
    path = Path(program).resolve()
    try:
        with path.open("rb") as file:
            binary = file.read(4) == b"\x7fELF"
        status = path.stat()
    except OSError:
        return None
    known = binary and any(tool in path.name for tool in _TOOLS)
    return f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino}" if known else None


def _ask(cxx: tuple[str, ...], ld: str, objcopy: str) -> str:
    triple = run([*cxx, "-dumpmachine"], what="asking the compiler for its target").strip()
    if not any("++" in Path(word).name for word in cxx):
        _check_links_cxx(cxx)
    return f"{_describe(*cxx)} {triple}; {_describe(ld)}; {_describe(objcopy)}"


def _check_links_cxx(cxx: tuple[str, ...]) -> None:
    """A driver for C compiles C++ and then links without the C++ library."""
    command = [*cxx, "-x", "c++", "-shared", "-fPIC", "-Wl,--no-undefined", "-", "-o"]
    what = f"linking a C++ function with {shlex.join(cxx)}"
    with tempfile.TemporaryDirectory(prefix="superkernel-") as folder:
        try:
            run([*command, str(Path(folder, "linked.so"))], what=what, text=_NEEDS_CXX_LIBRARY)
        except BuildError as failure:
            if "undefined" not in failure.stderr:
                raise
            raise BuildError(
                f"{shlex.join(cxx)} does not link C++: it is a C compiler; set CXX to a C++ compiler such as g++ or "
                "clang++, or unset it",
                failure.command,
                failure.stderr,
            ) from failure


def _describe(program: str, *arguments: str) -> str:
    """The file that a program is, and its version."""
    version = run([program, *arguments, "--version"], what=f"asking {program} for its version").partition("\n")[0]
    return f"{shlex.join([str(Path(program).resolve()), *arguments])} {version}"


def _chosen_compiler(chosen: str, search: str) -> tuple[str, ...]:
    try:
        first, *others = shlex.split(chosen)
    except ValueError as reason:
        raise BuildError(f"CXX={chosen!r} is not a command: {reason}") from reason
    found = shutil.which(first, path=search)
    if found is None:
        raise BuildError(f"CXX names the compiler {first!r}, which is not on PATH: unset CXX, or {_INSTALL}")
    return (found, *others)


def _first(names: Sequence[str], what: str, search: str, hint: str = _INSTALL) -> str:
    for name in names:
        if found := shutil.which(name, path=search):
            return found
    raise BuildError(f"{what} is missing: none of {', '.join(names)} is on PATH; {hint}")


def run(
    command: Sequence[str], *, what: str, cwd: Path | None = None, timeout: float = 600, log: Log = None, text: str = ""
) -> str:
    """What the command prints, given `text` to read; a BuildError that begins with `what` if it fails.

    Bytes that are not UTF-8 survive as surrogates, so that two different outputs never look the same.
    """
    if log is not None:
        log.append(shlex.join(command))
    # Messages in English, whatever the locale: some are searched for symbols.
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": ""}
    try:
        given = text.encode("utf-8", "surrogateescape")
        done = subprocess.run(
            command, cwd=cwd, env=environment, input=given, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as late:
        stderr = (late.stderr or b"").decode("utf-8", "replace")
        raise BuildError(f"{what}: not finished after {timeout:g} s, stopped", command, stderr) from late
    except ValueError as reason:  # NUL, or what no encoding has
        raise BuildError(f"{what}: an argument cannot be passed to a program: {reason}", command) from reason
    except FileNotFoundError as reason:
        missing = "a C++ compiler is missing: " if Path(command[0]).name in COMPILERS else ""
        raise BuildError(f"{what}: cannot run {command[0]}: {reason}; {missing}{_INSTALL}", command) from reason
    except OSError as reason:
        raise BuildError(f"{what}: cannot run {command[0]}: {reason}; {_INSTALL}", command) from reason
    if done.returncode:
        raise BuildError(f"{what}: {_ending(done.returncode)}", command, done.stderr.decode("utf-8", "replace"))
    return done.stdout.decode("utf-8", "surrogateescape")


def _ending(status: int) -> str:
    if status > 0:
        return f"failed with exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name} (is the machine out of memory?)"
    except ValueError:
        return f"killed by signal {-status}"


def demangle(symbols: Iterable[str]) -> dict[str, str]:
    """Each symbol with the C++ name it stands for; itself where it is a C name or c++filt is missing."""
    names = {symbol: symbol for symbol in symbols}
    mangled = [symbol for symbol in names if symbol.startswith("_Z")]
    filt = shutil.which("c++filt")
    if not mangled or filt is None:
        return names
    lines = run([filt], what="demangling symbols", text="\n".join(mangled) + "\n").splitlines()
    return names | dict(zip(mangled, lines, strict=True)) if len(lines) == len(mangled) else names


@cache
def cpu_features() -> str:
    """The instruction sets of this machine, in a stable order."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        field, _, value = line.partition(":")
        if field.strip() in _FEATURE_LINES:
            return " ".join([platform.machine(), *sorted(set(value.split()))])
    return platform.machine()
