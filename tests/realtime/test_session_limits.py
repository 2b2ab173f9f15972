"""Limits of what one session may make the server store and do; without models and sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from izwi.errors import ModelNotFound
from izwi_api.realtime import dialogue as dialogue_module
from izwi_api.realtime.hearing.input_audio import InputBuffer
from izwi_api.realtime.protocol.errors import EventError
from izwi_api.realtime.protocol.items import Conversation, parse_item
from izwi_api.realtime.protocol.settings import RealtimeSettings, input_wire, wire_format
from izwi_api.realtime.session import RealtimeSession
from izwi_api.services.models.served import ServedModels
from izwi_api.services.production_pace import ProductionPace
from izwi_api.sessions.core import Message, Session
from izwi_api.sessions.limits import SessionLimits
from izwi_api.sessions.loop_turns import LoopTurns
from izwi_api.settings import Settings


class _Nothing:
    """A registry without models."""

    def names(self) -> list[str]:
        return ["chat"]

    def adapter(self, name: str) -> None:
        return None

    def adapters_of(self, name: str) -> list[str]:
        return []

    def fingerprint(self, name: str) -> str:
        return name

    def default(self, capability: object) -> str:
        raise ModelNotFound("nothing is served")

    def model(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(capabilities=frozenset(), max_positions=4096)


WIRE = wire_format(RealtimeSettings(model="chat").audio.input.format)


@dataclass
class _Services:
    registry: ServedModels
    engine: SimpleNamespace
    settings: Settings = field(default_factory=Settings)
    pace: ProductionPace = field(default_factory=ProductionPace)
    report_answer: object = None
    loop_turns: LoopTurns = field(default_factory=LoopTurns)


SERVICES = _Services(ServedModels(SimpleNamespace(), _Nothing()), SimpleNamespace())


class FakeWire:
    """A client that writes as fast as it can, and reads everything."""

    def __init__(self, messages: list[dict[str, object]]):
        self.to_come = [json.dumps(message) for message in messages]
        self.events: list[dict[str, object]] = []

    async def receive(self) -> str:
        await asyncio.sleep(0)
        if not self.to_come:
            await asyncio.Event().wait()
        return self.to_come.pop(0)

    async def send(self, message: Message) -> None:
        self.events.append(json.loads(message))

    async def close(self, code: int, reason: str) -> None: ...


async def serve(wire: FakeWire) -> None:
    session = Session(wire, SessionLimits())
    settings = RealtimeSettings(model="chat")
    await session.run(RealtimeSession(session, SERVICES, settings, 3600.0))  # type: ignore[arg-type]


async def until(is_so) -> None:
    for _ in range(6000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


def test_the_total_text_of_a_conversation_is_limited() -> None:
    conversation, megabyte = Conversation(), "x" * (1 << 20)
    content = [{"type": "input_text", "text": megabyte}]
    for _ in range(4):
        conversation.add(parse_item({"type": "message", "role": "user", "content": content}, WIRE))
    call = {"type": "function_call", "name": "f", "arguments": megabyte}
    with pytest.raises(EventError) as refused:
        conversation.add(parse_item(call, WIRE))
    assert refused.value.code == "conversation_too_long"
    assert len(conversation.items) == 4
    # audio whose words come later is accepted, and room is made by deleting
    conversation.add(parse_item({"type": "message", "role": "user", "content": []}, WIRE))
    conversation.delete(conversation.items[0].item_id)
    call["arguments"] = megabyte[:-1]
    conversation.add(parse_item(call, WIRE))


def test_the_parts_of_a_conversation_are_limited() -> None:
    conversation = Conversation()
    content = [{"type": "input_text", "text": "a"}] * 64
    message = {"type": "message", "role": "user", "content": content}
    for _ in range(8192 // 64):
        conversation.add(parse_item(message, WIRE))
    with pytest.raises(EventError, match="8192 parts") as refused:
        conversation.add(parse_item(message, WIRE))
    assert refused.value.code == "too_many_items"
    first = conversation.items[0]
    conversation.append(parse_item(message, WIRE))  # what was said is always taken
    assert first not in conversation.items
    assert len(conversation.items) == 8192 // 64


async def test_seconds_of_audio_in_one_message_let_others_run(monkeypatch) -> None:
    num_turns, written, write = 0, [], InputBuffer.write

    def counted(buffer, data):
        written.append((num_turns, len(data)))
        return write(buffer, data)

    monkeypatch.setattr(InputBuffer, "write", counted)
    audio = base64.b64encode(bytes(2 * 24_000 * 3)).decode()
    append = {"type": "input_audio_buffer.append", "audio": audio}
    serving = [asyncio.create_task(serve(FakeWire([append] * 2))) for _ in range(3)]
    while len(written) < 180:  # 3 sessions of 6 s
        num_turns += 1
        await asyncio.sleep(0)
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    assert max(size for _, size in written) == 2 * 2400
    # the pieces of all sessions together: one in each turn of the loop
    assert len({turn for turn, _ in written}) == 180


async def test_a_message_that_does_not_fit_is_refused_as_a_whole() -> None:
    audio = base64.b64encode(bytes(8000 * 60 * 8)).decode()
    silent = {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {}}}}
    silent["session"]["audio"]["input"] = {
        "turn_detection": None,
        "format": {"type": "audio/pcmu"},
    }
    session = Session(wire := FakeWire([]), SessionLimits())
    realtime = RealtimeSession(session, SERVICES, RealtimeSettings(model="chat"), 3600.0)
    dialogue = realtime._dialogue
    dialogue._buffer._detector.write = lambda _: []  # tested above
    for message in (silent, {"type": "input_audio_buffer.append", "audio": audio}):
        await realtime.handle_message(json.dumps(message))
    assert dialogue.end_ms == 8 * 60_000
    with pytest.raises(EventError, match="15 minutes"):
        await realtime.handle_message(
            json.dumps({"type": "input_audio_buffer.append", "audio": audio})
        )
    assert dialogue.end_ms == 8 * 60_000
    # and what is there is not converted again and again
    silent["session"]["audio"]["input"]["format"] = {"type": "audio/pcma"}
    with pytest.raises(EventError, match="commit or clear it before") as refused:
        await realtime.handle_message(json.dumps(silent))
    assert refused.value.code == "input_audio_buffer_not_empty"
    assert input_wire(dialogue.settings).name == dialogue._buffer.wire.name == "audio/pcmu"
    await realtime.handle_message('{"type": "input_audio_buffer.clear"}')
    await realtime.handle_message(json.dumps(silent))
    assert not wire.events


def test_the_input_buffer_does_not_depend_on_how_a_long_turn_is_cut() -> None:
    rng = np.random.default_rng(5)
    audio = rng.integers(-3000, 3000, 24_000 * 40, np.int16).tobytes()
    whole, in_pieces = (InputBuffer(WIRE, "webrtc") for _ in range(2))
    whole.write(audio)
    start = 0
    while start < len(audio):
        size = int(rng.integers(1, 9600))
        in_pieces.write(audio[start : start + size])
        start += size
    assert in_pieces.end_ms == whole.end_ms == 40_000
    for first_ms, last_ms in ((0, 40_000), (12_345, 12_367), (39_000, 50_000), (5, 5)):
        assert np.array_equal(
            in_pieces.samples(first_ms, last_ms), whole.samples(first_ms, last_ms)
        )
    in_pieces.drop(30_000)
    assert np.array_equal(in_pieces.samples(0), whole.samples(30_000))
    in_pieces.write(audio[:48_000])  # behind what was dropped
    whole.write(audio[:48_000])
    assert np.array_equal(in_pieces.samples(31_000), whole.samples(31_000))
    frame = in_pieces.write(audio[:48_000])[20]
    before = in_pieces.samples(0)
    in_pieces.silence(frame)
    changed = np.flatnonzero(in_pieces.samples(0) != before)
    assert changed[-1] - changed[0] < len(frame.samples)
    assert changed[-1] == frame.end - 1 - 30_000 * 16  # of which 30 s were dropped


@pytest.mark.slow
def test_an_append_costs_the_same_in_a_long_turn() -> None:
    """Ten minutes in one turn: each append used to copy all of it, which blocked the event loop."""
    buffer = InputBuffer(WIRE, "webrtc")
    piece = bytes(960)  # 20 ms

    def of_400() -> float:
        begun = time.process_time()
        for _ in range(400):
            buffer.write(piece)
        return time.process_time() - begun

    short = min(of_400() for _ in range(3))
    for _ in range(10):
        buffer.write(bytes(60 * 48_000))
    assert min(of_400() for _ in range(3)) < 8 * short + 0.1


async def test_turns_in_transcription_are_limited(monkeypatch) -> None:
    """Each commit of 100 ms is a request to the engine: one session filled its queue."""
    open_now, most, proceed = set[object](), [0], asyncio.Event()

    class Listening:
        def __init__(self, *_: object) -> None:
            open_now.add(self)
            most[0] = max(most[0], len(open_now))

        def feed(self, samples: object) -> None: ...

        def close(self) -> None: ...

        def finish(self) -> asyncio.Task[str]:
            async def work() -> str:
                await proceed.wait()
                open_now.discard(self)
                return "words"

            return asyncio.create_task(work())

    monkeypatch.setattr("izwi_api.realtime.hearing.transcriber.LiveTranscriber", Listening)
    monkeypatch.setattr(dialogue_module, "transcription_of", lambda *_: object())
    audio = base64.b64encode(bytes(9600)).decode()
    off = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    monkeypatch.setattr("izwi_api.realtime.session.check_settings", no_check)
    turn = [
        {"type": "input_audio_buffer.append", "audio": audio},
        {"type": "input_audio_buffer.commit"},
    ]
    wire = FakeWire([{"type": "session.update", "session": off}, *turn * 40])
    running = asyncio.create_task(serve(wire))
    await until(lambda: len(open_now) >= 8)
    for _ in range(200):
        await asyncio.sleep(0)
    assert most == [8]
    proceed.set()
    committed = "input_audio_buffer.committed"
    await until(lambda: sum(event["type"] == committed for event in wire.events) == 40)
    running.cancel()


async def no_check(*_: object) -> None: ...
