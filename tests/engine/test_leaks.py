"""An engine that serves for long keeps nothing of a request but what its bounded caches hold."""

from __future__ import annotations

import gc
from collections import Counter

import numpy as np
from msgspec.structs import replace

from izwi.request.request import EncodeInput
from tests.engine.toy import ToyPrompt, toy_request
from tests.engine.world import World

_REQUESTS = 20
# What may differ by chance, of each type: how many pages and prefixes are kept.
_MARGIN = 8


def serve(world: World, first: int) -> None:
    """Serve prompts, clips and seeds that are all new: read, paused, and left in the middle."""
    for number in range(first, first + _REQUESTS):
        clip = EncodeInput("clip", np.float32([number, 0.5]))
        request = toy_request(f"r{number}", 1, seed=number, frames=6)
        ids = tuple(int(n) for n in np.random.default_rng(number).integers(0, 30, 9))
        request = replace(request, prompt=ToyPrompt(ids, (clip,)))
        world.submit(request)
        for _ in range(3):
            world.step()
        if number % 4 == 1:
            world.engine.pause(request.request_id)
            world.step()
            world.engine.resume(request.request_id)
        if number % 4 == 2:
            world.engine.abort(request.request_id)
        world.run()
        world.logs.clear()


def objects() -> Counter[str]:
    for _ in range(3):  # a nested tuple of numbers is untracked level by level
        gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects())


def test_requests_leave_no_objects_behind_once_the_caches_are_full() -> None:
    world = World(24, max_running=2, host_bytes=40_000, encoded_bytes=1_000)
    serve(world, 0)
    serve(world, _REQUESTS)
    load = world.engine.load["toy"]
    assert load["encoded_bytes"] > 400, "its half of the cache is full"
    objects()  # looking makes some, once
    before = objects()
    serve(world, 2 * _REQUESTS)
    serve(world, 3 * _REQUESTS)
    after = objects()
    assert not {name: count for name, count in (after - before).items() if count > _MARGIN}
