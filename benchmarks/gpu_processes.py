"""Whether two processes on one GPU can wait for each other inside kernels, and how long an exchange takes.

    python benchmarks/gpu_processes.py [--seconds 4] [--json result.json]

Needs the CUDA driver and nothing else. Each case is two new processes that share memory in one way (`ipc`: memory of
one process, opened by the other by its handle; `descriptor`: memory that is passed as a file descriptor; `host`: pinned
memory of the host), once under the time slices of the driver and once under MPS where it is installed. Kernels give up
after `--seconds`, and processes that are late are killed: nothing can hang. What fails is a line of the table.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_char, c_int, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_driver import (
    LAZY_PEER_ACCESS,
    NON_BLOCKING,
    ON_DEVICE,
    PINNED,
    PORTABLE_MAPPED,
    POSIX_DESCRIPTOR,
    READ_WRITE,
    SM_COUNT,
    Access,
    AllocationProperties,
    Driver,
    DriverError,
    Handle64,
    Location,
)

WINDOW = 1 << 21  # bytes, the granularity of device memory that is passed as a descriptor
HALF = WINDOW // 2  # the flags of the second process
STARTING_S = 60  # a process may need so long to open the GPU
TRANSPORTS = ("ipc", "descriptor", "host")

PTX = Path(__file__).with_suffix(".ptx").read_text()


# one process


@dataclass
class Process:
    """One of the two, with the GPU open: `place` is 0 or 1, `peer` a socket to the other one."""

    place: int
    peer: socket.socket
    limit_s: float

    def __post_init__(self) -> None:
        self.driver = driver = Driver()
        driver("cuInit", 0)
        device = driver.made(c_int, "cuDeviceGet", 0)
        driver("cuCtxSetCurrent", driver.made(c_void_p, "cuDevicePrimaryCtxRetain", device))
        self.sms = driver.made(c_int, "cuDeviceGetAttribute", SM_COUNT, device)
        module = driver.made(c_void_p, "cuModuleLoadData", ctypes.c_char_p(PTX.encode()))
        self.function = driver.made(c_void_p, "cuModuleGetFunction", module, b"exchange")
        self.stream = driver.made(c_void_p, "cuStreamCreate", NON_BLOCKING)
        self.side_stream = driver.made(c_void_p, "cuStreamCreate", NON_BLOCKING)
        self.result = driver.made(c_uint64, "cuMemAlloc_v2", 24 * self.sms)
        self.control = driver.made(c_void_p, "cuMemHostAlloc", 64, PORTABLE_MAPPED)
        ctypes.memset(self.control, 0, 64)
        self.device_control = driver.made(c_uint64, "cuMemHostGetDevicePointer_v2", self.control, 0)

    def send(self, content: bytes) -> None:
        self.peer.sendall(len(content).to_bytes(4, "little") + content)

    def receive(self) -> bytes:
        size = int.from_bytes(self._read(4), "little")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            more = self.peer.recv(size - len(content))
            if not more:
                raise DriverError("the other process has ended")
            content += more
        return content

    def meet(self) -> None:
        self.send(b"here")
        self.receive()

    def share(self, transport: str) -> int:
        """The address of a window that both processes see."""
        return {"ipc": self._by_handle, "descriptor": self._by_descriptor, "host": self._in_host_memory}[transport]()

    def _by_handle(self) -> int:
        driver = self.driver
        if self.place == 0:
            address: int = driver.made(c_uint64, "cuMemAlloc_v2", WINDOW)
            handle = Handle64()
            driver("cuIpcGetMemHandle", byref(handle), address)
            self.send(bytes(handle))
            return address
        handle = Handle64.from_buffer_copy(self.receive())
        opened: int = driver.made(c_uint64, "cuIpcOpenMemHandle_v2", handle, LAZY_PEER_ACCESS)
        return opened

    def _by_descriptor(self) -> int:
        driver, location = self.driver, Location(ON_DEVICE, 0)
        if self.place == 0:
            wanted = AllocationProperties(PINNED, POSIX_DESCRIPTOR, location, None, b"")
            memory = driver.made(c_uint64, "cuMemCreate", WINDOW, byref(wanted), 0)
            descriptor = driver.made(c_int, "cuMemExportToShareableHandle", memory, POSIX_DESCRIPTOR, 0)
            socket.send_fds(self.peer, [b"fd"], [descriptor])
        else:
            _, (descriptor, *_), _, _ = socket.recv_fds(self.peer, 2, 1)
            memory = driver.made(c_uint64, "cuMemImportFromShareableHandle", descriptor, POSIX_DESCRIPTOR)
        address: int = driver.made(c_uint64, "cuMemAddressReserve", WINDOW, 0, 0, 0)
        driver("cuMemMap", address, WINDOW, 0, memory, 0)
        driver("cuMemSetAccess", address, WINDOW, byref(Access(location, READ_WRITE)), 1)
        return address

    def _in_host_memory(self) -> int:
        if self.place == 0:
            descriptor = os.memfd_create("gpu_processes")
            os.ftruncate(descriptor, WINDOW)
            socket.send_fds(self.peer, [b"fd"], [descriptor])
        else:
            _, (descriptor, *_), _, _ = socket.recv_fds(self.peer, 2, 1)
        self.mapped = mmap.mmap(descriptor, WINDOW)
        host = ctypes.addressof(c_char.from_buffer(self.mapped))
        self.driver("cuMemHostRegister_v2", host, WINDOW, PORTABLE_MAPPED)
        address: int = self.driver.made(c_uint64, "cuMemHostGetDevicePointer_v2", host, 0)
        return address

    def _arguments(self, window: int, limit_s: float, rounds: int) -> Any:
        """The parameters of the kernel, as the driver takes them."""
        mine, theirs = window + HALF * self.place, window + HALF * (1 - self.place)
        values = [c_uint64(value) for value in (mine, theirs, self.result, self.device_control, int(limit_s * 1e9))]
        self._kept = [*values, c_uint(rounds)]
        return (c_void_p * len(self._kept))(*map(ctypes.addressof, self._kept))

    def exchange(self, window: int, blocks: int, rounds: int, limit_s: float, cooperative: bool) -> dict[str, Any]:
        """Both launch; a copy on a side stream meanwhile, as the run time's watchdog makes them."""
        driver = self.driver
        if self.place == 0:
            driver("cuMemsetD8Async", window, 0, WINDOW, self.side_stream)
            driver("cuStreamSynchronize", self.side_stream)
        places = self._arguments(window, limit_s, rounds)
        self.meet()
        begin = time.monotonic()
        if cooperative:
            driver("cuLaunchCooperativeKernel", self.function, blocks, 1, 1, 32, 1, 1, 0, self.stream, places)
        else:
            driver("cuLaunchKernel", self.function, blocks, 1, 1, 32, 1, 1, 0, self.stream, places, None)
        word, copies = c_uint(), []
        end = begin + limit_s + 5
        while (code := driver.code("cuStreamQuery", self.stream)) == 600:  # not ready
            if time.monotonic() > end:
                raise DriverError(f"the kernel did not end within {limit_s + 5:g} s")
            before = time.monotonic()
            driver("cuMemcpyDtoHAsync_v2", byref(word), self.result, 4, self.side_stream)
            driver("cuStreamSynchronize", self.side_stream)
            copies.append(time.monotonic() - before)
            time.sleep(0.001)
        if code:
            driver("cuStreamSynchronize", self.stream)
        wall_s = time.monotonic() - begin
        words = (c_uint64 * (3 * blocks))()
        driver("cuMemcpyDtoHAsync_v2", words, self.result, ctypes.sizeof(words), self.side_stream)
        driver("cuStreamSynchronize", self.side_stream)
        made, taken, verdict = words[0::3], words[1::3], words[2::3]
        return {
            "rounds": min(made),
            "of": rounds,
            "late_blocks": sum(each != 0 for each in verdict),
            "verdicts": sorted(set(verdict)),
            "us_per_round": round(max(taken) / 1e3 / max(1, min(made)), 2),
            "wall_ms": round(1e3 * wall_s, 2),
            "copies_meanwhile": len(copies),
            "slowest_copy_ms": round(1e3 * max(copies), 2) if copies else None,
        }

    def stopped(self, window: int) -> dict[str, Any]:
        """Only process 0 launches; its abort word, written by the host after 50 ms, must end the kernel."""
        self.meet()
        if self.place:
            self.meet()
            return {}
        values = [
            c_uint64(v) for v in (window, window + HALF, self.result, self.device_control, int(self.limit_s * 1e9))
        ]
        arguments = [*values, c_uint(1 << 30)]
        places = (c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self.driver("cuMemsetD8Async", window, 0, WINDOW, self.side_stream)
        self.driver("cuStreamSynchronize", self.side_stream)
        self.driver("cuLaunchKernel", self.function, 1, 1, 1, 32, 1, 1, 0, self.stream, places, None)
        time.sleep(0.05)
        begin = time.monotonic()
        c_uint.from_address(self.control).value = 1
        self.driver("cuStreamSynchronize", self.stream)
        ended_ms = 1e3 * (time.monotonic() - begin)
        c_uint.from_address(self.control).value = 0
        self.meet()
        return {"ended_ms_after_the_abort_word": round(ended_ms, 2)}


def run_process(place: int, descriptor: int, transport: str, limit_s: float) -> None:
    """Prints one line of JSON for each case, and the error that ended the rest."""
    peer = socket.socket(fileno=descriptor)
    peer.settimeout(STARTING_S)
    case = "opening the GPU"

    def say(result: Mapping[str, Any]) -> None:
        print(json.dumps({"place": place, "case": case, **result}), flush=True)

    try:
        process = Process(place, peer, limit_s)
        case = f"sharing memory ({transport})"
        window = process.share(transport)
        process.meet()
        say({"ok": True})
        sms = process.sms
        for name, blocks, rounds, cooperative in (
            ("1 block", 1, 200, False),
            ("half of the SMs, cooperative", sms // 2, 100, True),
            ("all SMs, cooperative", sms, 100, True),
            ("1 block, again", 1, 500, False),
        ):
            case = name
            say(process.exchange(window, blocks, rounds, limit_s, cooperative))
        case = "abort word"
        say(process.stopped(window))
    except (DriverError, OSError, ValueError) as error:
        say({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


# the parent


def run_pair(transport: str, limit_s: float, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Two new processes; what each printed."""
    ends = socket.socketpair()
    children = []
    for place, end in enumerate(ends):
        command = [sys.executable, __file__, "--place", str(place), "--descriptor", str(end.fileno())]
        command += ["--transport", transport, "--seconds", str(limit_s)]
        children.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                pass_fds=[end.fileno()],
                env={**os.environ, **environment},
                start_new_session=True,
            )
        )
    for end in ends:
        end.close()
    deadline = time.monotonic() + STARTING_S + 8 * limit_s
    lines: list[dict[str, Any]] = []
    for place, child in enumerate(children):
        try:
            output, _ = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            for late in children:
                if late.poll() is None:
                    os.killpg(late.pid, signal.SIGKILL)
            output = child.communicate()[0] + json.dumps({"place": place, "error": "killed: it was late"})
        for line in output.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append({"place": place, "output": line})
    return lines


@contextmanager
def mps() -> Iterator[Mapping[str, str] | None]:
    """An MPS server of our own for a while; None where there is none."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {f"CUDA_MPS_{kind}_DIRECTORY": str(Path(folder) / kind.lower()) for kind in ("PIPE", "LOG")}
        for place in places.values():
            Path(place).mkdir()
        environment = {**os.environ, **places}
        try:
            subprocess.run([control, "-d"], env=environment, check=True, timeout=20, capture_output=True)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"MPS does not start: {error}", flush=True)
            yield None
            return
        try:
            yield places
        finally:
            try:
                subprocess.run(
                    [control],
                    input="quit -t 5\n",
                    env=environment,
                    text=True,
                    timeout=20,
                    capture_output=True,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                print("MPS did not quit within 20 s", flush=True)
            for log in sorted(Path(places["CUDA_MPS_LOG_DIRECTORY"]).glob("*.log")):
                print(f"{log.name}: {log.read_text(errors='replace')[-600:]}", flush=True)


def machine() -> str:
    """The GPU, its driver and compute mode, in the words of nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,compute_mode,mig.mode.current", "--format=csv,noheader"]
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="after which a kernel gives up")
    parser.add_argument("--json", type=Path, help="a file for all results")
    parser.add_argument("--place", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--descriptor", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--transport", choices=TRANSPORTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.place is not None:
        run_process(given.place, given.descriptor, given.transport, given.seconds)
        return
    print(machine(), flush=True)
    print(f"kernel {os.uname().release}, user {os.getuid()}", flush=True)
    found: dict[str, Any] = {"machine": machine()}

    def run_all(scheduling: str, environment: Mapping[str, str]) -> None:
        for transport in TRANSPORTS:
            begin = time.monotonic()
            found[f"{scheduling}, {transport}"] = lines = run_pair(transport, given.seconds, environment)
            print(f"== {scheduling}, {transport} ({time.monotonic() - begin:.1f} s)", flush=True)
            for line in lines:
                print(f"  {json.dumps(line)}", flush=True)

    run_all("time slices", {})
    with mps() as environment:
        if environment is None:
            print("== MPS: not here", flush=True)
        else:
            run_all("MPS", environment)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
