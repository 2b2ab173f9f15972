"""Speak an answer while it is written: the tokens of a chat model flow into a speech model.

    chat ──▶ text ──▶ speakable text ──▶ SpeechWriter ──▶ audio

The first audio leaves before the answer is complete. `pause` stops both models before their next
steps; `resume` continues with the next token and the next sample. Without HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from izwi.arrays import Float32
from izwi.errors import EngineStopped, InvalidRequest
from izwi.inputs.chat import ChatInput
from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import ChatFrontend, SpeechFrontend
from izwi_api.services.chat.answer import AnswerDelta, ChatAnswer, open_answer
from izwi_api.services.generation import Generation, Source
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speech.speakable import SpeakableText
from izwi_api.services.speech.writer import SpeechWriter, open_speech_writer

# Chunks of audio that may be unread; beyond that the engine gets backpressure.
_MAX_UNREAD_AUDIO = 4


@dataclass(frozen=True, slots=True)
class Voice:
    """A speech model, and how it speaks; the text of `ask` is not used."""

    model: ServedModel[SpeechFrontend]
    ask: SpeechInput


@dataclass(frozen=True, slots=True, eq=False)
class AudioPiece:
    """Audio of an answer: (n,) float32 at the answer's `sample_rate`.

    `made_s` is when it was made, on the clock of `time.monotonic`.
    """

    pcm: Float32
    made_s: float = field(default_factory=lambda: time.monotonic())


class SpokenAnswer(Generation):
    """An answer while it is written and spoken. Leaving its context aborts both.

    Attributes:
        answer: Its text so far, why it ended, and its token counts.
        sample_rate: Sample rate of the audio, in Hz; None for an answer without audio.
    """

    def __init__(self, answer: ChatAnswer, writer: SpeechWriter | None):
        self.answer = answer
        self.sample_rate = None if writer is None else writer.sample_rate
        self._writer = writer
        self._pieces: deque[AnswerDelta | AudioPiece] = deque()
        self._num_unread = 0  # audio pieces among them
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._is_silent = False  # nothing in the text can be spoken

    @property
    def num_frames(self) -> int:
        """Frames of audio so far."""
        return 0 if self._writer is None else self._writer.num_frames

    async def pieces(self) -> AsyncGenerator[AnswerDelta | AudioPiece]:
        """Yield text and audio as they come; leaving early aborts both requests.

        Raises:
            IzwiError: The engine failed.
        """
        tasks = [asyncio.create_task(self._write())]
        if self._writer is not None:
            tasks.append(asyncio.create_task(self._speak(self._writer)))
        for task in tasks:
            task.add_done_callback(lambda _: self._changed.set())
        try:
            while True:
                while self._pieces:
                    piece = self._pieces.popleft()
                    if isinstance(piece, AudioPiece):
                        self._num_unread -= 1
                        self._room.set()
                    yield piece
                for task in tasks:
                    if task.done():
                        task.result()
                if self._pieces:
                    continue
                if all(task.done() for task in tasks):
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def sources(self) -> tuple[Source, ...]:
        """Return the text, and the speech if there is one."""
        return (self.answer,) if self._writer is None else (self.answer, self._writer)

    def output(self) -> AsyncGenerator[AnswerDelta | AudioPiece]:
        """Yield the pieces."""
        return self.pieces()

    async def _write(self) -> None:
        speakable, said = SpeakableText(), False
        async with aclosing(self.answer.deltas()) as deltas:
            async for delta in deltas:
                self._put(delta)
                said |= await self._say(speakable.write(delta.content))
        said |= await self._say(speakable.close())
        if self._writer is None:
            return
        try:
            if said:
                await self._writer.close()
        except InvalidRequest:  # it has no word that this voice can speak
            said = False
        if not said:
            self._is_silent = True
            self._writer.abort()

    async def _say(self, text: str) -> bool:
        """Write text to the speech; return whether any of it can be spoken."""
        if self._writer is None or not text:
            return False
        await self._writer.write(text)
        return any(map(str.isalnum, text))

    async def _speak(self, writer: SpeechWriter) -> None:
        try:
            async with aclosing(writer.output()) as chunks:
                async for chunk in chunks:
                    if chunk.pcm is None or not len(chunk.pcm):
                        continue
                    piece = AudioPiece(chunk.pcm)
                    while self._num_unread >= _MAX_UNREAD_AUDIO:
                        self._room.clear()
                        await self._room.wait()
                    self._num_unread += 1
                    self._put(piece)
        except (EngineStopped, InvalidRequest):
            if not self._is_silent:
                # `_write` ends the speech itself if there is nothing to speak, and reports that
                await asyncio.sleep(0)
            if not self._is_silent:
                raise

    def _put(self, piece: AnswerDelta | AudioPiece) -> None:
        self._pieces.append(piece)
        self._changed.set()


async def open_spoken_answer(
    model: ServedModel[ChatFrontend],
    ask: ChatInput,
    voice: Voice | None,
    *,
    stops: Sequence[str] = (),
) -> SpokenAnswer:
    """Start an answer to a conversation, spoken if a voice is given; `stops` as `open_answers`.

    Raises:
        InvalidRequest: A model cannot do what was requested.
        ContextTooLong: The conversation is too long.
        Overloaded: The engine's queue is full; nothing was started.
    """
    writer = None
    if voice is not None:
        writer = await open_speech_writer(voice.model, voice.ask)
    try:
        answer = await open_answer(model, ask, stops=stops)
    except BaseException:
        if writer is not None:
            writer.abort()
        raise
    return SpokenAnswer(answer, writer)
