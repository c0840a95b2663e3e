"""targets.cuda.runtime.original_entry: a sub-kernel as its own compiler made it -> launches with its own grid.

This is what "unfused" means on this target: the entry of the user's PTX, assembled by the same assembler, with its own
blocks and threads, as the framework that it comes from launches it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from ctypes import c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import Any

from ....errors import LaunchError
from ....plan import Plan
from ....plan.spans import Span
from ...buffers import bind
from ...protocol import BoundArguments, LaunchInputs, OpLabel, RawValue
from ..build import assemble_alone
from ..device import DeviceDescription
from ..facts import facts_of
from .arguments import CudaMemory, address_device, allocated, current_stream
from .device import CudaDevice, open_device
from .driver_functions import CuLaunchConfig, cooperative_attribute
from .launch_timing import TIMING
from .modules import LoadedModule, check_resident, find_function, load_module, release_module

_NO_INPUTS = LaunchInputs({}, {})
Extent = tuple[int, int, int]


@dataclass(frozen=True)
class OriginalEntry:
    """The entry of a sub-kernel, and how its framework launches it."""

    plan: Plan  # of one op; its buffers are named after the parameters
    cubin: Path
    symbol: str
    grid: Extent
    threads: Extent
    shared_bytes: int  # dynamic
    scratch: tuple[int, ...] = ()  # bytes of each scratch pointer that follows the user's parameters; 0: a null pointer
    cooperative: bool = False  # its blocks wait for each other

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names, one per parameter of the user."""
        (node,) = self.plan.graph.nodes
        return tuple(str(name) for name in node.op.args)

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


def find_original(plan: Plan, device: DeviceDescription) -> OriginalEntry:
    """The entry of the only op of a plan, assembled as it is."""
    (node,) = plan.graph.nodes
    kernel, facts = node.kernel, facts_of(node.kernel)
    blocks, scratch = kernel.grid or (kernel.block_dim, 1, 1), tuple[int, ...]()
    if facts.layout.scratch is not None:
        scratch = (facts.scratch * blocks[0] * blocks[1] * blocks[2], 0)
    return OriginalEntry(
        plan,
        assemble_alone(kernel, device).cubin,
        facts.symbol,
        blocks,
        facts.threads,
        facts.dynamic_shared,
        scratch,
        bool(kernel.sync_all),
    )


class _LoadedEntry:
    """An entry on one device."""

    def __init__(self, entry: OriginalEntry, index: int, where: str) -> None:
        self.device = open_device(index)
        binary = entry.cubin.read_bytes()
        with self.device.current():
            self.module: LoadedModule = load_module(self.device, binary, {}, entry.cubin, where)
            self.function = find_function(self.module, entry.symbol, entry.shared_bytes, where)
            if entry.cooperative:
                threads = entry.threads[0] * entry.threads[1] * entry.threads[2]
                resources = (entry.blocks, threads, entry.shared_bytes, self.device.usable_sms)
                check_resident(self.device, self.function, *resources, where)
        self._attribute = cooperative_attribute()
        attributes = ctypes.pointer(self._attribute)
        self.config = CuLaunchConfig(
            entry.grid, entry.threads, entry.shared_bytes, None, attributes, int(entry.cooperative)
        )
        self._scratch = [
            allocated(index, (size,), "uint8", f"{where}allocating scratch memory") if size else None
            for size in entry.scratch
        ]

    def scratch_addresses(self) -> list[int]:
        return [_address(area) for area in self._scratch]

    def close(self) -> None:
        with self.device.current():
            release_module(self.module)


