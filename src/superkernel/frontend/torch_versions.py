"""frontend.torch_versions: the version of torch in, why its models cannot be fused out. Imports no torch."""

from __future__ import annotations

import re

SUPPORTED = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
REQUIREMENT = f"torch>={SUPPORTED[0][0]}.{SUPPORTED[0][1]},<{SUPPORTED[-1][0]}.{SUPPORTED[-1][1] + 1}"
_RELEASE = re.compile(r"(\d+)\.(\d+)")


def release_of(version: str) -> tuple[int, int] | None:
    """The major and minor number of a version such as 2.13.0+cpu; None: the text does not begin with them."""
    found = _RELEASE.match(version)
    return None if found is None else (int(found[1]), int(found[2]))


def supported_range() -> str:
    """The supported releases as a text: 2.11 to 2.15."""
    first, last = (".".join(map(str, release)) for release in (SUPPORTED[0], SUPPORTED[-1]))
    return f"{first} to {last}"


def unsupported_version(version: str) -> str | None:
    """Why models of this version of torch are not fused; None: they are."""
    if release_of(version) in SUPPORTED:
        return None
    return f"superkernel supports torch {supported_range()}, not {version}"
