"""Run audio encoders as captured graphs, with a few padded lengths and batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from izwi.backends.padded import Shape, pad_into, padded_batches, padded_shape
from izwi.backends.torch.captured.capturer import CapturedGraph, GraphCapturer, fitting
from izwi.backends.torch.captured.staging import StagedBuffer
from izwi.model.encoders import PaddedEncoder
from izwi.request.request import EncodeInput

_SIZES = (1, 2, 4, 6, 8, 12, 16)


@dataclass(slots=True, eq=False)
class _Bucket:
    """Pieces of one kind and shape.

    Attributes:
        encoder: The encoder of the pieces.
        sizes: Batch sizes, ascending.
        staged: Input buffer for the largest batch; smaller ones read its first rows.
        graphs: By batch size.
    """

    encoder: PaddedEncoder
    sizes: list[int]
    staged: StagedBuffer
    graphs: dict[int, CapturedGraph] = field(default_factory=dict)


class EncoderGraphs:
    """Encodes pieces of audio with one launch per padded length."""

    def __init__(
        self,
        encoders: Mapping[str, PaddedEncoder],
        capturer: GraphCapturer,
        max_pieces: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
        """Set up; nothing is captured yet.

        Args:
            encoders: Encoders to capture, by kind of piece.
            capturer: Captures the graphs.
            max_pieces: Maximum pieces of a batch; an encoder may set a lower limit.
            device: Device of the encoders.
            dtype: Dtype of their weights.
        """
        self._encoders, self._capturer, self._max_pieces = encoders, capturer, max_pieces
        self._device, self._dtype = device, dtype
        self._buckets: dict[tuple[str, Shape], _Bucket] = {}

    def takes(self, piece: EncodeInput) -> bool:
        """Return whether the piece can be encoded with a graph."""
        return padded_shape(self._encoders, piece) is not None

    @torch.inference_mode()
    def encode(self, pieces: Seq[EncodeInput]) -> list[Tensor]:
        """Encode pieces that `takes` accepts, without waiting for the device.

        Returns:
            The result of `Model.encode` for each piece, in order, copied to its own memory, because
            another graph's launch may overwrite a graph's result.
        """
        encoded: dict[int, Tensor] = {}
        for kind, shape, places in padded_batches(self._encoders, pieces, self._max_pieces):
            made = self._launch(self._bucket(kind, shape), [pieces[place] for place in places])
            encoded.update(zip(places, made, strict=True))
        return [encoded[place] for place in range(len(pieces))]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture all graphs, largest first, so that smaller ones reuse its memory."""
        for kind, encoder in self._encoders.items():
            for shape in reversed(encoder.shapes):
                bucket = self._bucket(kind, shape)
                for size in reversed(bucket.sizes):
                    self._captured(bucket, size)

    def _launch(self, bucket: _Bucket, pieces: Seq[EncodeInput]) -> list[Tensor]:
        encoder, staged = bucket.encoder, bucket.staged
        graph = self._captured(bucket, next(size for size in bucket.sizes if size >= len(pieces)))
        staged.wait()
        values = staged.host["values"]
        lengths = pad_into(values, pieces, encoder.axis)
        # unused rows keep their previous contents
        staged.host["lengths"][: len(pieces)] = lengths
        staged.send(staged.starts["values"] + values[: len(pieces)].nbytes)
        graph.launch()
        return [encoder.unpadded(graph.out[n], length).clone() for n, length in enumerate(lengths)]

    def _bucket(self, kind: str, shape: Shape) -> _Bucket:
        if (kind, shape) not in self._buckets:
            encoder = self._encoders[kind]
            sizes = fitting(_SIZES, min(self._max_pieces, encoder.max_pieces(shape)))
            most = sizes[-1]
            fields = {"lengths": (np.int64, (most,)), "values": (np.float32, (most, *shape))}
            staged = StagedBuffer(fields, self._device)
            staged.host["lengths"][:] = shape[encoder.axis]
            staged.send(staged.starts["values"])
            self._buckets[kind, shape] = _Bucket(encoder, sizes, staged)
        return self._buckets[kind, shape]

    def _captured(self, bucket: _Bucket, size: int) -> CapturedGraph:
        if size not in bucket.graphs:
            values = bucket.staged.device["values"][:size]
            lengths = bucket.staged.device["lengths"][:size]

            def run() -> Tensor:
                encoded: Tensor = bucket.encoder.encode_padded(values.to(self._dtype), lengths)
                return encoded

            bucket.graphs[size] = self._capturer.capture(run)
        return bucket.graphs[size]
