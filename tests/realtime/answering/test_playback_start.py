"""Playback begins when it will not run dry, and not much later."""

from __future__ import annotations

import asyncio
import base64
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.scheduler.playback import find_gaps
from izwi_api.realtime.answering.audio import EncodedAudio
from izwi_api.realtime.answering.playback import SessionPlayback
from izwi_api.realtime.answering.playback_start import MOST_HELD_MS, safe_start_ms
from izwi_api.realtime.answering.prebuffer import Prebuffer
from izwi_api.realtime.answering.speaker import Speaker
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.production_pace import (
    DEFAULT_RATE,
    AudioChunk,
    ProductionPace,
    measured_rate,
)
from tests.realtime.virtual import run_virtually
from tests.realtime.world import World, recorded

RAMP_MS = (80.0, 160.0, 320.0, 640.0)
ANSWER_MS = 6000.0


def made(rtf, *, late_ms=0.0, cut_ms=0.0, seed=0, start_ms=500.0):
    """The chunks of an answer that takes this share of its length, each late by up to so much."""
    chance, chunks, now_ms, number = random.Random(seed), [], start_ms, 0
    while sum(chunk.audio_ms for chunk in chunks) < ANSWER_MS:
        audio_ms = RAMP_MS[min(number, 3)]
        now_ms += rtf * audio_ms
        cut, cut_ms = min(cut_ms, audio_ms), max(0.0, cut_ms - audio_ms)
        chunks.append(AudioChunk(now_ms + chance.uniform(0, late_ms), audio_ms, audio_ms - cut))
        number += 1
    return chunks


def played(chunks, pace=None):
    """Play an answer through a prebuffer: its gaps, and how long after its first audio it began."""
    pace = pace or ProductionPace()
    began_s, heard = 0.0, []
    clock = SessionPlayback(250)

    async def source():
        for chunk in chunks:
            due_s = began_s + chunk.made_ms / 1000
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())
            shifted = chunk._replace(made_ms=chunk.made_ms + 1000 * began_s)
            yield EncodedAudio(b"", shifted)
        yield EncodedAudio(b"")

    async def listen():
        nonlocal began_s, clock
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        prebuffer, is_dry = Prebuffer(pace), lambda: clock.ends_ms <= 1000 * now_s()
        async for piece in prebuffer.pieces(source(), is_dry):
            if piece.chunk is not None and piece.chunk.playable_ms:
                clock = clock.send(piece.chunk.playable_ms, 1000 * now_s())
                heard.append((now_s() - began_s, piece.chunk.playable_ms / 1000))

    run_virtually(listen())
    first_ms = next(chunk.made_ms for chunk in chunks if chunk.playable_ms)
    gaps = find_gaps(heard)
    assert len(gaps) == clock.num_gaps
    assert clock.gaps_ms == pytest.approx(1000 * sum(gap.length_s for gap in gaps), abs=1e-3)
    return gaps, 1000 * heard[0][0] - first_ms


def needed_of(chunks):
    """What a listener who knew all of the future would wait after the first audio."""
    playable = np.cumsum([0.0] + [chunk.playable_ms for chunk in chunks])
    first_ms = next(chunk.made_ms for chunk in chunks if chunk.playable_ms)
    return max(c.made_ms - done for c, done in zip(chunks, playable, strict=False)) - first_ms


@pytest.mark.parametrize("rtf", [0.1, 0.3, 0.45, 0.5, 0.6, 0.7, 0.8])
@pytest.mark.parametrize("cut_ms", [0.0, 140.0])
def test_an_answer_has_no_gap_and_begins_soon(rtf, cut_ms):
    chunks = made(rtf, cut_ms=cut_ms)
    pace = ProductionPace()
    assert played(chunks, pace)[0] == []
    gaps, delay_ms = played(chunks, pace)
    assert gaps == []
    assert delay_ms <= needed_of(chunks) + 40 + 160 * rtf


@pytest.mark.parametrize("seed", range(20))
def test_twenty_answers_of_uneven_pace_have_no_gap(seed):
    pace = ProductionPace()
    for number in range(4):
        chunks = made(0.5, late_ms=25.0, cut_ms=140.0, seed=100 * seed + number)
        assert played(chunks, pace)[0] == []


