"""Input of speech-to-speech models: a conversation whose turns are text and audio."""

from __future__ import annotations

from msgspec import Struct

from izwi.arrays import Float32
from izwi.inputs.chat import Role

# The log of an answer: one entry of ids each.
AnswerLog = tuple[tuple[int, ...], ...]


class AudioContent(Struct, frozen=True, eq=False, tag_field="kind", tag="heard"):
    """Audio that the model did not generate.

    Attributes:
        samples: (n,) float32 mono at 16 kHz.
    """

    samples: Float32


class AnswerContent(Struct, frozen=True, tag_field="kind", tag="said"):
    """An earlier answer of the model, up to the point that was played.

    Attributes:
        entries: Its log, text and frames in the order in which they were generated. With them the
            conversation so far is found in the prefix cache.
    """

    entries: AnswerLog


class SpokenTurn(Struct, frozen=True, eq=False):
    """One turn of a conversation: text, audio and earlier answers in order."""

    role: Role
    parts: tuple[str | AudioContent | AnswerContent, ...]


class ConversationInput(Struct, frozen=True, eq=False, omit_defaults=True, tag="conversation"):
    """Input of a speech-to-speech model. None requests the model's default.

    Attributes:
        turns: The conversation so far; the answer is the assistant's next turn. Without a system
            turn the model's own instruction is used.
        instructions: Added to the model's own instruction, if there is no system turn.
        speaks: Whether it also answers in audio; otherwise only in text.
        temperature: Temperature of text.
        top_k: Top k of text.
        audio_temperature: Temperature of frames.
        audio_top_k: Top k of frames.
        max_new_tokens: Maximum number of text tokens and frames together.
    """

    turns: tuple[SpokenTurn, ...]
    speaks: bool = True
    temperature: float | None = None
    top_k: int | None = None
    audio_temperature: float | None = None
    audio_top_k: int | None = None
    seed: int = 0
    max_new_tokens: int | None = None
    instructions: str = ""


def size_of(ask: ConversationInput) -> tuple[int, int]:
    """Return the characters of text and the samples of audio in a conversation."""
    parts = [part for turn in ask.turns for part in turn.parts]
    texts = [part for part in parts if isinstance(part, str)]
    characters = len(ask.instructions) + sum(map(len, texts))
    return characters, sum(len(part.samples) for part in parts if isinstance(part, AudioContent))
