"""The processors of a launch: affinity and CPU quotas of nested control groups, version 1 and 2, on fake trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from superkernel.targets.cpu.runtime.processors import cpu_quota, processor_count
from superkernel.targets.cpu.target import CpuPlanner

V2_MOUNT = "31 23 0:26 {root} {point} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "33 24 0:28 {root} {point} rw,nosuid shared:11 - cgroup cgroup rw,cpu,cpuacct\n"
OTHER_MOUNTS = (
    "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n34 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def tree(files: Path, cgroup: str, mounts: str, limits: dict[str, str]) -> Path:
    """A directory that looks like the root of a machine."""
    process = files / "proc/self"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(cgroup)
    (process / "mountinfo").write_text(OTHER_MOUNTS + mounts)
    for path, text in limits.items():
        (files / path).parent.mkdir(parents=True, exist_ok=True)
        (files / path).write_text(text)
    return files


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({"sys/fs/cgroup/app/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/app/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/app/cpu.max": "300000\n"}, 3.0),  # the period is the default
        ({"sys/fs/cgroup/app/cpu.max": "max 100000", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        ({"sys/fs/cgroup/app/cpu.max": "400000 100000", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),
        ({"sys/fs/cgroup/app/cpu.max": "100000 100000", "sys/fs/cgroup/cpu.max": "800000 100000"}, 1.0),
        ({"sys/fs/cgroup/other/cpu.max": "100000 100000"}, None),
        ({"sys/fs/cgroup/app/cpu.max": ""}, None),
        ({"sys/fs/cgroup/app/cpu.max": "many few\n"}, None),
        ({"sys/fs/cgroup/app/cpu.max": "100000 0\n"}, None),
    ],
)
def test_version_2_takes_the_least_of_nested_groups(
    tmp_path: Path, limits: dict[str, str], quota: float | None
) -> None:
    files = tree(tmp_path, "0::/app\n", V2_MOUNT.format(root="/", point="/sys/fs/cgroup"), limits)
    assert cpu_quota(files) == quota


@pytest.mark.parametrize(
    ("quotas", "quota"), [({"": "-1", "job": "250000"}, 2.5), ({"": "50000", "job": "-1"}, 0.5), ({"": "-1"}, None)]
)
def test_version_1_reads_quota_and_period(tmp_path: Path, quotas: dict[str, str], quota: float | None) -> None:
    limits = {}
    for group, text in quotas.items():
        folder = Path("sys/fs/cgroup/cpu,cpuacct", group)
        limits |= {str(folder / "cpu.cfs_quota_us"): text + "\n", str(folder / "cpu.cfs_period_us"): "100000\n"}
    mount = V1_MOUNT.format(root="/", point="/sys/fs/cgroup/cpu,cpuacct")
    files = tree(tmp_path, "9:memory:/job\n4:cpu,cpuacct:/job\n", mount, limits)
    assert cpu_quota(files) == quota


def test_a_container_sees_its_own_group_at_the_mount_point(tmp_path: Path) -> None:
    """The mount shows /docker/abc as its root: the group's own files lie at the mount point, names are octal there."""
    mount = V2_MOUNT.format(root="/docker/abc", point="/sys/fs/my\\040group")
    limits = {"sys/fs/my group/cpu.max": "200000 100000", "sys/fs/my group/docker/abc/cpu.max": "100000 100000"}
    assert cpu_quota(tree(tmp_path / "seen", "0::/docker/abc\n", mount, limits)) == 2.0
    # another root: the process lies outside of what is mounted
    assert cpu_quota(tree(tmp_path / "outside", "0::/../elsewhere\n", mount, limits)) == 2.0


def test_both_versions_at_once(tmp_path: Path) -> None:
    mounts = V2_MOUNT.format(root="/", point="/sys/fs/cgroup/unified") + V1_MOUNT.format(root="/", point="/sys/fs/cpu")
    limits = {
        "sys/fs/cgroup/unified/app/cpu.max": "300000 100000",
        "sys/fs/cpu/app/cpu.cfs_quota_us": "200000",
        "sys/fs/cpu/app/cpu.cfs_period_us": "100000",
    }
    assert cpu_quota(tree(tmp_path, "4:cpu:/app\n0::/app\n", mounts, limits)) == 2.0


@pytest.mark.parametrize("text", ["", "nonsense\n", "::::\n0\n", "x - cgroup2\n - cgroup2 a b\n"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, text: str) -> None:
    files = tree(tmp_path / "a", text, text, {})
    (files / "proc/self/mountinfo").write_text(text)
    assert cpu_quota(files) is None
    assert cpu_quota(tmp_path / "nothing") is None


@pytest.mark.parametrize(("quota", "count"), [("50000", 1), ("199000", 1), ("200000", 2), ("900000", 4), ("max", 4)])
def test_processors_are_the_least_of_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    mount = V2_MOUNT.format(root="/", point="/sys/fs/cgroup")
    assert processor_count(tree(tmp_path, "0::/\n", mount, {"sys/fs/cgroup/cpu.max": f"{quota} 100000"})) == count


def test_a_plan_gets_no_more_cores_than_processors_or_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from superkernel.targets.cpu import target

    for threads, processors, cores in ((8, 3, 3), (2, 64, 2), (1, 1, 1)):
        monkeypatch.setattr(target, "thread_count", lambda threads=threads: threads)
        monkeypatch.setattr(target, "processor_count", lambda processors=processors: processors)
        assert CpuPlanner().core_count() == cores
