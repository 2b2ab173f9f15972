"""The two encoders of a voice, over clips padded to one of a few lengths."""

from __future__ import annotations

from izwi.audio.mel import SPEAKER_HOP
from izwi.ops import Array, Ops, Weights
from izwi_models import qwen3_codec as codec
from izwi_models.qwen3_tts.config import SpeakerEncoderConfig
from izwi_models.qwen3_tts.speaker import speaker_embedding

# Lengths that clips are padded to, in seconds. Longer ones are rare, and run as they are.
_LENGTHS_S = (1, 2, 4, 8, 15, 30)
# Clips of one batch, and their seconds: 64 s take the speaker encoder 180 MB in 16 bits, and the
# codec's 380 MB. A GPU that records keeps the memory for good, and is busy with that much sound.
_MAX_CLIPS, _MAX_BATCH_S = 8, 64


def _max_clips() -> list[int]:
    """Clips of one batch, of each length."""
    return [min(_MAX_CLIPS, _MAX_BATCH_S // seconds) for seconds in _LENGTHS_S]


class PaddedSpeakers:
    """Log mel of clips to their speakers' vectors. Implements `izwi.encoders.PaddedEncoder`."""

    axis = 0  # the frames of (frames, mel_dim)

    def __init__(self, ops: Ops, weights: Weights, config: SpeakerEncoderConfig):
        """Bind the encoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            config: Sizes of the encoder.
        """
        self._ops, self._weights, self._config = ops, weights, config
        lengths = (-(-s * config.sample_rate // SPEAKER_HOP) for s in _LENGTHS_S)
        self.shapes: tuple[tuple[int, ...], ...] = tuple(
            (frames, config.mel_dim) for frames in lengths
        )
        self._max_clips = dict(zip(self.shapes, _max_clips(), strict=True))

    def max_pieces(self, shape: tuple[int, ...]) -> int:
        """Clips of one batch."""
        return self._max_clips[shape]

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """(batch, frames, mel_dim) and the frames of each clip to (batch, hidden)."""
        return speaker_embedding(self._ops, self._weights, self._config, values, lengths)

    def unpadded(self, row: Array, length: int) -> Array:  # noqa: ARG002
        """The vector, which has no length."""
        return row


class PaddedCodes:
    """Samples of clips to frames of codes. Implements `izwi.encoders.PaddedEncoder`."""

    axis = 0  # the samples

    def __init__(self, ops: Ops, weights: Weights, config: codec.CodecConfig):
        """Bind the encoder.

        Args:
            ops: The backend's operations.
            weights: Of the codec, prepared.
            config: The codec's configuration.
        """
        self._ops, self._weights, self._config = ops, weights, config
        rate, frame = config.input_sample_rate, config.encode_downsample_rate
        self.shapes: tuple[tuple[int, ...], ...] = tuple(
            (-(-s * rate // frame) * frame,) for s in _LENGTHS_S
        )
        self._max_clips = dict(zip(self.shapes, _max_clips(), strict=True))

    def max_pieces(self, shape: tuple[int, ...]) -> int:
        """Clips of one batch."""
        return self._max_clips[shape]

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """(batch, samples) and the samples of each clip to (batch, frames, codebooks) int64."""
        return codec.encode(self._ops, self._weights, self._config, values, lengths)

    def unpadded(self, row: Array, length: int) -> Array:
        """The frames of so many samples, the last one filled up with silence."""
        return row[: -(-length // self._config.encode_downsample_rate)]
