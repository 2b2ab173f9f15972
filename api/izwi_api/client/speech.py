"""Speech of a complete text, or of one that is still being written."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from izwi.errors import EngineStopped, InvalidRequest
from izwi_api.client.audio import Audio, PcmReader
from izwi_api.client.connection import Fields, Requests
from izwi_api.client.errors import error_from_event, error_from_response
from izwi_api.client.socket import Socket, SocketClosed, SocketRefused
from izwi_api.client.streams import SpeechDetails, Word

_SPEECH = "/v1/audio/speech"
_STREAM = "/v1/audio/speech/stream"
_NOT_FOUND = 404
# A server disconnects clients that send nothing for longer than some 30 s.
_KEEP_ALIVE_S = 10.0


class SpeechOptions(TypedDict, total=False):
    """Options of speech. The server or the model chooses those that are not given.

    Attributes:
        model: Name of a speech model; by default the first.
        voice: A speaker of the model, a stored voice, or one of OpenAI's names.
        instructions: How to speak, in words.
        text_mode: "full" reads the whole text before it speaks; "streaming" reads while it speaks.
        seed: The same seed gives the same speech.
        speed: 2 takes half the time, at the same pitch.
        ref_audio: A clip of the voice to clone: audio, a file's path or its bytes.
        ref_text: What the clip says.
        x_vector_only: Clone the speaker's timbre only; `ref_text` is not needed.
        pronunciations: Replacements of words, by word.
        word_timestamps: Return the times of words.
        include_codes: Return the codec's codes.
    """

    model: str | None
    voice: str | None
    language: str | None
    instructions: str | None
    text_mode: str | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    speed: float | None
    max_new_tokens: int | None
    ref_audio: Audio | str | Path | bytes | None
    ref_text: str | None
    x_vector_only: bool
    pronunciations: dict[str, str] | None
    word_timestamps: bool
    include_codes: bool


def audio_bytes(audio: Audio | str | Path | bytes) -> bytes:
    """Return the bytes of an audio file. Raises OSError."""
    if isinstance(audio, Audio):
        return audio.wav()
    return audio if isinstance(audio, bytes) else Path(audio).read_bytes()


async def request_speech(
    requests: Requests, fields: Fields, details: SpeechDetails
) -> AsyncGenerator[Audio]:
    """Speak a text, and yield the audio as it is made.

    Args:
        requests: The server.
        fields: The fields of POST /v1/audio/speech; `ref_audio` as `audio_bytes` takes it.
        details: Filled as the response arrives.

    Raises:
        IzwiError: As the server reported it; EngineStopped if the connection broke.
    """
    with_details = fields.get("word_timestamps") or fields.get("include_codes")
    receive = _events if with_details else _pcm
    async with aclosing(receive(requests, _body(fields), details)) as pieces:
        async for piece in pieces:
            yield piece


async def _pcm(requests: Requests, body: Fields, details: SpeechDetails) -> AsyncGenerator[Audio]:
    reader = PcmReader()
    async with aclosing(requests.stream(_SPEECH, body, details.read_headers)) as pieces:
        async for piece in pieces:
            yield reader.read(piece)


async def _events(
    requests: Requests, body: dict[str, object], details: SpeechDetails
) -> AsyncGenerator[Audio]:
    body["stream_format"] = "sse"
    is_whole, reader, codes = False, PcmReader(), []
    async with aclosing(requests.events(_SPEECH, body, None, details.read_headers)) as events:
        async for event in events:
            match event.get("type"):
                case "speech.audio.words":
                    details.words += [parse_word(word) for word in event["words"]]
                case "speech.audio.codes":
                    codes.append(np.array(event["codes"], np.int64))
                case "speech.audio.delta":
                    yield reader.read(_decoded(event["audio"]))
                case "speech.audio.done":
                    is_whole = True
    if not is_whole:
        raise EngineStopped("the server closed the connection early")
    if codes:
        details.codes = np.concatenate(codes)


def parse_word(fields: Mapping[str, Any]) -> Word:
    """Parse a word of a response. Raises KeyError and ValueError."""
    return Word(str(fields["word"]), float(fields["start"]), float(fields["end"]))


def _body(fields: Fields) -> dict[str, object]:
    clip = fields.get("ref_audio")
    given = {
        key: value for key, value in fields.items() if value is not None and value is not False
    }
    if clip is not None:
        assert isinstance(clip, Audio | str | Path | bytes)
        given["ref_audio"] = base64.b64encode(audio_bytes(clip)).decode("ascii")
    return given | {"response_format": "pcm"}


def _decoded(audio: str) -> bytes:
    try:
        return base64.b64decode(audio, validate=True)
    except (binascii.Error, ValueError) as error:
        raise EngineStopped("the server sent no audio") from error


# -- a text that is still being written ----------------------------------------------------------


class _NeedsWholeText(Exception):
    """The model or the server does not accept text that is still being written."""


@dataclass(slots=True)
class _Written:
    """The text written so far, in case it must be sent again as a whole.

    Attributes:
        is_collected: It is no longer sent, only collected.
    """

    pieces: list[str] = field(default_factory=list)
    is_collected: bool = False


async def request_speech_of_pieces(
    requests: Requests, fields: Fields, pieces: AsyncIterable[str], details: SpeechDetails
) -> AsyncGenerator[Audio]:
    """Speak a text that arrives in pieces, and yield the audio as it is made.

    If the model needs the whole text, the server has no WebSockets, or word times or codes are
    requested, the text is sent as a whole after the last piece.

    Args:
        requests: The server.
        fields: As `request_speech` takes them.
        pieces: The text, split anywhere.
        details: Filled as the response arrives; words and codes only if the text is sent as a
            whole.

    Raises:
        IzwiError: As `request_speech`.
        InvalidRequest: The text is empty.
        Exception: An exception of `pieces`.
    """
    if fields.get("word_timestamps") or fields.get("include_codes"):
        text = "".join([piece async for piece in pieces])
    else:
        written = _Written()
        try:
            async with aclosing(
                _dictated(requests, _body(fields), pieces, written, details)
            ) as audio:
                async for piece in audio:
                    yield piece
            return
        except _NeedsWholeText:
            text = "".join([*written.pieces, *[piece async for piece in pieces]])
    async with aclosing(request_speech(requests, {**fields, "input": text}, details)) as audio:
        async for piece in audio:
            yield piece


async def _dictated(
    requests: Requests,
    body: Fields,
    pieces: AsyncIterable[str],
    written: _Written,
    details: SpeechDetails,
) -> AsyncGenerator[Audio]:
    config = {"type": "session.config", **body}
    config.pop("input", None)
    reader, is_heard = PcmReader(), False
    try:
        socket = await requests.open_socket(_STREAM)
    except SocketRefused as error:
        if error.status == _NOT_FOUND:
            raise _NeedsWholeText from error
        raise error_from_response(error.status, error.body) from error
    writing = asyncio.create_task(_write(socket, config, pieces, written))
    try:
        while True:
            message = await socket.receive()
            if isinstance(message, bytes):
                is_heard = True
                written.pieces.clear()
                yield reader.read(message)
            elif not _is_last(event := json.loads(message)):
                continue
            elif is_heard:
                details.ignored = event.get("ignored", [])
                return
            else:
                raise InvalidRequest("there is no text to say", param="text")
    except SocketClosed:
        pass  # raised below, like an early end
    except _NeedsWholeText:
        written.is_collected = True
        await writing
        raise
    finally:
        writing.cancel()
        (failed,) = await asyncio.gather(writing, return_exceptions=True)
        socket.abort()
    if isinstance(failed, Exception) and not isinstance(failed, SocketClosed):
        raise failed  # `pieces` failed
    raise EngineStopped("the server closed the connection before the audio was complete")


async def _write(
    socket: Socket, config: Fields, pieces: AsyncIterable[str], written: _Written
) -> None:
    """Send the text as it is written; if it fails, the speech is aborted."""
    alive = asyncio.create_task(_keep_alive(socket))
    try:
        await _send(socket, config)
        async for piece in pieces:
            written.pieces.append(piece)
            if not written.is_collected:
                await _send(socket, {"type": "input.text", "text": piece})
        if not written.is_collected:
            await _send(socket, {"type": "input.done"})
    except Exception:
        socket.abort()
        raise
    finally:
        alive.cancel()


async def _keep_alive(socket: Socket) -> None:
    """Send empty texts while no text is written, to keep the connection open."""
    with suppress(SocketClosed):
        while True:
            await asyncio.sleep(_KEEP_ALIVE_S)
            await _send(socket, {"type": "input.text", "text": ""})


async def _send(socket: Socket, message: Mapping[str, object]) -> None:
    await socket.send(json.dumps(message))


def _is_last(event: dict[str, Any]) -> bool:
    """Whether the speech is complete. Raises IzwiError if the server reports an error."""
    if event["type"] == "error":
        error = error_from_event(event)
        if getattr(error, "param", None) == "split_granularity":
            raise _NeedsWholeText from error
        raise error
    return bool(event["type"] == "session.done")
