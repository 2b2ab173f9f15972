"""A long text uses the engine only as far as its reader needs."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from izwi.errors import EngineStopped, Overloaded
from izwi.inputs.speech import SpeechInput
from izwi.request.request import Request
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import PIECES_AHEAD, Speech, open_speech
from izwi_api.usage.metering import Usage, current_usage
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech

NUM_PIECES = 3 * PIECES_AHEAD
TEXT = " ".join(f"Sentence {number} is said." for number in range(NUM_PIECES))


class Recorder(FakeEngine):
    """Remembers what was submitted."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.is_away = self.is_full = False
        self.paused: set[str] = set()

    def submit_all(self, requests):
        if self.is_away:
            raise EngineStopped("the engine is not running")
        if self.is_full:
            raise Overloaded("as many requests as the limit allows are in flight")
        self.requests += requests
        answers = super().submit_all(requests)
        for answer in answers:
            answer.pause = partial(self.paused.add, answer.request.request_id)
            answer.resume = partial(self.paused.discard, answer.request.request_id)
        return answers


class AskedSpeech(FakeSpeech):
    """Keeps what a request was prepared from, which is what a key is charged for."""

    def prepare_speech(self, request_id, model, ask):
        return replace(super().prepare_speech(request_id, model, ask), ask=ask)


class Meter:
    """A key that has so many characters left."""

    def __init__(self, left: int) -> None:
        self.left = left

    def charge(self, amounts):
        if amounts["characters"] > self.left:
            raise Overloaded("no characters left")
        self.left -= amounts["characters"]

    def refund(self, amounts):
        self.left += amounts["characters"]


async def opened(engine: FakeEngine, *, streams: bool = True) -> Speech:
    registry = FakeRegistry(tts=AskedSpeech())
    return await open_speech(
        ServedModels(engine, registry).speech("tts"), SpeechInput(TEXT, seed=5), streams=streams
    )


async def test_a_reader_that_reads_nothing_costs_no_more_than_the_first_pieces() -> None:
    engine = Recorder()
    speech = await opened(engine)
    assert len(engine.requests) == PIECES_AHEAD
    num_read, chunks = 0, speech.output()
    async for chunk in chunks:
        assert len(engine.requests) == min(NUM_PIECES, PIECES_AHEAD + num_read)
        num_read += chunk.reason is not None
    assert num_read == len(engine.requests) == NUM_PIECES
    assert [request.ask.text for request in engine.requests] == speech.texts
    assert [request.seed for request in engine.requests] == list(range(5, 5 + NUM_PIECES))
    assert len({request.listener for request in engine.requests}) == 1
    assert [request.continues for request in engine.requests] == [False] + [True] * (NUM_PIECES - 1)
    assert speech.num_frames == sum(map(len, speech.texts))


async def test_background_work_is_submitted_whole() -> None:
    engine = Recorder()
    await opened(engine, streams=False)
    assert len(engine.requests) == NUM_PIECES


async def test_disconnect_submits_no_more_pieces() -> None:
    engine = Recorder()
    speech = await opened(engine)
    chunks = speech.output()
    async for chunk in chunks:
        if chunk.reason is not None:
            break
    await chunks.aclose()
    assert not engine.live
    assert len(engine.requests) <= PIECES_AHEAD + 1


async def test_a_pause_holds_for_the_pieces_that_follow() -> None:
    engine = Recorder()
    speech = await opened(engine)
    speech.pause()
    assert engine.paused == set(engine.live)
    num_read = 0
    async for chunk in speech.output():
        num_read += chunk.reason is not None
        if num_read == 2:
            break
    assert len(engine.requests) == PIECES_AHEAD + 1
    assert engine.requests[-1].request_id in engine.paused
    speech.resume()
    assert not engine.paused & set(engine.live)


async def test_an_engine_that_is_gone_ends_it_with_an_error() -> None:
    engine = Recorder()
    speech = await opened(engine)
    engine.is_away = True
    with pytest.raises(EngineStopped):
        async for _ in speech.output():
            pass
    assert not engine.live


async def test_a_key_pays_for_the_whole_text_at_once_and_once() -> None:
    num_characters = sum(map(len, FakeSpeech().split_text(TEXT)))
    meter = Meter(num_characters)
    token = current_usage.set(Usage("key", meter))
    try:
        speech = await opened(Recorder())
        assert meter.left == 0
        async for _ in speech.output():
            assert meter.left == 0
        meter.left, engine = num_characters - 1, Recorder()
        with pytest.raises(Overloaded, match="no characters"):
            await opened(engine)
        assert (meter.left, engine.requests) == (num_characters - 1, [])
        meter.left, engine = num_characters, Recorder()
        engine.is_away = True
        with pytest.raises(EngineStopped):
            await opened(engine)
        assert meter.left == num_characters
    finally:
        current_usage.reset(token)


async def test_requests_refused_by_the_queue_are_not_charged() -> None:
    num_characters = sum(map(len, FakeSpeech().split_text(TEXT)))
    meter = Meter(num_characters)
    token = current_usage.set(Usage("key", meter))
    try:
        engine = Recorder()
        speech = await opened(engine)
        for stream in engine.live.values():
            stream.refused = True
        with pytest.raises(Overloaded):
            async for _ in speech.output():
                pass
        assert meter.left == num_characters
    finally:
        current_usage.reset(token)


async def test_a_text_that_is_refused_midway_is_charged_for_what_was_read() -> None:
    num_characters = sum(map(len, FakeSpeech().split_text(TEXT)))
    meter = Meter(num_characters)
    token = current_usage.set(Usage("key", meter))
    try:
        engine = Recorder()
        speech = await opened(engine)
        num_read, chunks = 0, speech.output()
        while num_read < 3:
            num_read += (await anext(chunks)).reason is not None
        engine.is_full = True
        with pytest.raises(Overloaded):
            await anext(chunks)
        assert meter.left == num_characters - sum(map(len, speech.texts[:3]))
        assert not engine.live
    finally:
        current_usage.reset(token)
