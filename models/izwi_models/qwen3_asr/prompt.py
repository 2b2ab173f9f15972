r"""The prompt of Qwen3-ASR: a system turn with context, a user turn of audio, an answer.

    <|im_start|>system\n{context}<|im_end|>\n
    <|im_start|>user\n<|audio_start|><|audio_pad|>...<|audio_end|><|im_end|>\n
    <|im_start|>assistant\n[language English<asr_text>][{prefix}]

The prefix is the stable text of an earlier transcription of the same audio when it was shorter.

Source: qwen_asr 0.0.6, inference/qwen3_asr.py `_build_text_prompt`, `streaming_transcribe`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from izwi.arrays import Float32, Int64
from izwi.request.digests import place_keys
from izwi.request.request import EncodeInput
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_asr.config import AudioConfig, ThinkerConfig
from izwi_models.qwen3_asr.text import TEXT_TAG

WINDOW = "window"  # up to 8 s of audio that has 1 s or more
CLIP = "clip"  # all of the audio, if it is shorter than 1 s


class AsrPrompt(Struct, frozen=True, eq=False, tag=True):
    """The prompt of one transcription.

    Attributes:
        token_ids: (positions,) int64; audio positions have the audio pad id.
        content_keys: (positions,) int64, at least 0: the token id, or for an audio position a
            digest of its window and its index there. Two prompts with an equal prefix of keys have
            equal inputs there.
        audio_start: Position of the first audio token.
        num_audio: Number of audio tokens; they are the encoded inputs, concatenated.
        encode_inputs: Windows of features, (128, frames) each.
    """

    token_ids: Int64
    content_keys: Int64
    audio_start: int
    num_audio: int
    encode_inputs: tuple[EncodeInput, ...]

    @property
    def num_positions(self) -> int:
        """Number of positions of the prompt."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class TaggedTokens:
    """The tokenizer for answers and prefixes: text with the `<asr_text>` tag."""

    tokenizer: QwenTokenizer

    def encode(self, answer: str) -> list[int]:
        """Encode an answer; `<asr_text>` in it is the tag."""
        first, *rest = answer.split(TEXT_TAG)
        ids = self.tokenizer.encode(first)
        for text in rest:
            ids += [self.tokenizer.id_of(TEXT_TAG), *self.tokenizer.encode(text)]
        return ids

    def decode(self, ids: Seq[int]) -> str:
        """Decode an answer, without special tokens."""
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
    """Put one piece of audio into the template.

    Args:
        tokenizer: The checkpoint's tokenizer.
        config: Sizes, and the ids around the audio.
        windows: Features of the piece, from `cut_windows`.
        context: Plain text; special tokens in it are encoded as text.
        language: Name of the language to force, or None.
        prefix: Beginning of the answer, which the model continues; `<asr_text>` in it is the tag.
    """
    start, end = tokenizer.id_of("<|im_start|>"), tokenizer.id_of("<|im_end|>")
    newline = tokenizer.encode("\n")
    before = [start, *tokenizer.encode(f"system\n{context}"), end, *newline]
    before += [start, *tokenizer.encode("user\n"), config.audio_start_token_id]
    after = [config.audio_end_token_id, end, *newline, start]
    forced = "" if language is None else f"language {language}{TEXT_TAG}"
    # in one go: a prefix that begins with a line feed may share a token with the one before it
    after += TaggedTokens(tokenizer).encode(f"assistant\n{forced}{prefix}")
    return around_audio(config.audio_config, config.audio_token_id, before, windows, after)


def around_audio(
    config: AudioConfig,
    audio_token_id: int,
    before: Seq[int],
    windows: tuple[EncodeInput, ...],
    after: Seq[int],
) -> AsrPrompt:
    """Build a prompt of audio between other tokens.

    Args:
        config: Sizes of the encoder.
        audio_token_id: Id of audio positions.
        before: Ids before the audio.
        windows: Features of the audio, from `cut_windows`.
        after: Ids after the audio.
    """
    sizes = [config.num_tokens(w.values.shape[1]) for w in windows]
    ids = np.asarray([*before, *[audio_token_id] * sum(sizes), *after], dtype=np.int64)
    keys = ids.copy()
    place = len(before)
    for window, size in zip(windows, sizes, strict=True):
        keys[place : place + size] = place_keys(window.digest, size)
        place += size
    return AsrPrompt(ids, keys, len(before), sum(sizes), windows)


def cut_windows(config: AudioConfig, mel: Float32) -> tuple[EncodeInput, ...]:
    """Cut (128, frames) features into the encoder's windows."""
    frames, size = mel.shape[1], config.n_window_infer
    kind = window_kind(config, frames)
    return tuple(
        EncodeInput(kind, np.ascontiguousarray(mel[:, start : start + size]))
        for start in range(0, frames, size)
    )


def window_kind(config: AudioConfig, frames: int) -> str:
    """Return the kind of window, which determines its padding, for audio of this length."""
    return CLIP if frames < config.chunk_frames else WINDOW
