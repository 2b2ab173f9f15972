"""A session that transcribes audio while it arrives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from izwi.arrays import Float32
from izwi.audio.pcm import from_s16le
from izwi.audio.resample import StreamResampler
from izwi.errors import InvalidRequest, IzwiError, TooLarge
from izwi.model.frontend import TranscriptionFrontend
from izwi_api.schemas.transcription_stream import (
    MAX_BYTES,
    InputCancel,
    InputDone,
    SessionClose,
    SessionConfig,
    parse_message,
)
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.transcription.live import (
    SAMPLE_RATE,
    LiveTranscription,
    PartialText,
    SegmentText,
    default_streaming_model,
    open_live_transcription,
)
from izwi_api.sessions.core import Message, Session
from izwi_api.sessions.errors import SessionOver
from izwi_api.usage.metering import Charge


class SpeakerPart(Protocol):
    """What one speaker says in a segment, in seconds since its start."""

    @property
    def start_s(self) -> float:
        """Where it begins."""
        ...

    @property
    def end_s(self) -> float:
        """Where it ends."""
        ...

    @property
    def speaker(self) -> str:
        """The speaker's name; "" if the engine failed to tell."""
        ...

    @property
    def text(self) -> str:
        """What is said."""
        ...


class SpeakersOfSegments(Protocol):
    """Tells the speakers of a session's segments apart."""

    async def parts(self, samples: Float32, text: str) -> Sequence[SpeakerPart]:
        """Return what each speaker says in a segment, by start.

        Args:
            samples: (n,) of the segment at 16 kHz.
            text: Its transcript.
        """
        ...


# Makes what tells the speakers of a session apart, for a model. Raises InvalidRequest.
OpenSpeakers = Callable[[SessionConfig, str], Awaitable[SpeakersOfSegments]]


class _SegmentAudio:
    """The samples of an utterance since its last segment, at 16 kHz."""

    def __init__(self) -> None:
        self._pieces: list[Float32] = []
        self._first = 0

    def write(self, samples: Float32) -> None:
        """Append samples."""
        self._pieces.append(samples)

    def pop(self, start_s: float, end_s: float) -> Float32:
        """Return the samples between two times of the utterance, and drop all before the end."""
        kept = np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.float32)
        start, stop = (
            max(0, round(place * SAMPLE_RATE) - self._first) for place in (start_s, end_s)
        )
        self._pieces, self._first = [kept[stop:]], self._first + min(stop, len(kept))
        return kept[start:stop]


class _Utterance:
    """One utterance, from its first samples to its `input.done`.

    Attributes:
        speakers: Tells its speakers apart, or None.
        audio: Its samples, if speakers are told apart.
    """

    def __init__(
        self,
        live: LiveTranscription,
        rate: int,
        speakers: SpeakersOfSegments | None,
        *,
        ignores_prompt: bool,
    ):
        self.live, self.ignores_prompt = live, ignores_prompt
        self.speakers, self.audio = speakers, _SegmentAudio()
        self.seconds = 0.0
        self.is_cancelled = False
        self._rate, self._half = rate, b""
        self._resampler = StreamResampler(rate, SAMPLE_RATE)

    async def write(self, data: bytes) -> None:
        """Add bytes, split anywhere; wait while the model is half a minute behind."""
        data = self._half + data
        size = len(data) - len(data) % 2
        self._half = data[size:]
        self.seconds += size / 2 / self._rate
        await self._feed(self._resampler.write(from_s16le(data[:size])))

    async def finish(self) -> None:
        """End the utterance."""
        await self._feed(self._resampler.finish())
        await self.live.finish()

    async def _feed(self, samples: Float32) -> None:
        if self.speakers is not None:
            self.audio.write(samples)
        await self.live.feed(samples)


