"""Batch pieces of audio of different lengths, padded to one of an encoder's shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from izwi.model.encoders import Encodes, EncodesPadded, PaddedEncoder
from izwi.model.protocol import Model
from izwi.ops.protocol import Ops
from izwi.request.request import EncodeInput

Shape = tuple[int, ...]


class PaddedBatch(NamedTuple):
    """Pieces of one kind that are padded to one shape.

    Attributes:
        kind: `EncodeInput.kind` of all pieces.
        shape: Padded shape of each piece.
        places: Indices of the pieces among all pieces.
    """

    kind: str
    shape: Shape
    places: list[int]


def padded_shape(encoders: Mapping[str, PaddedEncoder], piece: EncodeInput) -> Shape | None:
    """Return the smallest shape of its encoder that a piece fits, or None."""
    encoder = encoders.get(piece.kind)
    if encoder is None:
        return None
    shape, axis = piece.values.shape, encoder.axis
    same = (s for s in encoder.shapes if _beside(s, axis) == _beside(shape, axis))
    return next((s for s in same if s[axis] >= shape[axis]), None)


def padded_batches(
    encoders: Mapping[str, PaddedEncoder], pieces: Seq[EncodeInput], max_pieces: int
) -> Iterator[PaddedBatch]:
    """Group pieces into batches; pieces that fit no shape are left out.

    Args:
        encoders: Encoder by kind of piece.
        pieces: Pieces of any kind.
        max_pieces: Maximum pieces of a batch; an encoder may set a lower limit.
    """
    groups: defaultdict[tuple[str, Shape], list[int]] = defaultdict(list)
    for place, piece in enumerate(pieces):
        shape = padded_shape(encoders, piece)
        if shape is not None:
            groups[piece.kind, shape].append(place)
    for (kind, shape), places in groups.items():
        most = min(max_pieces, encoders[kind].max_pieces(shape))
        for first in range(0, len(places), most):
            yield PaddedBatch(kind, shape, places[first : first + most])


def pad_into(values: npt.NDArray[np.float32], pieces: Seq[EncodeInput], axis: int) -> list[int]:
    """Write pieces into the first rows of (batch, *shape), padded with zeros.

    Returns:
        Length of each piece along the axis.
    """
    for row, piece in zip(values, pieces, strict=False):
        before = (slice(None),) * axis
        length = piece.values.shape[axis]
        row[(*before, slice(length))] = piece.values
        row[(*before, slice(length, None))] = 0.0
    return [piece.values.shape[axis] for piece in pieces]


def encode_together(model: Model, ops: Ops, max_pieces: int, pieces: Seq[EncodeInput]) -> list[Any]:
    """Encode pieces without graphs; pieces that can be padded to one shape share a pass.

    Returns:
        The result of `Encodes.encode` for each piece, in order.
    """
    encoders = model.padded_encoders if isinstance(model, EncodesPadded) else {}
    encoded: dict[int, Any] = {}
    for kind, shape, places in padded_batches(encoders, pieces, max_pieces):
        if len(places) > 1:  # a single piece needs no padding
            values = np.empty((len(places), *shape), np.float32)
            encoder = encoders[kind]
            lengths = pad_into(values, [pieces[place] for place in places], encoder.axis)
            out = encoder.encode_padded(ops.array(values), ops.array(np.array(lengths)))
            for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
                encoded[place] = encoder.unpadded(out[row], length)
    alone = [place for place in range(len(pieces)) if place not in encoded]
    if alone:
        assert isinstance(model, Encodes)
        made = model.encode([pieces[place] for place in alone])
        encoded.update(zip(alone, made, strict=True))
    return [encoded[place] for place in range(len(pieces))]


def _beside(shape: Shape, axis: int) -> Shape:
    """Return the sizes of the other axes."""
    return (*shape[:axis], *shape[axis + 1 :])
