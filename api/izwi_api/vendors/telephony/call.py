"""A telephone call as the transport of a live session: audio both ways, marks and clears.

The caller's audio goes to the session, and its events stay here. As over WebRTC, the session plays
over a `Speaker`: the server knows what was played, and an answer that is interrupted pauses at the
sample. A carrier is sent audio at the pace of playback, little ahead of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from izwi.audio.pcm import from_s16le, to_s16le
from izwi.audio.resample import StreamResampler
from izwi_api.realtime.answering.speaker import WIRE, Speaker
from izwi_api.realtime.protocol.formats import OutputEncoder, WireFormat
from izwi_api.realtime.session import AppendAudio, Work
from izwi_api.sessions.core import Message, Wire
from izwi_api.sessions.errors import ClientLeft
from izwi_api.sessions.loop_turns import LoopTurns
from izwi_api.vendors.telephony.keys import PressedKeys
from izwi_api.vendors.translated_wire import check_size

logger = logging.getLogger(__name__)

_FRAME_MS = 20
# Audio that is processed at once.
_PIECE_MS = 100
# Audio that the carrier has ahead of playback, against gaps if a packet is late.
_LEAD_S = 0.06
# Frames of silence after audio: its last samples are still in the filter of the resampler.
_TAIL_FRAMES = 10
# A server that is late by more plays on from now, and not faster to catch up.
_MAX_LATE_S = 0.5
# Marks whose echo is awaited; a carrier that echoes none must not fill the memory.
_MAX_MARKS = 64
# A carrier's message has some 20 ms of audio. More is taken, but not minutes.
_MAX_MESSAGE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Started:
    """The call begins.

    Attributes:
        wire: Format of its audio, both ways.
        parameters: What the operator's answer to the call passes on.
    """

    wire: WireFormat
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallerAudio:
    """Bytes of the caller's audio."""

    data: bytes


@dataclass(frozen=True, slots=True)
class MarkPlayed:
    """All audio before a mark was played."""

    name: str


@dataclass(frozen=True, slots=True)
class KeyPressed:
    """The caller pressed a key of the phone."""

    key: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The call has ended."""


CallEvent = Started | CallerAudio | MarkPlayed | KeyPressed | Ended


class Carrier(Protocol):
    """A carrier's messages in one call."""

    def read(self, message: Message) -> CallEvent | None:
        """Return what a message says; None for one that needs nothing. Raises ValueError."""
        ...

    def audio(self, data: bytes) -> Message:
        """Return the message that plays audio."""
        ...

    def mark(self, name: str) -> Message:
        """Return the message that asks for an echo when all audio before it was played."""
        ...

    def clear(self) -> Message:
        """Return the message that drops audio that was not played."""
        ...


class PhoneCall:
    """A call, and the `Wire` of its session.

    Args:
        wire: The carrier's messages.
        carrier: Reads and writes them.
        turns: When the next piece of a long message may be processed.

    Attributes:
        speaker: Plays the session's audio; set before the session runs.
    """

    def __init__(self, wire: Wire, carrier: Carrier, turns: LoopTurns):
        self.speaker: Speaker | None = None
        self._wire, self._carrier, self._turns = wire, carrier, turns
        self._append: AppendAudio | None = None
        self._format: WireFormat | None = None
        self._resampler: StreamResampler | None = None
        self._started = asyncio.Event()
        self._marks: dict[str, float] = {}  # name -> when it was sent
        self._keys = PressedKeys()
        self._events: deque[str] = deque()  # of pressed keys, for the session

    # -- as a wire -------------------------------------------------------------------------------
    async def receive(self) -> Message:
        """Handle the call, and return the client events that it stands for.

        Raises ClientLeft and SessionOver.
        """
        while True:
            if self._events:
                return self._events.popleft()
            message = await self._wire.receive()
            check_size(message, _MAX_MESSAGE_BYTES)
            try:
                event = self._carrier.read(message)
            except (ValueError, KeyError, TypeError, RecursionError):
                logger.warning("a carrier's message cannot be read")
                raise ClientLeft from None
            match event:
                case Started(wire, parameters):
                    self._start(wire)
                    if str(parameters.get("greet", "")).lower() in ("1", "true"):
                        return '{"type": "response.create"}'
                case CallerAudio(data):
                    await self._hear(data)
                case MarkPlayed(name):
                    self._note_played(name)
                case KeyPressed(key):
                    self._events += self._keys.press(key)
                case Ended():
                    raise ClientLeft

    async def send(self, message: Message) -> None:
        """Carry out what an event of the session means for the call. Raises ClientLeft."""
        event = json.loads(message)
        match event["type"]:
            case "output_audio_buffer.cleared" if self._started.is_set():
                await self._wire.send(self._carrier.clear())
            case "output_audio_buffer.stopped" if self._started.is_set():
                name = event["response_id"]
                if len(self._marks) < _MAX_MARKS:
                    self._marks[name] = time.monotonic()
                    await self._wire.send(self._carrier.mark(name))

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; the carrier then goes on with the call, or hangs up."""
        await self._wire.close(code, reason)

    # -- audio -----------------------------------------------------------------------------------
    def background_tasks(self, append: AppendAudio) -> Sequence[Work]:
        """Return the task that plays; `append` takes the caller's audio from now on."""
        self._append = append
        return (self._play(),)

    def _start(self, wire: WireFormat) -> None:
        if self._format is not None:
            return
        self._format, self._resampler = wire, StreamResampler(wire.rate, WIRE.rate)
        self._started.set()

    async def _hear(self, data: bytes) -> None:
        if self._format is None or self._resampler is None or self._append is None:
            return  # before the start nothing is known of it
        self._events += self._keys.wait(self._format.duration_ms(len(data)) / 1000)
        data = data[: len(data) // self._format.sample_bytes * self._format.sample_bytes]
        size = self._format.num_bytes(_PIECE_MS)
        for start in range(0, len(data), size):
            if start:
                await self._turns.wait_for_turn()
            samples = self._resampler.write(self._format.decode(data[start : start + size]))
            if len(samples):
                self._append(to_s16le(samples))

    async def _play(self) -> None:
        """Send what the speaker plays, in frames, while it plays."""
        await self._started.wait()
        assert self._format is not None
        assert self.speaker is not None
        encoder = OutputEncoder(self._format, WIRE.rate)
        num_bytes = WIRE.rate * _FRAME_MS // 1000 * WIRE.sample_bytes
        size, pending = self._format.num_bytes(_FRAME_MS), bytearray()
        due_s, num_silent = time.monotonic(), _TAIL_FRAMES
        while True:
            await asyncio.sleep(max(0.0, due_s - _LEAD_S - time.monotonic()))
            num_silent = 0 if self.speaker.is_playing else num_silent + 1
            pending += encoder.write(from_s16le(self.speaker.read(num_bytes)))
            while len(pending) >= size:  # the resampler has none for some frames, and more later
                frame = bytes(pending[:size])
                del pending[:size]
                if num_silent <= _TAIL_FRAMES:
                    await self._wire.send(self._carrier.audio(frame))
            due_s += _FRAME_MS / 1000
            if time.monotonic() - due_s > _MAX_LATE_S:
                due_s = time.monotonic()

    def _note_played(self, name: str) -> None:
        sent_s = self._marks.pop(name, None)
        if sent_s is not None:
            logger.debug("an answer was played %.0f ms later", (time.monotonic() - sent_s) * 1000)
