"""One client of the Wyoming server: its events, and what is said and heard for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing

import numpy as np

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi.errors import InvalidMessage, IzwiError, TooLarge
from izwi_api.client import AsyncClient
from izwi_api.wyoming.events import Event, read_event, write_event
from izwi_api.wyoming.info import describe

logger = logging.getLogger(__name__)

# Ten minutes at 16 kHz: a command is seconds long.
_MAX_AUDIO_BYTES = 10 * 60 * 16_000 * 2
_MAX_TEXT_CHARS = 1 << 16
_WIDTH = 2  # bytes of a sample
_LEAST_RATE, _MOST_RATE = 8000, 48_000


class Connection:
    """Serves one client until it disconnects.

    Args:
        client: The server or the models that do the work.
        reader: The client's events.
        writer: Ours.
    """

    def __init__(
        self, client: AsyncClient, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self._client, self._reader, self._writer = client, reader, writer
        self._writing = asyncio.Lock()
        self._language: str | None = None
        self._model: str | None = None
        self._rate = 16_000
        self._audio: bytearray | None = None
        self._text: asyncio.Queue[str | None] | None = None  # of a speech that is still written
        self._num_chars = 0  # of it
        self._speaking: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Handle events, one after the other. Errors are reported, and the connection goes on."""
        try:
            while (event := await read_event(self._reader)) is not None:
                try:
                    await self._handle(event)
                except (IzwiError, InvalidMessage) as error:
                    await self._report(error)
        except InvalidMessage as error:  # what follows cannot be read
            await self._report(error)
        finally:
            await self._stop_speaking()

    async def _handle(self, event: Event) -> None:
        match event.type:
            case "describe":
                await self._send("info", **await describe(self._client))
            case "ping":
                await self._send("pong", text=event.text("text"))
            case "transcribe":
                self._language = event.text("language") or None
                self._model = await self._known_model(event.text("name"))
            case "audio-start":
                self._start_audio(event)
            case "audio-chunk":
                self._add_audio(event)
            case "audio-stop":
                await self._transcribe()
            case "synthesize":
                if self._text is None:  # else it repeats the text that was streamed
                    await self._say(event.text("text"), _voice_of(event))
            case "synthesize-start":
                await self._stop_speaking()
                self._text, self._num_chars = asyncio.Queue(), 0
                streamed = self._say_streamed(_pieces(self._text), _voice_of(event))
                self._speaking = asyncio.create_task(streamed)
            case "synthesize-chunk":
                self._add_text(event.text("text"))
            case "synthesize-stop":
                await self._finish_speaking()
            case kind:
                logger.debug("an event is ignored: %s", kind[:64])

    async def _known_model(self, name: str) -> str | None:
        """Return the name of a model, or None for the first: clients may name another server's."""
        served = {model["id"] for model in await self._client.models()}
        return name if name in served else None

    # -- hearing ---------------------------------------------------------------------------------
    def _start_audio(self, event: Event) -> None:
        rate, width, channels = (event.data.get(name) for name in ("rate", "width", "channels"))
        if not isinstance(rate, int) or not _LEAST_RATE <= rate <= _MOST_RATE:
            raise InvalidMessage(f"the rate must be from {_LEAST_RATE} to {_MOST_RATE} Hz")
        if (width, channels) != (_WIDTH, 1):
            raise InvalidMessage("audio must be 16-bit samples of one channel")
        self._rate, self._audio = rate, bytearray()

    def _add_audio(self, event: Event) -> None:
        if self._audio is None:
            self._start_audio(event)
        assert self._audio is not None
        if len(self._audio) + len(event.payload) > _MAX_AUDIO_BYTES:
            self._audio = None
            raise TooLarge(f"the audio is larger than {_MAX_AUDIO_BYTES} bytes")
        self._audio += event.payload

    async def _transcribe(self) -> None:
        audio, self._audio = self._audio, None
        if audio is None:
            return
        content = wav_header(self._rate, len(audio)) + bytes(audio)
        stream = self._client.stream_transcription(
            content, language=self._language, model=self._model
        )
        await self._send("transcript-start")
        async with stream:
            async for update in stream:
                if update.text:
                    await self._send("transcript-chunk", text=update.text)
        await self._send("transcript", text=stream.result.text.strip())
        await self._send("transcript-stop")

    # -- speaking --------------------------------------------------------------------------------
    def _add_text(self, text: str) -> None:
        if self._text is None:
            return
        self._num_chars += len(text)
        if self._num_chars > _MAX_TEXT_CHARS:
            self._text.put_nowait(None)
            raise TooLarge(f"the text is longer than {_MAX_TEXT_CHARS} characters")
        self._text.put_nowait(text)

    async def _say(self, text: str | AsyncIterable[str], voice: str | None) -> None:
        """Send the audio of a text as it is made. Raises IzwiError."""
        stream = self._client.stream_speech(text, voice=voice)
        form: dict[str, object] = {}
        async with stream:
            async for audio in stream:
                if not form:
                    form = {"rate": audio.sample_rate, "width": _WIDTH, "channels": 1}
                    await self._send("audio-start", **form)
                samples = np.asarray(audio.samples, np.float32)
                await self._write(Event("audio-chunk", form, to_s16le(samples)))
        await self._send("audio-stop")

    async def _say_streamed(self, pieces: AsyncGenerator[str], voice: str | None) -> None:
        try:
            async with aclosing(pieces):
                await self._say(pieces, voice)
        except IzwiError as error:
            await self._report(error)
        finally:
            self._text = None
        await self._send("synthesize-stopped")

    async def _finish_speaking(self) -> None:
        if self._text is not None:
            self._text.put_nowait(None)
        if self._speaking is not None:
            await self._speaking
        self._speaking = None

    async def _stop_speaking(self) -> None:
        speaking, self._speaking = self._speaking, None
        if speaking is not None:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

    # -- output ----------------------------------------------------------------------------------
    async def _report(self, error: Exception) -> None:
        code = error.code if isinstance(error, IzwiError) else "internal_error"
        await self._send("error", text=str(error), code=code)

    async def _send(self, kind: str, **data: object) -> None:
        await self._write(Event(kind, data))

    async def _write(self, event: Event) -> None:
        async with self._writing:  # audio and answers come from several tasks
            await write_event(self._writer, event)


async def _pieces(text: asyncio.Queue[str | None]) -> AsyncGenerator[str]:
    while (piece := await text.get()) is not None:
        yield piece


def _voice_of(event: Event) -> str | None:
    voice = event.data.get("voice")
    if not isinstance(voice, dict):
        return None
    name = voice.get("speaker") or voice.get("name")
    return str(name) if name else None
