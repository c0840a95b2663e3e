"""What an entry returns: containers around its outputs, as JSON and as Python values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from superkernel.errors import GraphError
from superkernel.model.json_value import parse_json
from superkernel.package.return_structure import (
    ContainerKind,
    ReturnedConstant,
    ReturnedContainer,
    ReturnedOutput,
    flat_results,
    plain_structure,
    put_results,
    structure_from_json,
    structure_to_json,
)

PAIR = ReturnedContainer(ContainerKind.TUPLE, (ReturnedOutput(1), ReturnedConstant(2.5)))
NESTED = ReturnedContainer(
    ContainerKind.DICT,
    (
        ReturnedContainer(ContainerKind.RECORD, (ReturnedOutput(2), PAIR), ("logits", "pair"), "Output"),
        ReturnedContainer(ContainerKind.LIST, (ReturnedOutput(0),)),
        ReturnedConstant(None),
    ),
    ("first", 3, "none"),
)


def read(tmp_path: Path, value: Any, count: int) -> Any:
    file = tmp_path / "returns.json"
    file.write_text(json.dumps(value))
    return structure_from_json(parse_json(file), count)


def test_structures_survive_json(tmp_path: Path) -> None:
    for structure, count in ((NESTED, 3), (plain_structure(1), 1), (plain_structure(4), 4), (plain_structure(0), 0)):
        assert read(tmp_path, structure_to_json(structure), count) == structure


def test_results_go_into_the_containers_and_come_back() -> None:
    returned = put_results(NESTED, ["a", "b", "c"])
    assert returned == {"first": ("c", ("b", 2.5)), 3: ["a"], "none": None}
    assert returned["first"].logits == returned["first"]["logits"] == "c" and returned["first"].pair[1] == 2.5
    assert flat_results(NESTED, returned) == ["a", "b", "c"]
    assert put_results(plain_structure(1), ["a"]) == "a" and put_results(plain_structure(2), ["a", "b"]) == ("a", "b")


def test_fields_may_have_the_names_of_methods_of_a_tuple() -> None:
    items = tuple(map(ReturnedOutput, range(3)))
    cache = put_results(
        ReturnedContainer(ContainerKind.RECORD, items, ("keys", "count", "index"), "Cache"), ["a", "b", "c"]
    )
    assert (cache.keys, cache.count, cache.index) == (cache["keys"], cache["count"], cache["index"]) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "one of output, constant"),
        ({}, "one of output, constant"),
        ({"output": 0, "list": []}, "one of output, constant"),
        ({"output": 1}, "each of the 1 outputs once"),
        ({"output": -1}, "each of the 1 outputs once"),
        ({"list": []}, "each of the 1 outputs once"),
        ({"output": True}, "not a whole number"),
        ({"constant": []}, "no number, text or null"),
        ({"dict": [{"output": 0}]}, "not one key for every item"),
        ({"tuple": [{"output": 0}], "keys": ["a"]}, "not one key for every item"),
        ({"dict": [{"output": 0}, {"constant": 1}], "keys": ["a", "a"]}, "two keys are the same"),
        ({"record": [{"output": 0}], "keys": ["x"], "name": "import os"}, "names of Python"),
        ({"record": [{"output": 0}], "keys": ["_x"], "name": "Out"}, "names of Python"),
        ({"record": [{"output": 0}], "keys": ["class"], "name": "Out"}, "names of Python"),
        ({"record": [{"output": 0}], "keys": [1], "name": "Out"}, "names of Python"),
        ({"record": [{"output": 0}, {"constant": 1}], "keys": ["fi", "\ufb01"], "name": "Out"}, "names of Python"),
    ],
)
def test_structures_that_make_no_sense_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        read(tmp_path, value, 1)


def test_a_structure_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    value: Any = {"output": 0}
    for _ in range(30):
        value = {"list": [value]}
    with pytest.raises(GraphError, match="containers inside of each other"):
        read(tmp_path, value, 1)
