"""Which package may import which: the arrows of docs/layout.md, with lazy and type-only imports counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import superkernel
from superkernel.model import options

ROOT = Path(superkernel.__file__).parent
# package -> the packages that it may import beside itself
ALLOWED = {
    "errors": (),
    "version": (),
    "configuration": ("errors",),
    "cache": ("errors", "configuration"),
    "model": ("errors", "cache"),
    "plan": ("errors", "cache", "model"),
    "targets": ("errors", "configuration", "cache", "model", "plan"),
    "runtime": ("errors", "version", "configuration", "cache", "model", "plan", "targets"),
    "package": ("errors", "version", "configuration", "cache", "model", "plan", "targets", "runtime"),
    "ops": ("errors", "model"),
    "frontend": (
        "errors",
        "version",
        "configuration",
        "cache",
        "model",
        "plan",
        "targets",
        "runtime",
        "package",
        "ops",
    ),
    "observe": (
        "errors",
        "version",
        "configuration",
        "cache",
        "model",
        "plan",
        "targets",
        "runtime",
        "package",
        "ops",
        "frontend",
    ),
    "tools": (
        "errors",
        "version",
        "configuration",
        "cache",
        "model",
        "plan",
        "targets",
        "runtime",
        "package",
        "ops",
        "frontend",
        "observe",
    ),
}
FACADES = ("__init__", "__main__", "scope")  # modules of the public names, which import from every package
TARGETS = tuple(sorted(path.name for path in (ROOT / "targets").iterdir() if (path / "target.py").is_file()))
MODULES = tuple(sorted(ROOT.rglob("*.py")))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import, absolute; modules of this package without its name, torch as it is."""
    parents = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.removeprefix("superkernel.")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level:
                base = [*parents[: len(parents) - node.level + 1], *base]
            elif base[0] != "superkernel":
                yield node.lineno, ".".join(base)
                continue
            else:
                base = base[1:]
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_down_the_layout(package: str) -> None:
    """No cycles follow: the table is in order, and every package imports only packages above it in the table."""
    wrong = []
    for path in MODULES:
        if module_name(path).split(".")[0] != package:
            continue
        for line, imported in imports(path):
            other = imported.split(".")[0]
            if other in ALLOWED and other != package and other not in ALLOWED[package]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_every_module_belongs_to_a_package_of_the_table() -> None:
    packages = {module_name(path).split(".")[0] or "__init__" for path in MODULES}
    assert packages <= {*ALLOWED, *FACADES}


def test_the_table_has_no_cycles() -> None:
    order = list(ALLOWED)
    assert all(order.index(other) < order.index(package) for package, others in ALLOWED.items() for other in others)


def test_the_model_and_the_plan_import_no_torch() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in MODULES
        if module_name(path).startswith(("model.", "plan.", "errors", "cache"))
        for line, imported in imports(path)
        if imported.split(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(wrong)


def test_no_target_imports_another_and_shared_code_imports_none() -> None:
    wrong = []
    for path in MODULES:
        parts = module_name(path).split(".")
        if parts[0] != "targets":
            continue
        home = parts[1] if len(parts) > 1 else ""
        for line, imported in imports(path):
            other = imported.split(".")
            if other[0] == "targets" and len(other) > 1 and other[1] in TARGETS and other[1] != home:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_only_benchmarks_and_public_names_import_a_target_by_its_name() -> None:
    """Everything else finds targets in the table of `targets`. `superkernel.capture` records launches of one target."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in MODULES
        if module_name(path) not in FACADES and not module_name(path).startswith(("targets", "tools.bench"))
        for line, imported in imports(path)
        if imported.split(".")[:1] == ["targets"] and imported.split(".")[1] in TARGETS
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_outside_the_targets_compares_the_name_of_one() -> None:
    wrong = []
    for path in MODULES:
        if module_name(path).startswith("targets."):
            continue
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.Compare):
                values = [node.left, *node.comparators]
                values += [
                    item for value in values if isinstance(value, ast.Tuple | ast.List | ast.Set) for item in value.elts
                ]
                if any(isinstance(value, ast.Constant) and value.value in options.TARGETS for value in values):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)
