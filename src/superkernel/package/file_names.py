"""package.file_names: the names of the files inside the folder of a package."""

from __future__ import annotations

MANIFEST = "manifest.json"
CHECKSUMS = "checksums.json"  # written last
WEIGHTS = "weights.safetensors"
EXPLANATION = "explain.txt"
TORCH_FOLDER = "torch"  # code of entries that torch runs
_PLAIN_ARCHITECTURE = "x86_64"  # its library lies in the folder lib itself
CODE_FOLDERS = ("objects", "lib", TORCH_FOLDER)


def packaged_library(architecture: str) -> str:
    """The run time library of the version that exported, for an architecture as `uname -m` prints it."""
    folder = "lib" if architecture == _PLAIN_ARCHITECTURE else f"lib/{architecture}"
    return f"{folder}/libsuperkernel.so.1"


def is_torch_file(path: str) -> bool:
    """Whether a file of a package is the code of an entry that torch runs."""
    return path.startswith(f"{TORCH_FOLDER}/")


def torch_file(entry: str) -> str:
    """The code of an entry that torch runs."""
    return f"{TORCH_FOLDER}/{entry}.pt2"
