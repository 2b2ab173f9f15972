"""What was loaded does not keep garbage from being collected."""

from __future__ import annotations

import subprocess
import sys

# Objects of a server that was loaded, and how much garbage there may be beside them.
_LOADED, _MOST = 1_300_000, 150_000

_PROGRAM = f"""
from izwi.host.allocator import settle

class Cycle:
    num_live = most = 0

    def __init__(self):
        self.itself = self
        Cycle.num_live += 1
        Cycle.most = max(Cycle.most, Cycle.num_live)

    def __del__(self):
        Cycle.num_live -= 1

loaded = [[] for _ in range({_LOADED})]
settle()
recent = []
for number in range(300_000):
    # each lives long enough to become old
    recent.append(Cycle())
    if len(recent) > 10_000:
        recent.pop(0)
print(Cycle.most)
"""


def test_garbage_is_collected_however_much_was_loaded() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < _MOST
