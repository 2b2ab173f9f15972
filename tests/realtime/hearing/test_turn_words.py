"""The words of a turn stay with their turn, however late the transcriber is."""

from __future__ import annotations

import asyncio

import pytest

from izwi_api.realtime.hearing import transcriber as speech_transcriber
from izwi_api.realtime.hearing.input_audio import LiveTranscriber
from tests.realtime.test_scenes import COMPLETED, DELTA, session
from tests.realtime.world import World, recorded

LATE_S = 4.0


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


class LateListener(LiveTranscriber):
    """Hears given words, and reports them for long after the speech has ended."""

    words: list[str]

    async def _run(self):
        while await self._fed.get() is not None:
            pass
        text = self.words.pop(0)
        for _ in range(int(LATE_S / 0.1)):
            await asyncio.sleep(0.1)
            if text:
                self._on_text(text, text)
        return text


def deltas_and_transcripts(phone):
    """Of each item: its deltas, joined, and its complete transcript."""
    completed = {e.event["item_id"]: e.event["transcript"] for e in phone.of(COMPLETED)}
    deltas = dict.fromkeys(completed, "")
    for happened in phone.of(DELTA):
        deltas[happened.event["item_id"]] += happened.event["delta"]
    return deltas, completed


async def two_turns(phone, engine):
    await phone.be_silent(0.4)
    await phone.hear(recorded("question"))
    await phone.be_silent(0.9)  # the first turn has ended, and is not transcribed
    await phone.hear(recorded("follow-up"))
    await phone.be_silent(2.0 + LATE_S)


def listen_late(monkeypatch, *words):
    monkeypatch.setattr(LateListener, "words", list(words), raising=False)
    monkeypatch.setattr(speech_transcriber, "LiveTranscriber", LateListener)


def test_late_words_are_not_deltas_of_the_next_turn(world, monkeypatch):
    words = ["One two three four five.", "Six seven eight nine ten."]
    listen_late(monkeypatch, *words)
    phone = world.talk(two_turns, session=session(create_response=False))
    deltas, completed = deltas_and_transcripts(phone)
    assert list(completed.values()) == words
    assert deltas == completed


def test_late_words_do_not_end_the_next_turn(world, monkeypatch):
    turns = session(type="semantic_vad", eagerness="high", create_response=False)
    ends = []
    for late in ("It leaves at seven.", ""):
        listen_late(monkeypatch, late, "")
        phone = world.talk(two_turns, session=turns)
        ends += [e.event["audio_end_ms"] for e in phone.of("input_audio_buffer.speech_stopped")]
    # without words of its own, the second turn ends after the silence of an unclear ending
    assert len(ends) == 4
    assert ends[1] == ends[3]


def test_the_deltas_of_a_slow_transcriber_begin_their_transcripts(world):
    phone = world.talk(two_turns, session=session(), step_s=0.15)
    deltas, completed = deltas_and_transcripts(phone)
    assert list(completed.values()) == [
        "When does the train leave?",
        "And what does the ticket cost",
    ]
    for item_id, text in completed.items():
        assert text.startswith(deltas[item_id])


def test_late_words_of_the_same_turn_are_still_its_deltas(world, monkeypatch):
    """After a pause, the turn is transcribed again from its beginning."""
    first = "One two three four five."
    listen_late(monkeypatch, first, "", "")

    async def script(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(recorded("would-like"))
        await phone.be_silent(0.3)  # an answer is prepared
        await phone.hear(recorded("when-leaves"))
        await phone.be_silent(0.1)
        await phone.until(COMPLETED)

    phone = world.talk(script, session=session())
    assert len(phone.of(COMPLETED)) == 1
    stopped = phone.of("input_audio_buffer.speech_stopped")[0].at_s
    early = [e.event["delta"] for e in phone.of(DELTA) if e.at_s < stopped]
    assert early == ["One two three"]
