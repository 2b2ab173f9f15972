"""Audio encoders as recorded graphs: pieces padded to a few lengths, in batches of a few sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from izwi.model import PaddedEncoder
from izwi.request import EncodeInput
from izwi.runner.recorder import Recorded, Recorder, fitting
from izwi.runner.staging import StagedBuffer

_SIZES = (1, 2, 4, 6, 8, 12, 16)
Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch size and shape: its buffer and its graph."""

    staged: StagedBuffer
    graph: Recorded
    out: Tensor


class EncoderGraphs:
    """Pieces of audio through an encoder in one launch for each length that they are padded to."""

    def __init__(
        self,
        encoder: PaddedEncoder,
        recorder: Recorder,
        max_pieces: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
        """Set up; nothing is recorded yet.

        Args:
            encoder: What is recorded.
            recorder: Records it.
            max_pieces: Pieces of the largest batch.
            device: Where it runs.
            dtype: Of its weights.
        """
        self._encoder, self._recorder = encoder, recorder
        self._device, self._dtype = device, dtype
        self._sizes, self._shapes = fitting(_SIZES, max_pieces), tuple(encoder.shapes)
        self._batches: dict[tuple[int, Shape], _Batch] = {}

    def takes(self, piece: EncodeInput) -> bool:
        """Whether the piece can be encoded here."""
        return piece.kind == self._encoder.kind and self._padded(piece.values.shape) is not None

    @torch.inference_mode()
    def encode(self, pieces: Seq[EncodeInput]) -> list[Tensor]:
        """Encode pieces that are taken, without waiting for the device.

        Returns:
            (tokens, width) each, in order, in memory of its own: another graph's replay may
            overwrite a graph's result.
        """
        groups: defaultdict[Shape, list[int]] = defaultdict(list)
        for place, piece in enumerate(pieces):
            shape = self._padded(piece.values.shape)
            assert shape is not None
            groups[shape].append(place)
        encoded: dict[int, Tensor] = {}
        for shape, places in groups.items():
            for first in range(0, len(places), self._sizes[-1]):
                batch = places[first : first + self._sizes[-1]]
                made = self._replay(shape, [pieces[place] for place in batch])
                encoded.update(zip(batch, made, strict=True))
        return [encoded[place] for place in range(len(pieces))]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Record all of them, the largest first: the others fit into its memory."""
        for shape in reversed(self._shapes):
            for size in reversed(self._sizes):
                self._batch(size, shape)

    def _padded(self, shape: Shape) -> Shape | None:
        """The least shape that values of this one can be padded to."""
        fitting_ones = (s for s in self._shapes if s[:-1] == shape[:-1] and s[-1] >= shape[-1])
        return next(fitting_ones, None)

    def _replay(self, shape: Shape, pieces: Seq[EncodeInput]) -> list[Tensor]:
        batch = self._batch(next(size for size in self._sizes if size >= len(pieces)), shape)
        counts = [self._encoder.num_tokens(piece.values.shape[-1]) for piece in pieces]
        batch.staged.wait()
        values = batch.staged.host["values"]
        for place, piece in enumerate(pieces):
            length = piece.values.shape[-1]
            values[place, ..., :length] = piece.values
            values[place, ..., length:] = 0.0
        # places of no piece repeat what was there before
        batch.staged.host["num_tokens"][: len(pieces)] = counts
        batch.staged.send(batch.staged.starts["values"] + values[: len(pieces)].nbytes)
        batch.graph.replay()
        return [batch.out[place, :count].clone() for place, count in enumerate(counts)]

    def _batch(self, size: int, shape: Shape) -> _Batch:
        if (size, shape) not in self._batches:
            fields = {"num_tokens": (np.int64, (size,)), "values": (np.float32, (size, *shape))}
            staged = StagedBuffer(fields, self._device)
            staged.host["num_tokens"][:] = self._encoder.num_tokens(shape[-1])
            staged.send(staged.starts["values"])
            values, num_tokens = staged.device["values"], staged.device["num_tokens"]

            def run() -> Tensor:
                encoded: Tensor = self._encoder.encode_padded(values.to(self._dtype), num_tokens)
                return encoded

            self._batches[size, shape] = _Batch(staged, *self._recorder.capture(run))
        return self._batches[size, shape]
