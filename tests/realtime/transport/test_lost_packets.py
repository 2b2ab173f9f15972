"""Audio over a network that loses packets: alone, and in a live session over WebRTC, both ways."""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi_api.realtime.transport.lost_packets import Filler, PacketBuffer
from tests.realtime.conftest import LONG_ANSWER

RATE, PIECE = 24_000, 480
SESSION = {"type": "realtime", "audio": {"input": {"transcription": {}}}}


@dataclass
class Packet:
    sequence_number: int
    timestamp: int
    _data: bytes


def packet(number):
    return Packet(number % (1 << 16), number * 960, str(number).encode())


def received(numbers):
    """The audio that is decoded from packets in this order."""
    buffer = PacketBuffer()
    due = [buffer.add(packet(number)) for number in numbers]
    assert not any(asks_for_picture for asks_for_picture, _ in due)
    return [int(encoded.data) for _, encoded in due if encoded is not None]


def test_packets_are_decoded_in_order_80_ms_later():
    assert received(range(10)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("first", [0, 7, 65_530])
def test_late_packets_are_reordered_and_duplicates_dropped(first):
    order = [first + n for n in (0, 2, 1, 1, 3, 6, 5, 4, 7, 8, 9, 2, 10, 11, 12)]
    assert received(order) == [first + n for n in range(9)]


def test_a_sender_may_restart_its_sequence_numbers():
    assert received([*range(8), *range(30_000, 30_008)])[-4:] == [*range(30_000, 30_004)]


@given(st.integers(0, 70_000), st.lists(st.booleans(), min_size=20, max_size=200), st.data())
def test_packets_in_time_are_decoded_once_and_in_order(first, arrives, data):
    """No packet is moved by more than two places, and few are lost in a row."""
    sent = [first + n for n, comes in enumerate(arrives) if comes or n == 0]
    moves = data.draw(st.lists(st.floats(0, 2), min_size=len(sent), max_size=len(sent)))
    keys = dict(zip(sent, moves, strict=True))
    order = sorted(sent, key=lambda number: number + keys[number] * (number != first))
    decoded = received(order)
    assert decoded == sorted(set(decoded))
    # all but the last few, which still wait
    assert decoded == [number for number in sent if number <= decoded[-1]] if decoded else True
    assert len(sent) - len(decoded) <= 4


def test_gaps_are_filled_with_fading_audio():
    filler, heard = Filler(RATE), []
    for number in (0, 1, 4, 5, 9):
        piece = np.full(PIECE, 1000, np.int16)
        heard += filler.pieces(5.0 + number * PIECE / RATE, piece)
    whole = np.concatenate(heard)
    assert len(whole) == 10 * PIECE
    levels = whole.reshape(10, PIECE)[:, 0].tolist()
    assert levels == [1000, 1000, 500, 250, 1000, 1000, 500, 250, 125, 1000]


def test_a_pause_of_the_sender_is_not_filled():
    filler = Filler(RATE)
    piece = np.ones(PIECE, np.int16)
    assert sum(
        len(part) for start_s in (0.0, 2.0, 1.0) for part in filler.pieces(start_s, piece)
    ) == (3 * PIECE)


def test_silence_that_was_added_is_not_filled_again():
    filler, piece = Filler(RATE), np.full(PIECE, 1000, np.int16)
    heard = [filler.silence(0.1), *filler.pieces(5.0, piece), filler.silence(0.4)]
    heard += filler.pieces(5.5, piece)
    whole = np.concatenate(heard)
    assert len(whole) == round(RATE * 0.1) + round(RATE * 0.5) + PIECE
    assert np.count_nonzero(whole) == 2 * PIECE
    # a piece that is late has its silence before it
    assert len(np.concatenate([filler.silence(0.4), *filler.pieces(5.52, piece)])) == 9600 + PIECE


@pytest.fixture
def lossy(monkeypatch):
    """Packets that were lost: one in ten of both sides, once there is one in this list."""
    from aioice import ice

    chance, lost = random.Random(7), []
    send = ice.StunProtocol.send_data

    async def send_data(protocol, data, addr):
        if lost and chance.random() < 0.1:
            lost.append(len(data))
        else:
            await send(protocol, data, addr)

    monkeypatch.setattr(ice.StunProtocol, "send_data", send_data)
    return lost


@pytest.mark.skipif(find_spec("aiortc") is None, reason="needs the extra `webrtc`")
async def test_a_conversation_works_over_a_network_that_loses_packets(served, said, lossy):
    from tests.realtime.transport.test_webrtc import calling

    served.answer = LONG_ANSWER
    question = said("When does the train leave?")
    async with calling(served.url) as caller:
        caller.send("session.update", session=SESSION)
        await caller.until("session.updated")
        lossy.append(0)
        caller.microphone.speak(question)
        await caller.until("conversation.item.input_audio_transcription.completed")
        begun = await caller.until("input_audio_buffer.speech_started")
        ended = await caller.until("input_audio_buffer.speech_stopped")
        # what is lost takes its time, so the turn is as long as it was
        length_ms = ended["audio_end_ms"] - begun["audio_start_ms"]
        assert length_ms >= 1000 * len(question) / RATE
        await caller.until("output_audio_buffer.started")
        caller.microphone.speak(said("No, I would like to know about the bus."))
        done = await caller.until("response.done")
        assert done["response"]["status_details"]["reason"] == "turn_detected"
        assert caller.count("error") == 0
        assert len(lossy) > 20
        lossy.clear()  # so that the end arrives
