"""superkernel compare: what it says of two profiles, and of what are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from observe.kernels import buffers, kernel, twice
from typer.testing import CliRunner

import superkernel as sk
from superkernel.observe import store
from superkernel.observe.compare import ProfileComparison, compare
from superkernel.observe.profile import Profile, ProfiledLaunch
from superkernel.tools.cli import app

shell = CliRunner()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same graph unfused and fused."""
    folder = tmp_path_factory.mktemp("compare")
    with twice(folder) as k:
        with sk.profile(folder / "before"):
            k.unfused()(buffers())
        with sk.profile(folder / "after"):
            k(buffers())
    return folder / "before", folder / "after"


def launch(kind: str, us: float) -> ProfiledLaunch:
    return ProfiledLaunch(kind, kind, 0, 1000 * us)


def profile(*launches: ProfiledLaunch) -> Profile:
    return Profile(launches)


def test_differences_counts_and_benefit() -> None:
    before = profile(launch("A", 60), launch("A", 20), launch("B", 20))
    after = profile(launch("SuperKernel", 40), launch("B", 10))
    found = ProfileComparison(before, after, ("x", "y"))
    assert [(row.op_type, row.before_count, row.before_us, row.after_count, row.after_us) for row in found.rows] == [
        ("A", 2, 80, 0, 0),
        ("B", 1, 20, 1, 10),
        ("SuperKernel", 0, 0, 1, 40),
    ]
    assert [row.change_percent for row in found.rows] == [-100, -50, None]
    assert found.benefit_percent == 50
    assert found.kernel_drop_percent == pytest.approx(100 / 3)


def test_a_run_that_launched_nothing_has_no_percentages() -> None:
    found = ProfileComparison(profile(), profile(launch("A", 1)), ("x", "y"))
    assert found.benefit_percent is None and found.kernel_drop_percent is None
    assert "x has no launches" in found.notes


def test_the_shell_prints_a_table_and_the_benefit(both: tuple[Path, Path]) -> None:
    done = shell.invoke(app, ["compare", *map(str, both)])
    assert done.exit_code == 0, done.output
    for words in ("OP Type", "Addition", "SuperKernel", "Total", "kernels: 2 -> 1 (50.00 % fewer)", "benefit: "):
        assert words in done.output
    assert "note" not in done.output  # one model, one machine


def test_notebooks_show_comparisons_profiles_and_plans(tmp_path: Path) -> None:
    found = ProfileComparison(profile(launch("<A>", 60)), profile(launch("B", 30)), ("x/before", "x/after"))
    shown = found._repr_html_()
    assert "<b>benefit: 50.00 %</b>" in shown and "<th>before: Count</th>" in shown
    assert '<td style="text-align: left">&lt;A&gt;</td>' in shown and ">-60.00</td>" in shown
    recorded = sk.profile(tmp_path / "profile")
    assert "has not ended" in recorded._repr_html_()
    with twice(tmp_path) as k:
        with recorded:
            k(buffers())
        plan = k.plan._repr_html_()
    shown = recorded._repr_html_()
    assert "<b>1 launch, " in shown and ">SuperKernel</td>" in shown and str(tmp_path / "profile") in shown
    assert "<b>plan twice: 2 ops on " in plan and "<details><summary>steps</summary>" in plan and "call second" in plan


