"""The engine dies in a user's turn: the turn waits for the next one, and nothing of it is lost."""

from __future__ import annotations

import numpy as np
import pytest

from tests.realtime.phone import RATE
from tests.realtime.scenes import happened
from tests.realtime.world import World, recorded

COMPLETED = "conversation.item.input_audio_transcription.completed"
SESSION = {"audio": {"input": {"transcription": {"model": "whisper-1"}}}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


def conversation(world, dies_s=None, gone_s=2.0):
    """Ask a question. The engine dies this many seconds after the first audio; another starts."""

    async def script(phone, engine):
        await phone.be_silent(0.4)
        audio = np.concatenate([recorded("question"), np.zeros(RATE * 2, np.float32)])
        first = len(audio) if dies_s is None else int(dies_s * RATE)
        await phone.hear(audio[:first])
        if dies_s is not None:
            engine.die()
            gone = first + int(gone_s * RATE)
            await phone.hear(audio[first:gone])
            await phone.be_silent(max(0.0, (gone - len(audio)) / RATE))
            engine.come_back()
            await phone.hear(audio[gone:])
        await phone.until("response.created")
        await phone.until_answered()

    return world.talk(script, session=SESSION)


@pytest.fixture(scope="module")
def undisturbed(world):
    phone = conversation(world)
    assert len(phone.audio()) > 2 * 48_000
    return phone


@pytest.mark.parametrize(
    ("dies_s", "gone_s"),
    [
        (0.0, 0.4),
        pytest.param(0.0, 9.0, marks=pytest.mark.slow),
        pytest.param(0.7, 9.0, marks=pytest.mark.slow),
        pytest.param(1.6, 0.5, marks=pytest.mark.slow),
        pytest.param(2.3, 9.0, marks=pytest.mark.slow),
    ],
)
def test_a_turn_is_answered_after_the_engine_dies_during_it(world, undisturbed, dies_s, gone_s):
    phone = conversation(world, dies_s, gone_s)
    assert happened(phone) == "SERD"
    heard = [[e.event["transcript"] for e in made.of(COMPLETED)] for made in (phone, undisturbed)]
    assert heard[0] == heard[1]
    assert len(heard[0]) == 1
    assert phone.audio() == undisturbed.audio()
    assert phone.num_left == 0
