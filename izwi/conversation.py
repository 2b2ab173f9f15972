"""Input of models that hear and speak: a conversation whose turns are text and sound."""

from __future__ import annotations

from dataclasses import dataclass

from izwi.arrays import Float32
from izwi.chat import Role

# The log of an answer: one entry of ids each.
Answer = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """Sound that somebody else made.

    Attributes:
        samples: (n,) float32 mono at 16 kHz.
    """

    samples: Float32


@dataclass(frozen=True, slots=True)
class Said:
    """What the model itself answered earlier, or as much of it as was played.

    Attributes:
        entries: Its log, text and frames in the order in which they were made. With them the
            conversation so far is found in the prefix cache.
    """

    entries: Answer


@dataclass(frozen=True, slots=True, eq=False)
class SpokenTurn:
    """One turn of a conversation; text, sound and earlier answers in their order."""

    role: Role
    parts: tuple[str | Heard | Said, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ConversationInput:
    """What an API server asks of a model that hears and speaks. None takes its default.

    Attributes:
        turns: The conversation so far; the answer is the assistant's next turn. Without a system
            turn the model's own instruction stands.
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
