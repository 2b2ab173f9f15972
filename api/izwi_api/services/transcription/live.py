"""Transcribe audio while it arrives: feed samples, read events.

Audio goes to the model's stream, which decides what to decode next; each step is one request to the
engine. A step is aborted when newer audio supersedes it, but never two in a row, so that text
appears even if decoding is slower than speech. Without HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

import numpy as np

from izwi.arrays import Float32
from izwi.engine_client.protocol import Answer
from izwi.errors import EngineStopped, InvalidAudio, InvalidRequest, ModelNotFound, Overloaded
from izwi.model.capability import Capability
from izwi.model.frontend import TranscriptionFrontend
from izwi.request.input_stream import (
    DecodingStep,
    PartialTranscript,
    StreamingTranscriptionFrontend,
    TranscriptionStream,
)
from izwi.request.request import Request
from izwi_api.services.context import chunks_of, tokens_of
from izwi_api.services.models.served import ServedModel, ServedModels
from izwi_api.usage.metering import Charge, seconds

SAMPLE_RATE = 16_000
# Audio that may be queued while the model is behind; beyond that, `feed` waits.
_MAX_WAITING_S = 30
_PIECE_S = 1  # audio is checked and queued in pieces of this length


@dataclass(frozen=True, slots=True)
class PartialText:
    """The text of a segment so far.

    Attributes:
        segment: Index of the segment.
        start_s: Start of the segment, in seconds of the audio fed.
        end_s: End of the audio that was transcribed so far.
        stable: Text that will not change.
        unstable: Text after it that may still change.
        language: "" while it is unknown.
    """

    segment: int
    start_s: float
    end_s: float
    stable: str
    unstable: str
    language: str


@dataclass(frozen=True, slots=True)
class SegmentText:
    """The final text of a segment. It begins with the stable text of its partial events.

    Attributes:
        segment: Index of the segment.
        start_s: Start of the segment, in seconds of the audio fed.
        end_s: End of the segment, where the next one starts.
        language: "" if none was detected.
    """

    segment: int
    start_s: float
    end_s: float
    text: str
    language: str


Event = PartialText | SegmentText


class LiveTranscription(AsyncIterator[Event]):
    """A transcription of audio that is fed while it runs. Made by `open_live_transcription`.

    One task calls `feed` and `finish`; any task may read the events. A caller that stops early must
    `abort`; `async with` does. Kept in memory are one segment of audio, the queued audio, all
    unread final events, and the last partial one.
    """

    def __init__(
        self,
        model: ServedModel[TranscriptionFrontend],
        frontend: StreamingTranscriptionFrontend,
        stream: TranscriptionStream,
        charge: Charge,
    ):
        self._model, self._frontend, self._stream = model, frontend, stream
        self._charge = charge
        self._request_id = f"live-{uuid4().hex}"
        self._num_requests = 0
        self._waiting: deque[Float32] = deque()
        self._num_waiting = 0  # samples
        self._is_fed = False  # all audio was fed
        self._arrived = asyncio.Event()  # audio, or its end
        self._has_room = asyncio.Event()
        self._is_idle = asyncio.Event()  # nothing can be done until more arrives
        self._in_flight: Answer | None = None  # a step that may be overtaken
        self._is_overtaken = False
        self._events: deque[Event] = deque()
        self._reported = asyncio.Event()
        self._work = asyncio.get_running_loop().create_task(self._decode())
        self._work.add_done_callback(self._ended)

    async def feed(self, samples: Float32) -> None:
        """Add samples; wait while the model is half a minute behind.

        Args:
            samples: (n,) float32 mono at 16 kHz, of any length.

        Raises:
            InvalidAudio: The samples are not mono, or not finite.
            InvalidRequest: `finish` was called before.
            QuotaExceeded: The key may not transcribe that much more today.
            IzwiError: The transcription has failed.
        """
        if self._is_fed:
            raise InvalidRequest("this transcription has ended and accepts no more audio")
        if samples.ndim != 1:
            raise InvalidAudio(f"audio must be mono, got an array of shape {samples.shape}")
        self._charge.add(heard_s=seconds(len(samples)))
        size = _PIECE_S * SAMPLE_RATE
        for start in range(0, len(samples), size):
            piece = samples[start : start + size].astype(np.float32)  # the caller's may change
            if not np.isfinite(piece).all():
                raise InvalidAudio("audio has samples that are not numbers")
            while self._num_waiting > _MAX_WAITING_S * SAMPLE_RATE and not self._work.done():
                self._has_room.clear()
                await self._has_room.wait()
            self._raise_failure()
            self._waiting.append(piece)
            self._num_waiting += len(piece)
            self._is_idle.clear()
            self._arrived.set()
            if self._stream_is_ahead():
                self._overtake()

    def refund(self) -> None:
        """Refund the charge for the audio so far, because it is transcribed again."""
        self._charge.settle(is_refused=True)

    async def caught_up(self) -> None:
        """Wait until the audio fed so far is transcribed, as far as it can be without more.

        Raises:
            IzwiError: The transcription has failed.
        """
        await self._is_idle.wait()
        self._raise_failure()

    async def finish(self) -> None:
        """End the audio, and wait until all of it is transcribed.

        Raises:
            IzwiError: The transcription has failed.
        """
        self._is_fed = True
        self._arrived.set()
        self._overtake()
        await asyncio.wait([self._work])
        self._raise_failure()

    def abort(self) -> None:
        """Stop: abort the step in flight and end the events."""
        self._is_fed = True
        self._work.cancel()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Abort."""
        self.abort()
        await asyncio.wait([self._work])

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event; stop after the last one, or after `abort`.

        Raises:
            IzwiError: The transcription has failed.
        """
        while not self._events:
            if self._work.done():
                self._raise_failure()
                raise StopAsyncIteration
            self._reported.clear()
            await self._reported.wait()
        return self._events.popleft()

    def unread(self) -> list[Event]:
        """Take the available events, without waiting."""
        events = list(self._events)
        self._events.clear()
        return events

    # -- the task that decodes -------------------------------------------------------------------
    async def _decode(self) -> None:
        """Pass audio to the stream and run its steps, one after another, until none remain."""
        while True:
            self._arrived.clear()
            was_fed = self._is_fed
            self._hand_over()
            if was_fed and not self._waiting:
                self._stream.close()
            if self._stream.is_due():
                await self._run_step()
            elif was_fed and not self._waiting:
                return
            elif not self._waiting:
                self._is_idle.set()
                await self._arrived.wait()

    async def _run_step(self) -> None:
        self._num_requests += 1
        request_id = f"{self._request_id}-{self._num_requests}"
        step, request = await asyncio.to_thread(self._prepare, request_id)
        try:
            tokens = await self._tokens(request, may_be_overtaken=not step.is_final)
        except Overloaded as error:
            # a partial text is left out, a final one is asked for again: the step is still due
            await asyncio.sleep(error.retry_after_s if step.is_final else 0)
            return
        if tokens is None:
            return
        heard = await asyncio.to_thread(self._stream.add_tokens, step, tokens)
        self._publish(_event(heard))

    def _prepare(self, request_id: str) -> tuple[DecodingStep, Request]:
        step = self._stream.next_step()
        name, stream = self._model.name, self._stream
        return step, self._frontend.prepare_stream_step(request_id, name, stream, step)

    async def _tokens(self, request: Request, *, may_be_overtaken: bool) -> list[int] | None:
        """Return the ids that the engine emits, or None if newer audio superseded the step."""
        tokens: list[int] = []
        try:
            async with self._model.submit(request) as answer:
                if may_be_overtaken and not self._is_overtaken:
                    self._in_flight = answer
                self._is_overtaken = False
                if self._is_fed or self._stream_is_ahead():  # while it was prepared
                    self._overtake()
                async for chunk in chunks_of(answer):
                    tokens += tokens_of(chunk)
        except EngineStopped:
            if not self._is_overtaken:
                raise
            return None
        finally:
            self._in_flight = None
        self._is_overtaken = False
        return tokens

    def _stream_is_ahead(self) -> bool:
        """Whether the queued audio is worth a new step. Only called while a step is in flight."""
        return self._in_flight is not None and self._stream.is_due(self._num_waiting)

    def _overtake(self) -> None:
        if self._in_flight is not None and not self._is_overtaken:
            self._is_overtaken = True
            self._in_flight.abort()

    def _hand_over(self) -> None:
        while self._waiting and self._stream.room > 0:
            piece = self._waiting.popleft()
            self._num_waiting -= len(piece)
            self._stream.write(piece)
            self._model.note_heard(seconds(len(piece)))
        self._has_room.set()

    def _publish(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, PartialText) and last.segment == event.segment:
            self._events.pop()  # the newer event contains all of it
        self._events.append(event)
        self._reported.set()

    def _ended(self, work: asyncio.Task[None]) -> None:
        if not work.cancelled():
            work.exception()  # asked for, so that asyncio does not log what `feed` will raise
        for change in (self._reported, self._has_room, self._is_idle):
            change.set()

    def _raise_failure(self) -> None:
        if self._work.done() and not self._work.cancelled():
            error = self._work.exception()
            if error is not None:
                raise error


def default_streaming_model(registry: ServedModels) -> str:
    """Return the first model that transcribes while audio arrives. Raises ModelNotFound."""
    for name in registry.names():
        model = registry.model(name).frontend
        is_streaming = isinstance(model, StreamingTranscriptionFrontend)
        if is_streaming and Capability.TRANSCRIBE in model.capabilities:
            return name
    raise ModelNotFound("no model that transcribes live audio is served", param="model")


async def open_live_transcription(
    model: ServedModel[TranscriptionFrontend],
    *,
    language: str | None = None,
    context: str = "",
    chunk_s: float | None = None,
    charged: bool = True,
) -> LiveTranscription:
    """Start a transcription of audio that is fed later.

    Args:
        model: The transcription model.
        language: Name or code of the language; None detects it.
        context: Text that precedes the audio, or has words that are likely in it.
        chunk_s: Seconds of audio between two partial texts; None takes the model's default.
        charged: Charge the audio to the caller's quota.

    Raises:
        InvalidRequest: The model does not stream, or cannot do what was requested.
    """
    frontend = model.frontend
    if not isinstance(frontend, StreamingTranscriptionFrontend):
        raise InvalidRequest(f"{model.name!r} transcribes complete audio only", param="model")
    stream = frontend.open_stream(language=language, context=context, chunk_s=chunk_s)
    return LiveTranscription(model, frontend, stream, Charge(is_free=not charged))


def _event(heard: PartialTranscript) -> Event:
    where = (heard.segment, heard.start_s, heard.end_s)
    if heard.is_final:
        return SegmentText(*where, heard.text, heard.language)
    unstable = heard.text[len(heard.stable) :]
    return PartialText(*where, heard.stable, unstable, heard.language)
