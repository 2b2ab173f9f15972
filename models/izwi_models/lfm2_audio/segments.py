"""The audio encoder and its adapter on one device: segments of speech to rows of a prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq

from izwi.ops import Array, Ops, Weights
from izwi.request.request import EncodeInput
from izwi_models.lfm2_audio.audio_config import EncoderConfig
from izwi_models.lfm2_audio.encoder import adapt, distance_table, encode, pack_encoder

# Segments are padded to these lengths in frames, 2 to 32 s; longer ones are encoded alone.
_PADDED_FRAMES = (200, 400, 800, 1600, 3200)
# Frames of one batch: its activations take about as much memory as 64 s of speech alone.
# Numbers kept at once for each number of the input (measured on a GPU: 104).
_PEAK_VALUES = 112
_MOST_BATCH_FRAMES = 6400


class SegmentSizes:
    """Batches of segments. Implements `izwi.model.encoders.EncoderSizes`."""

    axis = 1

    def __init__(self, config: EncoderConfig):
        self._config = config
        self.shapes = tuple((config.feat_in, frames) for frames in _PADDED_FRAMES)

    def max_pieces(self, shape: tuple[int, ...]) -> int:
        """Return the maximum number of segments in a batch of this shape."""
        return max(1, _MOST_BATCH_FRAMES // shape[self.axis])

    def peak_values(self, shape: tuple[int, ...], pieces: int) -> int:
        """Return the most numbers that encoding a batch keeps at once: the first convolution's."""
        return _PEAK_VALUES * pieces * shape[0] * shape[self.axis]


class SegmentEncoder(SegmentSizes):
    """Encodes features. Implements `Encodes` and `PaddedEncoder` of `izwi.model.encoders`."""

    def __init__(self, ops: Ops, weights: Weights, config: EncoderConfig):
        """Pack the tensors of `encoder_shapes`."""
        mine = ("conformer.", "audio_adapter.")
        kept = {name: array for name, array in weights.items() if name.startswith(mine)}
        super().__init__(config)
        self._ops = ops
        self._weights = pack_encoder(ops, kept, config)
        self._table = ops.array(distance_table(config, config.num_tokens(_PADDED_FRAMES[-1])))

    def num_tokens(self, frames: int) -> int:
        """Return the number of prompt rows of a segment with this number of frames."""
        return self._config.num_tokens(frames)

    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Encode segments, those of equal length as one batch: (tokens, width) each."""
        places: defaultdict[int, list[int]] = defaultdict(list)
        for place, piece in enumerate(inputs):
            places[piece.values.shape[self.axis]].append(place)
        encoded: dict[int, Array] = {}
        for frames, equal in places.items():
            most = self.max_pieces((self._config.feat_in, frames))
            for first in range(0, len(equal), most):
                batch = equal[first : first + most]
                arrays = [self._ops.array(inputs[place].values) for place in batch]
                encoded.update(zip(batch, self._run(self._ops.stack(arrays, 0), None), strict=True))
        return [encoded[place] for place in range(len(inputs))]

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """Encode segments of one of the shapes, (batch, feat_in, frames)."""
        return self._run(values, lengths)

    def unpadded(self, row: Array, length: int) -> Array:
        """Return the number of rows of a segment with this number of frames, without padding."""
        return row[: self._config.num_tokens(length)]

    def _run(self, mel: Array, lengths: Array | None) -> Array:
        fits = mel.shape[-1] <= _PADDED_FRAMES[-1]
        table = self._table if fits else None
        tokens = encode(self._ops, self._weights, self._config, mel, lengths, table)
        return adapt(self._ops, self._weights, tokens)
