"""The corpus: kernels that Triton and nvcc compile to PTX on a machine without a GPU, with what tests know of each.

`corpus.sub_kernel("rms_norm", 90)` is a SubKernel; it is compiled when it is first asked for, into a folder that all
test processes of a session share (the fixture `corpus` of conftest.py).
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from superkernel import SubKernel

ARCHITECTURES = (80, 90, 120)
_DIVISIBLE = [["tt.divisibility", 16]]
_TYPES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "i8", "int32": "i32", "int64": "i64",
    "uint32": "u32", "uint64": "u64", "bool": "i1",
}  # fmt: skip


@dataclass(frozen=True)
class TritonKernel:
    """A kernel of triton_kernels.py with the types, constants and grid that it is compiled and launched for."""

    name: str
    params: tuple[str, ...]  # as SubKernel takes them, in the order of the function's parameters
    grid: tuple[int, int, int]
    constants: Mapping[str, int] = field(default_factory=dict)
    function: str = ""  # of triton_kernels.py; empty: its name
    warps: int = 4
    stages: int = 3
    blocks_per_cluster: int = 1
    debug: bool = False
    module: str = "targets.cuda.triton_kernels"
    refused: str = ""  # words of the error with which a super kernel refuses it
    architectures: tuple[int, ...] = ARCHITECTURES


@dataclass(frozen=True)
class CudaKernel:
    """A kernel of cuda_kernels.cu."""

    name: str
    params: tuple[str, ...]
    threads: tuple[int, int, int]
    grid: tuple[int, int, int] = (4, 1, 1)
    shared: int = 0
    refused: str = ""


def _vector(name: str, *params: str, **more: Any) -> TritonKernel:
    """A kernel over 4096 elements in blocks of 1024."""
    return TritonKernel(name, params, (4, 1, 1), {"BLOCK": 1024}, **more)


_MATMUL = ("in:a:float16[64,128]", "in:b:float16[128,64]", "out:c:float16[64,64]")
_MATMUL_SIZES = ("scalar:m:int32", "scalar:n:int32", "scalar:k:int32")
_TILES = {"BM": 32, "BN": 32, "BK": 32}

TRITON_KERNELS: Sequence[TritonKernel] = (
    _vector("add", "in:x:float32[4096]", "in:y:float32[4096]", "out:z:float32[4096]", "scalar:n:int32"),
    TritonKernel(
        "add_1_warp", ("in:x:float32[512]", "in:y:float32[512]", "out:z:float32[512]", "scalar:n:int32"), (4, 1, 1),
        {"BLOCK": 128}, "add", warps=1,
    ),
    TritonKernel(
        "rms_norm",
        ("in:x:float32[2,2048]", "in:w:float32[2048]", "out:y:float32[2,2048]", "scalar:n:int32", "scalar:eps:float32"),
        (2, 1, 1), {"BLOCK": 2048},
    ),
    TritonKernel(
        "rms_norm_bf16",
        ("in:x:bfloat16[2,2048]", "in:w:bfloat16[2048]", "out:y:bfloat16[2,2048]", "scalar:n:int32",
         "scalar:eps:float32"),
        (2, 1, 1), {"BLOCK": 2048}, "rms_norm", warps=8,
    ),
    _vector("silu_mul", "in:gate:float32[4096]", "in:up:float32[4096]", "out:y:float32[4096]", "scalar:n:int32"),
    TritonKernel(
        "softmax", ("in:x:float32[4,1000]", "out:y:float32[4,1000]", "scalar:n:int32"), (4, 1, 1), {"BLOCK": 1024},
    ),
    TritonKernel(
        "layer_norm",
        ("in:x:float32[4,768]", "in:w:float32[768]", "in:b:float32[768]", "out:y:float32[4,768]",
         "out:mean_out:float32[4]", "scalar:n:int32", "scalar:eps:float32"),
        (4, 1, 1), {"BLOCK": 1024}, warps=2,
    ),
    TritonKernel(
        "gemv", ("in:w:float16[64,1024]", "in:x:float16[1024]", "out:y:float32[64]", "scalar:n:int32"), (16, 1, 1),
        {"ROWS": 4, "BLOCK": 512},
    ),
    TritonKernel(
        "gemv_one_step", ("in:w:float16[64,1024]", "in:x:float16[1024]", "out:y:float32[64]"), (16, 1, 1),
        {"ROWS": 4, "N": 1024},
    ),
    TritonKernel("matmul", (*_MATMUL, *_MATMUL_SIZES), (2, 2, 1), _TILES),
    TritonKernel(
        "matmul_8_warps", (*_MATMUL, *_MATMUL_SIZES), (1, 1, 1), {"BM": 64, "BN": 64, "BK": 32}, "matmul", warps=8,
        stages=2,
    ),
    TritonKernel(
        "split_k",
        ("in:a:float16[32,256]", "in:b:float16[256,32]", "inout:c:float32[32,32]", "scalar:n:int32", "scalar:k:int32"),
        (1, 1, 4), _TILES | {"PARTS": 4},
    ),
    TritonKernel(
        "attention_decode",
        ("in:q:float16[8,64]", "in:keys:float16[8,128,64]", "in:values:float16[8,128,64]", "out:out:float32[8,64]",
         "in:lengths:int32[1]", "scalar:scale:float32"),
        (8, 1, 1), {"D": 64, "BLOCK": 32, "MOST": 128},
    ),
    TritonKernel(
        "rotary", ("inout:x:float32[8,128]", "in:cos:float32[64]", "in:sin:float32[64]"), (8, 1, 1), {"HALF": 64},
        warps=2,
    ),
    TritonKernel(
        "rotary_tables", ("in:position:int64[1]", "out:cos:float32[64]", "out:sin:float32[64]", "scalar:base:float32"),
        (1, 1, 1), {"HALF": 64}, warps=1,
    ),
    TritonKernel(
        "argmax", ("in:x:float32[4,1000]", "out:y:int64[4]", "scalar:n:int32"), (4, 1, 1), {"BLOCK": 1024},
    ),
    TritonKernel("top_k", ("in:x:float32[4,256]", "out:y:float32[4,8]"), (4, 1, 1), {"K": 8, "BLOCK": 256}),
    TritonKernel(
        "cumsum", ("in:x:float32[4,1000]", "out:y:float32[4,1000]", "scalar:n:int32"), (4, 1, 1), {"BLOCK": 1024},
    ),
    TritonKernel(
        "embedding", ("in:ids:int64[4]", "in:table:float16[100,512]", "out:y:float16[4,512]"), (4, 1, 1),
        {"WIDTH": 512},
    ),
    TritonKernel(
        "transpose", ("in:x:float32[64,64]", "out:y:float32[64,64]", "scalar:m:int32", "scalar:n:int32"), (2, 2, 1),
        {"BLOCK": 32},
    ),
    _vector("histogram", "in:x:int32[4096]", "inout:counts:int32[256]", "scalar:n:int32"),
    _vector("sum_atomic", "in:x:float32[4096]", "inout:total:float32[1]", "scalar:n:int32"),
    _vector("dropout", "in:x:float32[4096]", "out:y:float32[4096]", "scalar:seed:int32", "scalar:n:int32"),
    TritonKernel(
        "quantise", ("in:x:float32[4,1000]", "out:y:int8[4,1000]", "out:scales:float32[4]", "scalar:n:int32"),
        (4, 1, 1), {"BLOCK": 1024},
    ),
    _vector("masked_scatter", "in:x:float32[4096]", "in:chosen:int8[4096]", "in:places:int64[4096]",
            "inout:y:float32[4096]", "scalar:n:int32"),
    TritonKernel(
        "add_3d", ("in:x:float32[3072]", "in:y:float32[3072]", "out:z:float32[3072]"), (2, 3, 2),
        {"X": 2, "Y": 3, "BLOCK": 256},
    ),
    _vector("cast_bf16", "in:x:float32[4096]", "out:y:bfloat16[4096]", "scalar:n:int32", warps=8),
    _vector("inline_assembly", "in:x:int32[4096]", "out:y:int32[4096]", "scalar:n:int32"),
    _vector(
        "waits_inside", "in:w:float32[4096]", "in:x:float32[4096]", "out:y:float32[4096]", "scalar:n:int32",
        architectures=(90, 120),
    ),
    TritonKernel(
        "descriptor_copy", ("in:x:float32[64,64]", "out:y:float32[64,64]", "scalar:m:int32", "scalar:n:int32"),
        (2, 2, 1), {"BLOCK": 32}, architectures=(90, 120),
    ),
    TritonKernel(
        "grid_barrier",
        ("inout:x:float32[4,1024]", "out:y:float32[4]", "inout:semaphore:uint32[1]", "scalar:n:int32"),
        (4, 1, 1), {"BLOCK": 1024},
    ),
    TritonKernel(
        "look_back_scan", ("in:x:int32[4,256]", "out:y:int32[4,256]", "inout:state:uint64[4]"), (4, 1, 1),
        {"BLOCK": 256},
    ),
    TritonKernel(
        "stream_k", ("in:x:float32[4,256]", "inout:y:float32[2,256]", "inout:locks:int32[2]"), (4, 1, 1),
        {"BLOCK": 256},
    ),
    _vector("asserts", "in:x:float32[4096]", "out:y:float32[4096]", "scalar:n:int32", debug=True,
            refused="a device-side assert (a call of __assertfail)"),
    TritonKernel(
        "prints", ("in:x:float32[1]", "scalar:n:int32"), (1, 1, 1),
        refused="a device-side printf (a call of vprintf)",
    ),
    TritonKernel(
        "add_cluster", ("in:x:float32[4096]", "in:y:float32[4096]", "out:z:float32[4096]", "scalar:n:int32"),
        (4, 1, 1), {"BLOCK": 1024}, "add", blocks_per_cluster=2, refused="a kernel with clusters",
        architectures=(90,),
    ),
    TritonKernel(
        "warp_specialised",
        ("in:a:float16[128,128]", "in:b:float16[128,128]", "out:c:float16[128,128]", *_MATMUL_SIZES),
        (4, 1, 1), {"BM": 64, "BN": 64, "BK": 64}, refused="compile it without warp specialisation",
        architectures=(90,),
    ),
)  # fmt: skip

# Kernels that call what Inductor's kernels call, which needs torch.
INDUCTOR_KERNELS: Sequence[TritonKernel] = (
    TritonKernel(
        "cooperative_sum",
        ("in:x:float32[4,256]", "out:y:float32[4]", "inout:area:float32[4]", "inout:semaphore:uint32[1]"), (4, 1, 1),
        {"BLOCK": 256, "PARTS": 4}, module="targets.cuda.inductor_kernels",
    ),
    TritonKernel(
        "split_scan", ("in:x:float32[4,256]", "out:y:float32[4,256]", "inout:area:uint64[4]"), (4, 1, 1),
        {"BLOCK": 256}, module="targets.cuda.inductor_kernels",
    ),
    TritonKernel(
        "split_scan_64", ("in:x:int64[4,256]", "out:y:int64[4,256]", "inout:area:uint64[12]"), (4, 1, 1),
        {"BLOCK": 256}, module="targets.cuda.inductor_kernels",
    ),
)  # fmt: skip

CUDA_KERNELS: Sequence[CudaKernel] = (
    CudaKernel(
        "saxpy", ("in:x:float32[512]", "inout:y:float32[512]", "scalar:a:float32", "scalar:n:int32"), (128, 1, 1)
    ),
    CudaKernel("tile_sum", ("in:x:float32[512]", "out:y:float32[4]"), (128, 1, 1)),
    CudaKernel("dynamic_sum", ("in:x:float32[512]", "out:y:float32[4]"), (16, 8, 1), shared=512),
    CudaKernel("bounded", ("in:x:float32[512]", "out:y:float32[512]"), (128, 1, 1)),
    CudaKernel("sine", ("in:x:float32[512]", "out:y:float32[512]"), (128, 1, 1)),
    CudaKernel("choose", ("in:x:int32[512]", "out:y:int32[512]", "scalar:which:int32"), (128, 1, 1)),
    CudaKernel("bfloat_add", ("in:x:bfloat16[512]", "inout:y:bfloat16[4]"), (128, 1, 1)),
    CudaKernel("struct_argument", ("inout:p",), (128, 1, 1), refused="is a struct of 16 bytes"),
    CudaKernel("grid_sync", ("inout:x:float32[512]",), (128, 1, 1), refused="cooperative groups' grid.sync()"),
    CudaKernel("print_value", ("in:x:float32[512]",), (128, 1, 1), refused="a device-side printf"),
    CudaKernel("allocate", ("out:x:float32[512]",), (128, 1, 1), refused="a device-side malloc"),
    CudaKernel("texture", ("scalar:t:int64", "out:y:float32[512]"), (128, 1, 1), refused="textures and surfaces"),
    CudaKernel("cluster", ("inout:x:float32[512]",), (128, 1, 1), refused="clusters"),
    CudaKernel("named_barrier", ("inout:x:float32[512]",), (128, 1, 1), refused="a named barrier other than 0"),
    CudaKernel("half_barrier", ("inout:x:float32[512]",), (128, 1, 1), refused="a barrier of some of the 128 threads"),
    CudaKernel("from_host", ("out:x:float32[512]",), (128, 1, 1), refused="which has no initial value in the PTX"),
    CudaKernel("count_up", ("out:x:int32[512]",), (128, 1, 1), refused="updates the variable counter of its module"),
)

REFUSED = tuple(kernel.name for kernel in (*TRITON_KERNELS, *CUDA_KERNELS) if kernel.refused)
BY_NAME = {kernel.name: kernel for kernel in (*TRITON_KERNELS, *INDUCTOR_KERNELS, *CUDA_KERNELS)}


def why_no_triton() -> str:
    """Why the kernels of Triton cannot be compiled; empty if they can."""
    return "" if importlib.util.find_spec("triton") else "triton is not installed"


def why_no_nvcc() -> str:
    return "" if shutil.which("nvcc") else "nvcc is not installed"


def names(architecture: int, refused: bool = False) -> list[str]:
    """Kernels of Triton that are compiled for an architecture: those that a super kernel takes, or those it refuses."""
    return [
        kernel.name
        for kernel in TRITON_KERNELS
        if architecture in kernel.architectures and bool(kernel.refused) == refused
    ]


class Corpus:
    """Compiled kernels in a folder. Processes that ask at the same time wait for each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def sub_kernel(self, name: str, architecture: int = 90, **changes: Any) -> SubKernel:
        """The kernel as a user describes it; `changes` replace what is said of it. Skips where it cannot be."""
        kernel = BY_NAME[name]
        if isinstance(kernel, CudaKernel):
            described: dict[str, Any] = {"threads": kernel.threads, "grid": kernel.grid, "shared": kernel.shared}
            path, symbol = self.cuda_module(architecture), name
        else:
            path = self.triton_module(name, architecture)
            metadata = json.loads(path.with_suffix(".json").read_text())
            described = {"grid": kernel.grid, "shared": metadata["shared"], "scratch": metadata["scratch"]}
            symbol = metadata["symbol"]
        return SubKernel.from_ptx(path, symbol, **({"params": kernel.params} | described | changes))

    def triton_module(self, name: str, architecture: int) -> Path:
        if reason := why_no_triton():
            pytest.skip(reason)
        kernel = BY_NAME[name]
        assert isinstance(kernel, TritonKernel)
        path = self.folder / f"{name}_sm{architecture}.ptx"
        with self._locked(path):
            if not path.exists():
                _compile_triton(kernel, architecture, path)
        return path

    def cuda_module(self, architecture: int = 90) -> Path:
        """What nvcc writes for cuda_kernels.cu; where there is no nvcc, what it wrote for sm_90."""
        if why_no_nvcc():
            if architecture != 90:
                pytest.skip(why_no_nvcc())
            return Path(__file__).with_name("cuda_kernels_sm90.ptx")
        return self.compile_cuda(architecture)

    def compile_cuda(self, architecture: int) -> Path:
        path = self.folder / f"cuda_kernels_sm{architecture}.ptx"
        with self._locked(path):
            if not path.exists():
                source = Path(__file__).with_name("cuda_kernels.cu")
                made = path.with_suffix(".new")
                command = ["nvcc", "-ptx", "-std=c++17", f"-arch=sm_{architecture}", str(source), "-o", str(made)]
                subprocess.run(command, check=True, capture_output=True, text=True)
                made.rename(path)
        return path

    def _locked(self, path: Path) -> _FileLock:
        return _FileLock(path.with_suffix(".lock"))


