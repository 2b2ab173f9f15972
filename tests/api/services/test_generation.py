"""One handle pauses, resumes, aborts and refunds what models generate for a caller."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing

import numpy as np
import pytest

from izwi.engine_client.protocol import Answer, Answers
from izwi.errors import IzwiError, Overloaded
from izwi.inputs.speech import TranscriptionInput
from izwi.request.request import Chunk, Reason
from izwi_api.services.generation import ChargedGeneration, Generation
from izwi_api.services.models.served import ServedModels
from izwi_api.services.transcription import transcribe
from izwi_api.services.transcription.transcribe import PieceOptions, open_transcription
from izwi_api.usage.metering import Charge, Usage, current_usage
from tests.api.conftest import FakeRegistry, FakeTranscription

PIECES, AHEAD = 6, 3
AUDIO = TranscriptionInput(np.zeros(PIECES * 160_000, np.float32), language="English")


class HeldAnswer(Answer):
    """Emits a character for each `__anext__`, unless it is paused; keeps its commands."""

    def __init__(self, text=""):
        self.left, self.commands = deque(text), []
        self.going = asyncio.Event()
        self.going.set()

    async def __anext__(self):
        await self.going.wait()
        await asyncio.sleep(0)
        code = ord(self.left.popleft())
        reason = None if self.left else Reason.STOP
        return Chunk("r", np.array([[code]], np.int64), reason=reason)

    def pause(self):
        self.commands.append("pause")
        self.going.clear()

    def resume(self):
        self.commands.append("resume")
        self.going.set()

    def abort(self):
        self.commands.append("abort")


class HeldEngine:
    def __init__(self):
        self.answers, self.on_submit = [], lambda: None

    def submit_all(self, requests):
        self.on_submit()
        made = Answers(HeldAnswer(request.prompt.text) for request in requests)
        self.answers += made
        return made


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(transcribe, "_MAX_AHEAD", AHEAD)
    engine = HeldEngine()
    model = ServedModels(engine, FakeRegistry(m=FakeTranscription())).transcription("m")
    return engine, open_transcription(model, AUDIO, PieceOptions(detects_speech=False))


async def passes(task):
    """Let other tasks run until they can do nothing, unless the task is done."""
    for _ in range(200):
        await asyncio.sleep(0)
        if task.done():
            return


async def test_paused_transcription_gives_no_text_until_it_is_resumed(world):
    engine, opening = world
    async with await opening as transcription:
        transcription.pause()
        assert [answer.commands for answer in engine.answers] == [["pause"]] * AHEAD
        reading = asyncio.create_task(transcription.finish())
        await passes(reading)
        assert not reading.done()
        assert (transcription.text, transcription.segments) == ("", [])
        transcription.resume()
        await reading
    assert transcription.text.split() == ["word"] * 10 * PIECES


async def test_piece_that_starts_while_its_transcription_is_paused_waits_too(world):
    engine, opening = world
    async with await opening as transcription:
        engine.on_submit = transcription.pause
        reading = asyncio.create_task(transcription.finish())
        while len(engine.answers) == AHEAD:  # noqa: ASYNC110 - a thread prepares the next one
            await asyncio.sleep(0.001)
        await passes(reading)
        late = engine.answers[AHEAD]
        assert (late.commands, len(engine.answers)) == (["pause"], AHEAD + 1)
        engine.on_submit = lambda: None
        transcription.resume()
        await reading
    assert late.commands[:2] == ["pause", "resume"]
    assert transcription.text.split() == ["word"] * 10 * PIECES


async def test_leaving_a_transcription_in_the_middle_aborts_its_pieces_in_flight(world):
    engine, opening = world
    async with await opening as transcription, aclosing(transcription.deltas(live=True)) as deltas:
        async for _ in deltas:
            break
    assert [{*answer.commands} for answer in engine.answers] == [{"abort"}] * AHEAD


class Made(ChargedGeneration):
    """Fails after its first output."""

    def __init__(self, charge, error):
        super().__init__(charge)
        self.made, self._error = (HeldAnswer(), HeldAnswer()), error

    def sources(self):
        return self.made

    async def output(self):
        with self.reading():
            yield 1
            raise self._error


class Whole(Generation):
    def __init__(self, *parts):
        self.parts = parts

    def sources(self):
        return self.parts


@pytest.mark.parametrize(
    ("error", "paid"), [(Overloaded("full", retry_after_s=1), 0), (IzwiError("broke"), 30)]
)
async def test_only_what_the_queue_refuses_is_refunded(error, paid):
    usage = Usage("key")
    token = current_usage.set(usage)
    try:
        charge = Charge(characters=30)
    finally:
        current_usage.reset(token)
    made = Made(charge, error)
    with pytest.raises(type(error)):
        await made.finish()
    assert usage.characters == paid
    assert [answer.commands for answer in made.made] == [["abort"]] * 2
    charge.add(characters=5)  # it is settled
    assert usage.characters == paid


async def test_generation_of_generations_passes_commands_to_each():
    parts = [Made(Charge(), IzwiError("x")) for _ in range(2)]
    async with Whole(*parts) as whole:
        whole.pause()
        whole.resume()
    for part in parts:
        assert [answer.commands for answer in part.made] == [["pause", "resume", "abort"]] * 2
