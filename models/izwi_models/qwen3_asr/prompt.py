r"""The prompt of Qwen3-ASR: a system turn with context, a user turn that is sound, an answer.

    <|im_start|>system\n{context}<|im_end|>\n
    <|im_start|>user\n<|audio_start|><|audio_pad|>...<|audio_end|><|im_end|>\n
    <|im_start|>assistant\n[language English<asr_text>][{prefix}]

The prefix is what an earlier transcription of the same sound, then shorter, has settled.

Source: qwen_asr 0.0.6, inference/qwen3_asr.py `_build_text_prompt`, `streaming_transcribe`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from izwi.arrays import Float32, Int64
from izwi.request import EncodeInput
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_asr.config import AudioConfig, ThinkerConfig
from izwi_models.qwen3_asr.text import TEXT_TAG

WINDOW = "window"  # up to 8 s of sound that is 1 s or longer
CLIP = "clip"  # all of a sound below 1 s

# Keys have 63 bits. An odd factor spreads places over all of them, so that no two are alike.
_AUDIO_BIT, _KEY_MASK = np.uint64(1 << 62), np.uint64((1 << 62) - 1)
_PLACE_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class AsrPrompt(Struct, frozen=True, eq=False, tag=True):
    """What one transcription is conditioned on.

    Attributes:
        token_ids: (positions,) int64; the positions of sound hold the audio pad id.
        content_keys: (positions,) int64, at least 0: the token id, or for a position of sound a
            digest of its window and its place there. Equal keys at equal places, all before
            them equal too, mean equal inputs.
        audio_start: Position of the first audio token.
        num_audio: Audio tokens; they come from the encode inputs, end to end.
        encode_inputs: Windows of features, (128, frames) each.
    """

    token_ids: Int64
    content_keys: Int64
    audio_start: int
    num_audio: int
    encode_inputs: tuple[EncodeInput, ...]

    @property
    def num_positions(self) -> int:
        """Positions of KV that the prompt takes."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class TaggedTokens:
    """The tokenizer for what the model writes, or is made to have written: text, and the tag."""

    tokenizer: QwenTokenizer

    def encode(self, answer: str) -> list[int]:
        """Ids of an answer; `<asr_text>` in it is the tag."""
        first, *rest = answer.split(TEXT_TAG)
        ids = self.tokenizer.encode(first)
        for text in rest:
            ids += [self.tokenizer.id_of(TEXT_TAG), *self.tokenizer.encode(text)]
        return ids

    def decode(self, ids: Seq[int]) -> str:
        """The answer of ids, without special tokens."""
        return self.tokenizer.decode(ids, keep=(TEXT_TAG,))


def build_prompt(
    tokenizer: QwenTokenizer,
    config: ThinkerConfig,
    windows: tuple[EncodeInput, ...],
    *,
    context: str = "",
    language: str | None = None,
    prefix: str = "",
) -> AsrPrompt:
    """Put one piece of sound into the template.

    Args:
        tokenizer: The checkpoint's; its special tokens go in by id.
        config: Sizes, and the ids around the sound.
        windows: Features of the piece, as `cut_windows` makes them.
        context: Plain text; what looks like a special token in it stays text.
        language: Name of the language to force, or None.
        prefix: Begin of the answer, from where the model goes on; `<asr_text>` in it is the tag.
    """
    start, end = tokenizer.id_of("<|im_start|>"), tokenizer.id_of("<|im_end|>")
    newline = tokenizer.encode("\n")
    before = [start, *tokenizer.encode(f"system\n{context}"), end, *newline]
    before += [start, *tokenizer.encode("user\n"), config.audio_start_token_id]
    after = [config.audio_end_token_id, end, *newline, start]
    forced = "" if language is None else f"language {language}{TEXT_TAG}"
    # in one go: a prefix that begins with a line feed may share a token with the one before it
    after += TaggedTokens(tokenizer).encode(f"assistant\n{forced}{prefix}")
    return around_sound(config.audio_config, config.audio_token_id, before, windows, after)


def around_sound(
    config: AudioConfig,
    audio_token_id: int,
    before: Seq[int],
    windows: tuple[EncodeInput, ...],
    after: Seq[int],
) -> AsrPrompt:
    """Put the tokens of a sound between other tokens.

    Args:
        config: Sizes of the encoder.
        audio_token_id: Stands at the positions of sound.
        before: Ids before the sound.
        windows: Features of the sound, as `cut_windows` makes them.
        after: Ids after it.
    """
    sizes = [config.num_tokens(w.values.shape[1]) for w in windows]
    ids = np.asarray([*before, *[audio_token_id] * sum(sizes), *after], dtype=np.int64)
    keys = ids.copy()
    place = len(before)
    for window, size in zip(windows, sizes, strict=True):
        keys[place : place + size] = _audio_keys(window.digest, size)
        place += size
    return AsrPrompt(ids, keys, len(before), sum(sizes), windows)


def cut_windows(config: AudioConfig, mel: Float32) -> tuple[EncodeInput, ...]:
    """Cut (128, frames) into the windows that the encoder takes one by one."""
    frames, size = mel.shape[1], config.n_window_infer
    kind = window_kind(config, frames)
    return tuple(
        EncodeInput(kind, np.ascontiguousarray(mel[:, start : start + size]))
        for start in range(0, frames, size)
    )


def window_kind(config: AudioConfig, frames: int) -> str:
    """How the windows of a sound of so many frames are padded."""
    return CLIP if frames < config.chunk_frames else WINDOW


def _audio_keys(digest: int, size: int) -> Int64:
    """Name the tokens of a window: (size,) int64. The top bit keeps them apart from text ids."""
    places = np.arange(size, dtype=np.uint64) * _PLACE_FACTOR
    keys = ((np.uint64(digest) ^ places) & _KEY_MASK) | _AUDIO_BIT
    return keys.astype(np.int64)
