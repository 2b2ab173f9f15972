r"""The prompts of LFM2-Audio: conversation, transcription and speech are one template.

    <|startoftext|><|im_start|>{role}\n{content}<|im_end|>\n            for each turn
    <|im_start|>assistant\n                                             for the answer

Content is text, encoded audio (without tokens around it), or the text and frames of an earlier
answer in their original order. The system turn selects the task.
Source: liquid-audio 1.3.0, ChatState, and the model cards.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from izwi.arrays import Int64
from izwi.request.digests import digest_ints
from izwi.request.request import EncodeInput
from izwi_models.lfm2_audio.pattern import Mode
from izwi_models.lfm2_audio.tokenizer import LFM2Tokenizer

# Marks a column of an input row that the position does not use: its embedding is zeros.
NOTHING = -1
SEGMENT = "segment"  # `EncodeInput.kind` of the features of one segment

CHAT = "Respond with interleaved text and audio."
TRANSCRIBE = "Perform ASR."
SPEAK = "Perform TTS."
# LFM2.5 selects a voice by name.
VOICES = {
    "us_male": "US male",
    "us_female": "US female",
    "uk_male": "UK male",
    "uk_female": "UK female",
}

# Keys have 63 bits. The top bit separates audio from tokens.
_DIGEST_BIT, _KEY_MASK = 1 << 62, (1 << 62) - 1
# An odd factor spreads the positions of a clip over all keys, so that no two are equal.
_PLACE_FACTOR = 0x9E3779B97F4A7C15


class LFM2Prompt(Struct, frozen=True, eq=False, tag=True):
    """The prompt of one answer.

    Attributes:
        inputs: (positions, 1 + codebooks) int64: a token, or a frame, or NOTHING in all columns if
            the position is audio.
        content_keys: (positions,) int64, at least 0. Two prompts with an equal prefix of keys have
            equal inputs there.
        audio_starts: Position of the first row of each encode input.
        encode_inputs: Features of each clip.
        interleaved: Whether text and frames of the answer alternate by fixed counts.
    """

    inputs: Int64
    content_keys: Int64
    audio_starts: tuple[int, ...]
    encode_inputs: tuple[EncodeInput, ...]
    interleaved: bool

    @property
    def num_positions(self) -> int:
        """Number of positions of the prompt."""
        return len(self.inputs)

    @property
    def mode(self) -> Mode:
        """How text and frames of the answer alternate."""
        return Mode.INTERLEAVED if self.interleaved else Mode.SEQUENTIAL


@dataclass(frozen=True, slots=True, eq=False)
class AudioPart:
    """A clip in a prompt.

    Attributes:
        features: Input of the encoder.
        num_positions: Number of rows that the encoder outputs.
    """

    features: EncodeInput
    num_positions: int


Part = str | AudioPart | tuple[tuple[int, ...], ...]


def speaking_instruction(voice: str | None, description: str | None) -> str:
    """Return the text of the system turn for text-to-speech.

    Args:
        voice: A key of VOICES, or None.
        description: Description of a voice; used only without `voice`.
    """
    if voice is not None:
        return f"{SPEAK} Use the {VOICES[voice]} voice."
    return SPEAK if description is None else f"{SPEAK}\nUse the following voice: {description}"


def build_prompt(
    tokenizer: LFM2Tokenizer,
    codebooks: int,
    turns: Iterable[tuple[str, Seq[Part]]],
    *,
    interleaved: bool,
) -> LFM2Prompt:
    """Put turns into the template.

    Args:
        tokenizer: The checkpoint's tokenizer.
        codebooks: Number of ids per frame.
        turns: Role and content of each turn; an answer's log is a tuple of entries.
        interleaved: Whether text and frames of the answer alternate by fixed counts.
    """
    rows = _Rows(codebooks)
    start, end = tokenizer.id_of("<|im_start|>"), tokenizer.id_of("<|im_end|>")
    newline = tokenizer.encode("\n")
    rows.add_tokens([tokenizer.id_of("<|startoftext|>")])
    for role, parts in turns:
        rows.add_tokens([start, *tokenizer.encode(f"{role}\n")])
        for part in parts:
            if isinstance(part, str):
                rows.add_tokens(tokenizer.encode(part))
            elif isinstance(part, AudioPart):
                rows.add_audio(part)
            else:
                rows.add_entries(part)
        rows.add_tokens([end, *newline])
    rows.add_tokens([start, *tokenizer.encode("assistant\n")])
    return rows.prompt(interleaved=interleaved)


def plain_prompt(ids: Iterable[int], codebooks: int) -> LFM2Prompt:
    """Build a prompt of plain tokens, without the template; the answer is text."""
    rows = _Rows(codebooks)
    rows.add_tokens(ids)
    return rows.prompt(interleaved=False)


def input_row(entry: tuple[int, ...], codebooks: int) -> list[int]:
    """Return the row of `LFM2Prompt.inputs` for an entry of a log: a token or a frame."""
    if len(entry) == 1:
        return [entry[0], *[NOTHING] * codebooks]
    return [NOTHING, *entry]


def entry_key(entry: tuple[int, ...]) -> int:
    """Return the content key of an entry's position: the token, or a digest of the frame."""
    if len(entry) == 1:
        return entry[0]
    return digest_ints(entry) & _KEY_MASK | _DIGEST_BIT


class _Rows:
    """Positions of a prompt under construction."""

    def __init__(self, codebooks: int):
        self._codebooks = codebooks
        self._inputs: list[list[int]] = []
        self._keys: list[int] = []
        self._audio: list[tuple[int, EncodeInput]] = []

    def add_tokens(self, ids: Iterable[int]) -> None:
        self.add_entries([(index,) for index in ids])

    def add_entries(self, entries: Iterable[tuple[int, ...]]) -> None:
        for entry in entries:
            self._inputs.append(input_row(entry, self._codebooks))
            self._keys.append(entry_key(entry))

    def add_audio(self, audio: AudioPart) -> None:
        digest = audio.features.digest
        self._audio.append((len(self._inputs), audio.features))
        for place in range(audio.num_positions):
            self._inputs.append([NOTHING] * (1 + self._codebooks))
            key = (digest ^ place * _PLACE_FACTOR) & _KEY_MASK
            self._keys.append(key | _DIGEST_BIT)

    def prompt(self, *, interleaved: bool) -> LFM2Prompt:
        return LFM2Prompt(
            np.array(self._inputs, np.int64),
            np.array(self._keys, np.int64),
            tuple(start for start, _ in self._audio),
            tuple(features for _, features in self._audio),
            interleaved,
        )
