"""targets.cuda.runtime.modules: cubins and the tables of a kernel -> modules loaded on a device, shared where equal."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from ctypes import byref, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path

from ....errors import LaunchError
from .device import CudaDevice
from .driver import version_text
from .driver_functions import MOST_PORTABLE_CLUSTER, CuCode, CuLaunchConfig, FunctionAttribute

_UNLOADABLE = (CuCode.NO_BINARY_FOR_GPU, CuCode.INVALID_IMAGE, CuCode.UNSUPPORTED_PTX_VERSION)


@dataclass
class LoadedModule:
    """A module of a device; `users` kernels hold it."""

    device: CudaDevice
    handle: int
    key: object
    users: int = 0
    functions: dict[str, int] = field(default_factory=dict)


_modules: dict[object, LoadedModule] = {}
_lock = threading.RLock()  # a finalizer may run at any moment


def load_module(
    device: CudaDevice, binary: bytes, symbols: Mapping[str, bytes], path: Path, where: str
) -> LoadedModule:
    """The module with its tables written; kernels with equal binaries and tables share it. The device is current."""
    key = device.index, binary, tuple(symbols.items())
    with _lock:
        module = _modules.get(key)
        if module is None:
            handle = _load(device, binary, path, where)
            module = LoadedModule(device, handle, key)
            try:
                for symbol, content in symbols.items():
                    _write_symbol(module, symbol, content, where)
            except LaunchError:
                device.driver.code("cuModuleUnload", handle)
                raise
            _modules[key] = module
        module.users += 1
        return module


def release_module(module: LoadedModule) -> None:
    with _lock:
        module.users -= 1
        if module.users:
            return
        _modules.pop(module.key, None)
        module.device.driver.code("cuModuleUnload", module.handle)


def _load(device: CudaDevice, binary: bytes, path: Path, where: str) -> int:
    found = c_void_p()
    code = device.driver.code("cuModuleLoadData", byref(found), binary)
    if code in _UNLOADABLE:
        major, minor = device.properties.capability
        raise LaunchError(
            f"{where}{path} cannot be loaded on {device.name} ({device.properties.name}, sm_{major}{minor}) by a "
            f"driver for CUDA {version_text(device.driver.version)}: {device.driver.code_text(code)}. It was "
            "assembled for another GPU, or by an assembler that is newer than the driver: compile it for this machine, "
            "or update the driver"
        )
    if code:
        raise device.driver.error(f"{where}loading {path}", "cuModuleLoadData", code)
    return found.value or 0


def _write_symbol(module: LoadedModule, symbol: str, content: bytes, where: str) -> None:
    device, address, size = module.device, c_uint64(), c_size_t()
    doing = f"{where}looking for {symbol} in the module"
    device.driver.check(doing, "cuModuleGetGlobal_v2", byref(address), byref(size), module.handle, symbol.encode())
    if size.value < len(content):
        raise LaunchError(f"{where}{symbol} has {size.value} bytes in the module, its content {len(content)}")
    host = ctypes.create_string_buffer(content, len(content))
    device.upload(address.value, ctypes.addressof(host), len(content), f"{where}writing {symbol}")


def find_function(module: LoadedModule, entry: str, shared_bytes: int, where: str) -> int:
    """The entry, allowed to use so much dynamic shared memory."""
    driver = module.device.driver
    function = driver.handle(
        f"{where}looking for {entry} in the module", "cuModuleGetFunction", module.handle, entry.encode()
    )
    most = module.device.properties.shared_per_block
    static = function_attribute(module.device, function, FunctionAttribute.SHARED_SIZE_BYTES, where)
    if shared_bytes + static > most:
        raise LaunchError(
            f"{where}{entry} needs {shared_bytes + static} bytes of shared memory in a block; "
            f"{module.device.properties.name} has {most}"
        )
    driver.check(
        f"{where}asking for {shared_bytes} bytes of shared memory for {entry}",
        "cuFuncSetAttribute",
        function,
        FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES,
        shared_bytes,
    )
    return function


def function_attribute(device: CudaDevice, function: int, which: FunctionAttribute, where: str) -> int:
    return device.driver.number(f"{where}asking for {which.name}", "cuFuncGetAttribute", which, function)


def blocks_per_sm(device: CudaDevice, function: int, threads: int, shared_bytes: int, where: str) -> int:
    """How many blocks fit on an SM, with the registers and the shared memory of the assembled function."""
    return device.driver.number(
        f"{where}asking for the occupancy",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        function,
        threads,
        shared_bytes,
    )


def check_resident(
    device: CudaDevice, function: int, blocks: int, threads: int, shared_bytes: int, sms: int, where: str
) -> None:
    """Blocks that wait for each other must all be resident; a LaunchError names what limits them."""
    if not device.properties.cooperative:
        raise LaunchError(f"{where}{device.properties.name} cannot launch kernels whose blocks wait for each other")
    fit = blocks_per_sm(device, function, threads, shared_bytes, where)
    if fit * sms >= blocks:
        return
    registers = function_attribute(device, function, FunctionAttribute.NUM_REGS, where)
    properties = device.properties
    raise LaunchError(
        f"{where}{blocks} blocks of {threads} threads wait for each other, and {fit * sms} fit on {device.name} "
        f"({properties.name}): {fit} on each of {sms} usable SMs (of {properties.sms}) with {registers} registers a "
        f"thread (of {properties.registers_per_sm} an SM) and {shared_bytes} bytes of shared memory (of "
        f"{properties.shared_per_sm}). Compile it again on this device, or with fewer cores"
    )


def check_clusters(device: CudaDevice, function: int, config: CuLaunchConfig, cluster: int, where: str) -> None:
    """Clusters of blocks that wait for each other must all be resident; the driver knows which SMs can form one."""
    driver, name = device.driver, device.properties.name
    if not device.properties.cluster_launch or not driver.has("cuOccupancyMaxActiveClusters"):
        raise LaunchError(
            f"{where}it was compiled for clusters of {cluster} SMs, which {name} or its driver does not have: compile "
            "it on this device"
        )
    if cluster > MOST_PORTABLE_CLUSTER:
        driver.check(
            f"{where}asking for clusters of {cluster} SMs",
            "cuFuncSetAttribute",
            function,
            FunctionAttribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
            1,
        )
    fit = driver.number(f"{where}asking for the clusters", "cuOccupancyMaxActiveClusters", function, byref(config))
    wanted = config.grid[0] // cluster
    if fit < wanted:
        raise LaunchError(
            f"{where}{wanted} clusters of {cluster} SMs wait for each other, and {fit} fit on {device.name} ({name}): "
            "a part of the GPU, a green context or MPS leaves fewer SMs side by side. Compile it again on this device "
            "with fewer cores, or with a chip= whose largest_cluster is smaller"
        )
