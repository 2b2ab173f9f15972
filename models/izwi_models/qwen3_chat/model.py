"""Qwen3 chat for the engine: prefill of a conversation, then decoding of the answer."""

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
from izwi_models.qwen3.adapted import AdaptedStack, adaptable
from izwi_models.qwen3.config import share_of
from izwi_models.qwen3.decoder import pack
from izwi_models.qwen3.stop_ids import read_stop_ids
from izwi_models.qwen3.token_model import (
    TokenModel,
    last_tokens,
    logged_tokens,
    text_parts,
    token_head,
    token_sizes,
)
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_chat.config import (
    EMBEDDING,
    HEAD,
    PREFIX,
    ChatConfig,
    packable,
    read_config,
    tensor_shapes,
)
from izwi_models.qwen3_chat.prompt import prompt_of


class Qwen3Chat(TokenModel):
    """One checkpoint on one device.

    Implements `CapturableModel`, `RepeatsPrompts`, `SpellsTokens` and `TakesAdapters`.
    """

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        config: ChatConfig,
        end_ids: tuple[int, ...],
        folder: Path,
    ):
        """Bind the decoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            config: Sizes.
            end_ids: Ids that end an answer.
            folder: Has the tokenizer, which only grammars need.
        """
        head = token_head(ops, weights, config, EMBEDDING, HEAD)
        super().__init__(ops, weights, config, PREFIX, head)
        self.end_ids, self._folder = end_ids, folder
        self.adapted = AdaptedStack(ops, weights, config, PREFIX)

    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Return nothing: the model reads only text."""
        assert not inputs
        return []

    def embed(self, rows: Seq[Row]) -> Array:
        """Return embeddings of the rows' positions, concatenated: (positions, hidden)."""
        return self.embed_inputs(self._ops.array(self.inputs(rows)))

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64]:
        """Return (positions, 1) token ids."""
        usual = last_tokens(rows)
        if usual is not None:
            return usual
        return np.array([i for row in rows for i in _ids_of(row)], np.int64)[:, None]

    def content_keys(self, span: Span) -> list[int]:
        """Return content keys of positions: the token ids."""
        return _ids_of(span)

    def prompt_ids(self, request: Request) -> list[int]:
        """Return the token ids of the prompt."""
        ids: list[int] = prompt_of(request).token_ids.tolist()
        return ids

    def spell_vocabulary(self) -> tuple[list[bytes], list[int]]:
        """Return the bytes of each id, and the ids of added tokens, which grammars name by id."""
        return QwenTokenizer(self._folder).spell_vocabulary(self.tracks[0].vocabulary)


def load_model(folder: Path, backend: ModelBackend) -> Qwen3Chat:
    """Read a checkpoint in the published layout.

    Raises:
        CheckpointError: A file, key or tensor is missing or wrong; it is named.
    """
    config = read_config(folder)
    shapes = _shapes(folder, config)
    ranks = backend.ops.ranks
    parts = text_parts(config, ranks, PREFIX, HEAD)
    weights = dict(backend.load_weights(folder, shapes, packable(shapes), parts))
    if config.tie_word_embeddings:
        weights.pop(HEAD, None)
    config = share_of(config, ranks)
    weights = pack(backend.ops, weights, config, PREFIX)
    end_ids = read_stop_ids(folder, config.vocab_size)
    return Qwen3Chat(backend.ops, weights, config, end_ids, folder)


def read_sizes(folder: Path, ranks: RankNumber = ALONE) -> ModelSizes:
    """Read the sizes of a rank's part of a checkpoint, without its weights; see `ModelModule`."""
    config = read_config(folder)
    shapes, parts = _shapes(folder, config), text_parts(config, ranks, PREFIX, HEAD)
    sizes = token_sizes(share_of(config, ranks), shapes, packable=packable(shapes))
    return replace(sizes.of_parts(parts), adaptable=adaptable(config, PREFIX))


def _shapes(folder: Path, config: ChatConfig) -> TensorShapes:
    # a tied checkpoint may repeat the embedding as the head, which is then checked and dropped
    with_head = not config.tie_word_embeddings or HEAD in tensor_names(folder)
    return tensor_shapes(config, with_head=with_head)


def _ids_of(span: Span) -> list[int]:
    """Return the token ids of positions of prompt and log."""
    ids: list[int] = prompt_of(span.request).token_ids[span.start : span.stop].tolist()
    return ids + logged_tokens(span)
