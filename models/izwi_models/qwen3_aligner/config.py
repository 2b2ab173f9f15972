"""Sizes of a Qwen3-ForcedAligner checkpoint and the tensors they imply. Knows no arithmetic.

It is a Qwen3-ASR checkpoint, `model_type` and all, whose head names times instead of tokens.
Source: qwen_asr 0.0.6, core/transformers_backend; inference/qwen3_forced_aligner.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from izwi.checkpoints.folder import parse_config, read_json
from izwi_models.qwen3.config import TextConfig
from izwi_models.qwen3_asr.config import (
    HEAD,
    AudioConfig,
    Shapes,
    check_features,
    refuse_wrong,
    wrong_parts,
)
from izwi_models.qwen3_asr.config import tensor_shapes as asr_shapes

_MAX_SECONDS = 300.0  # the published checkpoint's stated limit


@dataclass(frozen=True, slots=True)
class AlignerThinker:
    """Encoder, decoder and the classes of time.

    Attributes:
        classify_num: Classes; class n is the time n * timestamp_segment_time.
    """

    audio_config: AudioConfig
    text_config: TextConfig
    audio_token_id: int
    classify_num: int


@dataclass(frozen=True, slots=True)
class AlignerConfig:
    """One checkpoint.

    Attributes:
        timestamp_token_id: Token at positions where a time is drawn.
        timestamp_segment_time: Milliseconds from one class to the next.
        support_languages: Names of the languages it knows; None for all of Qwen3-ASR's.
        max_audio_seconds: Longest audio that it accepts; None for the published five minutes, or
            less if the classes end earlier. Our own key, as in `AsrConfig`.
    """

    thinker_config: AlignerThinker
    timestamp_token_id: int
    timestamp_segment_time: float
    support_languages: tuple[str, ...] | None = None
    max_audio_seconds: float | None = None

    @property
    def audio(self) -> AudioConfig:
        """The audio encoder."""
        return self.thinker_config.audio_config

    @property
    def text(self) -> TextConfig:
        """The decoder."""
        return self.thinker_config.text_config

    @property
    def limit_s(self) -> float:
        """Return the longest accepted audio, in seconds."""
        own = _MAX_SECONDS if self.max_audio_seconds is None else self.max_audio_seconds
        return min(own, self.thinker_config.classify_num * self.timestamp_segment_time / 1000.0)


def is_aligner(values: Mapping[str, Any]) -> bool:
    """Return whether a config.json with Qwen3-ASR's `model_type` is that of an aligner."""
    thinker = values.get("thinker_config")
    if not isinstance(thinker, Mapping):
        return False
    return "classify_num" in thinker or "forced_aligner" in str(thinker.get("model_type"))


def read_config(folder: Path) -> AlignerConfig:
    """Read config.json and check the features of preprocessor_config.json, if there is one.

    Raises:
        CheckpointError: A file is broken, a key is missing, or a value is not supported; the
            message names it.
    """
    where = folder / "config.json"
    config = parse_config(AlignerConfig, _without_tie(read_json(where)), str(where))
    thinker, vocab_size = config.thinker_config, config.text.vocab_size
    wrong = wrong_parts(config) | {
        "audio_token_id": not 0 <= thinker.audio_token_id < vocab_size,
        "timestamp_token_id": not 0 <= config.timestamp_token_id < vocab_size,
        "classify_num": thinker.classify_num < 1,
        "timestamp_segment_time": config.timestamp_segment_time <= 0.0,
        "max_audio_seconds": config.limit_s < 1.0,
    }
    refuse_wrong(where, wrong)
    check_features(folder)
    return config


def tensor_shapes(config: AlignerConfig) -> Shapes:
    """Names and shapes of the published layout: Qwen3-ASR's, with a head of its own."""
    shapes = asr_shapes(config, with_head=True)
    return shapes | {HEAD: (config.thinker_config.classify_num, config.text.hidden_size)}


def _without_tie(values: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with an untied head: it has another shape than the embedding."""
    thinker = values.get("thinker_config")
    if not isinstance(thinker, dict) or not isinstance(thinker.get("text_config"), dict):
        return values  # missing keys are reported by their readers
    text = thinker["text_config"] | {"tie_word_embeddings": False}
    return values | {"thinker_config": thinker | {"text_config": text}}
