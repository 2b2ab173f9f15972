r"""The prompt of Qwen3-ASR: a system turn with context, a user turn that is sound, an answer.

    <|im_start|>system\n{context}<|im_end|>\n
    <|im_start|>user\n<|audio_start|><|audio_pad|>...<|audio_end|><|im_end|>\n
    <|im_start|>assistant\n[language English<asr_text>]

Source: qwen_asr 0.0.6, inference/qwen3_asr.py `_build_text_prompt`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from izwi.request import EncodeInput, Float32, Int64
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_asr.config import AudioConfig, ThinkerConfig
from izwi_models.qwen3_asr.text import TEXT_TAG

WINDOW = "window"  # up to 8 s of sound that is 1 s or longer
CLIP = "clip"  # all of a sound below 1 s


@dataclass(frozen=True, slots=True, eq=False)
class AsrPrompt:
    """What one transcription is conditioned on.

    Attributes:
        token_ids: (positions,) int64; the positions of sound hold the audio pad id.
        audio_start: Position of the first audio token.
        num_audio: Audio tokens; they come from the encode inputs, end to end.
        encode_inputs: Windows of features, (128, frames) each.
    """

    token_ids: Int64
    audio_start: int
    num_audio: int
    encode_inputs: tuple[EncodeInput, ...]

    @property
    def num_positions(self) -> int:
        """Positions of KV that the prompt takes."""
        return len(self.token_ids)


def build_prompt(
    tokenizer: QwenTokenizer,
    config: ThinkerConfig,
    mel: Float32,
    *,
    context: str = "",
    language: str | None = None,
) -> AsrPrompt:
    """Put the features of one piece of sound into the template.

    Args:
        tokenizer: The checkpoint's; its special tokens go in by id.
        config: Sizes, and the ids around the sound.
        mel: (128, frames) float32 of the whole piece.
        context: Plain text; what looks like a special token in it stays text.
        language: Name of the language to force, or None.
    """
    start, end = tokenizer.id_of("<|im_start|>"), tokenizer.id_of("<|im_end|>")
    newline = tokenizer.encode("\n")
    before = [start, *tokenizer.encode(f"system\n{context}"), end, *newline]
    before += [start, *tokenizer.encode("user\n"), config.audio_start_token_id]
    after = [config.audio_end_token_id, end, *newline, start]
    if language is None:
        after += tokenizer.encode("assistant\n")
    else:
        after += tokenizer.encode(f"assistant\nlanguage {language}")
        after.append(tokenizer.id_of(TEXT_TAG))
    windows = cut_windows(config.audio_config, mel)
    num_audio = sum(config.audio_config.num_tokens(w.values.shape[1]) for w in windows)
    ids = before + [config.audio_token_id] * num_audio + after
    return AsrPrompt(np.asarray(ids, dtype=np.int64), len(before), num_audio, windows)


def cut_windows(config: AudioConfig, mel: Float32) -> tuple[EncodeInput, ...]:
    """Cut (128, frames) into the windows that the encoder takes one by one."""
    frames, size = mel.shape[1], config.n_window_infer
    kind = CLIP if frames < config.chunk_frames else WINDOW
    return tuple(
        EncodeInput(kind, np.ascontiguousarray(mel[:, start : start + size]))
        for start in range(0, frames, size)
    )
