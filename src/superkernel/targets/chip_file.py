"""targets.chip_file: a file that describes a chip -> its JSON value, which the target of the chip checks."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import OptionError


def read_chip_file(path: Path) -> object:
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except OSError as reason:
        raise OptionError(f"chip {path}: cannot be read: {reason.strerror or reason}") from reason
    except (ValueError, RecursionError) as reason:
        raise OptionError(f"chip {path}: not JSON: {reason}") from reason
    return found
