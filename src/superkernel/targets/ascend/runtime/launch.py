"""targets.ascend.runtime.launch: a built super kernel and buffers by name -> a launch on an NPU, and its outputs."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any

import numpy as np

from ....errors import LaunchError, UnsupportedError
from ....plan.spans import Span, TimeStamps
from ...buffers import IN_ARENA, HostMemory, allocate, bind, is_tensor, torch_or_none
from ...launch_reports import STALLED_STATUS
from ...protocol import BoundArguments, LaunchInputs, OpLabel, RawValue
from ..executable import AscendExecutable
from ..kernel_areas import printed_text, profiled_spans
from .acl_functions import AclCode, batch_schedule
from .device import AclDevice, DeviceMemory, open_device
from .host_agent import Duty, HostAgent, PrefetchRequest, ReceivedEvent, SentEvent, TilingRequest
from .launch_room import LaunchRoom

_NO_INPUTS = LaunchInputs({}, {})
_SLICE_S = 1.0  # Ctrl-C is noticed between two slices of a wait
_PATIENCE_S = 1.0  # how long a stopped launch waits for a tiling function
TORCH_DEVICE = "npu"  # torch_npu's name of the device
MEMORY = HostMemory(TORCH_DEVICE)
NS_PER_COUNT = 20.0  # of the counter behind time stamps: 50 MHz, as the Ascend C reference says of GetSystemCycle


@dataclass(frozen=True)
class _LoadedBinary:
    handle: int
    function: int


@dataclass(frozen=True)
class _Request:
    """One launch: values and sizes in the order of the graph's buffers."""

    values: Sequence[int]
    sizes: Sequence[int]
    inputs: LaunchInputs
    named: Mapping[str, Any]  # arrays and tensors behind the values, where they are known
    fresh: Collection[str]  # names whose memory holds nothing yet
    where: str


