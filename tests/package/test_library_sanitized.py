"""libsuperkernel and its test programs under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from package.hand_made import write_checksums, write_package
from package.test_library_programs import C99, PROGRAM, runs_silently
from package.test_library_refusals import mutate, open_mutated

import superkernel as sk
from superkernel.errors import BuildError
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.cpu.model_library import include_folders, source_files
from superkernel.targets.native.toolchain import find_toolchain, run

pytestmark = pytest.mark.conformance
MUTATIONS = 1000


def build(sanitizer: str, folder: Path, program_source: Path = PROGRAM) -> Path:
    """A test program with all of the library in it; skips where the compiler lacks the sanitizer."""
    cxx, output = find_toolchain().cxx, folder / f"program_{sanitizer.replace(',', '_')}"
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g", "-O1")
    try:
        run([*cxx, *flags, "-x", "c++", "-", "-o", str(output)], what="a trial", text="int main() {}")
    except BuildError:
        pytest.skip(f"the compiler has no -fsanitize={sanitizer}")
    text = "".join(f'#include "{path}"\n' for path in source_files())
    library, program = folder / "library.o", folder / "program.o"
    folders = [f"-I{path}" for path in include_folders()]
    defined = '-DSK_LIBRARY_VERSION="0"'
    run(
        [*cxx, *flags, "-std=c++17", defined, *folders, "-c", "-x", "c++", "-", "-o", str(library)],
        what="it",
        text=text,
    )
    run(
        [*cxx, *flags, f"-I{INCLUDE}", *C99, "-Wno-unknown-pragmas", "-c", str(program_source), "-o", str(program)],
        what="the program",
    )
    run([*cxx, *flags, str(library), str(program), "-rdynamic", "-ldl", "-lpthread", "-o", str(output)], what="linking")
    return output


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("address,undefined", tmp_path_factory.mktemp("checked"))


@pytest.mark.parametrize("mode", ["busy", "fork", "parallel", "steady"])
def test_no_access_outside_and_nothing_undefined(checked: Path, mode: str, tmp_path: Path) -> None:
    # the search for leaks stops all threads, which are not there in the child of a fork
    variables = {"ASAN_OPTIONS": "detect_leaks=0"} if mode == "fork" else {}
    runs_silently(checked, mode, write_package(tmp_path / "hand_made.sk"), **variables)


def mutated_packages(original: Path, folder: Path) -> list[Path]:
    """Mutated manifests with right checksums; of some also bytes of the manifest or of the weights are changed."""
    fields = json.loads((original / "manifest.json").read_text())
    objects = [path.relative_to(original) for path in (original / "objects").iterdir()]
    weights = (original / "weights.safetensors").read_bytes()
    packages = []
    for seed in range(MUTATIONS):
        numbers, package = random.Random(seed), folder / f"{seed}.sk"
        (package / "objects").mkdir(parents=True)
        for path in objects:
            os.link(original / path, package / path)
        manifest, tensors = bytearray(json.dumps(mutate(fields, numbers)).encode()), bytearray(weights)
        if seed % 4 == 0:
            manifest[numbers.randrange(len(manifest))] = numbers.randrange(256)
        if seed % 4 == 1:
            tensors[numbers.randrange(160)] = numbers.randrange(256)
        (package / "manifest.json").write_bytes(manifest)
        (package / "weights.safetensors").write_bytes(tensors)
        write_checksums(package)
        packages.append(package)
    return packages


def test_damaged_packages_are_opened_or_refused_without_a_wrong_access(checked: Path, tmp_path: Path) -> None:
    packages = mutated_packages(write_package(tmp_path / "original.sk"), tmp_path)
    runs_silently(checked, "open", *packages)
    shutil.rmtree(tmp_path)


def test_mutated_packages_that_open_can_be_run(checked: Path, tmp_path: Path) -> None:
    """Their code says what it was compiled for: a manifest that says something else is refused."""
    torch = pytest.importorskip("torch")

    class Recurrent(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cell = torch.nn.Embedding(16, 32), torch.nn.GRUCell(32, 64)
            self.register_buffer("hidden", torch.zeros(1, 64))

        def forward(self, word: Any) -> Any:
            hidden = self.cell(self.words(word), self.hidden)
            self.hidden.copy_(hidden)
            return hidden.softmax(-1), hidden.t()

    word = torch.zeros(1, dtype=torch.int64)
    original = sk.export(Recurrent().eval(), (word,), tmp_path / "original.sk", cores=2)
    runs_silently(checked, "run", *mutated_packages(original, tmp_path))
    shutil.rmtree(tmp_path)


def test_mutated_manifests_are_refused_with_a_sentence_each(tmp_path: Path) -> None:
    refusals, opened = open_mutated(write_package(tmp_path / "mutated.sk"), range(MUTATIONS))
    assert refusals > opened


def test_threads_have_no_data_race(tmp_path: Path) -> None:
    program = build("thread", tmp_path)
    package = write_package(tmp_path / "hand_made.sk", flags=("-fsanitize=thread", "-g"))
    for mode in ("parallel", "steady", "busy"):
        runs_silently(program, mode, package)


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_threads_that_close_what_others_use_touch_no_memory_that_is_given_back(sanitizer: str, tmp_path: Path) -> None:
    program = build(sanitizer, tmp_path, PROGRAM.with_name("library_races.c"))
    flags = ("-fsanitize=thread", "-g") if sanitizer == "thread" else ()
    package = write_package(tmp_path / "hand_made.sk", flags=flags)
    for mode in ("close", "destroy", "cancel"):
        runs_silently(program, mode, package)
