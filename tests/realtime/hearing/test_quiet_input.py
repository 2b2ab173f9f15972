"""A client that sends nothing while its user is silent: the turn ends all the same."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from izwi_api.realtime.hearing.quiet_input import QUIET_MS, QuietInput
from izwi_api.realtime.protocol.formats import FORMATS
from tests.realtime.scenes import happened
from tests.realtime.test_scenes import session
from tests.realtime.world import World, recorded


def ticks(quiet, start_ms, count, every_ms=50):
    """The silence that each tick adds, and the state."""
    added = []
    for number in range(count):
        quiet, silence_ms = quiet.tick(start_ms + number * every_ms)
        added.append(silence_ms)
    return quiet, added


def test_silence_is_added_from_400_ms_on():
    quiet, _ = QuietInput().tick(1000)
    _, added = ticks(quiet.append(20), 1050, 12)
    assert added == [0] * 8 + [450] + [50] * 3
    assert QUIET_MS == 400


def test_a_client_that_sends_large_pieces_is_not_silent_between_them():
    quiet, _ = QuietInput().tick(0)
    for second in range(5):
        quiet, added = ticks(quiet.append(1000), 1000 * second + 50, 20)
        assert not any(added)
    _, added = ticks(quiet, 5050, 20)
    assert sum(added) >= 1900


def test_a_busy_server_does_not_take_its_own_delay_for_silence():
    quiet, _ = QuietInput().tick(0)
    quiet, added = quiet.append(20).tick(5000)
    assert added == 0


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


@pytest.mark.parametrize(("kind", "size"), [("audio/pcm", 1920), ("audio/pcmu", 320)])
def test_each_format_has_its_silence(kind, size):
    silence = FORMATS[kind].silence(40)
    assert len(silence) == size
    assert np.abs(FORMATS[kind].decode(silence)).max() < 1e-3


def test_a_turn_ends_without_a_frame_of_silence(world):
    async def script(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(recorded("question"))
        await asyncio.sleep(6.0)  # not a frame

    phone = world.talk(script, session=session())
    assert happened(phone) == "SERD"


def test_an_interruption_is_decided_without_a_frame_of_silence(world):
    async def script(phone, engine):
        await phone.be_silent(0.4)
        await phone.hear(recorded("question"))
        await phone.until_sent(0.6)
        await phone.hear(recorded("no-wait"))
        await asyncio.sleep(6.0)

    assert happened(world.talk(script, session=session())).startswith("SERSXER")
