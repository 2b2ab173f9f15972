"""A session that ends leaves no task and no request behind, whatever it was about to do."""

from __future__ import annotations

import asyncio
import gc
import random

import numpy as np
import pytest

from izwi_api.realtime.protocol.items import Content
from tests.realtime.world import World, recorded

# So slow that the turn is still being transcribed when its answer is prepared.
STEP_S = 0.06
# When the speech is over in the recording, and when an answer is being prepared.
PREPARED_S = (1.6, 1.64, 1.72, 1.8, 1.84)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


def leave(world, after_s, *, again_s=0.0):
    """Hold a session whose caller leaves so long after its beginning, or after speaking again."""
    heard = np.concatenate([recorded("question"), np.zeros(48_000, np.float32)])
    seen = []

    async def script(phone, engine):
        await phone.hear(heard[: int(24_000 * after_s)])
        if again_s:
            await phone.hear(heard[: int(24_000 * again_s)])
        seen.append((names(asyncio.all_tasks()), len(engine.live)))

    phone = world.talk(script, step_s=STEP_S)
    phone.running, phone.num_running = seen[0]
    return phone


def names(tasks):
    return [task.get_coro().__qualname__ for task in tasks]


def assert_nothing_is_left(phone):
    assert names(phone.tasks_left) == []
    assert phone.num_left == 0


@pytest.mark.parametrize("after_s", PREPARED_S)
def test_a_caller_who_leaves_while_an_answer_is_prepared(world, after_s):
    phone = leave(world, after_s)
    assert phone.prepared == [False]
    assert phone.running.count("Response._run") == phone.running.count("LiveTranscriber._run") == 1
    assert phone.num_running == 1
    assert_nothing_is_left(phone)


def test_a_caller_who_goes_on_and_leaves(world):
    """Only one transcription that was made for a discarded answer goes on, beside the new one."""
    phone = leave(world, PREPARED_S[1], again_s=0.2)
    assert phone.prepared == [False]
    assert "Response._run" not in phone.running
    assert phone.running.count("LiveTranscriber._run") == 2
    assert_nothing_is_left(phone)


@pytest.mark.slow
def test_callers_who_leave_at_any_time(world):
    draw = random.Random(3)
    for _ in range(200):
        again_s = draw.choice([0.0, draw.uniform(0.1, 2.2)])
        assert_nothing_is_left(leave(world, draw.uniform(1.3, 2.4), again_s=again_s))


@pytest.mark.parametrize("spoken", [True, False])
def test_no_audio_of_a_session_is_left(world, spoken):
    """It must not wait for the garbage collector: audio counts for nothing there."""

    async def script(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(recorded("question"))
        await phone.until_answered()
        if not spoken:  # in the middle of a turn
            await phone.hear(recorded("question")[:24_000])

    gc.collect()
    gc.disable()
    try:
        phone = world.talk(script)
        assert phone.of("response.done")
        assert [kept for kept in gc.get_objects() if type(kept) is Content] == []
    finally:
        gc.enable()
