"""Qwen3-ForcedAligner for the engine: one pass over audio and its text gives the times.

Nothing is generated after the prompt. The entries are drawn at its output positions, two for each
word: the classes of its start and its end. A prompt may therefore run in chunks, beside other
requests.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from izwi.model.protocol import ModelBackend
from izwi.model.sizes import ModelSizes, TensorShapes
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops import Array, Ops, Weights
from izwi.ops.ranks import ALONE, RankNumber
from izwi.request.request import EncodeInput
from izwi_models.qwen3.config import parts_of, share_of
from izwi_models.qwen3.decoder import pack
from izwi_models.qwen3.token_model import TokenModel, token_sizes
from izwi_models.qwen3_aligner.config import AlignerConfig, read_config, tensor_shapes
from izwi_models.qwen3_aligner.prompt import prompt_of
from izwi_models.qwen3_asr.config import HEAD, TEXT_PREFIX, packable
from izwi_models.qwen3_asr.embedding import (
    ClipEncoder,
    WindowEncoder,
    embed,
    encoder_sizes,
    has_audio,
    token_ids,
)
from izwi_models.qwen3_asr.encoder import pack_encoder
from izwi_models.qwen3_asr.prompt import CLIP, WINDOW


class Qwen3Aligner(TokenModel):
    """One checkpoint on one device. Implements `CapturableModel` and `Encodes`."""

    def __init__(self, ops: Ops, weights: Weights, config: AlignerConfig):
        times = Track("times", 1, config.thinker_config.classify_num, in_prompt=True)
        super().__init__(ops, weights, config.text, TEXT_PREFIX, weights[HEAD], times)
        self._config, self._windows = config, WindowEncoder(ops, weights, config.audio)
        clips = ClipEncoder(ops, weights, config.audio)
        self.padded_encoders = {WINDOW: self._windows, CLIP: clips}

    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Encode windows; those of equal length form one batch: (tokens, hidden) each, in order."""
        return self._windows.encode(inputs)

    def embed(self, rows: Seq[Row]) -> Array:
        """Return embeddings of the rows' positions, concatenated: tokens and encoded audio."""
        return embed(self._ops, self._weights, rows)

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64] | None:
        """Return (positions, 1) token ids; None if some of the positions are audio."""
        return None if any(map(has_audio, rows)) else token_ids(rows)[:, None]

    def content_keys(self, span: Span) -> list[int]:
        """Return content keys of positions: token ids, or digests of audio."""
        keys: list[int] = prompt_of(span.request).content_keys[span.start : span.stop].tolist()
        return keys


def load_model(folder: Path, backend: ModelBackend) -> Qwen3Aligner:
    """Read a checkpoint in the published layout.

    Raises:
        CheckpointError: A file, key or tensor is missing or wrong; the message names it.
    """
    config = read_config(folder)
    shapes = tensor_shapes(config)
    ranks = backend.ops.ranks
    parts = parts_of(config.text, ranks, TEXT_PREFIX)
    weights = dict(backend.load_weights(folder, shapes, _packable(shapes), parts))
    config = _share_of(config, ranks)
    weights = pack_encoder(backend.ops, weights, config.audio)
    weights = pack(backend.ops, weights, config.text, TEXT_PREFIX)
    return Qwen3Aligner(backend.ops, weights, config)


def read_sizes(folder: Path, ranks: RankNumber = ALONE) -> ModelSizes:
    """Read the sizes of a rank's part of a checkpoint, without its weights; see `ModelModule`."""
    config = read_config(folder)
    shapes = tensor_shapes(config)
    sizes = token_sizes(
        share_of(config.text, ranks),
        shapes,
        packable=_packable(shapes),
        vocabulary=config.thinker_config.classify_num,
        encoders=encoder_sizes(config.audio),
    )
    return sizes.of_parts(parts_of(config.text, ranks, TEXT_PREFIX))


def _packable(shapes: TensorShapes) -> frozenset[str]:
    return packable(shapes) - {HEAD}


def _share_of(config: AlignerConfig, ranks: RankNumber) -> AlignerConfig:
    """Return the sizes of one rank's part; raises InvalidRequest. Encoders are whole."""
    thinker = config.thinker_config
    text = share_of(thinker.text_config, ranks)
    return replace(config, thinker_config=replace(thinker, text_config=text))
