"""bench.cuda_launches: ops and their buffers -> the same kernels launched one by one: in a stream, in a CUDA graph.

The kernels are the PTX that the super kernel links, assembled by themselves, launched with the driver's own call.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import BuildError, LaunchError, UnsupportedError
from ...model.op import Op, Place, place_of
from ...model.params import Kind, scalar_bits
from ...model.subkernel import SubKernel

_SCRATCH_POINTERS = 2  # that follow the parameters of a Triton kernel
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class SeparateLaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class SeparateLaunchConfig(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(SeparateLaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


def _driver() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as reason:
        raise UnsupportedError(f"no CUDA driver: {reason}") from reason
    pointer = ctypes.c_void_p
    library.cuModuleLoadData.argtypes = [ctypes.POINTER(pointer), ctypes.c_char_p]
    library.cuModuleGetFunction.argtypes = [ctypes.POINTER(pointer), pointer, ctypes.c_char_p]
    library.cuFuncSetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
    library.cuLaunchKernelEx.argtypes = [ctypes.POINTER(SeparateLaunchConfig), pointer, pointer, pointer]
    library.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return library


def _check(driver: ctypes.CDLL, status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        raise LaunchError(f"{what}: {(text.value or b'unknown error').decode()} ({status})")


def assembled(ptx: Path, architecture: str) -> bytes:
    """The cubin of a PTX file, by Triton's ptxas or the toolkit's."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernel.cubin"
        command = [_assembler(), f"-arch={architecture}", str(ptx), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{' '.join(command)}:\n{done.stderr}")
        return output.read_bytes()


def _assembler() -> str:
    import triton

    found = getattr(triton.knobs.nvidia.ptxas, "path", None) or shutil.which("ptxas")
    if found is None:
        raise BuildError("no ptxas: neither Triton nor a CUDA toolkit has one")
    return str(found)


class SeparateLaunches:
    """The ops of a chain, each a launch of its own, with arguments that are prepared once."""

    _functions: dict[tuple[str, str], ctypes.c_void_p] = {}  # noqa: RUF012  (loaded once per process)

    def __init__(
        self, ops: Sequence[Op], buffers: Mapping[str, Any], architecture: str, dependent: bool = False
    ) -> None:
        """`dependent`: with programmatic dependent launch; the kernels must wait for what they read."""
        self._driver = _driver()
        self._attribute = SeparateLaunchAttribute(_SERIALIZATION)
        self._attribute.value[0] = 1
        self._kept: list[Any] = []  # what the driver reads at a launch
        self._launches: list[tuple[SeparateLaunchConfig, ctypes.c_void_p, Any]] = []
        for op in ops:
            config = SeparateLaunchConfig(*op.kernel.grid, *op.kernel.threads, op.kernel.shared)  # type: ignore[misc]
            if dependent:
                config.attributes, config.attribute_count = ctypes.pointer(self._attribute), 1
            function = self._function(op.kernel, architecture)
            self._launches.append((config, function, self._arguments(op, buffers)))

    def _function(self, kernel: SubKernel, architecture: str) -> ctypes.c_void_p:
        key = str(kernel.binary.path), kernel.name
        if key not in self._functions:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            cubin = assembled(kernel.binary.path, architecture)
            _check(self._driver, self._driver.cuModuleLoadData(ctypes.byref(module), cubin), f"loading {kernel.name}")
            status = self._driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.name.encode())
            _check(self._driver, status, f"finding {kernel.name}")
            self._functions[key] = function
        function = self._functions[key]
        if kernel.shared > 48 << 10:
            status = self._driver.cuFuncSetAttribute(function, _MOST_SHARED, 227 << 10)
            _check(self._driver, status, f"shared memory of {kernel.name}")
        return function

    def _arguments(self, op: Op, buffers: Mapping[str, Any]) -> Any:
        """The array of addresses of argument values; what is behind the last parameter is not read."""
        values = []
        for argument, param in zip(op.args, op.kernel.params, strict=True):
            if param.kind is Kind.SCALAR and not isinstance(argument, str | Place):
                values.append(scalar_bits(argument, param.dtype, param.name, LaunchError))
            else:
                assert isinstance(argument, str | Place)
                place = place_of(argument)
                values.append(buffers[place.name].data_ptr() + place.offset)
        values += [0] * _SCRATCH_POINTERS
        slots = ctypes.create_string_buffer(struct.pack(f"<{len(values)}Q", *values))
        first = ctypes.addressof(slots)
        pointers = (ctypes.c_void_p * len(values))(*(first + 8 * index for index in range(len(values))))
        self._kept.append(slots)
        return pointers

    def __len__(self) -> int:
        return len(self._launches)

    def __call__(self) -> None:
        """Launch all, on torch's current stream."""
        import torch

        stream, launch = torch.cuda.current_stream().cuda_stream, self._driver.cuLaunchKernelEx
        for config, function, arguments in self._launches:
            config.stream = stream
            status = launch(config, function, arguments, None)
            if status:
                _check(self._driver, status, "launching a kernel")

    def graph(self) -> Any:
        """A CUDA graph of all launches; its replay() starts them."""
        import torch

        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self()
        return graph
