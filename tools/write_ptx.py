"""write_ptx: the CUDA C++ sources of the kernels that the cuda target ships come in, their PTX goes out, by nvcc.

python tools/write_ptx.py           writes the files beside their sources
python tools/write_ptx.py --check   writes nothing; status 1 if a file was not written from the present source
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from superkernel.targets.cuda.kernels.streaming_gemv import BATCHES, SLICES, WEIGHT_BYTES

KERNELS = Path(__file__).resolve().parent.parent / "src" / "superkernel" / "targets" / "cuda" / "kernels"
SOURCE = KERNELS / "streaming_gemv.cu"
WEIGHTS = {"bfloat16": "Bfloat16", "float16": "Float16", "int8": "Int8"}  # in file names -> in the source
# The oldest PTX that has all instructions of the sources: assemblers refuse a newer version than their own.
VERSION = "8.0"
FLAGS = ("-ptx", "-arch=compute_90", "-O3", "-std=c++17", "-diag-suppress", "177")


def outputs() -> dict[Path, tuple[str, ...]]:
    """The PTX files, each with the macros that choose its entry."""
    files = {}
    for weight, name in WEIGHTS.items():
        kinds = {str(batch): (f"-DSK_BATCH={batch}",) for batch in BATCHES}
        for slices in SLICES[WEIGHT_BYTES[weight]]:
            given = {"PARTS": slices.parts, "STEPS": slices.steps, "ROWS": slices.rows}
            kinds[slices.kind] = tuple(f"-DSK_{macro}={value}" for macro, value in given.items())
        for kind, chosen in kinds.items():
            entry = f"streaming_gemv_{weight}_{kind}"
            macros = [f"-DSK_WEIGHT={name}", *chosen, f"-DSK_ENTRY={entry}"]
            macros += ["-DSK_SCALED"] if weight == "int8" else []
            files[KERNELS / "ptx" / f"{entry}.ptx"] = tuple(macros)
    return files


def source_digest(macros: tuple[str, ...]) -> str:
    """Identifies what a PTX file was written from."""
    texts = [path.read_text(encoding="utf-8") for path in (SOURCE, *sorted(KERNELS.glob("*.cuh")))]
    return hashlib.sha256("\0".join([*texts, VERSION, *FLAGS, *macros]).encode()).hexdigest()


def compiled(macros: tuple[str, ...]) -> str:
    """The PTX of one entry, with a first line that names its source."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        subprocess.run(["nvcc", *FLAGS, *macros, str(SOURCE), "-o", str(ptx)], check=True)
        text = ptx.read_text(encoding="utf-8")
    text = re.sub(r"\A(//.*\n)+\n*", "", text)  # what the compiler says of itself
    text = re.sub(r"^\.version .*$", f".version {VERSION}", text, count=1, flags=re.MULTILINE)
    return (
        f"// Written by tools/write_ptx.py from {SOURCE.name}, source {source_digest(macros)}, {nvcc_release()}\n{text}"
    )


def nvcc_release() -> str:
    """Such as "nvcc V13.0.88"; empty where there is no nvcc."""
    if shutil.which("nvcc") is None:
        return ""
    printed = subprocess.run(["nvcc", "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"V[\d.]+", printed)
    return f"nvcc {found[0]}" if found else "nvcc"


def stale() -> list[Path]:
    """The files that were not written from the present source."""
    return [
        path
        for path, macros in outputs().items()
        if not path.is_file() or source_digest(macros) not in path.read_text(encoding="utf-8").partition("\n")[0]
    ]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        for path in stale():
            print(f"{path} is stale: run python tools/write_ptx.py", file=sys.stderr)
        return 1 if stale() else 0
    for path, macros in outputs().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(compiled(macros), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
