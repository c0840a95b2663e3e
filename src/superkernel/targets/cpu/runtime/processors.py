"""targets.cpu.runtime.processors: affinity and CPU quotas (control groups) -> how many processors a launch may use.

A process may be allowed on every processor of a machine and still get the time of one: `sched_getaffinity` does not
know the quotas that containers are given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = ("max", "-1")


@dataclass(frozen=True)
class GroupMount:
    """A mounted hierarchy of control groups: version 2, or the cpu controller of version 1."""

    version: int
    root: str  # the group that appears at the mount point
    point: Path


def processor_count(files: Path = Path("/")) -> int:
    """The processors that this process may run on, or fewer if a quota grants less time than they have."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # a system without affinity
        allowed = os.cpu_count() or 1
    quota = cpu_quota(files)
    # Rounded down: a team that has used up its quota stops with all its cores until the next period.
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_quota(files: Path = Path("/")) -> float | None:
    """Processor seconds per second that the control groups of this process grant, the least of all; None: no limit.

    `files` is the directory that holds proc and the mount points.
    """
    groups = list(_groups(_read(files / "proc/self/cgroup")))
    limits = [
        limit
        for mount in _mounts(_read(files / "proc/self/mountinfo"), files)
        for version, group in groups
        if version == mount.version
        for limit in _limits(mount, group)
    ]
    return min(limits, default=None)


def _groups(text: str) -> Iterator[tuple[int, str]]:
    """The lines of /proc/self/cgroup (number:controllers:group) that a CPU quota may depend on."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, separator, group = rest.partition(":")
        if separator and number == "0" and not controllers:
            yield 2, group
        elif "cpu" in controllers.split(","):
            yield 1, group


def _mounts(text: str, files: Path) -> Iterator[GroupMount]:
    """The lines of /proc/self/mountinfo that mount such groups."""
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        root, point = _unescaped(fields[3]), files / _unescaped(fields[4]).lstrip("/")
        if kind[0] == "cgroup2":
            yield GroupMount(2, root, point)
        elif kind[0] == "cgroup" and "cpu" in kind[2].split(","):
            yield GroupMount(1, root, point)


def _unescaped(path: str) -> str:
    """Spaces and backslashes are octal numbers in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _limits(mount: GroupMount, group: str) -> Iterator[float]:
    """The limits of a group and of all groups around it that can be seen from here."""
    inside = _below(mount.root, group)
    directory = mount.point if inside is None else mount.point / inside
    while True:
        limit = _limit_v2(directory) if mount.version == 2 else _limit_v1(directory)
        if limit is not None:
            yield limit
        if directory == mount.point or mount.point not in directory.parents:
            return
        directory = directory.parent


def _below(root: str, group: str) -> str | None:
    """The path of a group from the mounted one on; None: it lies elsewhere, as in a container with its own view."""
    root, group = root.rstrip("/"), group.rstrip("/")
    if ".." in group.split("/") or (group != root and not group.startswith(root + "/")):
        return None
    return group[len(root) :].lstrip("/")


def _limit_v2(directory: Path) -> float | None:
    """cpu.max: quota and period in microseconds; the period may be left out."""
    fields = [*_read(directory / "cpu.max").split(), "100000"]
    return _ratio(fields[0], fields[1]) if len(fields) > 1 else None


def _limit_v1(directory: Path) -> float | None:
    return _ratio(_read(directory / "cpu.cfs_quota_us").strip(), _read(directory / "cpu.cfs_period_us").strip())


def _ratio(quota: str, period: str) -> float | None:
    if quota in _UNLIMITED or not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period) or None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):  # not there, not allowed, not text
        return ""
