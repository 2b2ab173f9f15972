"""The two encoders of a voice, for clips padded to one of a few lengths."""

from __future__ import annotations

from izwi.audio.mel import SPEAKER_HOP
from izwi.ops import Array, Ops, Weights
from izwi_models import qwen3_codec as codec
from izwi_models.qwen3_tts.config import SpeakerEncoderConfig
from izwi_models.qwen3_tts.speaker import speaker_embedding

# Lengths that clips are padded to, in seconds. Longer clips are rare, and run without padding.
_LENGTHS_S = (1, 2, 4, 8, 15, 30)
# Limits of a batch in clips and in seconds of audio. 64 s keep a GPU busy; in 16 bits they take
# 180 MB in the speaker encoder and 380 MB in the codec's, for good if the steps are captured.
_MAX_CLIPS, _MAX_BATCH_S = 8, 64
# Arrays of the widest layer that the speaker encoder keeps at once, and of the first convolutions
# that the codec's encoder does (measured on a GPU: 10.3 and 2.95).
_PEAK_ARRAYS, _PEAK_CODE_ARRAYS = 11, 3


def _max_clips() -> list[int]:
    """Return the maximum number of clips in a batch, for each length."""
    return [min(_MAX_CLIPS, _MAX_BATCH_S // seconds) for seconds in _LENGTHS_S]


class SpeakerSizes:
    """Batches of the speaker encoder. Implements `izwi.model.encoders.EncoderSizes`."""

    def __init__(self, config: SpeakerEncoderConfig):
        self._config = config
        lengths = (-(-s * config.sample_rate // SPEAKER_HOP) for s in _LENGTHS_S)
        self.shapes: tuple[tuple[int, ...], ...] = tuple(
            (frames, config.mel_dim) for frames in lengths
        )
        self._max_clips = dict(zip(self.shapes, _max_clips(), strict=True))

    def max_pieces(self, shape: tuple[int, ...]) -> int:
        """Return the maximum number of clips in a batch."""
        return self._max_clips[shape]

    def peak_values(self, shape: tuple[int, ...], pieces: int) -> int:
        """Return the most numbers that encoding a batch keeps at once."""
        return _PEAK_ARRAYS * pieces * shape[0] * self._config.enc_channels[-1]


class CodeSizes:
    """Batches of the codec's encoder. Implements `izwi.model.encoders.EncoderSizes`."""

    def __init__(self, config: codec.CodecConfig):
        self._config = config
        rate, frame = config.input_sample_rate, config.encode_downsample_rate
        self.shapes: tuple[tuple[int, ...], ...] = tuple(
            (-(-s * rate // frame) * frame,) for s in _LENGTHS_S
        )
        self._max_clips = dict(zip(self.shapes, _max_clips(), strict=True))

    def max_pieces(self, shape: tuple[int, ...]) -> int:
        """Return the maximum number of clips in a batch."""
        return self._max_clips[shape]

    def peak_values(self, shape: tuple[int, ...], pieces: int) -> int:
        """Return the most numbers that encoding a batch keeps at once: the first convolutions'."""
        return _PEAK_CODE_ARRAYS * pieces * shape[0] * self._config.encoder_config.num_filters


class PaddedSpeakers(SpeakerSizes):
    """Encoder of log mel to speaker vectors. Implements `izwi.model.encoders.PaddedEncoder`."""

    axis = 0  # the frames of (frames, mel_dim)

    def __init__(self, ops: Ops, weights: Weights, config: SpeakerEncoderConfig):
        """Bind the encoder.

        Args:
            ops: The backend's operations.
            weights: Tensors by checkpoint name.
            config: Sizes of the encoder.
        """
        super().__init__(config)
        self._ops, self._weights = ops, weights

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """Encode (batch, frames, mel_dim) with (batch,) frames of each clip: (batch, hidden)."""
        return speaker_embedding(self._ops, self._weights, self._config, values, lengths)

    def unpadded(self, row: Array, length: int) -> Array:  # noqa: ARG002
        """Return the vector unchanged: its size does not depend on the length."""
        return row


class PaddedCodes(CodeSizes):
    """Encoder of samples to frames of codes. Implements `izwi.model.encoders.PaddedEncoder`."""

    axis = 0  # the samples

    def __init__(self, ops: Ops, weights: Weights, config: codec.CodecConfig):
        """Bind the encoder.

        Args:
            ops: The backend's operations.
            weights: Prepared weights of the codec.
            config: The codec's configuration.
        """
        super().__init__(config)
        self._ops, self._weights = ops, weights

    def encode_padded(self, values: Array, lengths: Array) -> Array:
        """Encode (batch, samples) with (batch,) lengths: (batch, frames, codebooks) int64."""
        return codec.encode(self._ops, self._weights, self._config, values, lengths)

    def unpadded(self, row: Array, length: int) -> Array:
        """Return the frames of the first `length` samples; the last is padded with silence."""
        return row[: -(-length // self._config.encode_downsample_rate)]