class OriginalKernel:
    """The LoadedKernel of one sub-kernel by itself."""

    def __init__(self, entry: OriginalEntry) -> None:
        self.plan, self._entry, self._graph = entry.plan, entry, entry.plan.graph
        self._where = f"super_kernel_scope {self._graph.name!r}: "
        self._places = {name: place for place, name in enumerate(self._graph.buffers)}
        self._lock = threading.Lock()
        self._loaded: dict[int, _LoadedEntry] = {}
        self._closed = False
        self._of_thread = threading.local()

    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> dict[str, Any]:
        arguments = self.bind(buffers, launch_inputs)
        self.launch_bound(arguments, launch_inputs)
        return arguments.outputs

    def bind(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> BoundArguments:
        bound = bind(self._graph, buffers, memory=CudaMemory())
        values, sizes = self.argument_arrays()
        values[:], sizes[:] = bound.values, bound.sizes
        named = dict(zip(self._graph.buffers, bound.keep, strict=True))
        return BoundArguments(values, sizes, bound.outputs, named, CudaMemory())

    def launch_bound(self, arguments: BoundArguments, launch_inputs: LaunchInputs) -> None:
        self.launch_values(arguments.values, arguments.sizes)

    def argument_arrays(self) -> tuple[Any, Any]:
        count = len(self._graph.buffers)
        return (c_uint64 * count)(), (c_int64 * count)()

    def launch_addresses(
        self, arguments: Sequence[RawValue], launch_inputs: LaunchInputs, named: Mapping[str, Any], op_label: OpLabel
    ) -> None:
        self.launch_values([value for value, _ in arguments], [size for _, size in arguments], op_label)

    def launch_values(self, values: Any, sizes: Any, op_label: OpLabel | None = None) -> None:
        where = self._where if op_label is None else f"super_kernel_scope {op_label.scope!r}: op {op_label.op!r}: "
        buffers = zip(self._graph.buffers.values(), values, sizes, strict=False)
        address = next((value for buffer, value, size in buffers if not buffer.scalar and size > 0), 0)
        index = address_device(address)
        with self._lock:
            loaded = self._on(index, where)
            own_values = [values[self._places[name]] for name in self._entry.arguments] + loaded.scratch_addresses()
            block = (c_uint64 * len(own_values))(*own_values)
            base = ctypes.addressof(block)
            pointers = (c_void_p * len(own_values))(*(base + 8 * place for place in range(len(own_values))))
            device, stream = loaded.device, current_stream(index)
            device.check_process(where)
            device.enter()
            device.capture_status(stream, f"{where}launch")
            loaded.config.stream = stream
            begin = monotonic_ns()
            doing = f"{where}launching {self._entry.symbol} on {self._entry.blocks} blocks"
            device.driver.check(doing, "cuLaunchKernelEx", loaded.config, loaded.function, pointers, None)
        if TIMING.enabled:
            device.finish(stream, f"{where}{self._entry.symbol}")
        self._of_thread.times = begin, monotonic_ns()

    def _on(self, index: int, where: str) -> _LoadedEntry:
        if self._closed:
            raise LaunchError(f"{where}the kernel is closed")
        loaded = self._loaded.get(index)
        if loaded is None:
            loaded = self._loaded[index] = _LoadedEntry(self._entry, index, where)
        return loaded

    def running(self) -> int:
        return 0

    def synchronize(self) -> None:
        """Until everything that this process has launched on the devices has ended."""
        for loaded in self._loaded.values():
            _finish_device(loaded.device, self._where)

    def spans(self) -> tuple[Span, ...]:
        return ()

    def time_stamps(self) -> None:
        return None

    def last_launch(self) -> tuple[int, int]:
        times: tuple[int, int] = getattr(self._of_thread, "times", (0, 0))
        return times

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for loaded in self._loaded.values():
                _finish_device(loaded.device, self._where)
                loaded.close()
            self._loaded.clear()


def _finish_device(device: CudaDevice, where: str) -> None:
    with device.current():
        device.driver.check(f"{where}waiting for launches", "cuCtxSynchronize")


def _address(area: Any) -> int:
    if area is None:
        return 0
    return int(area.data_ptr() if hasattr(area, "data_ptr") else area.address)