class AscendLoadedKernel:
    """A super kernel whose object goes to the device at the first launch. Threads may launch at once."""

    def __init__(self, executable: AscendExecutable, library: Path) -> None:
        self.plan: Any = executable.plan  # an AscendPlan, which has what observers ask of a Plan
        self._executable, self._emitted, self._library = executable, executable.emitted, library
        self._graph = executable.plan.graph
        self._where = f"super_kernel_scope {self._graph.name!r}: "
        self._lock = threading.Lock()
        self._loaded: tuple[AclDevice, _LoadedBinary] | None = None
        self._idle: list[LaunchRoom] = []
        self._running, self._closed = 0, False
        self._spans: tuple[Span, ...] = ()
        self._of_thread = threading.local()
        self._inside = {  # names that exist on the device only, if they are not passed
            buffer.name for buffer in self._graph.buffers.values() if buffer.can_allocate
        } - set(self._graph.outputs)

    # launching

    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> dict[str, Any]:
        bound = bind(self._graph, buffers, self._inside, MEMORY)
        named = dict(zip(self._graph.buffers, bound.keep, strict=True))
        self._run(_Request(bound.values, bound.sizes, launch_inputs, named, bound.outputs, self._where))
        return bound.outputs

    def bind(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> BoundArguments:
        bound = bind(self._graph, buffers, self._inside, MEMORY)
        values, sizes = self._arrays()
        values[:], sizes[:] = bound.values, bound.sizes
        named = {name: value for name, value in zip(self._graph.buffers, bound.keep, strict=True) if value is not None}
        return BoundArguments(values, sizes, bound.outputs, named, MEMORY)

    def launch_bound(self, arguments: BoundArguments, launch_inputs: LaunchInputs) -> None:
        self._run(_Request(arguments.values, arguments.sizes, launch_inputs, arguments.named, (), self._where))

    def argument_arrays(self) -> tuple[Any, Any]:
        """Arrays for launch_values, in the order of the graph's buffers: addresses of the host."""
        if self._emitted.tilings or self._emitted.events:
            what = "a dynamic op" if self._emitted.tilings else "an external event"
            raise LaunchError(f"{self._where}a kernel with {what} cannot be launched by values alone")
        return self._arrays()

    def _arrays(self) -> tuple[Any, Any]:
        count = len(self._graph.buffers)
        return (ctypes.c_uint64 * count)(), (ctypes.c_int64 * count)()

    def launch_values(self, values: Any, sizes: Any, op_label: OpLabel | None = None) -> None:
        self._run(_Request(values, sizes, _NO_INPUTS, {}, (), self._described(op_label)))

    def launch_addresses(
        self, arguments: Sequence[RawValue], launch_inputs: LaunchInputs, named: Mapping[str, Any], op_label: OpLabel
    ) -> None:
        values, sizes = [value for value, _ in arguments], [size for _, size in arguments]
        self._run(_Request(values, sizes, launch_inputs, named, (), self._described(op_label)))

    def _described(self, op_label: OpLabel | None) -> str:
        return f"super_kernel_scope {op_label.scope!r}: op {op_label.op!r}: " if op_label else self._where

    def _run(self, request: _Request) -> None:
        with self._entered(request.where) as (device, binary), device.current():
            room = self._take_room(device)
            agent = HostAgent(room, self._duties(room, request))
            done = False
            try:
                parameters = self._copy_in(room, request)
                begin = monotonic_ns()
                agent.start()
                doing = f"{request.where}launching {self._emitted.entry} on {self._emitted.launch.blocks} blocks"
                arguments = (parameters.address, parameters.bytes, ctypes.byref(batch_schedule()), room.stream)
                device.acl.check(doing, "aclrtLaunchKernelV2", binary.function, self._emitted.launch.blocks, *arguments)
                self._wait(room, agent, request)
                self._of_thread.times = begin, monotonic_ns()
                agent.leave(None)
                if agent.error is not None:
                    raise _agent_error(agent.error, request.where)
                self._copy_out(room, agent, request)
                done = True
            finally:
                self._leave(room, agent, request, done)

    def _leave(self, room: LaunchRoom, agent: HostAgent, request: _Request, done: bool) -> None:
        """After a launch that failed nothing of its room is used again."""
        if done:
            with self._lock:
                self._idle.append(room)
            return
        for node in self._graph.nodes:  # as after any launch
            for event in node.awaits:
                request.inputs.events[event].clear()
        if agent.leave(_PATIENCE_S):
            room.close(stopped=True)

    # the stages of a launch

    def _copy_in(self, room: LaunchRoom, request: _Request) -> Any:
        scalars, resident = {}, self._resident(room.device, request)
        for buffer, value, size in zip(self._graph.buffers.values(), request.values, request.sizes, strict=True):
            if buffer.scalar:
                scalars[buffer.name] = value
                continue
            if buffer.name in resident:
                room.buffers[buffer.name] = DeviceMemory(value, size)
                continue
            wanted = buffer.nbytes if size == IN_ARENA else size
            memory = room.place_buffer(buffer.name, wanted or 0)
            if size > 0 and buffer.name not in request.fresh:
                room.device.upload(memory, value, size, f"{request.where}copying {buffer.name!r} to the NPU")
        sync_base = room.device.acl.handle(f"{request.where}asking for the sync base", "aclrtGetHardwareSyncAddr")
        return room.prepare(scalars, sync_base)

    def _resident(self, device: AclDevice, request: _Request) -> set[str]:
        """Names of tensors on this NPU, which are used where they are; torch may still be computing them."""
        resident = _on_device(request.named)
        for name in resident:
            place = request.named[name].device
            if place.index not in (None, device.number):
                raise LaunchError(
                    f"{request.where}{name!r} is on device {place}; this process launches on NPU {device.number}"
                )
        if resident:
            device.finish_all(f"{request.where}waiting for the tensors that were passed")
        return resident

    def _wait(self, room: LaunchRoom, agent: HostAgent, request: _Request) -> None:
        """Until the kernel has ended, the agent has failed, or the watchdog's time is over."""
        acl, limit = room.device.acl, self._emitted.watchdog_s
        end = monotonic() + limit if limit else None
        try:
            while True:
                slice_s = _SLICE_S if end is None else min(_SLICE_S, end - monotonic())
                code = acl.code("aclrtSynchronizeStreamWithTimeout", room.stream, max(1, int(1000 * slice_s)))
                if agent.error is not None:
                    acl.recent_text()  # of the abort that the agent asked for
                    raise _agent_error(agent.error, request.where)
                if code == AclCode.SUCCESS:
                    return
                if code != AclCode.STREAM_SYNC_TIMEOUT:
                    error = acl.error(
                        f"{request.where}{self._emitted.entry}", "aclrtSynchronizeStreamWithTimeout", code
                    )
                    raise LaunchError("\n".join([str(error), *agent.notes()]))
                acl.recent_text()  # the kernel needs longer than a slice: that is no mistake
                if end is not None and monotonic() >= end:
                    raise self._stalled(room, agent, request)
        except KeyboardInterrupt:
            acl.code("aclrtStreamAbort", room.stream)
            raise

    def _stalled(self, room: LaunchRoom, agent: HostAgent, request: _Request) -> LaunchError:
        """Says what the launch may wait for, stops it, or ends the process if the user wants that."""
        emitted = self._emitted
        reasons = agent.pending() or [
            "no event and no tiling is outstanding: a sub-kernel hangs, or cores wait for each other"
        ]
        text = (
            f"{request.where}{emitted.entry} has not ended within {emitted.watchdog_s:g} s (debug-watchdog): "
            f"{'; '.join(reasons)}. Try k.emulate(...), which says where each core waits"
        )
        if emitted.watchdog_exits:
            os.write(2, f"superkernel: {text}\n".encode())
            os._exit(STALLED_STATUS)
        room.device.acl.check(f"{text}. It could not be stopped", "aclrtStreamAbort", room.stream)
        return LaunchError(text)

    def _copy_out(self, room: LaunchRoom, agent: HostAgent, request: _Request) -> None:
        """Outputs, what was printed, and time stamps."""
        try:
            agent.finish()
        except LaunchError as error:
            raise LaunchError(f"{request.where}{error}") from error
        resident = _on_device(request.named)
        for buffer, value, size in zip(self._graph.buffers.values(), request.values, request.sizes, strict=True):
            if buffer.written and not buffer.scalar and size > 0 and buffer.name not in resident:
                doing = f"{request.where}copying {buffer.name!r} from the NPU"
                room.device.download(value, room.buffers[buffer.name], size, doing)
        if self._emitted.dump is not None and (printed := printed_text(self._emitted, room.dump())):
            sys.stdout.write(printed + "\n")
        if self._emitted.profiling is not None:
            self._spans = profiled_spans(self._emitted, room.profiling(), NS_PER_COUNT)

    def _duties(self, room: LaunchRoom, request: _Request) -> list[Duty]:
        emitted, duties = self._emitted, list[Duty]()
        for word in emitted.events:
            event = request.inputs.events.get(word.label)
            if event is not None:
                duties.append(SentEvent(event, word) if word.sent else ReceivedEvent(event, word, room))
        nodes = {node.name: node for node in self._graph.nodes}

        def contents(name: str) -> Any:
            """A copy, as an array or tensor of the kind that was passed."""
            like = request.named.get(name)
            copy = allocate(self._graph.buffers[name], _is_tensor(request.named)) if like is None else _blank(like)
            address, size = _memory(copy)
            room.device.download(address, room.buffers[name], size, f"{request.where}copying {name!r} from the NPU")
            return copy

        for slots in emitted.tilings:
            function = request.inputs.tilings[slots.op]
            duties.append(TilingRequest(nodes[slots.op], slots, function, contents, room))
        duties += [PrefetchRequest(prefetch, room) for prefetch in emitted.prefetches]
        return duties

    # what is on the device

    @contextmanager
    def _entered(self, where: str) -> Iterator[tuple[AclDevice, _LoadedBinary]]:
        """Counted as running; the object is on the device."""
        if any(event.between_ranks for event in self._emitted.events):
            raise UnsupportedError(
                f"{self._where}it waits for other ranks of {self._graph.collectives[0].group}; launches on several "
                "NPUs are not connected: run it with sk.emulate_ranks"
            )
        with self._lock:
            if self._closed:
                raise LaunchError(f"{self._where}the kernel is closed")
            if self._loaded is None:
                self._loaded = self._load(where)
            self._loaded[0].check_process(where)
            self._running += 1
        try:
            yield self._loaded
        finally:
            with self._lock:
                self._running -= 1

    def _load(self, where: str) -> tuple[AclDevice, _LoadedBinary]:
        binary, entry = self._executable.built.binary, self._emitted.entry
        if binary is None:
            raise LaunchError(f"{where}there is no object to launch: {self._executable.built.status}")
        try:
            device = open_device(self._library)
        except LaunchError as error:
            raise LaunchError(f"{where}{error}") from error
        path = str(binary.resolve())
        with device.current():
            handle = device.acl.handle(f"{where}loading {path}", "aclrtBinaryLoadFromFile", path.encode(), None)
            try:
                doing = f"{where}looking for {entry} in {path}"
                function = device.acl.handle(doing, "aclrtBinaryGetFunction", handle, entry.encode())
            except LaunchError:
                device.acl.code("aclrtBinaryUnLoad", handle)
                raise
        device.add(self)
        return device, _LoadedBinary(handle, function)

    def _take_room(self, device: AclDevice) -> LaunchRoom:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return LaunchRoom(device, self._emitted, self._graph, self._where)

    def running(self) -> int:
        return self._running

    def synchronize(self) -> None: ...  # a launch has completed when its call returns

    def close(self) -> None:
        with self._lock:
            self._closed = True
            rooms, self._idle = self._idle, []
            loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        device, binary = loaded
        with device.current():
            for room in rooms:
                room.close()
            device.acl.check(f"{self._where}unloading the object", "aclrtBinaryUnLoad", binary.handle)

    # what was recorded

    def spans(self) -> tuple[Span, ...]:
        return self._spans

    def time_stamps(self) -> TimeStamps | None:
        return None  # records of the device name marks, not steps of the plan: spans() has them

    def last_launch(self) -> tuple[int, int]:
        times: tuple[int, int] = getattr(self._of_thread, "times", (0, 0))
        return times


def _agent_error(error: BaseException, where: str) -> BaseException:
    if isinstance(error, LaunchError):
        named = LaunchError(f"{where}{str(error).removeprefix(where)}")
        named.__cause__ = error
        return named
    return error


def _on_device(named: Mapping[str, Any]) -> set[str]:
    return {name for name, value in named.items() if is_tensor(value) and value.device.type == TORCH_DEVICE}


def _is_tensor(named: Mapping[str, Any]) -> bool:
    return any(map(is_tensor, named.values()))


def _blank(value: Any) -> Any:
    """Memory of the host, also for a tensor of the NPU."""
    return torch_or_none().empty(value.shape, dtype=value.dtype) if is_tensor(value) else np.empty_like(value)


def _memory(value: Any) -> tuple[int, int]:
    return (value.data_ptr() if is_tensor(value) else value.ctypes.data), value.nbytes
