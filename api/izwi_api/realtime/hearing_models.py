"""Answers of a model that hears and speaks itself: the conversation as it takes it, and its answer.

What was played of an earlier answer is given back as the model made it, so that its memory of the
conversation is found again; what was not played it never said.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import numpy as np

from izwi.chat import Role
from izwi.conversation import Answer, Heard, Said, SpokenTurn
from izwi.engine_client import EngineClient
from izwi_api.realtime.formats import InputDecoder
from izwi_api.realtime.items import Content, Item
from izwi_api.services.chat import AnswerDelta
from izwi_api.services.converse import SoundPiece
from izwi_api.services.speech_to_speech import ConversationAnswer

# A shorter sound holds no word, and encoders need some.
_LEAST_SAMPLES = 1600


class LiveConversation:
    """An answer as live sessions take it; see `izwi_api.services.converse.SpokenAnswer`."""

    def __init__(self, engine: EngineClient, answer: ConversationAnswer, frame_ms: float):
        self.answer, self.frame_ms = answer, frame_ms
        self._engine = engine

    @property
    def sample_rate(self) -> int:
        """Of the sound, in Hz."""
        return self.answer.sample_rate

    @property
    def num_frames(self) -> int:
        """Frames of sound that were made so far."""
        return self.answer.num_frames

    @property
    def entries(self) -> Answer:
        """What was made so far, text and frames."""
        return self.answer.entries

    async def pieces(self) -> AsyncGenerator[AnswerDelta | SoundPiece]:
        """Yield text and sound as they come; when left early, nothing goes on running."""
        async with aclosing(self.answer.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, SoundPiece):
                    yield piece
                else:
                    yield AnswerDelta(content=piece.content)

    def pause(self) -> None:
        """Stop the model where it is, before its next step."""
        self._engine.pause(self.answer.request_id)

    def resume(self) -> None:
        """Go on with the next entry."""
        self._engine.resume(self.answer.request_id)

    def abort(self) -> None:
        """Stop what still runs."""
        self.answer.abort()


def spoken_turns(items: Sequence[Item]) -> tuple[SpokenTurn, ...]:
    """Return items as the conversation that such a model answers; functions are left out."""
    turns: list[SpokenTurn] = []
    for item in items:
        parts = [made for part in item.content if (made := _part(part)) is not None]
        if item.kind == "message" and parts:
            turns.append(SpokenTurn(Role(item.role), tuple(parts)))
    if not any(turn.role is not Role.SYSTEM for turn in turns):
        turns.append(SpokenTurn(Role.USER, ("",)))  # a client may ask for the first word
    return tuple(turns)


def _part(part: Content) -> str | Heard | Said | None:
    if part.kind == "input_audio" and part.audio is not None and part.wire is not None:
        if part.samples is None:
            decoder = InputDecoder(part.wire)
            part.samples = np.concatenate([decoder.write(bytes(part.audio)), decoder.finish()])
        if len(part.samples) >= _LEAST_SAMPLES:
            return Heard(part.samples)
    if part.entries:
        played = played_entries(part)
        return Said(played) if played else None
    return part.played_text or None


def played_entries(part: Content) -> Answer:
    """Return what was made of an answer up to the last frame of which something was played."""
    if part.played_ms is None:
        return part.entries
    num_frames = math.ceil(part.played_ms / part.frame_ms) if part.frame_ms else 0
    for place, entry in enumerate(part.entries):
        if num_frames <= 0:
            return part.entries[:place]
        num_frames -= len(entry) > 1
    return part.entries
