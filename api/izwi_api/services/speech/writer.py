"""Synthesise a text while it is being written; audio starts before the text is complete.

Without HTTP. The model splits the text into pieces and ids. This module keeps them in order, limits
how far the text runs ahead of the audio, and leaves no request behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from izwi.engine_client.protocol import EngineClient, OutputStream
from izwi.errors import EngineStopped, InvalidRequest, ModelNotFound
from izwi.inputs.speech import SpeechInput
from izwi.model.capability import Capability
from izwi.request.input_stream import TextPart, WritableFrontend
from izwi.request.request import Chunk, Request
from izwi_api.services.context import Registry, chunks_of
from izwi_api.services.speech.pausing_text import PausingText
from izwi_api.services.speech.spoken_text import Pause, Pronunciations
from izwi_api.services.speech.synthesis import PIECES_AHEAD, new_speech_id, piece_seed, silence

# How far the text may be ahead of the audio that was read, in text ids; in pieces it is
# `PIECES_AHEAD`.
_IDS_AHEAD = 512
# Characters between two checks of that limit.
_BLOCK = 512


@dataclass(slots=True, eq=False)
class _Piece:
    """A request in flight, or a pause, which has no stream."""

    request_id: str = ""
    stream: OutputStream | None = None
    pause_s: float = 0.0
    num_ids: int = 0
    num_frames: int = 0


class SpeechWriter:
    """A text that one task writes while another one reads its audio.

    Call `abort` to stop early; leaving `chunks` does so, too.

    Attributes:
        sample_rate: Sample rate of the audio, in Hz.
        num_prompt_positions: Prompt positions so far, for usage.
        num_frames: Frames of the audio read so far.
    """

    def __init__(self, engine: EngineClient, text: PausingText, speech_id: str, sample_rate: int):
        self.sample_rate = sample_rate
        self.num_prompt_positions = 0
        self.num_frames = 0
        self._engine, self._text, self._id = engine, text, speech_id
        self._pieces: deque[_Piece] = deque()  # not read to the end yet
        self._closed = self._paused = False
        self._error: BaseException | None = None
        self._writing = asyncio.Lock()
        self._changed, self._room = asyncio.Event(), asyncio.Event()

    async def write(self, text: str) -> None:
        """Add text; wait while the text is far ahead of the audio that was read.

        Cancelling it aborts the speech, because how much of the text was taken is unknown.

        Raises:
            InvalidRequest: The text is closed, or cannot be spoken.
            EngineStopped: The engine has stopped, or the speech was aborted.
        """
        async with self._writing:
            if self._closed:
                raise InvalidRequest("the text of this speech is complete", param="input")
            for start in range(0, len(text), _BLOCK):
                await self._take(partial(self._text.write, text[start : start + _BLOCK]))

    async def feed(self, text: str | None, take: Callable[[], Awaitable[str | None]]) -> None:
        """Write a text and all that follows it, then close; raises as `write` and `close`.

        Args:
            text: The first text, or None.
            take: Waits for the next text; None at the end.
        """
        while text is not None:
            await self.write(text)
            text = await take()
        await self.close()

    async def close(self) -> None:
        """Close the text: nothing follows. A second call does nothing.

        Raises:
            InvalidRequest: Nothing in the whole text can be spoken.
            EngineStopped: As in `write`.
        """
        async with self._writing:
            if self._closed:
                return
            await self._take(self._text.close)
            self._closed = True
            self._changed.set()

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks of all pieces in order, until the end of a closed text.

        Leaving early aborts all pieces, and `write` then fails.

        Raises:
            IzwiError: A piece failed, or nothing can be spoken.
            EngineStopped: The speech was aborted.
        """
        try:
            while await self._has_piece():
                piece = self._pieces[0]
                if piece.stream is None:
                    yield silence(piece.pause_s, self.sample_rate)
                    self._pieces.popleft()
                    self._room.set()
                    continue
                async for chunk in chunks_of(piece.stream):
                    piece.num_frames += len(chunk.entries)
                    self.num_frames += len(chunk.entries)
                    self._room.set()
                    yield chunk
                self._pieces.popleft()
                self._room.set()
        except EngineStopped as error:
            raise self._error or error from None
        finally:
            self.abort()

    def pause(self) -> None:
        """Pause all pieces before the engine's next step."""
        self._paused = True
        for piece in self._requests():
            self._engine.pause(piece.request_id)

    def resume(self) -> None:
        """Continue with the next sample."""
        self._paused = False
        for piece in self._requests():
            self._engine.resume(piece.request_id)

    def abort(self) -> None:
        """Abort all running pieces, and wake the tasks that wait here."""
        self._fail(EngineStopped("the speech was aborted"))

    def _requests(self) -> list[_Piece]:
        return [piece for piece in self._pieces if piece.stream is not None]

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        for piece in self._pieces:
            if piece.stream is not None:
                piece.stream.abort()
        self._changed.set()
        self._room.set()

    async def _has_piece(self) -> bool:
        """Wait for the next piece; False if none follows."""
        while self._error is None:
            if self._pieces or self._closed:
                return bool(self._pieces)
            self._changed.clear()
            await self._changed.wait()
        raise self._error

    async def _take(self, step: Callable[[], Sequence[TextPart | Pause]]) -> None:
        """Submit the model's next parts once there is room for them."""
        try:
            while self._error is None and self._is_far_ahead():
                self._room.clear()
                await self._room.wait()
            self._check()
            parts = await asyncio.to_thread(step)
            self._check()
            for part in parts:
                if isinstance(part, Pause):
                    self._pieces.append(_Piece(pause_s=part.seconds))
                    self._changed.set()
                else:
                    self._submit(part)
        except asyncio.CancelledError:
            self._fail(EngineStopped("writing to the speech was abandoned"))
            raise
        except Exception as error:
            self._fail(error)
            raise

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _is_far_ahead(self) -> bool:
        ids = sum(max(0, piece.num_ids - piece.num_frames) for piece in self._pieces)
        return ids > _IDS_AHEAD or len(self._pieces) > PIECES_AHEAD

    def _submit(self, part: TextPart) -> None:
        if part.request is not None:
            request = self._named(part.request, part.piece)
            self._pieces.append(_Piece(request.request_id, self._engine.submit(request)))
            if self._paused:
                self._engine.pause(request.request_id)
            self.num_prompt_positions += request.prompt.num_positions
            self._changed.set()
            if not request.open_input:
                return
        if self._pieces:  # otherwise it has ended
            self._pieces[-1].num_ids += len(part.ids)
        self._engine.write(part.request_id, part.ids, part.closed)

    def _named(self, request: Request, piece: int) -> Request:
        """Return the request with its piece's seed, as part of its speech."""
        seed, ask = piece_seed(request.seed, piece), request.ask
        wish = replace(ask, seed=seed) if isinstance(ask, SpeechInput) else None
        return replace(request, seed=seed, listener=self._id, continues=piece > 0, ask=wish)


def default_writable_model(registry: Registry) -> str:
    """Return the first model that can speak a text while it is written.

    Raises:
        ModelNotFound: None is served.
    """
    for name in registry.names():
        model = registry.model(name)
        if Capability.SPEAK in model.capabilities and isinstance(model, WritableFrontend):
            return name
    raise ModelNotFound("no served model can speak a text while it is being written", param="model")


async def open_speech_writer(
    engine: EngineClient, registry: Registry, model_name: str, ask: SpeechInput
) -> SpeechWriter:
    """Start a speech whose text is written later; `ask.text` is not used.

    Raises:
        ModelNotFound: No such model.
        InvalidRequest: The model cannot do what was requested, or needs the whole text.
    """
    model = registry.speech(model_name)
    if not isinstance(model, WritableFrontend):
        raise InvalidRequest(f"{model_name!r} needs the complete text", param="model")
    speech_id = new_speech_id()
    plain = replace(ask, pronunciations=None)

    def open_text() -> PausingText:
        return PausingText(
            lambda name: model.text_stream(name, model_name, plain),
            speech_id,
            Pronunciations(ask.pronunciations),
        )

    text = await asyncio.to_thread(open_text)
    return SpeechWriter(engine, text, speech_id, model.sample_rate)
