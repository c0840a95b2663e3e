"""package.file_names: the names of the files inside the folder of a package."""

from __future__ import annotations

MANIFEST = "manifest.json"
CHECKSUMS = "checksums.json"  # written last
WEIGHTS = "weights.safetensors"
EXPLANATION = "explain.txt"
PACKAGED_LIBRARY = "lib/libsuperkernel.so.1"  # of the version that exported
TORCH_FOLDER = "torch"  # code of entries that torch runs
CODE_FOLDERS = ("objects", "lib", TORCH_FOLDER)


def is_torch_file(path: str) -> bool:
    """Whether a file of a package is the code of an entry that torch runs."""
    return path.startswith(f"{TORCH_FOLDER}/")


def torch_file(entry: str) -> str:
    """The code of an entry that torch runs."""
    return f"{TORCH_FOLDER}/{entry}.pt2"
