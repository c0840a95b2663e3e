"""What is released: the sdist holds the repository, the wheel holds the package and works outside of the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from caches import with_host_library

from superkernel.version import __version__

pytest.importorskip("setuptools", minversion="77", reason="no setuptools to build a wheel with")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_RELEASED = ("__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "dist")
OTHER_PYTHONS = ("python3.12", "python3.13")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


@dataclass(frozen=True)
class Release:
    sdist: Path
    wheel: Path
    site: Path  # where the wheel is unpacked, as an installer does it

    @property
    def metadata(self) -> Message:
        (file,) = self.site.glob("*.dist-info/METADATA")
        return message_from_string(file.read_text(encoding="utf-8"))


def repository_files() -> Iterator[Path]:
    """The files that a commit holds, relative to the root; an unpacked sdist has no git and holds nothing else."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z"]
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
        yield from (Path(name) for name in listed if name and (ROOT / name).is_file())
        return
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name not in NOT_RELEASED and not name.startswith(".venv")]
        yield from (Path(folder, name).relative_to(ROOT) for name in files)


def run_build(hook: str, source: Path, output: Path) -> Path:
    command = [sys.executable, "-c", BUILD, hook, str(output)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (path,) = (path for path in output.iterdir() if path.suffix == (".whl" if hook == "build_wheel" else ".gz"))
    return path


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The sdist built from a copy of the repository, and the wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("release")
    for file in repository_files():
        (folder / "copy" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, folder / "copy" / file)
    sdist = run_build("build_sdist", folder / "copy", folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    wheel = run_build("build_wheel", folder / "unpacked" / f"superkernel-{__version__}", folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return Release(sdist, wheel, folder / "site")


def test_the_sdist_holds_every_file_of_the_repository(release: Release) -> None:
    with tarfile.open(release.sdist) as archive:
        held = {Path(*Path(name).parts[1:]) for name in archive.getnames()}
    assert not set(repository_files()) - held


def test_the_wheel_holds_every_file_of_the_package(release: Release) -> None:
    package = ROOT / "src"
    files = {file.relative_to("src") for file in repository_files() if (ROOT / file).is_relative_to(package)}
    held = {path.relative_to(release.site) for path in release.site.rglob("*") if path.is_file()}
    assert files and not files - held
    assert {path.parts[0] for path in held} == {"superkernel", f"superkernel-{__version__}.dist-info"}


def test_the_metadata_is_complete(release: Release) -> None:
    metadata = release.metadata
    assert metadata["Version"] == __version__
    assert all(metadata[field] for field in ("Summary", "Author", "License-Expression", "Requires-Python", "Keywords"))
    addresses = dict(value.split(", ", 1) for value in metadata.get_all("Project-URL", []))
    assert set(addresses) == {"Homepage", "Repository", "Documentation", "Issues", "Changelog"}
    assert all(address.startswith("https://") for address in addresses.values())
    classifiers = metadata.get_all("Classifier", [])
    assert {"Development Status", "Intended Audience", "Operating System", "Programming Language", "Topic"} <= {
        classifier.partition(" :: ")[0] for classifier in classifiers
    }
    assert set(metadata.get_all("Provides-Extra", [])) == {"torch", "ascend", "cuda", "dev", "peers"}


def test_the_long_description_has_absolute_links(release: Release) -> None:
    text = release.metadata.get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10 and all(link.startswith("https://") for link in links)
    relative = re.findall(r"\]\(([\w./-]+)\)", (ROOT / "README.md").read_text())
    assert relative and all(any(link.endswith(f"/{target}") for link in links) for target in relative)


def test_the_changelog_has_the_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0].split()[0] == __version__
    assert __version__ in [heading.split()[0] for heading in headings]


def test_extras_that_messages_name_are_those_of_the_project() -> None:
    """A package called superkernel on the public index is another project's: no message may send users there."""
    files = [file for file in repository_files() if file.parts[0] in ("src", "examples", "docs", "README.md")]
    texts = [(ROOT / file).read_text() for file in files if file.suffix in (".py", ".md")]
    assert not any(re.search(r"pip install[^\n`]*[ '\"]superkernel(?:\[|['\"\s])", text) for text in texts)
    named = {extra for text in texts for extra in re.findall(r"pip install[^\n`]*\.\[([\w,]+)\]", text)}
    assert {part for extra in named for part in extra.split(",")} <= set(PROJECT["optional-dependencies"])


def run_demo(python: str, site: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    (entry,) = (
        re.search(r"superkernel = ([\w.]+):(\w+)", path.read_text()) for path in site.glob("*/entry_points.txt")
    )
    assert entry is not None
    environment = {**os.environ, "PYTHONPATH": str(site), "SUPERKERNEL_CACHE": str(with_host_library(folder))}
    code = (
        f"import superkernel, sys; sys.stderr.write(superkernel.__file__); import {entry[1]} as cli; cli.{entry[2]}()"
    )
    command = [python, "-c", code, "demo", "--json"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_works_outside_of_the_repository(release: Release, tmp_path: Path) -> None:
    ended = run_demo(sys.executable, release.site, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith(str(release.site)) and json.loads(ended.stdout)["ok"] is True


def find_interpreter(name: str) -> str | None:
    """An interpreter that starts: a version manager's command may be on PATH without its version."""
    managed = sorted(Path.home().glob(f".pyenv/versions/*/bin/{name}"))
    for path in filter(None, [shutil.which(name), *map(str, managed)]):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_other_interpreters_read_the_wheel(python: str, release: Release, tmp_path: Path) -> None:
    """With its dependencies the demo runs there, without them every module is at least compiled."""
    path = find_interpreter(python)
    if path is None or Path(path).resolve() == Path(sys.executable).resolve():
        pytest.skip(f"no {python} beside {sys.executable}")
    dependencies = "import numpy, elftools, rich, typer"
    if subprocess.run([path, "-c", dependencies], capture_output=True, check=False).returncode == 0:
        ended = run_demo(path, release.site, tmp_path)
    else:
        command = [path, "-W", "error::SyntaxWarning", "-m", "compileall", "-q", str(release.site)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
