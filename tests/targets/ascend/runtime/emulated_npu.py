"""An AscendCL whose device is the emulator: the stand-in library, installed where CANN's would be, and its kernels."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from elftools.elf.elffile import ELFFile

from superkernel.cache import Cache, digest
from superkernel.model.graph import Graph
from superkernel.model.params import Kind
from superkernel.targets.ascend.core_types import CoreClass
from superkernel.targets.ascend.emulator.arena import DUMP, PROFILING, Arena, Region, buffer_region
from superkernel.targets.ascend.emulator.expectations import data_words, functions_text
from superkernel.targets.ascend.emulator.launch import ChipEmulator
from superkernel.targets.ascend.emulator.library import ACTS
from superkernel.targets.ascend.emulator.modules import HostModule, build_modules
from superkernel.targets.ascend.executable import AscendExecutable
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.parameter_block import word_names

SOURCE = Path(__file__).with_name("npu_stand_in.cpp")
_EXECUTE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32),
    *(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t),
)
_RESOLVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
_ENDED, _FAILED, _HANGS = 0, 1, 2
_HANG_TEXTS = ("deadlock", "interrupted")  # of the emulator, where a chip would just not go on
_LONG_S = 600.0
_LINE = 64


class WrongLaunch(Exception):
    """The host gave the device something that it cannot use."""


@dataclass
class EmulatedNpu:
    """The device side. `kernels` says what is behind the path of an object."""

    library: Path
    seed: int = 0
    kernels: dict[Path, AscendExecutable] = field(default_factory=dict)
    launches: list[str] = field(default_factory=list)
    modules: dict[str, Mapping[CoreClass, HostModule]] = field(default_factory=dict)  # by kernel
    hangs: bool = False  # every kernel, whatever its code says

    def __post_init__(self) -> None:
        self.calls = ctypes.CDLL(str(self.library))
        for name in ("npu_violations", "npu_calls"):
            getattr(self.calls, name).restype = ctypes.c_char_p
        for name in ("npu_allocation", "npu_word", "npu_written"):
            function = getattr(self.calls, name)
            function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_uint64]
        self.calls.npu_aborted.argtypes = [ctypes.c_void_p]
        self._execute, self._resolve = _EXECUTE(self._run), _RESOLVE(self._has)
        self.show(1)

    def show(self, devices: int) -> None:
        self.calls.npu_set(devices, self._execute, self._resolve)

    def fail(self, function: str, code: int, text: str) -> None:
        """The next call of a function."""
        self.calls.npu_fail(function.encode(), code, text.encode())

    @property
    def violations(self) -> list[str]:
        return self.calls.npu_violations().decode().splitlines()

    @property
    def called(self) -> list[str]:
        return self.calls.npu_calls().decode().splitlines()

    # what the library asks

    def _has(self, path: bytes, kernel: bytes) -> int:
        """A global symbol of this name; a launch of both classes has one for each."""
        with Path(path.decode()).open("rb") as file:
            table = ELFFile(file).get_section_by_name(".symtab")
            symbols = {symbol.name for symbol in table.iter_symbols() if symbol["st_info"]["bind"] == "STB_GLOBAL"}
        name = kernel.decode()
        known = self.kernels.get(Path(path.decode()))
        if known is not None:  # compiled for the host now: a launch only runs
            self.modules[name] = build_modules([known.emitted], Cache())
        return int(name in symbols or {f"{name}_mix_aic", f"{name}_mix_aiv"} <= symbols)

    def _run(
        self, stream: int, path: bytes, kernel: bytes, blocks: int, arguments: int, size: int, text: int, room: int
    ) -> int:
        try:
            executable = self.kernels[Path(path.decode())]
            self.launches.append(kernel.decode())
            if self.hangs:
                return _HANGS
            error = _Launch(self, executable, stream, arguments).run(kernel.decode(), blocks, size)
        except BaseException as failure:  # nothing passes through the library
            error = f"{type(failure).__name__}: {failure}"
        if not error:
            return _ENDED
        if error.startswith(_HANG_TEXTS):
            return _HANGS
        ctypes.memmove(text, error.encode()[: room - 1] + b"\0", min(len(error.encode()), room - 1) + 1)
        return _FAILED


@dataclass(frozen=True)
class _Answer:
    """What the host does when a word has a value: it reads buffers and writes words, the answering one last."""

    asked: int  # a slot
    value: int
    writes: tuple[int, ...]
    answer: int = 1
    op: int | None = None  # whose tiling it decides
    reads: tuple[str, ...] = ()


def _answers(emitted: EmittedKernel, graph: Graph) -> Iterator[_Answer]:
    nodes = {node.name: node for node in graph.nodes}
    for tiling in emitted.tilings:
        node = nodes[tiling.op]
        reads = tuple(name for param, name in node.arguments() if param.kind in (Kind.IN, Kind.INOUT))
        yield _Answer(
            tiling.lock_slot, 2, (tiling.key_slot, tiling.blocks_slot, tiling.lock_slot), op=node.index, reads=reads
        )
    for prefetch in emitted.prefetches:
        yield _Answer(prefetch.go_slot, 1, (prefetch.go_slot,), answer=0)


@dataclass
class _Launch:
    """One kernel on the emulated chip, with nothing but the parameter block that the host wrote."""

    npu: EmulatedNpu
    executable: AscendExecutable
    stream: int
    arguments: int

    def run(self, kernel: str, blocks: int, size: int) -> str:
        """The emulator's error; empty: none."""
        emitted = self.executable.emitted
        if (kernel, blocks, size) != (emitted.entry, emitted.launch.blocks, 8 * len(emitted.layout.slots)):
            raise WrongLaunch(f"{kernel} on {blocks} blocks with {size} bytes of arguments")
        modules = self.npu.modules[kernel]
        emulator = ChipEmulator(
            emitted, self.executable.plan.graph, modules, Cache(), self.npu.seed, None, (), races=True, record=False
        )
        arena = self._arena(emitted)
        settings = emulator._settings(arena)
        settings.watchdog_s = settings.patience_s = _LONG_S
        calls = emulator._calls
        machine = calls.sk_emu_new(ctypes.byref(settings))
        try:
            emulator._describe(machine, arena)
            cells = {slot: self._cell(arena.words[slot]) for slot in arena.words}
            for event in emitted.events:
                if not event.sent and not arena.word(event.slot):
                    calls.sk_emu_link(machine, arena.words[event.slot], ctypes.addressof(cells[event.slot]), False)
            answers = list(_answers(emitted, self.executable.plan.graph))
            for answer in answers:
                calls.sk_emu_agent(
                    machine, b"the host", arena.words[answer.asked], answer.value, 0, answer.op is not None
                )

            wrong: list[str] = []

            def acts(index: int) -> int:
                if index < 0:
                    return int(self.npu.calls.npu_aborted(self.stream))
                answer = answers[index]
                regions = [arena.regions[buffer_region(name)] for name in answer.reads]
                if not all(calls.sk_emu_agent_reads(machine, index, at.address, at.bytes) for at in regions):
                    return 1
                if not self._answered(arena.words[answer.writes[-1]], cells[answer.writes[-1]], answer.answer):
                    return 1
                order = [self.npu.calls.npu_written(arena.words[slot]) for slot in answer.writes]
                if not order[0] > 0 or order != sorted(order):
                    wrong.append("the host answered before its answer was there")
                    return 1
                if answer.op is not None:
                    key, blocks = (cells[slot].value for slot in answer.writes[:2])
                    functions = functions_text(emitted.ops[answer.op], key)
                    calls.sk_emu_decided(machine, answer.op, blocks, functions)
                written = [(arena.words[slot], cells[slot].value) for slot in answer.writes]
                return int(not all(calls.sk_emu_agent_writes(machine, index, *word) for word in written))

            callback = ACTS(acts)
            entries = [
                modules[kind].address(emitted.entry) if kind in emitted.launch.classes else None for kind in CoreClass
            ]
            calls.sk_emu_enter(machine, *entries, callback)
            failed = calls.sk_emu_run(machine)
            text: str = calls.sk_emu_error(machine).decode() if failed else ""
            if self.npu.calls.npu_aborted(self.stream):
                return "interrupted"
            return "\n".join([*wrong, text]) if failed else ""
        finally:
            calls.sk_emu_free(machine)

    def _cell(self, address: int) -> ctypes.c_uint64:
        cell = self.npu.calls.npu_word(address)
        if not cell:
            raise WrongLaunch(f"{address:#x} is no place of a word")
        return ctypes.c_uint64.from_address(cell)

    def _answered(self, word: int, cell: ctypes.c_uint64, answer: int) -> bool:
        """Waits for the answer, which the host writes after everything else; meanwhile no core moves."""

        def there() -> bool:
            return self.npu.calls.npu_written(word) > 0 and cell.value == answer

        self.npu.calls.npu_pause(1)
        end = time.monotonic() + _LONG_S
        while not there() and time.monotonic() < end and not self.npu.calls.npu_aborted(self.stream):
            time.sleep(50e-6)
        self.npu.calls.npu_pause(0)
        return there()

    def _arena(self, emitted: EmittedKernel) -> Arena:
        """Regions found through the slots; everything must be an allocation of its own, or a word with its own line."""
        slots = (ctypes.c_uint64 * len(emitted.layout.slots)).from_address(self.arguments)
        self._bytes(self.arguments)
        graph, names = self.executable.plan.graph, word_names(emitted)
        regions = [
            Region("the parameter block", self.arguments, ctypes.sizeof(slots)),
            Region("the sync area", slots[0], self._bytes(slots[0]), True),
        ]
        words = {slot: int(slots[slot]) for slot in names}
        data = data_words(emitted)
        regions += [Region(names[slot], address, 8, slot not in data) for slot, address in words.items()]
        lines = [address // _LINE for address in {names[slot]: address for slot, address in words.items()}.values()]
        if len(set(lines)) != len(lines):
            raise WrongLaunch("two words share a cache line")
        for slot in emitted.layout:
            if slot.index in names or slot.source is None or graph.buffers[slot.source].scalar:
                continue
            begin = slots[slot.index] - slot.addend
            regions.append(Region(buffer_region(slot.source), begin, self._bytes(begin)))
        if emitted.workspace_slot is not None:
            begin = slots[emitted.workspace_slot]
            if self._bytes(begin) < emitted.workspace_bytes:
                raise WrongLaunch("the workspace is too small")
            feed = emitted.feed_bytes
            regions.append(Region("the control words of feed-sync-all", begin, feed, True))
            regions.append(Region(DUMP, begin + feed, emitted.workspace_bytes - feed))
        if emitted.profiling_slot is not None:
            begin = slots[emitted.profiling_slot]
            regions.append(Region(PROFILING, begin, self._bytes(begin)))
        by_name = {region.name: region for region in regions if region.bytes}
        return Arena(np.zeros(0, np.uint8), by_name, self.arguments, words)

    def _bytes(self, address: int) -> int:
        size: int = self.npu.calls.npu_allocation(address)
        if not size:
            raise WrongLaunch(f"{address:#x} is not the beginning of device memory")
        return size


def stand_in_library() -> Path:
    """Compiled once for all runs of the tests."""
    key = digest("npu stand-in", SOURCE.read_bytes())
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-fno-gnu-unique", str(SOURCE), "-o"]
    return Cache().make(key, ".so", lambda output: subprocess.run([*command, str(output)], check=True))