class TranscriptionSession:
    """A `Service` that transcribes the audio of one client.

    Args:
        session: The session that it serves.
        services: The models.
        describe: Returns the message that reports an error.
        open_speakers: Makes what tells speakers apart; None if nobody asks for them.
    """

    def __init__(
        self,
        session: Session,
        services: Services,
        describe: Callable[[Exception], dict[str, object]],
        open_speakers: OpenSpeakers | None = None,
    ):
        self._session, self._services, self._describe = session, services, describe
        self._config = SessionConfig()
        self._open_speakers = open_speakers
        self._speakers: SpeakersOfSegments | None = None
        self._utterance: _Utterance | None = None
        self._begun, self._written = asyncio.Event(), asyncio.Event()
        self._is_closing = False
        self._charge = Charge()  # for all audio, as it arrives

    @property
    def is_busy(self) -> bool:
        """Whether an utterance is being completed."""
        return self._is_closing

    def start_session(self) -> None:
        """Do nothing: the client sends the first message."""

    def background_tasks(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the task that sends transcripts."""
        return (self._send_transcripts(),)

    def tick(self, now_s: float) -> None:
        """Do nothing: the limits of every session are enough."""

    def close(self) -> None:
        """Abort what still runs."""
        if self._utterance is not None:
            self._utterance.live.abort()

    def report(self, error: Exception) -> None:
        """Report a bad message, or why the session ends."""
        self._session.put(json.dumps(self._describe(error)))

    # -- input -----------------------------------------------------------------------------------
    async def handle_message(self, message: Message) -> None:
        """Handle audio, or a message about it."""
        if self._is_closing:
            return  # only disconnects are still of interest
        if isinstance(message, bytes):
            await self._append_audio(message)
            return
        match parse_message(message):
            case SessionConfig() as config:
                await self._configure(config)
            case InputDone():
                await self._finish()
            case InputCancel():
                if self._utterance is not None:
                    self._utterance.is_cancelled = True
                    self._utterance.live.abort()
                    await self._written.wait()
            case SessionClose():
                self._is_closing = True
                await self._finish()
                raise SessionOver("", "", 1000, is_told=False)

    async def _configure(self, config: SessionConfig) -> None:
        if self._utterance is not None:
            raise InvalidRequest("a recording is still open; send input.done first", param="type")
        # the model's refusal is reported now, not after the first audio
        await (await self._open(config)).__aexit__()
        setting = config.speaker_setting
        if setting is None or self._open_speakers is None:
            self._speakers = None
        elif self._speakers is None or setting != self._config.speaker_setting:
            self._speakers = await self._open_speakers(config, self._model(config).name)
        self._config = config

    async def _open(self, config: SessionConfig) -> LiveTranscription:
        return await open_live_transcription(
            self._model(config),
            language=config.language,
            context=config.prompt,
            chunk_s=config.chunk_s,
            charged=False,
        )

    def _model(self, config: SessionConfig) -> ServedModel[TranscriptionFrontend]:
        registry = self._services.registry
        return registry.transcription(config.model or default_streaming_model(registry))

    async def _append_audio(self, data: bytes) -> None:
        if not data:  # it only keeps the session open
            return
        if len(data) > MAX_BYTES:
            raise TooLarge(f"the message is larger than {MAX_BYTES} bytes")
        self._charge.add(heard_s=len(data) / 2 / self._config.sample_rate)
        if self._utterance is None:
            config = self._config
            follows = self._model(config).frontend.follows_context
            ignores = bool(config.prompt.strip()) and not follows
            live = await self._open(config)
            self._utterance = _Utterance(
                live, config.sample_rate, self._speakers, ignores_prompt=ignores
            )
            self._written.clear()
            self._begun.set()
        with suppress(IzwiError):  # `_send_transcripts` reports it
            await self._utterance.write(data)

    async def _finish(self) -> None:
        if self._utterance is None:
            return
        with suppress(IzwiError):
            await self._utterance.finish()
        await self._written.wait()

    # -- output ----------------------------------------------------------------------------------
    async def _send_transcripts(self) -> None:
        """Send the transcripts of the utterances in order."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            utterance = self._utterance
            assert utterance is not None
            texts: list[str] = []
            try:
                async with utterance.live:
                    async for event in utterance.live:
                        for message in await _messages(utterance, event):
                            await self._session.send(json.dumps(message))
                        if isinstance(event, SegmentText):
                            texts.append(event.text.strip())
            except Exception as error:
                self.report(error)
            self._utterance = None
            done = {
                "type": "transcript.done",
                "text": " ".join(filter(None, texts)),
                "cancelled": utterance.is_cancelled,
                "usage": {"type": "duration", "seconds": round(utterance.seconds, 3)},
            }
            if utterance.ignores_prompt:
                done["ignored"] = ["prompt"]
            await self._session.send(json.dumps(done))
            self._written.set()


async def _messages(
    utterance: _Utterance, event: PartialText | SegmentText
) -> list[dict[str, object]]:
    """Return the messages of an event: a segment of several speakers has one for each part."""
    message = _event_json(event)
    if utterance.speakers is None or not isinstance(event, SegmentText):
        return [message]
    samples = utterance.audio.pop(event.start_s, event.end_s)
    parts = await utterance.speakers.parts(samples, event.text.strip())
    if not parts:
        return [message | {"speaker": ""}]
    return [
        message
        | {
            "start": round(event.start_s + part.start_s, 3),
            "end": round(event.start_s + part.end_s, 3),
            "speaker": part.speaker,
            "text": part.text,
        }
        for part in parts
    ]


def _event_json(event: PartialText | SegmentText) -> dict[str, object]:
    place = {
        "segment": event.segment,
        "start": round(event.start_s, 3),
        "end": round(event.end_s, 3),
        "language": event.language or None,
    }
    if isinstance(event, SegmentText):
        return {"type": "transcript.segment", **place, "text": event.text}
    words = {"stable": event.stable, "unstable": event.unstable}
    return {"type": "transcript.partial", **place, **words}