class _FileLock:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        self.file = self.path.open("w")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _compile_triton(kernel: TritonKernel, architecture: int, path: Path) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from superkernel.model.params import Kind, Param

    function = getattr(importlib.import_module(kernel.module), kernel.function or kernel.name)
    signature, attributes = {}, {}
    for text in kernel.params:
        param = Param.parse(text)
        assert param.dtype is not None
        pointer = param.kind is not Kind.SCALAR
        signature[param.name] = f"{'*' if pointer else ''}{_TYPES[param.dtype]}"
        if pointer or param.dtype in ("int32", "int64"):
            attributes[(function.arg_names.index(param.name),)] = _DIVISIBLE
    signature |= dict.fromkeys(kernel.constants, "constexpr")
    constants = {(function.arg_names.index(name),): value for name, value in kernel.constants.items()}
    source = ASTSource(function, signature, constants, attributes)
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", architecture, 32),
        options={
            "num_warps": kernel.warps,
            "num_stages": kernel.stages,
            "num_ctas": kernel.blocks_per_cluster,
            "debug": kernel.debug,
        },
    )
    metadata = compiled.metadata
    described = {"symbol": metadata.name, "shared": metadata.shared, "scratch": metadata.global_scratch_size}
    path.with_suffix(".json").write_text(json.dumps(described))
    made = path.with_suffix(".new")
    made.write_text(compiled.asm["ptx"])
    made.rename(path)
