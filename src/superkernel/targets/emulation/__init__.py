"""targets.emulation: what emulators of several targets share: random numbers and vector clocks in C++, seeds, turns."""

from pathlib import Path

HOST = Path(__file__).parent / "host"
