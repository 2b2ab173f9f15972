"""A client in virtual time: a microphone, a loudspeaker, and the room between them."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
import soxr
from openai.types.realtime import RealtimeServerEvent

from izwi.audio.pcm import from_s16le, to_s16le
from izwi_api.realtime.session import RealtimeSession
from izwi_api.services.answer_figures import AnswerFigures, TurnEvent
from izwi_api.sessions.core import Session
from izwi_api.sessions.errors import ClientLeft
from izwi_api.sessions.limits import SessionLimits

RATE = 24_000
BLOCK_S = 0.04
_BLOCK = int(RATE * BLOCK_S)
# validated by name: to try all kinds on each event took a tenth of the time of a conversation
_EVENTS = {
    get_args(kind.model_fields["type"].annotation): kind
    for kind in get_args(get_args(RealtimeServerEvent)[0])
}


@dataclass(frozen=True)
class Echo:
    """How the loudspeaker comes back through the microphone."""

    level_db: float
    delay_s: float

    def hear(self, played: np.ndarray, end: int) -> np.ndarray:
        """The microphone's block up to a sample, with the room's reflections."""
        heard = np.zeros(_BLOCK, np.float32)
        for later_s, gain in ((0.0, 1.0), (0.011, 0.35), (0.023, 0.2)):
            stop = end - int(RATE * (self.delay_s + later_s))
            block = played[max(0, stop - _BLOCK) : max(0, stop)]
            heard[_BLOCK - len(block) :] += gain * block
        return heard * 10 ** (self.level_db / 20)


@dataclass
class Happened:
    """An event of the server, and when it came, in seconds since the call began."""

    at_s: float
    event: dict


@dataclass
class Phone:
    """A client that plays what it gets at once, and flushes its playback on `speech_started`.

    It is the `Wire` of its session.
    """

    echo: Echo | None = None
    background: np.ndarray | None = None  # what sounds in the room all the time, at 24 kHz
    events: list[Happened] = field(default_factory=list)
    # of each answer that was prepared before its turn ended: whether it was given
    prepared: list[bool] = field(default_factory=list)
    # of each spoken answer that has ended, what the metrics count
    figures: list[AnswerFigures] = field(default_factory=list)
    # what the metrics count of its turns
    turns: list[TurnEvent] = field(default_factory=list)

    def __post_init__(self):
        self._sent: asyncio.Queue[str] = asyncio.Queue()
        self._news = asyncio.Event()
        self._pending = np.zeros(0, np.float32)  # audio that is not played yet
        self._played = np.zeros(RATE * 400, np.float32)
        self._num_played = 0
        self.close_code = None
        self._began_s = asyncio.get_running_loop().time()

    # -- the session's side ----------------------------------------------------------------------
    async def receive(self):
        message = await self._sent.get()
        if message is None:
            raise ClientLeft
        return message

    async def send(self, message):
        event = json.loads(message)
        _EVENTS[event["type"],].model_validate_json(message, strict=True)
        self.events.append(Happened(self.now_s, event))
        match event["type"]:
            case "input_audio_buffer.speech_started":
                self._pending = self._pending[:0]
            case "response.output_audio.delta":
                audio = from_s16le(base64.b64decode(event["delta"]))
                self._pending = np.concatenate([self._pending, audio])
        self._news.set()

    async def close(self, code, reason):
        self.close_code = code

    # -- the caller's side -----------------------------------------------------------------------
    @property
    def now_s(self):
        return asyncio.get_running_loop().time() - self._began_s

    def send_event(self, kind, **fields):
        self._sent.put_nowait(json.dumps({"type": kind, **fields}))

    def leave(self):
        self._sent.put_nowait(None)

    async def hear(self, samples):
        """Run for as long as this sound of the room lasts: (n,) float32 at 24 kHz."""
        for start in range(0, len(samples), _BLOCK):
            block = np.zeros(_BLOCK, np.float32)
            part = samples[start : start + _BLOCK]
            block[: len(part)] = part
            self._play()
            if self.background is not None:
                block += np.take(self.background, np.arange(_BLOCK) + self._num_played, mode="wrap")
            if self.echo is not None:
                block += self.echo.hear(self._played, self._num_played)
            audio = base64.b64encode(to_s16le(np.clip(block, -1, 1))).decode()
            self.send_event("input_audio_buffer.append", audio=audio)
            await asyncio.sleep(BLOCK_S)

    async def be_silent(self, seconds):
        await self.hear(np.zeros(int(RATE * seconds), np.float32))

    async def until(self, kind, **fields):
        """Be silent until an event of a kind comes; return it."""
        seen = 0
        while True:
            for happened in self.events[seen:]:
                event = happened.event
                if event["type"] == kind and all(event.get(k) == v for k, v in fields.items()):
                    return event
            seen = len(self.events)
            await self.be_silent(BLOCK_S)

    async def until_sent(self, seconds):
        """Be silent until so much of the last answer has come, in seconds."""
        while True:
            created = self.of("response.created")
            if created and len(self.audio(created[-1].event["response"]["id"])) >= seconds * 48_000:
                return
            await self.be_silent(BLOCK_S)

    async def until_another(self):
        """Be silent until a second response begins, or 5 s have passed."""
        end_s = self.now_s + 5
        while self.now_s < end_s and len(self.of("response.created")) < 2:
            await self.be_silent(BLOCK_S)

    async def until_answered(self):
        """Be silent until a turn is over and answered, or 5 s have passed."""
        end_s = self.now_s + 5
        while self.now_s < end_s and not self.is_answering:
            await self.be_silent(BLOCK_S)
        while self.is_answering or len(self._pending):
            await self.be_silent(BLOCK_S)

    @property
    def longest_wait_s(self):
        """The longest time between two pieces of audio of one answer, or the last and a cancel."""
        came, waits = {}, [0.0]
        for happened in self.of("response.output_audio.delta", "response.done"):
            answer = happened.event.get("response_id")
            if answer is None:
                made = happened.event["response"]
                answer = made["id"] if made["status"] == "cancelled" else None
            waits.append(happened.at_s - came.get(answer, happened.at_s))
            came[answer] = happened.at_s
        return max(waits)

    @property
    def is_answering(self):
        """Whether a response is in progress."""
        return len(self.of("response.created")) > len(self.of("response.done"))

    def _play(self):
        block = self._pending[:_BLOCK]
        self._pending = self._pending[_BLOCK:]
        start, self._num_played = self._num_played, self._num_played + _BLOCK
        self._played[start : start + len(block)] = block

    # -- what happened ---------------------------------------------------------------------------
    def of(self, *kinds):
        return [happened for happened in self.events if happened.event["type"] in kinds]

    def audio(self, response_id=None):
        return b"".join(
            base64.b64decode(happened.event["delta"])
            for happened in self.of("response.output_audio.delta")
            if response_id in (None, happened.event["response_id"])
        )


def at_24_khz(samples, rate):
    return soxr.resample(samples, rate, RATE).astype(np.float32)


async def call(services, settings, phone, talk, limits=None):
    """Hold a session while `talk` lasts."""
    limits = limits or SessionLimits()
    session = Session(phone, limits)
    service = RealtimeSession(session, services, settings, limits.total_s)
    running = asyncio.create_task(session.run(service))
    try:
        return await talk
    finally:
        phone.leave()
        await running
