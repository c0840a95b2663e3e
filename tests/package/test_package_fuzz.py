"""Mutated manifests, weights and lists of files whose checksums fit: an error with a sentence, never a crash."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from ctypes import c_void_p
from pathlib import Path
from typing import Any

import pytest
from handmade_package import write_handmade

import superkernel as sk
from superkernel.errors import SuperKernelError
from superkernel.package.checksums import read_checksums
from superkernel.package.differences import compare_packages
from superkernel.package.file_names import CHECKSUMS, MANIFEST, WEIGHTS
from superkernel.package.library_functions import LibraryFunctions, loaded_library
from superkernel.package.one_folder import hold
from superkernel.package.summary import summarise

ODD_VALUES: tuple[Any, ...] = (
    -1, 0, 1, 3, 7, 64, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    1 << 64, -(1 << 63), 10**30, 0.5, 1e300, True, False, None, "", " ", "x", "../x", "/etc/passwd", "a\0b", "\ud800",
    "weights", "float32", "bool", "x86-64-v4", "forward", "counter", "%s%n", "9" * 400, "a" * 5000, [], {}, [[]],
    [1, 2], {"a": 1},
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a JSON value with every key of it."""
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


def mutated_text(text: str, generator: random.Random) -> bytes:
    """A JSON text with one to three values changed, or with bytes changed."""
    if generator.random() < 0.15:
        return mutated_bytes(text.encode(), generator)
    tree = json.loads(text)
    for _ in range(generator.choice((1, 1, 2, 3))):
        found = list(places(tree))
        if not found:  # all was removed
            break
        container, key = generator.choice(found)
        kind = generator.randrange(6)
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, list):
            container.insert(key, container[key])
        elif kind == 2 and isinstance(container, dict):
            container[f"{key}s"] = container.pop(key)
        elif kind == 3:
            other, other_key = generator.choice(found)
            container[key] = json.loads(json.dumps(other[other_key]))
        elif kind == 4 and type(container[key]) is int:
            container[key] += generator.choice((-64, -8, -1, 1, 8, 64, 1 << 32))
        else:
            container[key] = generator.choice(ODD_VALUES)
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def mutated_bytes(raw: bytes, generator: random.Random) -> bytes:
    changed = bytearray(raw)
    position = generator.randrange(len(changed))
    kind = generator.randrange(4)
    if kind == 0:
        del changed[position:]
    elif kind == 1:
        changed[position] ^= 1 << generator.randrange(8)
    elif kind == 2:
        changed[position:position] = generator.choice((b"{", b"}", b"[" * 3000, b'"', b"\xff", b"\0", b"9" * 50))
    else:
        del changed[position : position + generator.randrange(1, 40)]
    return bytes(changed)


def mutated_weights(raw: bytes, generator: random.Random) -> bytes:
    """The header of a safetensors file, or the length of the header, changed."""
    length = int.from_bytes(raw[:8], "little")
    if generator.random() < 0.2:
        odd = generator.choice((0, 1, length - 1, length + 1, 1 << 31, 1 << 63, (1 << 64) - 1))
        return odd.to_bytes(8, "little") + raw[8:]
    header = mutated_text(raw[8 : 8 + length].decode(), generator)
    return len(header).to_bytes(8, "little") + header + raw[8 + length :]


def open_everywhere(package: Path, library: LibraryFunctions) -> int:
    """Opens the package in every way; how many of them refused it."""
    refused = 0

    def open_in_c() -> None:
        model = library.open(package, 1, "sleep", (), c_void_p())
        try:
            library.describe(model)
            library.destroy_context(library.create_context(model, c_void_p()))
        finally:
            library.close(model)

    ways: tuple[Callable[[], Any], ...] = (
        lambda: str(summarise(package)),
        lambda: compare_packages(package, package),
        lambda: sk.load_model(package, threads=1).close(),
        open_in_c,
    )
    for way in ways:
        try:
            way()
        except SuperKernelError as error:
            assert str(error).strip(), "an error without a sentence"
            refused += 1
    return refused


def fuzz(folder: Path, seed: int, count: int) -> int:
    package = write_handmade(folder / "fuzz.sk")
    with hold(package) as held:
        library = loaded_library(held, read_checksums(held))
    shutil.rmtree(package / "lib")
    original = {name: (package / name).read_bytes() for name in (MANIFEST, WEIGHTS, CHECKSUMS)}
    listed = json.loads(original[CHECKSUMS])
    listed["files"].pop("lib/libsuperkernel.so.1")
    generator = random.Random(seed)
    refused = 0
    for _ in range(count):
        contents = dict(original)
        target = generator.choice((MANIFEST, MANIFEST, MANIFEST, WEIGHTS, CHECKSUMS))
        if target == MANIFEST:
            contents[MANIFEST] = mutated_text(original[MANIFEST].decode(), generator)
        elif target == WEIGHTS:
            contents[WEIGHTS] = mutated_weights(original[WEIGHTS], generator)
        for name in (MANIFEST, WEIGHTS):
            raw = contents[name]
            listed["files"][name] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        text = json.dumps(listed)
        contents[CHECKSUMS] = mutated_text(text, generator) if target == CHECKSUMS else text.encode()
        for name, raw in contents.items():
            (package / name).write_bytes(raw)
        refused += open_everywhere(package, library) > 0
    return refused


def test_mutated_packages_are_refused_without_a_crash(tmp_path: Path) -> None:
    assert fuzz(tmp_path, seed=19, count=60) > 30  # some mutations change nothing that is checked, such as a text


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_mutated_packages_are_refused_without_a_crash(tmp_path: Path, seed: int) -> None:
    assert fuzz(tmp_path, seed, count=100) > 50
