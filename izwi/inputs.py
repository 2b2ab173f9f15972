"""What API servers ask of speech, transcription and alignment models, before it is prepared.

`izwi.chat` has the input of chat models. A model's own `prepare_*` turns one into a `Request`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from izwi.arrays import Float32, Int64, Samples


class TextMode(StrEnum):
    """How text reaches a speech model: all of it first, or one token with each frame."""

    FULL = "full"
    STREAMING = "streaming"


class VoicePrompt(
    Struct, frozen=True, eq=False, omit_defaults=True, tag_field="kind", tag="encoded"
):
    """A voice to speak with: what a reference clip was encoded to, once.

    Attributes:
        speaker_embedding: (hidden,) float32.
        codes: (frames, codebooks) int64 of the clip, or None for the embedding alone.
        text: What the clip says; needed with codes.
    """

    speaker_embedding: Float32
    codes: Int64 | None = None
    text: str | None = None


class ReferenceClip(
    Struct, frozen=True, eq=False, omit_defaults=True, tag_field="kind", tag="clip"
):
    """A clip whose voice is to be followed.

    Attributes:
        samples: (n,) float32 mono at 24 kHz.
        text: What it says; None follows the speaker embedding alone.
    """

    samples: Float32
    text: str | None = None


class SpeechInput(Struct, frozen=True, eq=False, omit_defaults=True, tag="speech"):
    """What an API server asks of a speech model. None takes the checkpoint's default.

    Attributes:
        pronunciations: By word, what is spoken instead of it. Models are asked without: what asks
            them has put it into the text.
        turn_ids: Of a request whose text is written while it is spoken: the ids that its turn
            begins with, in the model's vocabulary; `text` is then empty.
    """

    text: str
    voice: str | VoicePrompt | ReferenceClip | None = None
    language: str | None = None
    instruct: str | None = None
    text_mode: TextMode | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    max_new_tokens: int | None = None
    pronunciations: dict[str, str] | None = None
    turn_ids: tuple[int, ...] = ()


class TranscriptionInput(Struct, frozen=True, eq=False, omit_defaults=True, tag="transcription"):
    """What an API server asks of a transcription model.

    Attributes:
        samples: At 16 kHz.
        language: Forced language name or code, None detects it.
        context: Text that the transcription follows on or whose words are likely.
        logprobs: As in `Request`.
    """

    samples: Samples
    language: str | None = None
    context: str = ""
    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int | None = None
    logprobs: bool = False


class AlignmentInput(Struct, frozen=True, eq=False, omit_defaults=True, tag="alignment"):
    """What an API server asks of an alignment model.

    Attributes:
        samples: At 16 kHz.
        text: What they say.
        language: Name or code; None cuts words at white space, and between Chinese characters.
    """

    samples: Samples
    text: str
    language: str | None = None


class Transcript(Struct, frozen=True):
    """What a transcription model's tokens say."""

    language: str
    text: str
