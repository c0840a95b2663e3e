"""targets.cuda.runtime.present_device: the GPU of this process -> its description, with costs measured on it."""

from __future__ import annotations

from dataclasses import replace

from ....errors import LaunchError
from ..device import DeviceDescription
from ..task_layout import MOST_CLUSTER
from .arguments import current_device
from .calibrate import cached_costs, try_calibration
from .device import DeviceProperties, found_devices, open_device

_WITH_CLUSTERS = (9, 10)  # compute capabilities with clusters of up to 16 SMs
_IDENTITY = (
    "name",
    "architecture",
    "sms",
    "registers",
    "shared_bytes",
    "threads",
)  # costs and limits may be the caller's
_FIRST_WITH_SUFFIX = 9  # from sm_90 on, all instructions of a GPU need the architecture with an "a"


def find_present_device() -> DeviceDescription | None:
    """None: there is no GPU, or no driver. The first call on a kind of GPU measures what syncs cost there."""
    present = _present()
    if present is None:
        return None
    index, found = present
    description = describe(found)
    costs = cached_costs(found)
    if costs is None:
        try:
            costs = try_calibration(open_device(index))
        except LaunchError:  # another process holds the GPU: the description serves
            return description
    if costs is None:
        return description
    measured = replace(description.costs, sync_ns=costs.counter_ns, near_sync_ns=costs.near_ns)
    cluster_ns = description.cluster_sync_ns if costs.cluster_ns is None else costs.cluster_ns
    return replace(description, costs=measured, cluster_sync_ns=cluster_ns)


def find_described(description: DeviceDescription) -> tuple[int, DeviceProperties] | None:
    """The number of this process's GPU, and its properties; None: there is none, or another one is described."""
    present = _present()
    if present is None:
        return None
    found = describe(present[1])
    same = all(getattr(found, field) == getattr(description, field) for field in _IDENTITY)
    return present if same else None


def _present() -> tuple[int, DeviceProperties] | None:
    devices = found_devices()
    if not devices:
        return None
    index = current_device()
    return (index, devices[index]) if index < len(devices) else (0, devices[0])


def describe(properties: DeviceProperties) -> DeviceDescription:
    major, minor = properties.capability
    return DeviceDescription(
        properties.name,
        f"sm_{major}{minor}{'a' if major >= _FIRST_WITH_SUFFIX else ''}",
        properties.sms,
        properties.registers_per_sm,
        properties.shared_per_block,
        properties.threads_per_block,
        largest_cluster=MOST_CLUSTER if properties.cluster_launch and major in _WITH_CLUSTERS else 1,
    )
