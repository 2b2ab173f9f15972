"""The conversation in the format of speech-to-speech models.

The played part of an earlier answer is passed back as the log entries that the model emitted, so
that the prefix cache finds the conversation. The part that was not played is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from izwi.inputs.chat import Role
from izwi.inputs.conversation import AnswerContent, AnswerLog, AudioContent, SpokenTurn
from izwi_api.realtime.protocol.items import Content, Item

# Shorter audio contains no word, and encoders need a minimum length.
_LEAST_SAMPLES = 1600


def spoken_turns(items: Sequence[Item]) -> tuple[SpokenTurn, ...]:
    """Convert items to the conversation format of these models. Function calls are left out."""
    turns: list[SpokenTurn] = []
    for item in items:
        parts = [made for part in item.content if (made := _part(part)) is not None]
        if item.kind == "message" and parts:
            turns.append(SpokenTurn(Role(item.role), tuple(parts)))
    if not any(turn.role is not Role.SYSTEM for turn in turns):
        turns.append(SpokenTurn(Role.USER, ("",)))  # a client may let the model speak first
    return tuple(turns)


def _part(part: Content) -> str | AudioContent | AnswerContent | None:
    if part.kind == "input_audio" and part.audio is not None:
        samples = part.read_samples()
        if len(samples) >= _LEAST_SAMPLES:
            return AudioContent(samples)
    if part.entries:
        played = played_entries(part)
        return AnswerContent(played) if played else None
    return part.played_text or None


def played_entries(part: Content) -> AnswerLog:
    """Return the entries of an answer up to the last frame that was played at least partly."""
    if part.played_ms is None:
        return part.entries
    num_frames = math.ceil(part.played_ms / part.frame_ms) if part.frame_ms else 0
    for place, entry in enumerate(part.entries):
        if num_frames <= 0:
            return part.entries[:place]
        num_frames -= len(entry) > 1
    return part.entries
