"""An answer that was paused has the same samples as one that was not, in every case."""

from __future__ import annotations

import asyncio
import random

import pytest

from izwi.config import EngineConfig
from izwi_api.services.answer_figures import TurnEvent
from tests.realtime.scenes import happened
from tests.realtime.world import TTS, World, recorded

LONG_ANSWER = "The train leaves at seven. It stops at the river."
# An engine that is a little faster than the listener, so that it is at work when it is paused.
STEP_S = 0.06


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = World(tmp_path_factory.mktemp("world"), patch)
        # little memory, nowhere else to put it: what is paused is evicted when others need it
        made.config = EngineConfig(kv_bytes=3 << 20, host_bytes=0, max_running=2)
        made.answer = LONG_ANSWER
        yield made


async def asked(phone):
    await phone.be_silent(0.4)
    await phone.hear(recorded("question"))


def conversation(world, disturb, at_s):
    """Hold a conversation, and disturb its answer when so much of it was sent."""

    async def script(phone, engine):
        await asked(phone)
        await phone.until_sent(at_s)
        await disturb(phone, engine)
        await phone.until_answered()

    return world.talk(script, step_s=STEP_S)


@pytest.fixture(scope="module")
def undisturbed(world):
    async def nothing(phone, engine): ...

    return conversation(world, nothing, 0.1).audio()


def assert_resumed(phone, undisturbed):
    assert happened(phone) == "SERD"
    assert phone.num_left == 0
    assert len(phone.audio()) == len(undisturbed) > 3 * 48_000
    assert phone.audio() == undisturbed


async def others(world, engine, count=4):
    """Let other requests use all of the memory."""
    streams = [engine.submit(world.speech(f"other-{n}", seed=n)) for n in range(count)]
    for stream in streams:
        async for chunk in stream:
            assert chunk.error is None


def known(engine):
    """Positions of prompts and logs so far, and those of them whose pages were found."""
    figures = engine.load[TTS]
    return figures["prefix_positions_asked"], figures["prefix_positions_hit"]


async def pause_all(engine):
    """Pause what the session has in flight, as its dialogue does; returns how to go on."""
    ids = engine.live
    assert ids, "the answer was made already"
    for request_id in ids:
        engine.pause(request_id)
    return lambda: [engine.resume(request_id) for request_id in ids]


@pytest.mark.parametrize(
    ("happens", "pause_s"),
    [
        pytest.param("nothing", 0.2, marks=pytest.mark.slow),
        pytest.param("nothing", 2.0, marks=pytest.mark.slow),
        pytest.param("nothing", 20.0, marks=pytest.mark.slow),
        pytest.param("eviction", 2.0, marks=pytest.mark.slow),
        pytest.param("death", 20.0, marks=pytest.mark.slow),
        ("death", 2.0),
    ],
)
def test_an_answer_resumes_after_a_pause_of_any_length(world, undisturbed, pause_s, happens):
    async def disturb(phone, engine):
        resume = await pause_all(engine)
        await phone.be_silent(0.1)  # what was on its way arrives
        if happens == "eviction":
            await others(world, engine)
            asked, hit = known(engine)
        elif happens == "death":
            engine.die()
        sent = len(phone.audio())
        await phone.be_silent(pause_s)
        if happens == "death":
            engine.come_back()
            await phone.be_silent(0.2)
        assert len(phone.audio()) - sent <= 2 * 48_000, "it was not paused"
        resume()
        if happens == "eviction":
            await phone.be_silent(1.0)
            asked, hit = (now - old for now, old in zip(known(engine), (asked, hit), strict=True))
            assert hit < asked, "its pages were still there"

    assert_resumed(conversation(world, disturb, 1.0), undisturbed)


@pytest.mark.parametrize(
    "audio", ["cough", *(pytest.param(word, marks=pytest.mark.slow) for word in ("mm-hm", "right"))]
)
def test_an_answer_resumes_after_a_sound_of_the_listener(world, undisturbed, audio):
    async def disturb(phone, engine):
        await phone.hear(recorded(audio))
        await phone.be_silent(0.3)
        assert engine.paused, "the engine was not paused"
        await phone.hear(recorded(audio))

    phone = conversation(world, disturb, 0.8)
    assert_resumed(phone, undisturbed)
    assert phone.turns == [TurnEvent.ENDED, TurnEvent.REFUTED, TurnEvent.REFUTED]


@pytest.mark.slow
def test_an_answer_resumes_after_a_cough_while_the_engine_is_killed(world, undisturbed):
    async def disturb(phone, engine):
        cough = recorded("cough")
        await phone.hear(cough[: len(cough) // 3])
        assert engine.paused
        engine.die()
        await phone.hear(cough[len(cough) // 3 :])
        await phone.be_silent(1.0)
        engine.come_back()

    assert_resumed(conversation(world, disturb, 0.8), undisturbed)


@pytest.mark.slow  # test_machine.py has it
def test_an_answer_resumes_if_the_microphone_is_muted_during_a_cough(world, undisturbed):
    async def disturb(phone, engine):
        cough = recorded("cough")
        await phone.hear(cough[: len(cough) // 3])
        await asyncio.sleep(3.0)  # not a frame of audio

    assert_resumed(conversation(world, disturb, 0.8), undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_an_answer_resumes_after_random_disturbances(world, undisturbed, seed):
    chance = random.Random(seed)
    latest = len(undisturbed) - 48_000  # bytes; what is said after the answer is a turn

    async def disturb(phone, engine):
        for _ in range(chance.randint(1, 4)):
            if len(phone.audio()) > latest:
                return
            match chance.choice(["cough", "mm-hm", "others", "death", "silence"]):
                case "others":
                    await others(world, engine, chance.randint(1, 4))
                case "death":
                    engine.die()
                    await phone.be_silent(chance.uniform(0, 5))
                    engine.come_back()
                case "silence":
                    await phone.be_silent(chance.uniform(0, 1))
                case audio:
                    await phone.hear(recorded(audio))
                    await phone.be_silent(0.4)

    assert_resumed(conversation(world, disturb, chance.uniform(0.1, 2.6)), undisturbed)
