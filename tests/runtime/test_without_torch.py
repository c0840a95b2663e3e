"""The core works where torch cannot be imported, and never imports it by itself."""

from __future__ import annotations

from runtime.given import child

LAUNCH = """
import numpy as np
import superkernel as sk
from runtime.given import ADD, compiled

with compiled(sk.Op(ADD, ["a", "b", "t"]), sk.Op(ADD, ["t", "b", "c"], name="second")) as k:
    made = k({"a": np.ones(12, np.float32), "b": np.ones(12, np.float32)})
    alone = k.unfused()({"a": np.ones(12, np.float32), "b": np.ones(12, np.float32)})
assert type(made["c"]) is np.ndarray and (made["c"] == 3).all() and (alone["c"] == 3).all()
try:
    compiled(sk.Op(ADD, ["a", "b", "c"]))({"a": [1.0] * 12, "b": np.ones(12, np.float32)})
except sk.LaunchError as error:
    assert "'a' is a list" in str(error)
assert not [name for name, module in sys.modules.items() if module and name.partition(".")[0] == "torch"]
print("fine")
"""
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""


def test_with_torch_blocked_from_import() -> None:
    done = child(BLOCKED + LAUNCH)
    assert done.stdout == "fine\n", done.stderr


def test_with_torch_marked_as_absent() -> None:
    done = child("import sys\nsys.modules['torch'] = None\n" + LAUNCH)
    assert done.stdout == "fine\n", done.stderr


def test_torch_is_never_imported_unasked() -> None:
    done = child("import sys\n" + LAUNCH)
    assert done.stdout == "fine\n", done.stderr
