"""targets.cuda.device: the name of a GPU, or a JSON file that describes one -> DeviceDescription, and its Machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...errors import OptionError, nearest, shown
from ...model.plain_values import checked_path
from ...plan import Costs
from ..chip_file import read_chip_file
from .cluster_choice import SyncTimes, sync_times_from_json
from .task_layout import MOST_CLUSTER

DeviceChoice = str | Path | Mapping[str, Any]


# of an H200; estimates, only good enough to compare two placements
COSTS = Costs(call_ns=600.0, bytes_per_ns=8.0, sync_ns=900.0, near_sync_ns=50.0, team_ns=0.0, shared_bytes_per_ns=30.0)


@dataclass(frozen=True)
class DeviceDescription:
    """What planner and emitter must know of a GPU. Costs are of this kind of GPU, or measured on it."""

    name: str
    architecture: str  # "sm_90a"
    sms: int
    registers: int = 65536  # of an SM
    shared_bytes: int = 232448  # that a block can have
    threads: int = 1024  # of a block
    l2_bytes: int = 50 << 20
    largest_cluster: int = 1  # SMs that can raise words in each other's shared memory
    cluster_sync_ns: float = 250.0  # one of them learns of another one's progress
    costs: Costs = COSTS
    # of one plan, in the description that is saved beside its kernel
    sync_times: SyncTimes | None = None
    staging_spills: int | None = None  # bytes that it would spill if it staged weights; None: not known

    @property
    def number(self) -> int:
        """90 of sm_90a."""
        return architecture_number(self.architecture)


DEFAULT = "h200"
_KNOWN = {
    device.name: device
    for device in (
        DeviceDescription("a100", "sm_80", 108, shared_bytes=166912, l2_bytes=40 << 20),
        DeviceDescription("h100", "sm_90a", 132, largest_cluster=MOST_CLUSTER),
        DeviceDescription("h200", "sm_90a", 132, largest_cluster=MOST_CLUSTER),
        DeviceDescription("gh200", "sm_90a", 132, largest_cluster=MOST_CLUSTER),
        DeviceDescription("l40s", "sm_89", 142, shared_bytes=101376, l2_bytes=96 << 20),
        DeviceDescription("b200", "sm_100a", 148, l2_bytes=126 << 20, largest_cluster=MOST_CLUSTER),
        DeviceDescription("rtx5090", "sm_120a", 170, shared_bytes=101376, l2_bytes=96 << 20),
    )
}
_OF_ARCHITECTURE = {
    "sm_80": "a100", "sm_89": "l40s", "sm_90": "h200", "sm_90a": "h200", "sm_100a": "b200", "sm_120a": "rtx5090",
}  # fmt: skip
CLUSTER_SIZES = (1, 2, 4, 8, MOST_CLUSTER)
_FIRST_WITH_CLUSTERS = 90
_ARCHITECTURE = re.compile(r"sm_(\d+)([af]?)")


def architecture_number(architecture: str) -> int:
    found = _ARCHITECTURE.fullmatch(architecture)
    if found is None:
        raise OptionError(f"{shown(architecture)} is no architecture such as sm_90a")
    return int(found[1])


def runs_on(compiled: str, device: DeviceDescription) -> bool:
    """Whether PTX for an architecture can be assembled for a device: 'a' is for one architecture, 'f' for a family."""
    found, here = _ARCHITECTURE.fullmatch(compiled), _ARCHITECTURE.fullmatch(device.architecture)
    if found is None or here is None:
        return False
    number, own = int(found[1]), int(here[1])
    if found[2] == "a":
        return number == own
    if found[2] == "f":
        return number // 10 == own // 10 and number <= own
    return number <= own


def known_devices() -> tuple[str, ...]:
    return (*_KNOWN, *_OF_ARCHITECTURE)


def device_fields(device: DeviceDescription) -> dict[str, Any]:
    """As a file that describes the device has them."""
    return asdict(device)


def present_device() -> DeviceDescription | None:
    """The GPU of this machine, with costs measured on it."""
    from .runtime.present_device import find_present_device  # which describes what it finds by a DeviceDescription

    return find_present_device()


def find_device(given: DeviceChoice | None) -> DeviceDescription:
    """A GPU by its name or architecture, one described by a file or by its fields; None: this machine's, or an H200."""
    if given is None:
        return present_device() or _KNOWN[DEFAULT]
    if isinstance(given, Mapping):
        return _described(Path("described"), given)
    if not isinstance(given, str | Path):
        raise OptionError(f"chip is {shown(given)}; give the name of a GPU, or a .json file that describes one")
    checked_path(given, "chip", OptionError)
    name = str(given).lower()
    if name in _KNOWN:
        return _KNOWN[name]
    if name in _OF_ARCHITECTURE:
        return replace(_KNOWN[_OF_ARCHITECTURE[name]], architecture=name)
    path = Path(given)
    if path.suffix == ".json" or path.is_file():
        return _described(path, read_chip_file(path))
    raise OptionError(
        f"unknown chip {str(given)!r}{nearest(name, known_devices())}; known are {', '.join(known_devices())}, or give "
        "a .json file that describes one"
    )


