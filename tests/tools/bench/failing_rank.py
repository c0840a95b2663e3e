"""A rank of a measurement: the second one fails, the others wait for it without end."""

from __future__ import annotations

import json
import sys
import threading

if json.loads(sys.argv[1])["rank"] == 1:
    sys.exit("this rank cannot go on")
threading.Event().wait()
