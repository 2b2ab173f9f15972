"""A long recording is transcribed a few pieces at a time, and charged as a whole at once."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.errors import Overloaded, QuotaExceeded
from izwi.inputs.speech import TranscriptionInput
from izwi_api.services.models.served import ServedModels
from izwi_api.services.transcription import transcribe
from izwi_api.services.transcription.transcribe import PieceOptions, open_transcription
from izwi_api.usage.metering import Usage, current_usage
from tests.api.conftest import FakeEngine, FakeRegistry, FakeTranscription

PIECES, AHEAD = 9, 4
AUDIO = TranscriptionInput(np.zeros(PIECES * 160_000 - 80_000, np.float32), language="English")
UNDETECTED = PieceOptions(detects_speech=False)


class Heard(FakeTranscription):
    """Keeps what it was asked, as models do."""

    def prepare_transcription(self, request_id, model, ask):

        return replace(super().prepare_transcription(request_id, model, ask), ask=ask)


class CountingEngine(FakeEngine):
    """Remembers how many requests lived at once, and refuses those after the first ones."""

    most, num_accepted = 0, 1000

    def submit_all(self, requests):
        streams = super().submit_all(requests)
        for number, stream in enumerate(streams, self.num_submitted - len(streams)):
            stream.refused |= number >= self.num_accepted
        self.most = max(self.most, len(self.live))
        return streams


class Purse:
    """A meter with this many seconds of audio."""

    def __init__(self, seconds):
        self.left = seconds

    def charge(self, amounts):
        if amounts["audio-seconds"] > self.left:
            raise QuotaExceeded("no more today", retry_after_s=1)
        self.left -= amounts["audio-seconds"]

    def refund(self, amounts):
        self.left += amounts["audio-seconds"]


@contextmanager
def counted(seconds):
    usage = Usage("key", Purse(seconds))
    token = current_usage.set(usage)
    try:
        yield usage
    finally:
        current_usage.reset(token)


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(transcribe, "_MAX_AHEAD", AHEAD)
    model = Heard()
    registry = FakeRegistry(m=model)
    engine = CountingEngine(step_s=0.0)
    return engine, ServedModels(engine, registry).transcription("m")


async def test_few_pieces_are_in_work_at_a_time(world):
    engine, model = world
    with counted(1000.0) as usage:
        result = await open_transcription(model, AUDIO, UNDETECTED)
        assert engine.num_submitted == AHEAD
        await result.finish()
        assert usage.heard_s == pytest.approx(85.0)
    assert engine.num_submitted == len(result.segments) == PIECES
    assert engine.most <= AHEAD
    assert result.text.split() == ["word"] * 85
    assert [segment.start_s for segment in result.segments] == [10.0 * n for n in range(PIECES)]
    assert result.num_prompt_positions == 7 * PIECES
    assert not engine.live


async def test_a_quota_is_checked_before_the_first_text(world):
    engine, model = world
    with counted(84.0) as usage:
        with pytest.raises(QuotaExceeded):
            await open_transcription(model, AUDIO, UNDETECTED)
        assert usage.heard_s == pytest.approx(0.0)
    assert not engine.live


async def test_disconnect_stops_pieces_in_flight(world):
    engine, model = world
    result = await open_transcription(model, AUDIO, UNDETECTED)
    async for _ in result.deltas(live=True):
        break
    result.abort()
    assert not engine.live
    assert engine.num_submitted <= AHEAD + 1


class Share:
    """A file in progress that may have three pieces in flight; keeps what it was told."""

    def __init__(self):
        self.counted, self.expected = [], None

    def expect(self, num_pieces):
        self.expected = num_pieces

    def most_in_flight(self, num_pieces):
        return min(3, num_pieces)

    def count(self, num_pieces):
        self.counted.append(num_pieces)


async def test_a_file_has_no_more_pieces_in_flight_than_its_share(world):
    engine, model = world
    share = Share()
    options = PieceOptions(detects_speech=False, upload=share)
    result = await open_transcription(model, AUDIO, options)
    assert engine.num_submitted == 3
    await result.finish()
    assert share.expected == AHEAD
    # each piece that ends is reported before another one follows
    assert share.counted == [3, *[2, 3] * (PIECES - 3), 2, 1, 0]
    assert engine.most == 3
    assert len(result.segments) == PIECES


@pytest.mark.parametrize("num_accepted", [0, 2, 6])
async def test_pieces_that_the_queue_refuses_are_not_paid_for(world, num_accepted):
    engine, model = world
    engine.num_accepted = num_accepted
    with counted(1000.0) as usage:
        result = await open_transcription(model, AUDIO, UNDETECTED)
        assert usage.heard_s == pytest.approx(85.0)
        with pytest.raises(Overloaded):
            await result.finish()
        assert len(result.segments) == num_accepted
        assert usage.heard_s == pytest.approx(10.0 * num_accepted)
    assert not engine.live
