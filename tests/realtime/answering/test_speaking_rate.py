"""The played part of an interrupted answer's text is estimated from its voice's speaking rate."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from izwi_api.realtime.answering import response_maker
from izwi_api.realtime.protocol.settings import RealtimeSettings
from izwi_api.realtime.protocol.speaking_rate import CHARACTERS_PER_S, SpeakingRates
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.chat.cascade import AudioPiece
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModels
from izwi_api.settings import Settings
from tests.realtime.phone import Phone, call
from tests.realtime.test_barge_in import ANSWER_S, OnlyChat, Tones
from tests.realtime.virtual import run_virtually

TEXT = "a b c d e f g h"  # in three seconds: 5 characters a second


def test_the_speaking_rate_follows_recent_answers():
    rates = SpeakingRates()
    assert rates.rate("amber") == CHARACTERS_PER_S
    rates.learn("amber", "x" * 90, 9.0)
    assert rates.rate("amber") == pytest.approx(10.5)  # 15 in the second that is assumed
    assert rates.rate("basil") == rates.rate(None) == CHARACTERS_PER_S
    for _ in range(20):
        rates.learn("amber", "x" * 600, 30.0)
    assert rates.rate("amber") == pytest.approx(20, abs=0.1)
    for text, duration_s in (("", 5.0), ("x" * 100, 0.0)):
        rates.learn("amber", text, duration_s)
    assert rates.rate("amber") == pytest.approx(20, abs=0.1)


class Slow(Tones):
    """All text at once, and then slow speech."""

    async def pieces(self):
        yield AnswerDelta(content=TEXT)
        async for piece in super().pieces():
            if isinstance(piece, AudioPiece):
                yield piece


async def cut_in_half(phone, speeds):
    """Hear answers at these speeds to their ends, and then half of one at the last; its item."""

    async def script():
        for speed in speeds:
            output = {"output": {"speed": speed}}
            phone.send_event("session.update", session={"type": "realtime", "audio": output})
            phone.send_event("response.create")
            await phone.be_silent(ANSWER_S / speed + 1.0)
        phone.send_event("response.create")
        await phone.be_silent(ANSWER_S / speeds[-1] / 2 if speeds else ANSWER_S / 2)
        phone.send_event("response.cancel")
        await phone.be_silent(0.2)
        item_id = phone.of("response.done")[-1].event["response"]["output"][0]["id"]
        phone.send_event("conversation.item.retrieve", item_id=item_id)
        await phone.be_silent(0.2)

    engine = SimpleNamespace(load={})
    services = Services(engine, ServedModels(engine, OnlyChat()), Settings(), None)
    await call(services, RealtimeSettings(model="chat"), phone, script())
    return phone.of("conversation.item.retrieved")[-1].event["item"]


@pytest.mark.parametrize(
    ("speeds", "least", "most"),
    [
        ((), 0.85, 1.0),  # nothing is known of the voice
        ((1.0,), 0.4, 0.8),
        ((1.0, 1.0, 1.0, 1.0), 0.4, 0.65),
        ((1.5, 0.75, 0.75), 0.4, 0.7),
    ],
)
def test_the_text_of_an_interrupted_answer_ends_where_it_was_played(
    monkeypatch, speeds, least, most
):
    async def open_answer(*_):
        return Slow(0)

    async def run():
        return await cut_in_half(Phone(), speeds)

    monkeypatch.setattr(response_maker.ResponseMaker, "open_answer", open_answer)
    (content,) = run_virtually(run())["content"]
    assert TEXT.startswith(content["transcript"])
    assert least <= len(content["transcript"]) / len(TEXT) <= most
