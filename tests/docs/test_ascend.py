"""docs/ascend.md: its super kernel runs and has the entry on the page; its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.pages import blocks

from superkernel.model.options import Options
from superkernel.targets.ascend import metadata, oplist, oplist_collectives
from superkernel.targets.ascend.chips import find_chip, known_chips
from superkernel.targets.ascend.kernels import collectives
from superkernel.targets.ascend.toolkit import Toolkit, toolkit_fields
from superkernel.targets.ascend.tools import FLAGS, INCLUDES, Tool

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ascend.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_runs_and_has_the_entry_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    (tmp_path / "adds.cpp").write_text(block("cpp"))
    names: dict[str, object] = {}
    exec(block("python"), names)
    outputs = names["outputs"]
    assert isinstance(outputs, dict) and (outputs["z"] == 3).all()
    source = (tmp_path / "add_skp" / "add_skp_kernel.cpp").read_text()
    assert block("text") in source


def test_the_collectives_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (_, program) = blocks(PAGE[PAGE.index("## Collectives") :], "python")[0]
    exec(program, {})
    table = PAGE[PAGE.index("## Collectives") : PAGE.index("## Options")]
    for word in (*oplist_collectives._FIELDS, *collectives.OP_TYPES, *collectives.REDUCTIONS, *collectives._ELEMENTS):
        assert f"`{word}`" in table, word


def test_every_field_is_on_the_page() -> None:
    short = re.sub(r"`\.\.\.(_\w+)`", r"\1", PAGE)
    for field in (*oplist._TOP, *oplist._ENTRY, *metadata._REQUIRED, *metadata._OPTIONAL):
        assert field in short or any(field.endswith(end) for end in re.findall(r"\b_\w+", short)), field


def test_every_chip_is_on_the_page() -> None:
    assert {"a2", "a3"} <= set(known_chips())
    for chip in known_chips():
        assert f"`{chip}`" in PAGE


def test_every_field_of_the_toolkit_is_on_the_page_with_its_default() -> None:
    table = PAGE[PAGE.index("### What no public document fixes") : PAGE.index("## What is verified")]
    for field, value in toolkit_fields(Toolkit()).items():
        default = ", ".join(f"`{item}`" for item in value) if isinstance(value, list) else f"`{value}`"
        assert f"| `{field}` | {default or 'none'} |" in table, field


def test_it_says_plainly_that_nothing_ran_on_an_npu() -> None:
    assert "Nothing here has run on an NPU" in PAGE
    assert "(emulator.md)" in PAGE and "unverified" in PAGE


def test_every_option_is_on_the_page() -> None:
    keys = [key.replace("_", "-") for key in Options.__dataclass_fields__]
    table = PAGE[PAGE.index("## Options") : PAGE.index("## What comes out")]
    told = re.findall(r"`([a-z-]+?)(\.\.\.)?`", table)
    for key in keys:
        assert any(key == name or (short and key.startswith(name)) for name, short in told), key


def test_the_assumptions_on_the_page_are_those_of_the_build() -> None:
    build = PAGE[PAGE.index("## Building on a machine with CANN") : PAGE.index("## What is verified")]
    chip = find_chip("a3")
    for word in (
        *Tool,
        FLAGS,
        chip.cube_macro,
        chip.vector_macro,
        f"{chip.architecture}-cube",
        "-xcce",
        "[[block_local]]",
    ):
        assert str(getattr(word, "value", word)) in build, word
    for folder in INCLUDES:
        assert folder.rpartition("/")[2] in build
