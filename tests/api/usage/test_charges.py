"""What a request takes of a key's quotas: reserved once when it opens, settled once at its end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.errors import IzwiError, Overloaded, QuotaExceeded
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi_api.services.chat.answer import open_answer
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.services.transcription.transcribe import PieceOptions, open_transcription
from izwi_api.usage.limits import KeyLimits
from izwi_api.usage.metering import Charge, Usage, current_usage
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech, FakeTranscription

TEXT = "One sentence. Another one. A third one. The last."
SECONDS = 35


class Meter:
    """What a key has left, and how often it changed."""

    limits = KeyLimits()

    def __init__(self, left):
        self.left, self.num_charges, self.num_refunds = left, 0, 0

    def charge(self, amounts):
        amount = sum(amounts.values())
        if amount > self.left:
            raise QuotaExceeded("no more today", retry_after_s=1)
        self.left -= amount
        self.num_charges += 1

    def refund(self, amounts):
        self.left += sum(amounts.values())
        self.num_refunds += 1


@contextmanager
def metered(left):
    meter = Meter(left)
    usage = Usage("key", meter)
    token = current_usage.set(usage)
    try:
        yield meter, usage
    finally:
        current_usage.reset(token)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "add", "refund", "settle", "refuse"]),
        st.integers(0, 5),  # which of those that were opened
        st.integers(0, 40),
    ),
    max_size=40,
)


@given(STEPS, st.booleans())
def test_meter_holds_exactly_what_is_reserved(steps, is_free):
    limit, charges, settled = 100, [], {}
    with metered(limit) as (meter, usage):
        for step, which, amount in steps:
            charge = charges[which % len(charges)] if charges else None
            try:
                if step == "open":
                    charges.append(Charge(characters=amount, is_free=is_free))
                elif charge is None:
                    continue
                elif step == "add":
                    charge.add(characters=amount)
                elif step == "refund":
                    charge.refund(characters=amount)
                else:
                    charge.settle(is_refused=step == "refuse")
                    settled.setdefault(id(charge), charge.characters)
            except QuotaExceeded:
                assert amount > meter.left
            reserved = sum(charge.characters for charge in charges)
            assert all(charge.characters >= 0 for charge in charges)
            assert meter.left == limit - reserved
            assert usage.characters == reserved
        for charge in charges:  # once settled, none changed
            assert settled.get(id(charge), charge.characters) == charge.characters
        assert not (is_free and meter.num_charges)


class Refusing(FakeEngine):
    """Refuses what comes after so many requests."""

    num_accepted = 1000

    def submit_all(self, requests):
        answers = super().submit_all(requests)
        for number, answer in enumerate(answers, self.num_submitted - len(answers)):
            answer.refused |= number >= self.num_accepted
        return answers


async def speech(models):
    async with (
        await open_speech(models.speech("tts"), SpeechInput(TEXT)) as opened,
        aclosing(opened.output()) as chunks,
    ):
        async for _ in chunks:
            yield


async def transcription(models):
    ask = TranscriptionInput(np.zeros(SECONDS * 16_000, np.float32), language="English")
    model = models.transcription("asr")
    async with (
        await open_transcription(model, ask, PieceOptions(detects_speech=False)) as opened,
        aclosing(opened.deltas(live=True)) as deltas,
    ):
        async for _ in deltas:
            yield


async def chat(models):
    ask = ChatInput((ChatMessage(Role.USER, "Say this."),))
    async with (
        await open_answer(models.chat("chat"), ask) as answer,
        aclosing(answer.deltas()) as deltas,
    ):
        async for _ in deltas:
            yield


WHOLE = {
    speech: sum(map(len, FakeSpeech().split_text(TEXT))),
    transcription: SECONDS,
    chat: len("Say this."),
}


@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
@given(
    num_read=st.integers(0, 60),
    ending=st.sampled_from(["read", "left", "cancelled", "never started"]),
    num_accepted=st.integers(0, 6),
)
def test_request_is_reserved_once_and_settled_once(kind, num_read, ending, num_accepted):
    async def run():
        engine = Refusing(step_s=0.0)
        engine.num_accepted = num_accepted
        registry = FakeRegistry(tts=FakeSpeech(), asr=FakeTranscription(), chat=FakeChat())
        opened = kind(ServedModels(engine, registry))
        was_refused = False

        async def reads():
            nonlocal was_refused
            try:
                async with aclosing(opened):
                    for _ in range(num_read if ending == "left" else 10_000):
                        await anext(opened)
            except StopAsyncIteration:
                pass
            except Overloaded:
                was_refused = True

        with metered(10_000) as (meter, usage):
            if ending == "never started":
                await opened.aclose()
                assert meter.num_charges == 0
                assert engine.num_submitted == 0
                return
            reading = asyncio.create_task(reads())
            if ending == "cancelled":
                for _ in range(num_read):
                    await asyncio.sleep(0)
                reading.cancel()
            await asyncio.wait({reading})
            assert not engine.live
            assert meter.num_charges <= 1
            assert meter.num_refunds == was_refused
            used = usage.characters + usage.heard_s
            assert meter.left == pytest.approx(10_000 - used)
            assert used < WHOLE[kind] if was_refused else used in (0, pytest.approx(WHOLE[kind]))

    asyncio.run(run())


async def test_engine_that_cannot_be_reached_costs_nothing():
    class Gone(FakeEngine):
        def submit_all(self, requests):
            raise IzwiError("the engine is not running")

    registry = FakeRegistry(tts=FakeSpeech(), asr=FakeTranscription(), chat=FakeChat())
    for kind in WHOLE:
        with metered(10_000) as (meter, _):
            with pytest.raises(IzwiError, match="not running"):
                await anext(kind(ServedModels(Gone(), registry)))
            assert (meter.left, meter.num_charges, meter.num_refunds) == (10_000, 1, 1)
