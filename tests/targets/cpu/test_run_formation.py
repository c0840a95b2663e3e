"""targets.cpu: a launch has its whole team, or the calling thread runs all of it: decided once, with the same bits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from targets.cpu.small import assert_same, child, compile_ops, numbers, small

import superkernel
from superkernel import Op
from superkernel.targets.cpu.runtime import host_library

HOST = Path(superkernel.__file__).parent / "targets" / "cpu" / "runtime" / "host"
INCLUDE = HOST.parents[1] / "include"
OPS = [Op(small("mix"), ["a", "b", "t"]), Op(small("scale"), ["t", "u"]), Op(small("mix"), ["u", "t", "v"])]
TEAM_OPS = [*OPS, Op(small("total"), ["v", "ws", "w"])]  # with sync_all: one core alone cannot run them


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", [pytest.param("", marks=pytest.mark.conformance), "-fsanitize=thread"])
def test_late_cores_find_nothing_to_do(sanitizer: str, tmp_path: Path) -> None:
    program = tmp_path / "formation"
    sources = [Path(__file__).parent / "runtime" / "formation.cpp", HOST / "formation.cpp"]
    flags = ["-std=c++17", "-O1", "-pthread", f"-I{HOST}", f"-I{INCLUDE}", *sanitizer.split()]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", str(program)], check=True, timeout=800)
    done = subprocess.run([program, "200"], capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


SOLO = """
import os, sys
from targets.cpu.small import assert_same, compile_ops, numbers
from targets.cpu.test_run_formation import OPS, TEAM_OPS
if "quota" in sys.argv:
    from superkernel.targets.cpu.runtime import host_library
    host_library.cpu_quota = lambda: 1.5
if "bound" in sys.argv:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
cores = int(sys.argv[1])
k = compile_ops(OPS, "formation", "profiling=1", cores)
assert_same(k, numbers("a", "b"))
print("cores", len({span.core for span in k.records()}))
fixed = compile_ops(TEAM_OPS, "fixed", "profiling=1", 2)
assert_same(fixed, numbers("a", "b"))
print("team", len({span.core for span in fixed.records()}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "args", "cores"),
    [
        ("never", ["2"], 1),
        ("always", ["2", "bound"], 2),
        ("auto", ["2", "bound"], 1),
        ("auto", ["2", "quota"], 1),
    ],
)
def test_a_launch_runs_solo_where_its_cores_would_lack_processors(policy: str, args: list[str], cores: int) -> None:
    """Plans with sync_all always get their team."""
    printed = child(SOLO, args=args, env={"SUPERKERNEL_TEAM": policy}).stdout
    assert printed.split() == ["cores", str(cores), "team", "2"]


def test_an_unknown_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_TEAM", "sometimes")
    with pytest.raises(superkernel.OptionError, match="SUPERKERNEL_TEAM='sometimes': it must be auto, always or never"):
        host_library._team_policy()


CROWD = """
import threading
from targets.cpu.small import assert_same, compile_ops, numbers
from targets.cpu.test_run_formation import OPS, TEAM_OPS
kernels = [compile_ops(OPS, "crowd", "", 2), compile_ops(TEAM_OPS, "crowd_fixed", "", 2)]
failed = []
def launch(k, seed):
    try:
        assert_same(k, numbers("a", "b", seed=seed), launches=50)
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=launch, args=(k, seed)) for seed in range(3) for k in kernels]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
print("done")
"""


@pytest.mark.slow
def test_many_threads_launch_at_once_on_few_processors() -> None:
    assert "done" in child(CROWD, env={"SUPERKERNEL_TEAM": "auto"}).stdout


def test_more_cores_than_processors_meet_without_spinning() -> None:
    """A team of 16 on any machine: the waits block, and the launch ends."""
    with compile_ops([Op(small("total", 16), ["a", "ws", "u"])], "wide_team", "", 16) as k:
        assert_same(k, numbers("a"), launches=3)
