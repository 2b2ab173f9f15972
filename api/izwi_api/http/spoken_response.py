"""Respond with a spoken answer: one JSON body, or server-sent events while it is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response

from izwi.audio.encode import StreamEncoder, stream_encoder, with_length
from izwi.errors import IzwiError
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response
from izwi_api.http.sse import DONE, MEDIA_TYPE, event, obfuscated_event
from izwi_api.schemas.stream_options import StreamOptions, includes_usage, obfuscates
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.chat.cascade import AudioPiece

StoreAnswer = Callable[[], Awaitable[int | None]]


class StreamFields(Protocol):
    """The fields of a request that say how its answer is sent."""

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""
        ...

    @property
    def stream_options(self) -> StreamOptions | None:
        """What the stream contains besides the answer."""
        ...


class SpokenPieces(Protocol):
    """An answer while it is generated: text, and audio at one sample rate."""

    @property
    def sample_rate(self) -> int | None:
        """Sample rate of the audio, in Hz; None for an answer in text only."""
        ...

    def pieces(self) -> AsyncGenerator[AnswerDelta | AudioPiece]:
        """Yield text and audio as they come."""
        ...


class Completion(Protocol):
    """The JSON of one answer, whole or in pieces that share an id."""

    def full(self, audio: bytes, expires_at: int | None) -> dict[str, Any]:
        """Return the complete answer, with its audio file and the expiry of its id."""
        ...

    def first_chunk(self) -> dict[str, Any]:
        """Return the first chunk."""
        ...

    def delta_chunk(self, delta: AnswerDelta) -> dict[str, Any]:
        """Return a chunk of text."""
        ...

    def audio_chunk(self, data: bytes) -> dict[str, Any]:
        """Return a chunk of the audio file."""
        ...

    def expiry_chunk(self, expires_at: int) -> dict[str, Any]:
        """Return the chunk with the expiry of the audio's id."""
        ...

    def last_chunk(self) -> dict[str, Any]:
        """Return the last chunk, with the finish reason."""
        ...

    def usage_chunk(self) -> dict[str, Any]:
        """Return the chunk with the usage, if it was requested."""
        ...


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer that was opened, and how to respond with it.

    Attributes:
        answer: The answer, not yet read.
        completion: Its JSON.
        audio_format: One of `izwi.audio.encode.FORMATS`; None sends no audio.
        store_answer: Called when the answer is complete. Stores it under its id, and returns the
            expiry in seconds since 1970; None if there is nothing to store.
    """

    answer: SpokenPieces
    completion: Completion
    audio_format: str | None
    store_answer: StoreAnswer

    def encoder(self) -> StreamEncoder | None:
        """Return the encoder of its audio, if it is sent."""
        if self.audio_format is None:
            return None
        assert self.answer.sample_rate is not None
        return stream_encoder(self.audio_format, self.answer.sample_rate)


async def spoken_response(
    body: StreamFields, opening: AbstractAsyncContextManager[Spoken]
) -> Response:
    """Respond with an answer in the requested form.

    Args:
        body: The request.
        opening: Opens the answer; it is left when the response is complete, or has failed.

    Raises:
        IzwiError: It failed before the response started.
    """
    if body.stream:
        return await live_response(_opened_events(opening, body), MEDIA_TYPE)
    async with opening as spoken:
        return JSONResponse(await _whole(spoken))


async def _opened_events(
    opening: AbstractAsyncContextManager[Spoken], body: StreamFields
) -> AsyncGenerator[bytes]:
    async with opening as spoken, aclosing(_events(spoken, body)) as events:
        async for one in events:
            yield one


async def _whole(spoken: Spoken) -> dict[str, Any]:
    answer, completion, store_answer = spoken.answer, spoken.completion, spoken.store_answer
    encoder = spoken.encoder()
    file, num_samples = bytearray(), 0
    async with aclosing(answer.pieces()) as pieces:
        async for piece in pieces:
            if encoder is not None and isinstance(piece, AudioPiece):
                file += encoder.write(piece.pcm)
                num_samples += len(piece.pcm)
    if encoder is None:
        return completion.full(b"", await store_answer())
    file += encoder.finish()
    return completion.full(with_length(bytes(file), num_samples), await store_answer())


async def _events(spoken: Spoken, body: StreamFields) -> AsyncGenerator[bytes]:
    answer, completion, store_answer = spoken.answer, spoken.completion, spoken.store_answer
    encoder = spoken.encoder()
    blank: dict[str, object] = {"usage": None} if includes_usage(body.stream_options) else {}
    sent = obfuscated_event if obfuscates(body.stream_options) else event
    begun = False
    try:
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                if not begun:
                    yield sent(completion.first_chunk() | blank)
                    begun = True
                if not isinstance(piece, AudioPiece):
                    yield sent(completion.delta_chunk(piece) | blank)
                elif encoder is not None and (data := encoder.write(piece.pcm)):
                    yield sent(completion.audio_chunk(data) | blank)
    except IzwiError as error:
        # Before the first event the error can still be an HTTP status.
        if not begun:
            raise
        yield error_line(error)
        return
    if not begun:
        yield sent(completion.first_chunk() | blank)
    if encoder is not None and (data := encoder.finish()):
        yield sent(completion.audio_chunk(data) | blank)
    if (expires_at := await store_answer()) is not None:
        yield sent(completion.expiry_chunk(expires_at) | blank)
    yield sent(completion.last_chunk() | blank)
    if includes_usage(body.stream_options):
        yield event(completion.usage_chunk())
    yield DONE
