"""Input of speech, transcription and alignment models, before it is prepared.

`izwi.inputs.chat` has the input of chat models. A model's own `prepare_*` turns one into a
`Request`.
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
    """A voice to speak with: the encoded reference clip.

    Attributes:
        speaker_embedding: (hidden,) float32.
        codes: (frames, codebooks) int64 of the clip, or None to use only the embedding.
        text: Transcript of the clip; needed with codes.
    """

    speaker_embedding: Float32
    codes: Int64 | None = None
    text: str | None = None


class ReferenceClip(
    Struct, frozen=True, eq=False, omit_defaults=True, tag_field="kind", tag="clip"
):
    """A clip whose voice is cloned.

    Attributes:
        samples: (n,) float32 mono at 24 kHz.
        text: Transcript of the clip; None uses only the speaker embedding.
    """

    samples: Float32
    text: str | None = None


class SpeechInput(Struct, frozen=True, eq=False, omit_defaults=True, tag="speech"):
    """Input of a speech model. None uses the checkpoint's default.

    Attributes:
        pronunciations: Spoken text by word. Callers apply them to the text before it reaches a
            model, so models get None.
        turn_ids: For a text that is spoken while it is written: the first ids of its turn, in the
            model's vocabulary; `text` is then empty.
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
    """Input of a transcription model.

    Attributes:
        samples: Samples at 16 kHz.
        language: Name or code of the forced language; None detects it.
        context: Text that precedes the audio, or has words that are likely in it.
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
    """Input of an alignment model.

    Attributes:
        samples: Samples at 16 kHz.
        text: Transcript of the audio.
        language: Name or code; None cuts words at white space, and between Chinese characters.
    """

    samples: Samples
    text: str
    language: str | None = None


class Transcript(Struct, frozen=True):
    """Language and text parsed from a transcription model's tokens."""

    language: str
    text: str
