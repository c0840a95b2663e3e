"""observe.report.units: numbers -> short text with a unit."""

from __future__ import annotations

from ..profile import Clock

_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
UNKNOWN = "–"  # noqa: RUF001 (a dash in a table cell)


def time_text(us: float | None, clock: Clock = Clock.NANOSECONDS) -> str:
    """Microseconds; of an emulator, thousands of ticks."""
    if clock is Clock.NANOSECONDS or us is None:
        return _scaled(us, _TIMES)
    ticks = 1000 * us
    return f"{ticks:,.0f} {'tick' if round(ticks) == 1 else 'ticks'}"


def bytes_text(count: float | None) -> str:
    return _scaled(count, _SIZES)


def rate_text(bytes_per_s: float | None) -> str:
    return UNKNOWN if bytes_per_s is None else f"{bytes_text(bytes_per_s)}/s"


def percent_text(share: float | None) -> str:
    """A share of 1 as percent."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def change_text(percent_less: float | None) -> str:
    """How much less, in words: the sign alone would have to be explained."""
    if percent_less is None:
        return UNKNOWN
    if abs(percent_less) < 0.05:
        return "unchanged"
    return f"{abs(percent_less):.1f} % {'less' if percent_less > 0 else 'more'}"


def _scaled(value: float | None, units: tuple[tuple[float, str], ...]) -> str:
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    scale, unit = next((entry for entry in units if abs(value) >= entry[0]), units[-1])
    scaled = value / scale
    digits = 0 if scaled == round(scaled) and unit == "B" else 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
    return f"{scaled:,.{digits}f} {unit}"