def _described(path: Path, found: object) -> DeviceDescription:
    if not isinstance(found, Mapping):
        raise OptionError(f"chip {path}: an object with the fields of a GPU is needed, not {shown(found)}")
    known = [field.name for field in fields(DeviceDescription)]
    for key in found:
        if key not in known:
            raise OptionError(
                f"chip {path}: unknown field {shown(key)}{nearest(key, known)}; fields: {', '.join(known)}"
            )
    for key in ("name", "architecture"):
        if not isinstance(found.get(key), str):
            raise OptionError(f"chip {path}: {key} is {shown(found.get(key))}; a text is needed")
    for key in ("sms", "registers", "shared_bytes", "threads", "l2_bytes"):
        value = found.get(key, 1)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 1 <= value < 2**31
            or (key == "sms" and key not in found)
        ):
            raise OptionError(f"chip {path}: {key} is {shown(found.get(key))}; a whole number from 1 is needed")
    largest, number = found.get("largest_cluster", 1), architecture_number(found["architecture"])
    if isinstance(largest, bool) or largest not in CLUSTER_SIZES or (largest > 1 and number < _FIRST_WITH_CLUSTERS):
        sizes = ", ".join(map(str, CLUSTER_SIZES))
        raise OptionError(
            f"chip {path}: largest_cluster is {shown(largest)}; {sizes} are known, and only 1 below "
            f"sm_{_FIRST_WITH_CLUSTERS}"
        )
    cost = found.get("cluster_sync_ns", 0.0)
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < float("inf"):
        raise OptionError(f"chip {path}: cluster_sync_ns is {shown(cost)}; a number of nanoseconds is needed")
    spills = found.get("staging_spills")
    if isinstance(spills, bool) or not (spills is None or (isinstance(spills, int) and spills >= 0)):
        raise OptionError(f"chip {path}: staging_spills is {shown(spills)}; a number of bytes is needed")
    times = _sync_times(path, found.get("sync_times"))
    return DeviceDescription(**{**found, "costs": _costs(path, found.get("costs")), "sync_times": times})


def _sync_times(path: Path, found: object) -> SyncTimes | None:
    try:
        return None if found is None else sync_times_from_json(found)
    except ValueError as reason:
        raise OptionError(f"chip {path}: sync_times is {shown(found)}: {reason}") from reason


def _costs(path: Path, found: object) -> Costs:
    if found is None:
        return COSTS
    known = [field.name for field in fields(Costs)]
    valid = isinstance(found, Mapping) and all(
        key in known and isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        for key, value in found.items()
    )
    if not valid:
        raise OptionError(f"chip {path}: costs is {shown(found)}; it maps some of {', '.join(known)} to numbers")
    assert isinstance(found, Mapping)
    return replace(COSTS, **found)
