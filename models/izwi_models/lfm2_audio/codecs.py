"""LFM2-Audio's two codecs for the engine; see `izwi.model.tracks.Codec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from izwi.model.layers import StateSpec
from izwi.model.step_batch import Span
from izwi.ops import Array, Ops, Weights
from izwi_models.lfm2_audio import detokenizer, mimi
from izwi_models.lfm2_audio.audio_config import (
    FRAME_SAMPLES,
    SAMPLE_RATE,
    DetokenizerConfig,
    MimiConfig,
)

# Arrays of the last convolution's input that Mimi keeps at once, as Qwen3-TTS's codec does.
_PEAK_ARRAYS = 4
# Spectra of an inverse transform are the detokenizer's largest arrays (measured on a GPU: 60).
_DETOKENIZER_WIDTH = 64


@dataclass(frozen=True, slots=True, eq=False)
class FrameSizes:
    """What decoding takes of a device. Implements `izwi.model.tracks.CodecSizes`."""

    state: Mapping[str, StateSpec]
    _peak_width: int  # numbers kept at once for each sample

    def peak_values(self, frames: int) -> int:
        """Return the most numbers that decoding frames of one stream keeps at once."""
        return self._peak_width * FRAME_SAMPLES * frames


@dataclass(frozen=True, slots=True, eq=False)
class FrameCodec(FrameSizes):
    """Decodes frames of eight codes to 24 kHz audio. Implements `izwi.model.tracks.Codec`."""

    lookahead_samples: int
    _decode: Callable[[Array, Mapping[str, Array]], tuple[Array, dict[str, Array]]]

    sample_rate = SAMPLE_RATE
    frame_samples = FRAME_SAMPLES
    warms_up = False

    def warm_codes(self, span: Span) -> Array | None:  # noqa: ARG002
        """Return nothing: the model does not clone voices."""
        return None

    def decode(self, codes: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Decode the next frames of each stream."""
        return self._decode(codes, state)


def mimi_sizes(config: MimiConfig) -> FrameSizes:
    """Return what Mimi takes of a device."""
    return FrameSizes(mimi.state_shapes(config), _PEAK_ARRAYS * config.num_filters)


def detokenizer_sizes(config: DetokenizerConfig) -> FrameSizes:
    """Return what the LFM2 detokenizer takes of a device."""
    return FrameSizes(detokenizer.state_shapes(config), _DETOKENIZER_WIDTH)


def mimi_codec(ops: Ops, weights: Weights, config: MimiConfig) -> FrameCodec:
    """Return Mimi, LFM2-Audio's codec.

    Args:
        ops: The backend's operations.
        weights: Tensors by the names of `mimi_shapes`.
        config: Sizes.
    """
    prepared, sizes = mimi.prepare(ops, weights, config), mimi_sizes(config)
    return FrameCodec(
        sizes.state,
        sizes._peak_width,
        0,
        lambda codes, state: mimi.decode(ops, prepared, config, codes, state),
    )


def detokenizer_codec(ops: Ops, weights: Weights, config: DetokenizerConfig) -> FrameCodec:
    """Return the LFM2 detokenizer, LFM2.5-Audio's codec.

    Args:
        ops: The backend's operations.
        weights: Tensors by the names of `detokenizer_shapes`.
        config: Sizes.
    """
    prepared, sizes = detokenizer.prepare(ops, weights, config), detokenizer_sizes(config)
    return FrameCodec(
        sizes.state,
        sizes._peak_width,
        detokenizer.LOOKAHEAD_SAMPLES,
        lambda codes, state: detokenizer.decode(ops, prepared, config, codes, state),
    )