def waiting_for_words(chance, late_ms=25.0):
    """An answer whose voice waits for the chat model's first words; as measured on two cores."""
    audio_ms = (80, 80, 80, 160, 320, 640, 640, 640, 640)
    made_ms = (385, 460, 536, 642, 774, 1051, 1320, 1590, 1860)
    cut_ms = (80, 60, 0, 0, 0, 0, 0, 0, 0)
    return [AudioChunk(made + chance.uniform(0, late_ms), audio, audio - cut)
            for made, audio, cut in zip(made_ms, audio_ms, cut_ms, strict=True)]  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_an_answer_begins_as_soon_as_earlier_ones_could_have(seed):
    chance, pace = random.Random(seed), ProductionPace()
    delays_ms = []
    for _ in range(8):
        chunks = waiting_for_words(chance)
        gaps, delay_ms = played(chunks, pace)
        assert gaps == []
        delays_ms.append(delay_ms - needed_of(chunks))
    assert max(delays_ms[3:]) < 120.0 < 190.0 < min(delays_ms[:3])


def test_answers_that_waited_for_a_client_that_plays_do_not_delay_the_next():
    """A source that is only read when its audio is due seems as slow as playback."""
    pace = ProductionPace()
    for count in (30, 12, 30):
        made_ms = [50, 100, 150, *range(205, 205 + 100 * (count - 3), 100)]
        pace.learn([AudioChunk(made, 100, 100) for made in made_ms])
    chunks = [AudioChunk(50.0 * number, 100, 100) for number in range(1, 30)]
    gaps, delay_ms = played(chunks, pace)
    assert gaps == []
    assert delay_ms <= 50.0


def test_an_answer_that_is_slower_than_all_before_begins_later():
    chance, pace = random.Random(1), ProductionPace()
    for _ in range(8):
        pace.learn(waiting_for_words(chance, late_ms=0.0))
    usual = waiting_for_words(chance, late_ms=0.0)
    slow = [chunk._replace(made_ms=385 + 1.7 * (chunk.made_ms - 385)) for chunk in usual]
    gaps, delay_ms = played(usual, pace)
    slow_gaps, slow_delay_ms = played(slow, pace)
    assert gaps == slow_gaps == []
    assert slow_delay_ms > delay_ms + 50.0


def test_without_a_start_that_waits_the_same_answers_have_gaps():
    clock = SessionPlayback(250)
    for chunk in made(0.6):
        clock = clock.send(chunk.playable_ms, chunk.made_ms)
    assert clock.num_gaps >= 2


def test_an_answer_slower_than_real_time_waits_no_longer_than_the_limit():
    gaps, delay_ms = played(made(1.5))
    assert delay_ms <= MOST_HELD_MS + 1
    assert gaps
    # each gap lasts until the lead survives again, so that there are few
    assert len(gaps) < len(made(1.5)) / 2


@given(
    st.lists(st.tuples(st.floats(1, 500), st.floats(20, 700)), min_size=1, max_size=8),
    st.floats(0.2, 20),
)
def test_the_start_is_after_the_first_audio_and_within_the_limit(steps, rate):
    now_ms, chunks = 0.0, []
    for wait_ms, audio_ms in steps:
        now_ms += wait_ms
        chunks.append(AudioChunk(now_ms, audio_ms, audio_ms))
    start_ms = safe_start_ms(chunks, chunks, rate, 640.0)
    assert chunks[0].made_ms <= start_ms <= chunks[0].made_ms + MOST_HELD_MS
    faster = safe_start_ms(chunks, chunks, 2 * rate, 640.0)
    assert faster <= start_ms


def test_text_before_the_audio_is_passed_on_at_once_and_the_order_is_kept():
    async def source():
        yield AnswerDelta(content="One ")
        await asyncio.sleep(1.0)
        yield EncodedAudio(b"", AudioChunk(1000 * asyncio.get_running_loop().time(), 80, 80))
        yield AnswerDelta(content="two")

    async def listen():
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        pieces = Prebuffer(ProductionPace()).pieces(source(), lambda: True)
        return [(round(now_s() - began_s, 3), type(piece)) async for piece in pieces]

    came = run_virtually(listen())
    assert [kind for _, kind in came] == [AnswerDelta, EncodedAudio, AnswerDelta]
    assert came[0][0] == 0.0
    assert came[1][0] == came[2][0] == 1.0  # the answer is complete: nothing is awaited


