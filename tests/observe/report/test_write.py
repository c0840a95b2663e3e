"""A report on disk: whole or not at all, with words when it cannot be written."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from observe.report import samples

import superkernel as sk
from superkernel.errors import BuildError
from superkernel.observe import store
from superkernel.observe.profile import Profile
from superkernel.observe.report import ReportData, write_report
from superkernel.observe.report.__main__ import main

SMALL = ReportData.on_one(Profile(), "small")
# one megabyte is less than any report: the write fails half way
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    places = os.environ | {"PYTHONPATH": str(Path(sk.__file__).parents[1])}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=places)


def test_it_returns_the_path_and_makes_folders(tmp_path: Path) -> None:
    path = write_report(str(tmp_path / "a" / "b.html"), SMALL)
    assert path == tmp_path / "a" / "b.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert os.listdir(path.parent) == ["b.html"]


def test_others_may_read_it_as_the_umask_says(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_report(tmp_path / "report.html", SMALL)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    (tmp_path / "real.html").write_text("old")
    write_report(tmp_path / "link.html", SMALL)
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text().startswith("<!doctype html>")


def test_a_pipe_gets_the_page(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_report(pipe, SMALL)
    reader.join()
    assert got[0].startswith(b"<!doctype html>") and got[0].endswith(b"</html>\n")


def test_names_that_are_no_unicode_can_be_written(tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.html", ReportData.on_one(Profile(), "bad \udcff name"))
    assert "bad \\udcff name" in path.read_text(encoding="utf-8")


def test_a_full_disk_leaves_the_old_report_and_nothing_else(tmp_path: Path) -> None:
    profile, page = stored(tmp_path / "profile", Profile()), tmp_path / "out" / "report.html"
    page.parent.mkdir()
    page.write_text("the old report")
    done = run(
        f"{FULL_DISK}; from superkernel.observe.report.__main__ import main; exit(main())", str(profile), str(page)
    )
    assert done.returncode == 1
    assert re.match(
        rf"error: the report cannot be written to {page}: .*; name another place, or make room\n", done.stderr
    )
    assert page.read_text() == "the old report"
    assert os.listdir(page.parent) == ["report.html"]


def test_a_device_without_room_is_an_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(BuildError, match="/dev/full: No space left on device"):
        write_report("/dev/full", SMALL)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="it is a folder; name a file in it"):
        write_report(tmp_path, SMALL)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="cannot be written to"):
        write_report(tmp_path / "file" / "report.html", SMALL)
    with pytest.raises(BuildError, match="File name too long"):
        write_report(tmp_path / ("x" * 300), SMALL)
    assert os.listdir(tmp_path) == ["file"]


def stored(directory: Path, profile: Profile) -> Path:
    directory.mkdir()
    store.write(directory, profile)
    return directory


def test_the_program_reads_profiles_and_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (stored(tmp_path / run.title, run.profile) for run in samples.both().runs)
    assert main([str(after), str(tmp_path / "one.html")]) == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'one.html'}\n"
    write_report(tmp_path / "same.html", ReportData.on_one(samples.after().profile, "fused"))
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "same.html").read_bytes()
    assert main([str(before), str(after), str(tmp_path / "two.html")]) == 0
    assert "<title>unfused and fused" in (tmp_path / "two.html").read_text(encoding="utf-8")


def test_the_program_runs_by_its_name_without_torch(tmp_path: Path) -> None:
    code = (
        "import runpy, sys; sys.modules['torch'] = None\n"
        "runpy.run_module('superkernel.observe.report', run_name='__main__', alter_sys=True)"
    )
    profile = stored(tmp_path / "profile", samples.after().profile)
    done = run(code, str(profile), str(tmp_path / "page.html"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is no profile: it has no profile.json"),
        (b"\xff\xfe", "cannot be read: .*utf-8"),
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "is not ours"),
        (b'{"format": "superkernel profile", "version": 2}', "has version 2, .* this package reads version 4"),
    ],
)
def test_the_program_says_what_is_wrong_with_a_profile(
    content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / store.PROFILE).write_bytes(content)
    assert main([str(tmp_path), str(tmp_path / "page.html")]) == 1
    assert re.match(rf"error: .*{said}", capsys.readouterr().err)
    assert not (tmp_path / "page.html").exists()
