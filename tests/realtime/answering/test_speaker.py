"""The queue of audio that a server plays: order, pauses at the sample, what was played."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from izwi.engine_client.protocol import Abortable
from izwi_api.realtime.answering.response import Hooks, Response, ResponseSetting
from izwi_api.realtime.answering.speaker import WIRE, Speaker
from izwi_api.services.chat.cascade import AudioPiece
from tests.examples import examples

FRAME = 960  # bytes of 20 ms


class Heard:
    def __init__(self):
        self.events = []
        self.speaker = Speaker(self._emit)

    def _emit(self, kind, response_id):
        self.events.append((kind.removeprefix("output_audio_buffer."), response_id))

    def read(self, count=1):
        return b"".join(self.speaker.read(FRAME) for _ in range(count))


def test_audio_is_played_in_order_with_events_at_its_ends():
    heard = Heard()
    heard.speaker.play("a", b"\1" * 1000)
    heard.speaker.complete("a")
    heard.speaker.play("b", b"\2" * 500)
    assert heard.read(3) == b"\1" * 1000 + b"\2" * 500 + bytes(3 * FRAME - 1500)
    assert heard.events == [("started", "a"), ("started", "b")]
    heard.speaker.complete("b")
    assert heard.events[-1] == ("stopped", "b")
    assert heard.speaker.played_ms("a") == 1000 / 48


def test_paused_stream_resumes_at_same_sample():
    heard = Heard()
    heard.speaker.play("a", bytes(range(1, 251)) * 10)
    first = heard.read()
    heard.speaker.pause()
    assert heard.read(5) == bytes(5 * FRAME)
    assert heard.speaker.played_ms("a") == 20
    heard.speaker.resume()
    assert (first + heard.read(2)).startswith(bytes(range(1, 251)) * 10)


def test_cleared_audio_is_not_played():
    heard = Heard()
    heard.speaker.play("a", b"\1" * 5000)
    heard.read()
    heard.speaker.pause()
    heard.speaker.clear()
    assert heard.read(9) == bytes(9 * FRAME)
    assert heard.speaker.played_ms("a") == 20
    heard.speaker.play("b", b"\2" * FRAME)
    assert heard.read() == b"\2" * FRAME, "a clear ends the pause"
    assert heard.events == [("started", "a"), ("cleared", "a"), ("started", "b")]


@examples(100)
@given(
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=6),
    pauses=st.lists(st.booleans(), max_size=30),
)
def test_all_audio_is_played_once_for_any_pauses(sizes, pauses):
    heard = Heard()
    written = b""
    for place, size in enumerate(sizes):
        piece = bytes([place + 1]) * size
        heard.speaker.play(f"r{place}", piece)
        heard.speaker.complete(f"r{place}")
        written += piece
    played = b""
    for is_paused in [*pauses, *([False] * 40)]:
        (heard.speaker.pause if is_paused else heard.speaker.resume)()
        played += heard.speaker.read(FRAME)
    assert played.replace(b"\0", b"") == written
    assert [event for event in heard.events if event[0] == "started"] == [
        ("started", f"r{place}") for place in range(len(sizes))
    ]


class Starved(Abortable):
    """An answer whose models have generated one piece of audio, and no more for now."""

    answer = SimpleNamespace(num_prompt_tokens=0, num_tokens=0, reason=None)
    num_frames, sample_rate = 1, 24_000

    async def pieces(self):
        yield AudioPiece(np.full(4800, 0.1, np.float32))
        await asyncio.Event().wait()

    def abort(self): ...


async def test_a_cancelled_answer_is_cleared_even_if_all_its_audio_was_played():
    heard = Heard()
    hooks = Hooks(
        emit=lambda *_, **__: None,
        add_item=lambda _: None,
        sent=lambda _: None,
        room=lambda: asyncio.sleep(0),
        ended=lambda _: None,
        speaker=heard.speaker,
    )
    response = Response(0, ResponseSetting(WIRE), hooks)

    async def open_answer():
        return Starved()

    response.prepare(open_answer)
    response.release()
    async with asyncio.timeout(60):
        while not heard.speaker.buffered_ms:  # noqa: ASYNC110
            await asyncio.sleep(0)
    heard.read(50)
    assert heard.speaker.buffered_ms == 0
    response.finish("cancelled", "turn_detected")
    heard.speaker.clear()
    assert [kind for kind, _ in heard.events] == ["started", "cleared"]