def test_the_pace_is_that_of_the_slowest_recent_answer():
    pace = ProductionPace()
    assert pace.rate == DEFAULT_RATE
    pace.learn(made(0.5)[:2])  # too short
    assert pace.rate == DEFAULT_RATE
    pace.learn(made(0.8))
    for _ in range(7):
        pace.learn(made(0.25))
        assert pace.rate == pytest.approx(1.25)
    pace.learn(made(0.25))
    assert pace.rate == pytest.approx(4.0)


def test_a_pause_does_not_count_as_slow():
    pace = ProductionPace()
    prebuffer = Prebuffer(pace)

    async def source():
        for chunk in made(0.25)[:6]:
            if chunk.made_ms > 700:
                prebuffer.skip_pause()
                chunk = chunk._replace(made_ms=chunk.made_ms + 5000)
            yield EncodedAudio(b"", chunk)

    async def listen():
        return [piece async for piece in prebuffer.pieces(source(), lambda: False)]

    assert len(run_virtually(listen())) == 6
    assert pace.rate == pytest.approx(4.0)
    assert measured_rate([], 3.0, 100.0) == 3.0


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


@pytest.mark.parametrize(
    "step_s",
    [0.048, pytest.param(0.04, marks=pytest.mark.slow), pytest.param(0.06, marks=pytest.mark.slow)],
)
def test_the_embedded_voice_does_not_stutter_in_its_first_second(world, step_s):
    """A frame of 80 ms takes a step: 0.6 of real time, where each early chunk is late."""

    async def script(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(recorded("question"))
        await phone.until_answered()

    phone = world.talk(script, step_s=step_s)
    audio = [(e.at_s, len(e.event["delta"]) * 3 / 4 / 48_000)
             for e in phone.of("response.output_audio.delta")]  # fmt: skip
    assert find_gaps(audio) == []
    (figures,) = phone.figures
    assert figures.num_gaps == figures.gaps_s == 0
    assert sum(duration_s for _, duration_s in audio) > 1.5


def test_gaps_and_latency_are_in_the_metrics(world, monkeypatch):
    monkeypatch.setattr(Prebuffer, "_wait_s", lambda _: 0.0)  # nothing waits

    async def script(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(recorded("question"))
        await phone.until_answered()

    phone = world.talk(script, step_s=0.06)
    sent = phone.of("response.output_audio.delta")
    gaps = find_gaps([(e.at_s, len(base64.b64decode(e.event["delta"])) / 48_000) for e in sent])
    assert gaps
    (figures,) = phone.figures
    assert figures.num_gaps == len(gaps)
    assert figures.gaps_s == pytest.approx(sum(gap.length_s for gap in gaps), abs=1e-6)
    (stopped,) = phone.of("input_audio_buffer.speech_stopped")
    spoken_s = stopped.at_s - stopped.event["silence_ms"] / 1000
    assert stopped.event["silence_ms"] == 500
    (text, *_), (audio, *_) = phone.of("response.output_audio_transcript.delta"), sent
    latency_s = figures.latency_s
    assert set(latency_s) == {"turn_end", "transcript", "text", "audio"}
    assert latency_s["turn_end"] == pytest.approx(0.5)
    assert latency_s["text"] == pytest.approx(text.at_s - spoken_s)
    assert latency_s["audio"] == pytest.approx(audio.at_s - spoken_s)
    assert 0 < latency_s["transcript"] <= latency_s["text"]


def test_a_pause_is_not_a_gap():
    clock = (
        SessionPlayback(250).send(100, 0).resume().send(100, 1000).send(100, 1050).send(40, 1250)
    )
    assert (clock.num_gaps, clock.gaps_ms) == (1, 50)


def test_a_track_counts_the_silence_in_the_middle_of_an_answer():
    speaker = Speaker(lambda *_, **__: None)
    speaker.read(960)
    speaker.play("a", b"a" * 960)
    speaker.pause()
    speaker.read(960)
    speaker.resume()
    assert [speaker.read(960) for _ in range(3)][1:] == [bytes(960)] * 2
    speaker.play("a", b"a" * 480)
    speaker.read(960)
    assert speaker.gaps("a") == (1, pytest.approx(50.0))
    speaker.play("a", b"a" * 960)
    speaker.complete("a")
    speaker.read(960)
    speaker.read(960)
    assert speaker.gaps("a") == (1, pytest.approx(50.0))
