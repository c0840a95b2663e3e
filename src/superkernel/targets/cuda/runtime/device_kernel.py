"""targets.cuda.runtime.device_kernel: the image of a kernel on one device: its module, its states, its launches."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref, c_int, c_uint64, c_void_p
from time import monotonic, sleep
from typing import Any, Protocol, cast

from ....errors import LaunchError
from ....model.events import Event
from .device import CAPTURED_ELSEWHERE, open_device
from .driver_functions import (
    CaptureStatus,
    CuCode,
    CuLaunchConfig,
    cluster_attribute,
    cooperative_attribute,
    launch_config,
)
from .event_words import event_address
from .image import KernelImage
from .modules import blocks_per_sm, check_clusters, check_resident, find_function, load_module, release_module
from .rank_connection import RankConnection
from .sync_state import LaunchState
from .watchdog import PATIENCE_S, WATCHDOG

_SPINS, _SLEEP_S, _LONGEST_SLEEP_S = 50, 20e-6, 2e-3


class LaunchValues(Protocol):
    """The values of a launch, which are the kernel's parameter block, and what the driver needs to launch them."""

    state: LaunchState | None  # whose areas the values name
    device: DeviceKernel | None
    parameters: Any
    in_arena: tuple[tuple[int, str], ...]  # places of inner buffers that were not passed
    arena: tuple[tuple[int, int], ...]  # their addresses in the areas of the state

    def __setitem__(self, place: Any, value: Any) -> None: ...


def values_type(count: int) -> Callable[[], LaunchValues]:
    """An array of 64-bit values with the fields of LaunchValues."""
    fields = {"state": None, "device": None, "parameters": None, "in_arena": (), "arena": ()}
    array_type: Callable[[], LaunchValues] = type("LaunchValuesArray", (c_uint64 * count,), fields)
    return array_type


