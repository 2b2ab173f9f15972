"""Answer a conversation with a speech-to-speech model: text and audio from one request.

Without HTTP: endpoints and live sessions answer through this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Self
from uuid import uuid4

from izwi.engine_client.protocol import Answer
from izwi.inputs.chat import AnswerReader
from izwi.inputs.conversation import AnswerLog, ConversationInput, size_of
from izwi.model.frontend import ConversationFrontend
from izwi.request.request import Reason, Request
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.chat.cascade import AudioPiece
from izwi_api.services.context import chunks_of, tokens_of
from izwi_api.services.generation import ChargedGeneration
from izwi_api.services.models.served import ServedModel
from izwi_api.usage.metering import Charge, seconds


class ConversationAnswer(ChargedGeneration):
    """An answer while it is made. Leaving its context aborts it.

    Attributes:
        sample_rate: Sample rate of the audio, in Hz.
        frame_ms: Duration of a frame of audio, in milliseconds.
        num_prompt_positions: Positions of the conversation, text and audio.
        text: The text so far.
        entries: The entries so far, to be sent back as `AnswerContent`.
        num_frames: Frames of audio among them.
        reason: Why it ended: `stop` or `length`; None before.
    """

    def __init__(
        self,
        request: Request,
        answer: Answer,
        reader: AnswerReader,
        frontend: ConversationFrontend,
        charge: Charge,
    ):
        super().__init__(charge)
        self.sample_rate = frontend.sample_rate
        self.frame_ms = frontend.frame_samples * 1000 / frontend.sample_rate
        self.num_prompt_positions = request.prompt.num_positions
        self.text = ""
        self.reason: Reason | None = None
        self.num_frames = 0
        self._entries: list[tuple[int, ...]] = []
        self._answer, self._reader = answer, reader

    @property
    def answer(self) -> Self:
        """What has its token counts, as in a spoken answer of two models: it has them itself."""
        return self

    @property
    def entries(self) -> AnswerLog:
        """The entries so far."""
        return tuple(self._entries)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, for usage."""
        return self.num_prompt_positions

    @property
    def num_tokens(self) -> int:
        """Text tokens so far."""
        return len(self._entries) - self.num_frames

    async def pieces(self) -> AsyncGenerator[AnswerDelta | AudioPiece]:
        """Yield text and audio as they come; leaving early aborts the request.

        Raises:
            IzwiError: The engine failed.
        """
        with self.reading():
            async for chunk in chunks_of(self._answer):
                tokens = tokens_of(chunk)
                new = [tuple(i for i in row if i >= 0) for row in chunk.entries.tolist()]
                self._entries += new
                self.num_frames += len(new) - len(tokens)
                text = self._reader.read(tokens).content
                if chunk.reason is not None:
                    text += self._reader.close().content
                self.text += text
                if text:
                    yield AnswerDelta(content=text)
                if chunk.pcm is not None and len(chunk.pcm):
                    self._charge.count_audio(len(chunk.pcm), self.sample_rate)
                    yield AudioPiece(chunk.pcm)
                self.reason = chunk.reason

    def sources(self) -> tuple[Answer]:
        """Return the engine's answer."""
        return (self._answer,)

    def output(self) -> AsyncGenerator[AnswerDelta | AudioPiece]:
        """Yield the pieces."""
        return self.pieces()


async def open_conversation(
    model: ServedModel[ConversationFrontend], ask: ConversationInput
) -> ConversationAnswer:
    """Start an answer.

    Raises:
        InvalidRequest: The model cannot do what was requested.
        ContextTooLong: The conversation is too long.
        Overloaded: The engine's queue is full; nothing was started.
    """
    model.check_admission()
    request_id, frontend = f"talk-{uuid4().hex}", model.frontend
    request = await asyncio.to_thread(frontend.prepare_conversation, request_id, model.name, ask)
    reader = frontend.open_answer(request)
    characters, num_samples = size_of(ask)
    charge = Charge(characters=characters, heard_s=seconds(num_samples))
    with charge.unless_refused():
        answer = model.submit(request)
    return ConversationAnswer(request, answer, reader, frontend, charge)
