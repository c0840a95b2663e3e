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
_FIRST_WITH_SUFFIX = 9  # from sm_90 on, all instructions of a GPU need the architecture with an "a"


def find_present_device() -> DeviceDescription | None:
    """None: there is no GPU, or no driver. The first call on a kind of GPU measures what syncs cost there."""
    devices = found_devices()
    if not devices:
        return None
    index = current_device()
    found = devices[index] if index < len(devices) else devices[0]
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
    return replace(description, costs=measured)


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