class DeviceKernel:
    """A kernel loaded on one device."""

    def __init__(self, image: KernelImage, index: int) -> None:
        where = image.where
        try:
            self.device = device = open_device(index)
        except LaunchError as error:
            raise LaunchError(f"{where}{error}") from error
        self.image, self._where = image, where
        self.ranks: RankConnection | None = None  # the other processes that launches wait for
        self._states: dict[int, LaunchState] = {}  # by stream
        self._captured: list[LaunchState] = []
        try:
            binary = image.cubin.read_bytes()
        except OSError as reason:
            raise LaunchError(f"{where}{image.cubin} cannot be read: {reason}") from reason
        clusters = [cluster_attribute(image.cluster)] if image.cluster > 1 else []
        self._attributes = [cooperative_attribute(), *clusters]
        with device.current():
            self._module = load_module(device, binary, image.symbols, image.cubin, where)
            try:
                self._function = find_function(self._module, image.entry, image.shared_bytes, where)
                self._check_resident(device.usable_sms, 0)
            except LaunchError:
                release_module(self._module)
                raise
        self.last: LaunchState | None = None  # of the last launch
        # the calls of a launch: the driver may block the first if its queue is full
        self._launch = device.driver.unconverted("cuLaunchKernelEx", blocks=True)
        self._is_capturing = device.driver.unconverted("cuStreamIsCapturing", blocks=False)
        self._get_current = device.driver.unconverted("cuCtxGetCurrent", blocks=False)
        self._status, self._current, self._function_handle = c_int(), c_void_p(), c_void_p(self._function)
        self._status_reference, self._current_reference = byref(self._status), byref(self._current)
        self._context = device.context
        self._checks_context = device.driver.device_count() > 1  # with one device the launch itself finds out

    def _check_resident(self, sms: int, stream: int) -> None:
        image = self.image
        check_resident(self.device, self._function, image.sms, image.threads, image.shared_bytes, sms, self._where)
        if image.cluster > 1:
            config = launch_config(image.sms, image.threads, image.shared_bytes, stream, self._attributes[1:])
            check_clusters(self.device, self._function, config, image.cluster, self._where)

    def gpu_share(self) -> float:
        """Which part of the device its blocks fill; it is current."""
        image, device = self.image, self.device
        fit = blocks_per_sm(device, self._function, image.threads, image.shared_bytes, self._where)
        return image.sms / (fit * device.usable_sms)

    # launching; the caller holds the lock of the kernel

    def launch_again(self, values: LaunchValues, stream: int) -> bool:
        """The shortest way, for values that were launched before on the same stream. False: take `launch`."""
        state = values.state
        if state is None or state.stream != stream or state.captured or state.error is not None:
            return False
        if self._checks_context and (
            self._get_current(self._current_reference) or self._current.value != self._context
        ):
            self.device.enter()
        # the default stream cannot be captured
        if stream and (self._is_capturing(state.stream_handle, self._status_reference) or self._status.value):
            return False
        code = self._launch(state.config_reference, self._function_handle, values.parameters, None)
        if code:
            self._launch_entered(code, state, values)
        state.launches += 1
        self.last = state
        return True

    def repeater(
        self,
        values: LaunchValues,
        lock: threading.Lock,
        may_launch: Callable[[], bool],
        read_stream: Callable[[int], int],
    ) -> Callable[[], bool]:
        """A function that launches these values as `launch_again` does; False: it launched nothing."""
        launch, function, index = self._launch, self._function_handle, self.device.index
        plain = not self._checks_context

        def again() -> bool:
            stream = read_stream(index)
            with lock:
                state = values.state
                if state is None or state.error is not None or not may_launch():
                    return False
                if stream or state.stream or not plain:
                    return self.launch_again(values, stream)
                # as launch_again, on the default stream of the only device
                if code := launch(state.config_reference, function, values.parameters, None):
                    self._launch_entered(code, state, values)
                state.launches += 1
                self.last = state
                return True

        return again

    def _launch_entered(self, code: int, state: LaunchState, values: LaunchValues) -> None:
        """Once more, if the calling thread was in no context or in another one: then nothing was launched."""
        if code in (CuCode.INVALID_CONTEXT, CuCode.INVALID_HANDLE):
            self.device.enter()
            code = self._launch(state.config_reference, self._function_handle, values.parameters, None)
        if code:
            raise self._launch_error(code)

    def launch(
        self, values: LaunchValues, stream: int, events: Sequence[Event], earlier_streams: Sequence[int] = ()
    ) -> None:
        """Fills in the addresses that depend on the stream, and launches."""
        device = self.device
        device.check_process(self._where)
        device.enter()
        status = device.capture_status(stream, f"{self._where}launch")
        if status is CaptureStatus.INVALIDATED:
            raise LaunchError(
                f"{self._where}launch: the capture of this stream has failed already; end it, and capture again"
            )
        for earlier_state in self.states():
            self.raise_error(earlier_state)
        captured = status is CaptureStatus.ACTIVE
        if self.ranks is not None:
            self.ranks.begin(stream, captured)
        state = self._state_of(stream, captured)
        with device.current():
            self._fill(values, state, events)
            for earlier in earlier_streams:
                if earlier != stream:
                    device.order_after(stream, earlier, f"{self._where}waiting for the arrays that were passed")
        if code := self._launch(state.config_reference, self._function_handle, values.parameters, None):
            error = self._launch_error(code)
            if self.ranks is not None:
                self.ranks.fail(str(error))
            raise error
        state.launches += 1
        self.last = state

    def _fill(self, values: LaunchValues, state: LaunchState, events: Sequence[Event]) -> None:
        addresses = state.arena_addresses() if values.in_arena else {}
        values.arena = tuple((place, addresses[name]) for place, name in values.in_arena)
        for place, address in values.arena:
            values[place] = address
        first = len(self.image.plan.graph.buffers)
        for number, event in enumerate(events):
            values[first + number] = event_address(self.device, event, self._where)
        values[first + len(events)] = state.area("copies")
        values[first + len(events) + 1] = state.area("scratch")
        values.parameters = (c_void_p * 2)(ctypes.addressof(state.parameter), ctypes.addressof(cast(Any, values)))
        values.state, values.device = state, self

    def _state_of(self, stream: int, captured: bool) -> LaunchState:
        """Made at the first launch on a stream, and for every captured launch."""
        state = None if captured else self._states.get(stream)
        if state is None:
            with self.device.current():
                self._check_resident(self.device.stream_sms(stream), stream)
                state = LaunchState(self.device, self.image, stream, captured, self.ranks)
            state.config = self._config(stream)
            state.config_reference = byref(state.config)
            if captured:
                self._captured.append(state)
            else:
                self._states[stream] = state
            WATCHDOG.watch(state)
        return state

    def _config(self, stream: int) -> CuLaunchConfig:
        image = self.image
        return launch_config(image.sms, image.threads, image.shared_bytes, stream, self._attributes)

    def _launch_error(self, code: int) -> LaunchError:
        image = self.image
        doing = f"{self._where}launching {image.entry} on {image.sms} blocks of {image.threads} threads"
        if code == CuCode.STREAM_CAPTURE_IMPLICIT:
            return LaunchError(f"{self._where}launch: {CAPTURED_ELSEWHERE}")
        if code == CuCode.COOPERATIVE_LAUNCH_TOO_LARGE:
            return LaunchError(
                f"{doing}: {self.device.driver.code_text(code)}: its blocks wait for each other, and fewer SMs are "
                f"usable now than the {self.device.usable_sms} of the context: a green context, MPS or another "
                "process holds the others. Compile it with fewer cores"
            )
        return self.device.driver.error(doing, "cuLaunchKernelEx", code)

    # errors and completion

    def raise_error(self, state: LaunchState) -> None:
        """The error of an earlier launch with this state, once; afterwards the state works again."""
        error = state.error
        if error is None:
            return
        with state.recovering, self.device.current():
            if state.control.read() and not state.recover(PATIENCE_S):
                raise LaunchError(
                    f"{error}\n  It was aborted, and a sub-kernel has not returned since: this stream cannot be used"
                )
        state.error = None
        raise error

    def states(self) -> Iterator[LaunchState]:
        yield from self._states.values()
        yield from self._captured

    def wait(self) -> None:
        """Until all launches have ended. Ctrl-C ends them; a LaunchError says which was stopped."""
        try:
            for state in self.states():
                self._wait_for(state)
        except KeyboardInterrupt:
            self.abort()
            raise
        for state in self.states():
            self.raise_error(state)

    def _wait_for(self, state: LaunchState) -> None:
        pause, polls = _SLEEP_S, 0
        while state.captured or state.launches:
            with self.device.current():
                if state.completed(state.snapshot()):
                    return
            if state.error is not None:
                return
            polls += 1
            if polls > _SPINS:
                sleep(pause)
                pause = min(2 * pause, _LONGEST_SLEEP_S)

    def abort(self) -> None:
        """End all launches in progress, without an error."""
        with self.device.current():
            running = [state for state in self.states() if not state.completed(state.snapshot())]
            end = monotonic() + PATIENCE_S
            for state in running:
                state.abort(None)
            if running and self.ranks is not None:
                self.ranks.fail("a launch was interrupted")
            for state in running:
                with state.recovering:
                    state.recover(max(0.0, end - monotonic()))

    def in_use(self) -> bool:
        """Whether a graph may use a state, or a launch has not ended."""
        try:
            with self.device.current():
                return any(state.captured or not state.completed(state.snapshot()) for state in self.states())
        except LaunchError:  # the context is lost
            return True

    def close(self, waits: bool = True) -> None:
        """Nothing is running. All is freed when it returns if it `waits` for the watchdog; a finalizer must not."""
        with self.device.current():
            for state in self.states():
                WATCHDOG.close(state)
            release_module(self._module)
        if waits:
            WATCHDOG.finish_look()
        self._states.clear()
        self._captured.clear()


def close_forgotten(kernels: Mapping[int, DeviceKernel]) -> None:
    """Of a kernel that nothing refers to any more. What a graph or a launch may still use stays."""
    for kernel in kernels.values():
        if kernel.in_use():
            for state in kernel.states():
                WATCHDOG.forget(state)
        else:
            kernel.close(waits=False)
            if kernel.ranks is not None:
                kernel.ranks.close(waits=False)
