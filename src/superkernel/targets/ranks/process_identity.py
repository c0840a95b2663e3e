"""targets.ranks.process_identity: which machine and process this is, in words that other ranks compare."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...errors import LaunchError

SHARED_MEMORY = Path("/dev/shm")


def host_id(shared_memory: Path = SHARED_MEMORY) -> str:
    """Equal for two processes that see the same shared memory: one boot of one system, one mount of its folder.

    Two containers on one machine without a common /dev/shm are two hosts.
    """
    try:
        boot = _boot_id()
        device = shared_memory.stat().st_dev
    except OSError as reason:
        raise LaunchError(
            f"shared memory between ranks: {reason}. Mount a tmpfs at {shared_memory}, or keep collectives outside"
        ) from reason
    return f"{boot}:{device}"


@dataclass(frozen=True)
class ProcessIdentity:
    """A process; its number alone may be given to another process after its end."""

    pid: int
    started: str  # in ticks after the boot
    namespace: str  # of its pid, and the boot of its machine; "" where they are unknown

    @classmethod
    def current(cls) -> ProcessIdentity:
        try:
            namespace = f"{_boot_id()}:{os.readlink('/proc/self/ns/pid')}"
        except OSError:
            namespace = ""
        return cls(os.getpid(), _started(os.getpid()) or "", namespace)

    def has_ended(self) -> bool:
        """False also where this process cannot know."""
        if not self.namespace or self.namespace != ProcessIdentity.current().namespace:
            return False
        return _started(self.pid) != self.started


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started(pid: int) -> str | None:
    """None: there is no such process, or it has ended and its parent has not yet noticed."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in parentheses may contain anything
    return None if fields[0] in "ZX" else fields[19]
