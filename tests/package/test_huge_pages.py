"""Code and small weights of a package lie on huge pages; the code at the addresses that the loader gave it."""

from __future__ import annotations

import gc
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_package import SOURCE, WEIGHT, write_handmade

import superkernel as sk
from superkernel.targets.cpu import build
from superkernel.targets.cpu.package_link import ONE_SEGMENT

X, Y = np.arange(8, dtype=np.float32).reshape(2, 4), np.full((2, 4), 2, np.float32)
HUGE = 2 << 20


def write_aligned(folder: Path) -> Path:
    """The package whose code is linked as that of exported models."""
    source, code = folder / "handmade.cpp", folder / "handmade.so"
    source.write_text(SOURCE)
    include = Path(build.__file__).parent / "include"
    command = ["g++", "-shared", "-fPIC", "-O1", *ONE_SEGMENT, f"-I{include}", str(source), "-o", str(code)]
    subprocess.run(command, check=True, timeout=800)
    assert code.stat().st_size < HUGE / 8  # the alignment is one of addresses, not of the file
    return write_handmade(folder / "aligned.sk")


def mappings(pattern: str) -> list[tuple[int, int]]:
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if re.search(pattern, line)]
    ends = (line.split()[0].split("-") for line in lines)
    return [(int(begin, 16), int(end, 16)) for begin, end in ends]


def huge_code() -> list[tuple[int, int]]:
    return [(begin, end) for begin, end in mappings(r" r-xp 00000000 00:00 0\s*$") if (end - begin) % HUGE == 0]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_aligned(tmp_path)


def check(model: Any) -> None:
    np.testing.assert_array_equal(model(X, Y), X + Y * WEIGHT)


def test_code_is_replaced_once_and_goes_with_the_last_model(package: Path) -> None:
    gc.collect()  # models of earlier tests
    before = huge_code()
    with sk.load_model(package) as first:
        check(first)
        [place] = set(huge_code()) - set(before)
        assert place[0] % HUGE == 0 and place[1] - place[0] == HUGE
        with sk.load_model(package) as second:
            check(second)
            assert set(huge_code()) - set(before) == {place}
        check(first)
    assert huge_code() == before
    with sk.load_model(package) as again:
        check(again)
        assert len(huge_code()) == len(before) + 1


def test_small_weights_are_a_copy(package: Path) -> None:
    with sk.load_model(package) as model:
        assert not mappings("weights.safetensors")
        (package / "weights.safetensors").write_bytes(b"other contents")
        check(model)


def test_models_are_opened_and_closed_by_several_threads(package: Path) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                with sk.load_model(package) as model:
                    check(model)
        except BaseException as reason:
            failed.append(reason)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_code_that_is_linked_in_another_way_runs_where_it_was_loaded(tmp_path: Path) -> None:
    gc.collect()  # models of earlier tests
    before = huge_code()
    with sk.load_model(write_handmade(tmp_path / "plain.sk")) as model:
        check(model)
        assert huge_code() == before
