"""The two encoders of a voice, over clips padded to one of a few lengths."""

from __future__ import annotations

from izwi.audio.mel import SPEAKER_HOP
from izwi.ops import Array, Ops, Weights
from izwi_models import qwen3_codec as codec
from izwi_models.qwen3_tts.config import SpeakerEncoderConfig
from izwi_models.qwen3_tts.speaker import speaker_embedding

# Lengths that clips are padded to, in seconds. Longer ones are rare, and run as they are.
_LENGTHS_S = (1, 2, 4, 8, 15, 30)
# Of one batch: as many clips of 30 s are 184 MB a layer of the speaker encoder, in 16 bits.
_MAX_CLIPS = 8


class PaddedSpeakers:
    """Log mel of clips to their speakers' vectors. Implements `izwi.model.PaddedEncoder`."""

    axis = 0  # the frames of (frames, mel_dim)
    max_pieces = _MAX_CLIPS

    def __init__(self, ops: Ops, weights: Weights, config: SpeakerEncoderConfig):
        """Bind the encoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            config: Sizes of the encoder.
        """
        self._ops, self._weights, self._config = ops, weights, config
        lengths = (-(-s * config.sample_rate // SPEAKER_HOP) for s in _LENGTHS_S)
        self.shapes = tuple((frames, config.mel_dim) for frames in lengths)

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """(batch, frames, mel_dim) and the frames of each clip to (batch, hidden)."""
        return speaker_embedding(self._ops, self._weights, self._config, values, lengths)

    def unpadded(self, row: Array, length: int) -> Array:  # noqa: ARG002
        """The vector, which has no length."""
        return row


class PaddedCodes:
    """Samples of clips to frames of codes. Implements `izwi.model.PaddedEncoder`."""

    axis = 0  # the samples
    max_pieces = _MAX_CLIPS

    def __init__(self, ops: Ops, weights: Weights, config: codec.CodecConfig):
        """Bind the encoder.

        Args:
            ops: The backend's operations.
            weights: Of the codec, prepared.
            config: The codec's configuration.
        """
        self._ops, self._weights, self._config = ops, weights, config
        rate, frame = config.input_sample_rate, config.encode_downsample_rate
        self.shapes = tuple((-(-s * rate // frame) * frame,) for s in _LENGTHS_S)

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """(batch, samples) and the samples of each clip to (batch, frames, codebooks) int64."""
        return codec.encode(self._ops, self._weights, self._config, values, lengths)

    def unpadded(self, row: Array, length: int) -> Array:
        """The frames of so many samples, the last one filled up with silence."""
        return row[: -(-length // self._config.encode_downsample_rate)]
