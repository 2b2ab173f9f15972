"""Input of models that hear and speak: a conversation whose turns are text and sound."""

from __future__ import annotations

from msgspec import Struct

from izwi.arrays import Float32
from izwi.chat import Role

# The log of an answer: one entry of ids each.
Answer = tuple[tuple[int, ...], ...]


class Heard(Struct, frozen=True, eq=False, tag_field="kind", tag="heard"):
    """Sound that somebody else made.

    Attributes:
        samples: (n,) float32 mono at 16 kHz.
    """

    samples: Float32


class Said(Struct, frozen=True, tag_field="kind", tag="said"):
    """What the model itself answered earlier, or as much of it as was played.

    Attributes:
        entries: Its log, text and frames in the order in which they were made. With them the
            conversation so far is found in the prefix cache.
    """

    entries: Answer


class SpokenTurn(Struct, frozen=True, eq=False):
    """One turn of a conversation; text, sound and earlier answers in their order."""

    role: Role
    parts: tuple[str | Heard | Said, ...]


class ConversationInput(Struct, frozen=True, eq=False, omit_defaults=True, tag="conversation"):
    """What an API server asks of a speech-to-speech model. None requests its default.

    Attributes:
        turns: The conversation so far; the answer is the assistant's next turn. Without a system
            turn the model's own instruction stands.
        instructions: Beside the model's own instruction, where there is no system turn.
        speaks: Whether it answers in sound, too; else in text alone.
        temperature: Of text.
        top_k: Of text.
        audio_temperature: Of sound.
        audio_top_k: Of sound.
        max_new_tokens: Of text and frames of sound together.
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
    """Characters of text, and samples of sound, that a conversation brings along."""
    parts = [part for turn in ask.turns for part in turn.parts]
    texts = [part for part in parts if isinstance(part, str)]
    characters = len(ask.instructions) + sum(map(len, texts))
    return characters, sum(len(part.samples) for part in parts if isinstance(part, Heard))
