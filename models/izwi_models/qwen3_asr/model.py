"""Qwen3-ASR for the engine: windows of audio are encoded, then the text is decoded."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from izwi.checkpoints.weight_files import tensor_names
from izwi.model.protocol import ModelBackend
from izwi.model.sizes import ModelSizes, TensorShapes
from izwi.model.step_batch import Row, Span
from izwi.ops import Array, Ops, Weights
from izwi.ops.ranks import ALONE, RankNumber
from izwi.request.request import EncodeInput, Request
from izwi_models.qwen3.config import share_of
from izwi_models.qwen3.decoder import pack
from izwi_models.qwen3.token_model import (
    TokenModel,
    last_tokens,
    text_parts,
    token_head,
    token_sizes,
)
from izwi_models.qwen3_asr.config import (
    EMBEDDING,
    HEAD,
    TEXT_PREFIX,
    AsrConfig,
    packable,
    read_config,
    tensor_shapes,
)
from izwi_models.qwen3_asr.embedding import (
    ClipEncoder,
    WindowEncoder,
    embed,
    encoder_sizes,
    has_audio,
    prompt_of,
    token_ids,
)
from izwi_models.qwen3_asr.encoder import pack_encoder
from izwi_models.qwen3_asr.prompt import CLIP, WINDOW


class Qwen3ASR(TokenModel):
    """One checkpoint on one device. Implements `CapturableModel`, `Encodes`, `RepeatsPrompts`."""

    def __init__(self, ops: Ops, weights: Weights, config: AsrConfig):
        head = token_head(ops, weights, config.text, EMBEDDING, HEAD)
        super().__init__(ops, weights, config.text, TEXT_PREFIX, head)
        self._config, self._windows = config, WindowEncoder(ops, weights, config.audio)
        clips = ClipEncoder(ops, weights, config.audio)
        self.padded_encoders = {WINDOW: self._windows, CLIP: clips}

    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Encode windows, equal ones as one batch: (tokens, hidden) each, in order."""
        return self._windows.encode(inputs)

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64] | None:
        """Return (positions, 1) token ids; None if some of the positions are audio."""
        usual = last_tokens(rows)
        if usual is not None:
            return usual
        return None if any(map(has_audio, rows)) else token_ids(rows)[:, None]

    def content_keys(self, span: Span) -> list[int]:
        """Return content keys of positions: token ids, or digests of audio."""
        keys: list[int] = prompt_of(span.request).content_keys[span.start : span.stop].tolist()
        return keys + [entry[0] for entry in span.logged()]

    def prompt_ids(self, request: Request) -> list[int]:
        """Return the token ids of the prompt; -1 at positions of audio."""
        prompt = prompt_of(request)
        ids = prompt.token_ids.copy()
        ids[prompt.audio_start : prompt.audio_start + prompt.num_audio] = -1
        listed: list[int] = ids.tolist()
        return listed

    def embed(self, rows: Seq[Row]) -> Array:
        """Return embeddings of the rows' positions, concatenated: tokens and encoded audio."""
        return embed(self._ops, self._weights, rows)


def load_model(folder: Path, backend: ModelBackend) -> Qwen3ASR:
    """Read a checkpoint in the published layout.

    Raises:
        CheckpointError: A file, key or tensor is missing or wrong; it is named.
    """
    config = read_config(folder)
    shapes = _shapes(folder, config)
    ranks = backend.ops.ranks
    parts = text_parts(config.text, ranks, TEXT_PREFIX, HEAD)
    weights = dict(backend.load_weights(folder, shapes, packable(shapes), parts))
    if config.text.tie_word_embeddings:
        weights.pop(HEAD, None)
    config = _share_of(config, ranks)
    weights = pack_encoder(backend.ops, weights, config.audio)
    weights = pack(backend.ops, weights, config.text, TEXT_PREFIX)
    return Qwen3ASR(backend.ops, weights, config)


def read_sizes(folder: Path, ranks: RankNumber = ALONE) -> ModelSizes:
    """Read the sizes of a rank's part of a checkpoint, without its weights; see `ModelModule`."""
    config = read_config(folder)
    shapes, parts = _shapes(folder, config), text_parts(config.text, ranks, TEXT_PREFIX, HEAD)
    text, encoders = share_of(config.text, ranks), encoder_sizes(config.audio)
    return token_sizes(text, shapes, packable=packable(shapes), encoders=encoders).of_parts(parts)


def _shapes(folder: Path, config: AsrConfig) -> TensorShapes:
    # a tied checkpoint may repeat the embedding as the head, which is then checked and dropped
    with_head = not config.text.tie_word_embeddings or HEAD in tensor_names(folder)
    return tensor_shapes(config, with_head=with_head)


def _share_of(config: AsrConfig, ranks: RankNumber) -> AsrConfig:
    """Return the sizes of one rank's part; raises InvalidRequest. Encoders are whole."""
    thinker = config.thinker_config
    text = share_of(thinker.text_config, ranks)
    return replace(config, thinker_config=replace(thinker, text_config=text))
