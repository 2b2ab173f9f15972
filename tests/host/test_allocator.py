"""What was loaded does not keep garbage from being collected, and threads share heaps."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

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


# Each thread has memory of its own while all live; the allocator says how many heaps it has.
_THREADS = """
import ctypes, os, sys, threading
from izwi.host.allocator import share_heaps

if sys.argv[1] == "shared":
    share_heaps()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
all_have = threading.Barrier(8)

def allocate():
    library.malloc(ctypes.c_size_t(50_000))
    all_have.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library.fdopen.restype = ctypes.c_void_p
library.malloc_info(0, ctypes.c_void_p(library.fdopen(1, b"w")))
library.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have no such heaps")
@pytest.mark.parametrize(("how", "is_few"), [("shared", True), ("own", False)])
def test_threads_share_two_heaps(how: str, is_few: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _THREADS, how], capture_output=True, text=True, check=True
    )
    assert ran.stdout.count("<heap nr=") >= 1
    assert (ran.stdout.count("<heap nr=") <= 2) is is_few
