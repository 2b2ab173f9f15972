"""Synthesise a text while it is being written; audio starts before the text is complete.

Without HTTP. The model splits the text into pieces and ids. This module keeps them in order, limits
how far the text runs ahead of the audio, and leaves no request behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from izwi.engine_client.protocol import Answer
from izwi.errors import EngineStopped, InvalidRequest, ModelNotFound, Overloaded
from izwi.inputs.speech import SpeechInput
from izwi.model.capability import Capability
from izwi.model.frontend import SpeechFrontend
from izwi.request.input_stream import TextPart, WritableFrontend
from izwi.request.request import Chunk, Request
from izwi_api.services.context import chunks_of
from izwi_api.services.generation import Generation, Source
from izwi_api.services.models.served import ServedModel, ServedModels
from izwi_api.services.speech.spoken_text import Pause, PausingText, Pronunciations
from izwi_api.services.speech.synthesis import PIECES_AHEAD, new_speech_id, piece_seed, silence
from izwi_api.usage.metering import CHARACTERS_PER_ID, Charge

# How far the text may be ahead of the audio that was read, in text ids; in pieces it is
# `PIECES_AHEAD`.
_IDS_AHEAD = 512
# Characters between two checks of that limit.
_BLOCK = 512


@dataclass(slots=True, eq=False)
class _Piece:
    """A request in flight, or a pause, which has no answer."""

    answer: Answer | None = None
    charge: Charge | None = None  # for its text, unless that is still written
    pause_s: float = 0.0
    num_ids: int = 0
    num_frames: int = 0


class SpeechWriter(Generation):
    """A text that one task writes while another one reads its audio.

    Attributes:
        sample_rate: Sample rate of the audio, in Hz.
        num_prompt_positions: Prompt positions so far, for usage.
        num_frames: Frames of the audio read so far.
    """

    def __init__(
        self,
        model: ServedModel[SpeechFrontend],
        text: PausingText,
        speech_id: str,
        *,
        charged: bool,
    ):
        self.sample_rate = model.frontend.sample_rate
        self.num_prompt_positions = 0
        self.num_frames = 0
        self._model, self._text, self._id = model, text, speech_id
        self._pieces: deque[_Piece] = deque()  # not read to the end yet
        self._written: Answer | None = None  # to the request that the text goes to
        self._closed = False
        self._is_free = not charged
        self._charge = Charge(is_free=self._is_free)  # for text that is written to a request
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
                await self._submit_parts(partial(self._text.write, text[start : start + _BLOCK]))

    async def feed(self, text: str | None, next_text: Callable[[], Awaitable[str | None]]) -> None:
        """Write a text and all that follows it, then close; raises as `write` and `close`.

        Args:
            text: The first text, or None.
            next_text: Waits for the next text; None at the end.
        """
        while text is not None:
            await self.write(text)
            text = await next_text()
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
            await self._submit_parts(self._text.close)
            self._closed = True
            self._changed.set()

    async def output(self) -> AsyncGenerator[Chunk]:
        """Yield the chunks of all pieces in order, until the end of a closed text.

        Leaving early aborts all pieces, and `write` then fails.

        Raises:
            IzwiError: A piece failed, or nothing can be spoken.
            EngineStopped: The speech was aborted.
        """
        try:
            while await self._has_piece():
                piece = self._pieces[0]
                if piece.answer is None:
                    yield silence(piece.pause_s, self.sample_rate)
                    self._pieces.popleft()
                    self._room.set()
                    continue
                async for chunk in chunks_of(piece.answer):
                    piece.num_frames += len(chunk.entries)
                    self.num_frames += len(chunk.entries)
                    if chunk.pcm is not None:
                        self._charge.count_audio(len(chunk.pcm), self.sample_rate)
                    self._room.set()
                    yield chunk
                self._pieces.popleft()
                self._room.set()
        except EngineStopped as error:
            raise self._error or error from None
        except Overloaded:
            if (charge := self._pieces[0].charge) is not None:
                charge.settle(is_refused=True)
            raise
        finally:
            self.abort()

    def sources(self) -> Iterable[Source]:
        """Return the pieces that run."""
        return [piece.answer for piece in self._pieces if piece.answer is not None]

    def abort(self) -> None:
        """Abort all running pieces, and wake the tasks that wait here."""
        self._fail(EngineStopped("the speech was aborted"))

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        super().abort()
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

    async def _submit_parts(self, step: Callable[[], Sequence[TextPart | Pause]]) -> None:
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
            charge = Charge(characters=part.num_characters, is_free=self._is_free)
            with charge.unless_refused():
                self._written = self._model.submit(request)
            self._pieces.append(_Piece(self._written, charge))
            if self.is_paused:
                self._written.pause()
            self.num_prompt_positions += request.prompt.num_positions
            self._changed.set()
            if not request.open_input:
                return
        if self._pieces:  # otherwise it has ended
            self._pieces[-1].num_ids += len(part.ids)
        self._charge.add(characters=CHARACTERS_PER_ID * len(part.ids))
        if self._written is not None:
            self._written.write(part.ids, part.closed)

    def _named(self, request: Request, piece: int) -> Request:
        """Return the request with its piece's seed, as part of its speech."""
        seed, ask = piece_seed(request.seed, piece), request.ask
        wish = replace(ask, seed=seed) if isinstance(ask, SpeechInput) else None
        return replace(request, seed=seed, listener=self._id, continues=piece > 0, ask=wish)


def default_writable_model(registry: ServedModels) -> str:
    """Return the first model that can speak a text while it is written.

    Raises:
        ModelNotFound: None is served.
    """
    for name in registry.names():
        model = registry.model(name).frontend
        if Capability.SPEAK in model.capabilities and isinstance(model, WritableFrontend):
            return name
    raise ModelNotFound("no served model can speak a text while it is being written", param="model")


async def open_speech_writer(
    model: ServedModel[SpeechFrontend], ask: SpeechInput, *, charged: bool = True
) -> SpeechWriter:
    """Start a speech whose text is written later; `ask.text` is not used.

    Args:
        model: The speech model.
        ask: How to speak it.
        charged: Charge the text to the caller's quota.

    Raises:
        InvalidRequest: The model cannot do what was requested, or needs the whole text.
    """
    frontend = model.frontend
    if not isinstance(frontend, WritableFrontend):
        raise InvalidRequest(f"{model.name!r} needs the complete text", param="model")
    speech_id = new_speech_id()
    plain = replace(ask, pronunciations=None)

    def open_text() -> PausingText:
        return PausingText(
            lambda name: frontend.text_stream(name, model.name, plain),
            speech_id,
            Pronunciations(ask.pronunciations),
        )

    text = await asyncio.to_thread(open_text)
    return SpeechWriter(model, text, speech_id, charged=charged)
