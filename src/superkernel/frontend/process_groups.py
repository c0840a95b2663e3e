"""frontend.process_groups: a torch process group by name -> its ranks and store; whether they share a machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from ..errors import UnsupportedError
from ..model.ranks import RankGroup
from ..targets.collectives import CollectiveSupport, RankSession

ACROSS_MACHINES = "collective across machines"


@dataclass(frozen=True)
class ProcessGroupRanks:
    """A process group of torch, as it was when a graph was compiled."""

    group: RankGroup
    handle: Any  # torch's ProcessGroup
    store: Any
    timeout_s: float
    whole: ProcessGroupRanks | None = None  # of the ranks on one machine: the group of torch that they belong to

    @property
    def is_alive(self) -> bool:
        """Whether the group has been neither destroyed nor replaced by another of its name."""
        return _resolved((self.whole or self).group.name) is self.handle


_known: dict[str, ProcessGroupRanks] = {}  # by name
_sessions: dict[str, tuple[Any, RankSession]] = {}  # by name: the handle, and what its ranks have said
_meeting = threading.Lock()


def find_process_group(name: Any) -> ProcessGroupRanks:
    """UnsupportedError: its ranks cannot find each other through a store."""
    handle = _resolved(name) if isinstance(name, str) else None
    if handle is None:
        raise UnsupportedError(f"collective of the group {name!r}, which is not known in this process")
    known = _known.get(name)
    if known is not None and known.handle is handle:
        return known
    distributed = torch.distributed.distributed_c10d
    registered = distributed._world.pg_map.get(handle)
    if registered is None or registered[1] is None or registered[0] == "fake":
        raise UnsupportedError(f"collective of the group {name!r}, whose ranks have no store in common")
    ranks = tuple(torch.distributed.get_process_group_ranks(handle))
    found = ProcessGroupRanks(RankGroup(name, ranks, handle.rank()), handle, registered[1], _timeout_s(handle))
    _known[name] = found
    return found


def share_machine(found: ProcessGroupRanks, support: CollectiveSupport) -> bool:
    """Whether all ranks of the group can share memory."""
    is_inside_machine = found.group.size == 1 or found.whole is not None
    return is_inside_machine or len(set(meet_ranks(found, support).hosts)) == 1


def meet_groups(names: Iterable[str], support: CollectiveSupport) -> None:
    """The ranks of each group, by name: ranks that met in the order of their collectives could wait in a circle."""
    for name in sorted(names):
        with suppress(UnsupportedError):  # found again, and reported, where its collectives are
            meet_ranks(find_process_group(name), support)


def meet_ranks(found: ProcessGroupRanks, support: CollectiveSupport) -> RankSession:
    """What the ranks of a group have told each other; the first call for a group waits for all of them."""
    name = found.group.name
    with _meeting:
        met = _sessions.get(name)
        if met is None or met[0] is not found.handle:
            met = _sessions[name] = found.handle, support.meet(found.store, found.group, found.timeout_s)
    return met[1]


def find_session(found: ProcessGroupRanks) -> RankSession | None:
    """What the ranks of a group have told each other; None: they have not met."""
    met = _sessions.get(found.group.name)
    return met[1] if met is not None and met[0] is found.handle else None


def after_destruction(function: Callable[[], None]) -> None:
    """Calls the function whenever process groups have been destroyed. torch has no hook for that."""
    distributed = torch.distributed.distributed_c10d
    for name in ("_unregister_process_group", "_unregister_all_process_groups"):
        if hasattr(distributed, name):
            setattr(distributed, name, _followed_by(getattr(distributed, name), function))


def _followed_by(first: Callable[..., Any], second: Callable[[], None]) -> Callable[..., Any]:
    @wraps(first)
    def both(*args: Any, **kwargs: Any) -> Any:
        try:
            return first(*args, **kwargs)
        finally:
            second()

    return both


def _resolved(name: str) -> Any:
    """The process group that has this name now; None: there is none."""
    if not torch.distributed.is_available():
        return None
    try:
        return torch._C._distributed_c10d._resolve_process_group(name)
    except (RuntimeError, ValueError):
        return None


def _timeout_s(handle: Any) -> float:
    """How long a collective of the group may take: what the user gave to torch, the longest of its back ends."""
    timeouts = []
    for device in handle._device_types:
        with suppress(RuntimeError, AttributeError):  # no back end for the device, or one without options
            timeouts.append(handle._get_backend(device).options._timeout)
    return float(max(timeouts, default=torch.distributed.default_pg_timeout).total_seconds())
