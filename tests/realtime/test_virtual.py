"""Virtual time is the time of its own thread alone."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from tests.realtime.virtual import run_virtually


def test_other_threads_use_real_time():
    real_s = time.monotonic

    async def read():
        before_s = time.monotonic()
        await asyncio.sleep(600)
        with ThreadPoolExecutor(1) as other:
            elsewhere_s = other.submit(time.monotonic).result()
        return time.monotonic() - before_s, elsewhere_s

    begun_s = real_s()
    passed_s, elsewhere_s = run_virtually(read())
    assert 600 <= passed_s < 601
    assert begun_s <= elsewhere_s <= real_s()
