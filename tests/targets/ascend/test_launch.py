"""Launch types and sizes as in the table of kernel types; chips as data."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from superkernel.errors import OptionError, PlanError
from superkernel.targets import find_target
from superkernel.targets.ascend.chips import FOLDER, chip_fields, find_chip, known_chips
from superkernel.targets.ascend.core_types import KernelType, LaunchType
from superkernel.targets.ascend.launch_shape import LaunchShape, OpSize, launch_of
from superkernel.targets.ascend.toolkit import DescriptorForm, Toolkit, toolkit_fields

T, L = KernelType, LaunchType


def launched(*ops: tuple[KernelType, int], cubes: int = 0, vectors: int = 0) -> LaunchShape:
    sized = [OpSize(f"op{i}", kind, blocks) for i, (kind, blocks) in enumerate(ops)]
    return launch_of(sized, find_chip("a3"), cubes, vectors, "here: ")


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([(T.AIV_ONLY, 40), (T.MIX_AIV_1_0, 20)], LaunchShape(L.MIX_AIV_1_0, 40)),
        ([(T.AIC_ONLY, 3), (T.MIX_AIC_1_0, 20)], LaunchShape(L.MIX_AIC_1_0, 20)),
        ([(T.AIC_ONLY, 20), (T.AIV_ONLY, 20)], LaunchShape(L.MIX_AIC_1_1, 20)),
        ([(T.AIC_ONLY, 20), (T.AIV_ONLY, 21)], LaunchShape(L.MIX_AIC_1_2, 20)),
        ([(T.AIC_ONLY, 2), (T.AIV_ONLY, 21)], LaunchShape(L.MIX_AIC_1_2, 11)),
        ([(T.MIX_AIC_1_1, 20)], LaunchShape(L.MIX_AIC_1_1, 20)),
        ([(T.MIX_AIC_1_2, 1)], LaunchShape(L.MIX_AIC_1_2, 1)),
        ([(T.MIX_AIC_1_2, 4), (T.AIC_ONLY, 20)], LaunchShape(L.MIX_AIC_1_2, 20)),
        ([(T.MIX_AIC_1_1, 4), (T.AIV_ONLY, 48)], LaunchShape(L.MIX_AIC_1_2, 24)),
        ([(T.AIV_ONLY, 48)], LaunchShape(L.MIX_AIV_1_0, 48)),
        ([(T.AIC_ONLY, 24)], LaunchShape(L.MIX_AIC_1_0, 24)),
    ],
)
def test_the_table(ops: list[tuple[KernelType, int]], expected: LaunchShape) -> None:
    assert launched(*ops) == expected
    assert launched(*reversed(ops)) == expected


def test_every_launch_is_sufficient_and_no_smaller_one_is() -> None:
    for kinds in itertools.combinations_with_replacement(KernelType, 2):
        for first, second in itertools.product((1, 3, 8), repeat=2):
            ops = list(zip(kinds, (first, second), strict=True))
            launch = launched(*ops)
            for kind, blocks in ops:
                cubes, vectors = kind.cores(blocks)
                assert cubes <= launch.cubes and vectors <= launch.vectors
                if kind is T.MIX_AIC_1_2:
                    assert launch.type is L.MIX_AIC_1_2
            smaller = LaunchShape(launch.type, launch.blocks - 1)
            assert any(
                need > have
                for kind, blocks in ops
                for need, have in zip(kind.cores(blocks), (smaller.cubes, smaller.vectors), strict=True)
            )


@pytest.mark.parametrize(
    ("ops", "cubes", "vectors", "expected"),
    [
        ([(T.AIV_ONLY, 8)], 0, 20, LaunchShape(L.MIX_AIV_1_0, 20)),
        ([(T.AIC_ONLY, 8)], 20, 0, LaunchShape(L.MIX_AIC_1_0, 20)),
        ([(T.AIV_ONLY, 8)], 4, 8, LaunchShape(L.MIX_AIC_1_2, 4)),
        ([(T.AIV_ONLY, 8), (T.AIC_ONLY, 8)], 8, 16, LaunchShape(L.MIX_AIC_1_2, 8)),
        ([(T.AIV_ONLY, 8), (T.AIC_ONLY, 8)], 9, 9, LaunchShape(L.MIX_AIC_1_1, 9)),
        ([(T.AIV_ONLY, 8), (T.AIC_ONLY, 8)], 0, 16, LaunchShape(L.MIX_AIC_1_1, 16)),
        ([(T.MIX_AIC_1_2, 4)], 0, 16, LaunchShape(L.MIX_AIC_1_2, 8)),
    ],
)
def test_forced_numbers(ops: list[tuple[KernelType, int]], cubes: int, vectors: int, expected: LaunchShape) -> None:
    assert launched(*ops, cubes=cubes, vectors=vectors) == expected


@pytest.mark.parametrize(
    ("ops", "cubes", "vectors", "words"),
    [
        ([(T.AIV_ONLY, 8)], 0, 7, "op 'op0' needs 0 cube and 8 vector cores"),
        ([(T.AIC_ONLY, 8)], 0, 7, "needs 8 cube"),
        ([(T.MIX_AIC_1_2, 4)], 4, 4, "needs a 1:2 launch"),
        ([(T.MIX_AIC_1_2, 4)], 3, 6, "needs 4 blocks"),
        ([(T.AIC_ONLY, 8)], 25, 0, "chip a3 has 24"),
        ([(T.AIV_ONLY, 8), (T.AIC_ONLY, 8)], 30, 60, "chip a3 has 24"),
    ],
)
def test_numbers_that_cannot_be(ops: list[tuple[KernelType, int]], cubes: int, vectors: int, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        launched(*ops, cubes=cubes, vectors=vectors)


def test_known_chips() -> None:
    assert {"a2", "a3"} <= set(known_chips())
    chip = find_chip("a3")
    assert (chip.cube_cores, chip.vector_cores, chip.flags) == (24, 48, (11, 14, 12, 13))
    assert find_chip(None) == chip == find_chip(find_target("ascend").chip_fields())


def test_an_unknown_chip_lists_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"unknown chip 'a33' \(did you mean 'a3'\?\); known chips are a2, a3"):
        find_target("ascend").for_chip("a33")
    with pytest.raises(OptionError, match="no chips"):
        find_target("cpu").for_chip("a3")


def described(**changes: Any) -> dict[str, Any]:
    fields = json.loads((FOLDER / "a3.json").read_text()) | {"name": "mine"} | changes
    return {key: value for key, value in fields.items() if value is not None}


def test_a_chip_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(described(cube_cores=2, vector_cores=4)))
    assert find_chip(path).cube_cores == 2


@pytest.mark.parametrize("field", json.loads((FOLDER / "a3.json").read_text()))
def test_a_chip_without_a_field_or_with_a_wrong_one(tmp_path: Path, field: str) -> None:
    path = tmp_path / "mine.json"
    for value, said in ((None, "missing"), ([], "is needed"), (True, "is needed")):
        path.write_text(json.dumps(described(**{field: value})))
        with pytest.raises(OptionError, match=rf"mine.json: .*{field}.*{said}"):
            find_chip(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cube_flag": 14}, "must differ"),
        ({"cube_flag": 16}, "between 0 and 15"),
        ({"cache_line": 48}, "power of two"),
        ({"flag_limit": 2}, "at least 3"),
        ({"cube_cores": 0, "vector_cores": 0}, "both 0"),
        ({"cube_macro": "not one"}, "no C identifier"),
        ({"vector_macro": "__DAV_C220_CUBE__"}, "the same"),
        ({"colour": "red"}, "unknown field 'colour'"),
        ({"cube_cores": -1}, "whole number"),
    ],
)
def test_a_chip_that_contradicts_itself(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(described(**changes)))
    with pytest.raises(OptionError, match=words):
        find_chip(str(path))


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_a_chip_file_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=r"mine\.json"):
        find_chip(path)
    with pytest.raises(OptionError, match="cannot be read"):
        find_chip(tmp_path / "nowhere.json")


def test_a_toolkit_is_part_of_a_chip_and_every_field_has_a_default(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(described(toolkit={"magic": "OTHER", "descriptor_form": "architecture"})))
    chip = find_chip(path)
    assert chip.toolkit == replace(Toolkit(), magic="OTHER", descriptor_form=DescriptorForm.ARCHITECTURE)
    assert find_chip(json.loads(json.dumps(chip_fields(chip)))) == chip
    assert find_chip("a3").toolkit == Toolkit()


@pytest.mark.parametrize("field", toolkit_fields(Toolkit()))
def test_a_toolkit_with_a_wrong_field(tmp_path: Path, field: str) -> None:
    path = tmp_path / "mine.json"
    for value in (None, True, {}, [None], ""):
        path.write_text(json.dumps(described(toolkit={field: value})))
        with pytest.raises(OptionError, match=rf"mine.json: toolkit\.{field}"):
            find_chip(path)


def test_a_toolkit_that_is_none_and_one_with_an_unknown_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    for value, words in ((3, "toolkit is 3"), ({"magik": "x"}, "toolkit.magik .did you mean 'magic'")):
        path.write_text(json.dumps(described(toolkit=value)))
        with pytest.raises(OptionError, match=words):
            find_chip(path)
