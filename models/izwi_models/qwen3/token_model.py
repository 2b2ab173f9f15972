"""The common part of models with one token per position: Qwen3's decoder, embedding and head."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from izwi.model.encoders import EncoderSizes
from izwi.model.layers import PagedAttention
from izwi.model.protocol import UNKNOWN, Pick
from izwi.model.sizes import ModelSizes, TensorShapes
from izwi.model.step_batch import Row, Span
from izwi.model.tracks import Track
from izwi.ops import Array, AttentionContext, Ops, Weights
from izwi.ops.ranks import Part, RankNumber
from izwi_models.qwen3.config import TextConfig, parts_of
from izwi_models.qwen3.decoder import decode


class TokenModel:
    """The part of `izwi.model.protocol.Model` that does not depend on what a prompt is made of."""

    num_inputs: int = 1

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        text: TextConfig,
        prefix: str,
        head: Array,
        track: Track | None = None,
    ):
        """Bind the decoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            text: Sizes of the decoder, or of this rank's part of it.
            prefix: Prefix of the names of its tensors.
            head: (vocabulary, hidden), or this rank's part of it; see `token_head`.
            track: The output track; default: text.
        """
        self._ops, self._weights, self._text = ops, weights, text
        self._prefix, self._head = prefix, head
        self.tracks = (track or Track("text", 1, text.vocab_size),)
        self._splits_head = head.shape[0] < self.tracks[0].vocabulary

    @property
    def layers(self) -> tuple[PagedAttention, ...]:
        """What each layer caches of a position."""
        return self._text.layers

    @property
    def max_positions(self) -> int:
        """Maximum number of positions of the checkpoint."""
        return self._text.max_position_embeddings

    def embed_inputs(self, inputs: Array) -> Array:
        """Embed tokens: (positions, 1) -> (positions, hidden)."""
        return self._ops.take(self._weights[f"{self._prefix}embed_tokens.weight"], inputs[:, 0])

    def run(self, x: Array, context: AttentionContext) -> Array:
        """Run packed positions through the decoder."""
        return decode(self._ops, self._weights, self._text, self._prefix, x, context)

    def draw(self, hidden: Array, pick: Pick, track: int = 0) -> Array:  # noqa: ARG002
        """Draw an id from each state: (rows, 1) int64."""
        if not hidden.shape[0]:  # an aligner's chunk that ends before the first word
            return self._ops.array(np.zeros((0, 1), np.int64))
        logits, ranks = self._ops.linear(hidden, self._head), self._ops.ranks
        if self._splits_head:
            logits = ranks.all_gather(logits)
        # all draw the same; sent nevertheless, because ranks that differ would never meet again
        return ranks.broadcast(pick(logits, 0).reshape(-1, 1))


def logged_tokens(span: Span) -> list[int]:
    """Return the tokens of the log at a span; `UNKNOWN` for one that a step in flight draws."""
    tokens = [entry[0] for entry in span.logged()]
    return tokens + [UNKNOWN] * (span.stop_entry - span.first_entry - len(tokens))


def last_tokens(rows: Seq[Row]) -> npt.NDArray[np.int64] | None:
    """(rows, 1): the token at each row's position; None if not each is one position of a log.

    A token that a step in flight still draws is `UNKNOWN`.
    """
    ids: list[int] = []
    for row in rows:
        place = row.start - row.num_prompt
        if place < 0 or row.stop > row.start + 1:
            return None
        ids.append(row.entries[place][0] if place < row.num_known else UNKNOWN)
    return np.array(ids, np.int64)[:, None]


def token_head(ops: Ops, weights: Weights, text: TextConfig, embedding: str, head: str) -> Array:
    """Return the weight of the output head, (vocab_size, hidden), quantized if weights are.

    With several ranks, a rank's part of it: ids in the order of the ranks.

    Args:
        ops: The backend's operations.
        weights: Tensors by checkpoint name.
        text: Says whether the embedding is tied; it is never quantized for look-ups.
        embedding: Name of the embedding.
        head: Name of the head, where there is one.
    """
    if not text.tie_word_embeddings:
        return ops.quantize(weights[head])
    part = head_part(text, ops.ranks)
    return ops.quantize(weights[embedding] if part is None else weights[embedding][part.index])


def head_part(text: TextConfig, ranks: RankNumber) -> Part | None:
    """Return the part of the output head that a rank has; None for all of it.

    The embedding is whole on every rank: looking up takes no time, and needs no other rank then.
    """
    if ranks.count == 1 or text.vocab_size % ranks.count:
        return None
    return Part.at(ranks, 0, text.vocab_size)


def text_parts(text: TextConfig, ranks: RankNumber, prefix: str, head: str) -> dict[str, Part]:
    """Return the part of each tensor of decoder and head that a rank has; all of the others.

    Args:
        text: Sizes of the whole decoder.
        ranks: The rank.
        prefix: Prefix of the names of its tensors.
        head: Name of the head; if it is tied, the checkpoint's copy of it is not used.
    """
    parts = parts_of(text, ranks, prefix)
    part = head_part(text, ranks)
    if part is not None and not text.tie_word_embeddings:
        parts[head] = part
    return parts


def token_sizes(
    text: TextConfig,
    weights: TensorShapes,
    *,
    packable: frozenset[str],
    vocabulary: int | None = None,
    encoders: Seq[EncoderSizes] = (),
    whole_encoders: Seq[EncoderSizes] = (),
) -> ModelSizes:
    """Return the sizes of a `TokenModel`.

    Args:
        text: Sizes of the decoder.
        weights: Shapes of the checkpoint's tensors.
        packable: Names of those that may stay packed.
        vocabulary: Ids of the output track; default: text.
        encoders: Its audio encoders.
        whole_encoders: Its encoders that take pieces as they are.
    """
    return ModelSizes(
        text.layers,
        text.max_position_embeddings,
        (vocabulary or text.vocab_size,),
        encodes=True,
        encoders=tuple(encoders),
        whole_encoders=tuple(whole_encoders),
        weights=(weights,),
        packable=packable,
    )