def test_as_json(both: tuple[Path, Path]) -> None:
    done = shell.invoke(app, ["compare", *map(str, both), "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["ok"] and found["same_model"]
    assert found["kernels"] == {"before": 2, "after": 1, "drop_percent": 50.0}
    total = found["total"]
    assert found["benefit_percent"] == pytest.approx(100 * (1 - total["after_us"] / total["before_us"]))
    assert {row["op_type"] for row in found["rows"]} == {"Addition", "SuperKernel"}


def test_a_report_of_both(both: tuple[Path, Path], tmp_path: Path) -> None:
    done = shell.invoke(app, ["compare", *map(str, both), "--html", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "page.html").read_text()
    assert "before" in text and "after" in text and "Addition" in text


def test_runs_of_different_models_are_told(both: tuple[Path, Path], tmp_path: Path) -> None:
    rest = kernel(tmp_path, "rest")
    with sk.compile([sk.Op(rest, ["a", "z"])], "other") as k, sk.profile(tmp_path / "other"):
        k({"a": buffers()["a"]})
    done = shell.invoke(app, ["compare", str(both[0]), str(tmp_path / "other")])
    assert done.exit_code == 0
    assert "note: these are runs of different models" in done.output and "other" in done.output
    assert not compare(both[0], tmp_path / "other").same_model


def test_what_torch_launched_belongs_to_the_model() -> None:
    before, after = profile(launch("MatMul", 1), launch("Relu", 1)), profile(launch("MatMul", 1), launch("Cumsum", 1))
    found = ProfileComparison(before, after, ("x", "y"))
    assert not found.same_model
    (note,) = found.notes
    assert "different models" in note and "only x: Relu; only y: Cumsum" in note
    assert ProfileComparison(before, profile(launch("Relu", 2), launch("MatMul", 2)), ("x", "y")).same_model


def test_one_run_twice_is_told(both: tuple[Path, Path]) -> None:
    (note,) = compare(both[0], both[0]).notes
    assert "one and the same run" in note


def test_more_kernels_are_not_fewer(both: tuple[Path, Path]) -> None:
    assert "kernels: 1 -> 2 (100.00 % more)" in compare(both[1], both[0]).summary()


def test_names_and_options_do_not_make_another_model(both: tuple[Path, Path], tmp_path: Path) -> None:
    with twice(tmp_path, "renamed", "debug-sync-all=1") as k, sk.profile(tmp_path / "p"):
        k(buffers())
    assert compare(both[0], tmp_path / "p").same_model


def test_other_numbers_of_runs_are_told(both: tuple[Path, Path], tmp_path: Path) -> None:
    with twice(tmp_path) as k, sk.profile(tmp_path / "p"):
        for _ in range(3):
            k(buffers())
    (note,) = compare(both[0], tmp_path / "p").notes
    assert "1 and 3 times" in note


def test_another_machine_is_told(both: tuple[Path, Path]) -> None:
    first, second = map(store.read, both)
    second = replace(second, machine={**second.machine, "processor": "an abacus"})
    (note,) = ProfileComparison(first, second, ("x", "y")).notes
    assert "processor" in note and "an abacus" in note


# what is no profile


def refused(*words: str) -> str:
    done = shell.invoke(app, ["compare", *words, "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 1 and found["ok"] is False
    return f"{found['error']['kind']}: {found['error']['message']}"


def test_missing(both: tuple[Path, Path], tmp_path: Path) -> None:
    assert "no such directory" in refused(str(tmp_path / "none"), str(both[1]))
    assert "is a file" in refused(__file__, str(both[1]))


def test_not_ours(both: tuple[Path, Path], tmp_path: Path) -> None:
    assert "is no profile" in refused(str(both[0]), str(tmp_path))
    (tmp_path / store.PROFILE).write_text('{"traceEvents": []}')
    assert "is not ours" in refused(str(both[0]), str(tmp_path))


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_half_written(both: tuple[Path, Path], tmp_path: Path) -> None:
    whole = copied(both[0], tmp_path / "whole")
    assert store.read(whole) == store.read(both[0])
    without = copied(both[0], tmp_path / "without")
    (without / store.PROFILE).unlink()
    assert "half written" in refused(str(without), str(both[1]))
    cut = copied(both[0], tmp_path / "cut")
    (cut / store.PROFILE).write_text((cut / store.PROFILE).read_text()[:-100])
    assert "half written" in refused(str(cut), str(both[1]))
    short = copied(both[0], tmp_path / "short")
    (short / "trace.json").write_text("{}")
    assert "trace.json has another size" in refused(str(short), str(both[1]))
    missing = copied(both[0], tmp_path / "missing")
    (missing / "op_statistic.csv").unlink()
    assert "op_statistic.csv is missing" in refused(str(missing), str(both[1]))


@pytest.mark.parametrize("version", [1, 99, None])
def test_another_version(version: object, both: tuple[Path, Path], tmp_path: Path) -> None:
    old = copied(both[0], tmp_path / "old")
    content = json.loads((old / store.PROFILE).read_text())
    (old / store.PROFILE).write_text(json.dumps({**content, "version": version, "package": "9.9"}))
    message = refused(str(old), str(both[1]))
    assert message.startswith("UnsupportedError") and f"version {version}" in message and "9.9" in message


def test_a_field_that_is_not_as_it_should_be(both: tuple[Path, Path], tmp_path: Path) -> None:
    bad = copied(both[0], tmp_path / "bad")
    content = json.loads((bad / store.PROFILE).read_text())
    content["launches"][0]["kernel"] = 7
    (bad / store.PROFILE).write_text(json.dumps(content))
    message = refused(str(bad), str(both[1]))
    assert "not as a profile is" in message and "is of kernel 7, and there are 1" in message


def test_what_is_no_number_is_refused(both: tuple[Path, Path], tmp_path: Path) -> None:
    bad = copied(both[0], tmp_path / "bad")
    content = json.loads((bad / store.PROFILE).read_text())
    content["launches"][0]["end_ns"] = float("nan")
    (bad / store.PROFILE).write_text(json.dumps(content))
    assert "NaN is no number" in refused(str(bad), str(both[1]))


FULL_DISK = """
import resource, sys
from pathlib import Path
import superkernel as sk
from observe.kernels import buffers, twice

folder = Path(sys.argv[1])
k = twice(folder)
with sk.profile(folder / "p"):
    k(buffers())
kept = (folder / "p" / "profile.json").read_text()
try:
    with sk.profile(folder / "p"):
        for _ in range(50):
            k(buffers())
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # what is written beyond this fails
except sk.BuildError as error:
    assert "cannot be written" in str(error) and "make room" in str(error), error
else:
    raise SystemExit("it was written")
assert (folder / "p" / "profile.json").read_text() == kept
assert not [path for path in (folder / "p").iterdir() if "unfinished" in path.name]
"""


def test_a_full_disk_leaves_the_earlier_profile_and_nothing_else(tmp_path: Path) -> None:
    places = [str(Path(sk.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
