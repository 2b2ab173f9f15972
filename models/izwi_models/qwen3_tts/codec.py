"""The codec of a checkpoint for the engine: frames to audio, after an optional reference clip."""

from __future__ import annotations

from collections.abc import Mapping

from izwi.model.layers import StateSpec
from izwi.model.step_batch import Span
from izwi.ops import Array, Ops, Weights
from izwi_models import qwen3_codec
from izwi_models.qwen3_tts.prompt import SpeechPrompt

# Arrays of the last upsampling block that decoding keeps at once (measured on a GPU: 3.8).
_PEAK_ARRAYS = 4


class CodecSizes:
    """What decoding takes of a device. Implements `izwi.model.tracks.CodecSizes`."""

    def __init__(self, config: qwen3_codec.CodecConfig):
        self.config = config

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """State that a stream keeps between chunks."""
        return qwen3_codec.state_shapes(self.config)

    def peak_values(self, frames: int) -> int:
        """Return the most numbers that decoding frames of one stream keeps at once."""
        decoder = self.config.decoder_config
        channels = decoder.decoder_dim >> len(decoder.upsample_rates)
        return _PEAK_ARRAYS * channels * self.frame_samples * frames

    @property
    def frame_samples(self) -> int:
        """Number of samples in one frame."""
        return self.config.decode_upsample_rate


class Qwen3TTSCodec(CodecSizes):
    """The codec. Implements `izwi.model.tracks.Codec`.

    Attributes:
        warms_up: Whether speech may continue a clip, because the checkpoint clones.
    """

    def __init__(
        self, ops: Ops, weights: Weights, config: qwen3_codec.CodecConfig, *, warms_up: bool
    ):
        """Bind weights that were prepared for serving."""
        super().__init__(config)
        self._ops, self.weights, self.warms_up = ops, weights, warms_up

    lookahead_samples = 0

    @property
    def sample_rate(self) -> int:
        """Sample rate of the audio, in Hz."""
        return self.config.output_sample_rate

    def warm_codes(self, span: Span) -> Array | None:
        """Return the reference clip's codes (frames, codebooks); None if there is no clip."""
        prompt = span.request.prompt
        assert isinstance(prompt, SpeechPrompt)
        if prompt.num_reference_frames == 0:
            return None
        return voice_of(self._ops, span)[1]

    def decode(self, codes: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Decode (rows, frames, codebooks) to (rows, samples) in [-1, 1], and the next state."""
        return qwen3_codec.decode(self._ops, self.weights, self.config, codes, state)


def voice_of(ops: Ops, span: Span) -> tuple[Array, Array]:
    """Return the cloned speaker's (hidden,) vector and the clip's (frames, codebooks) codes.

    Each is None if the prompt does not have it.
    """
    prompt = span.request.prompt
    assert isinstance(prompt, SpeechPrompt)
    voice = prompt.voice
    if voice is not None:
        codes = None if voice.codes is None else ops.array(voice.codes)
        return ops.array(voice.speaker_embedding), codes
    vector, codes = [*span.encoded, None, None][:2]
    return vector, codes
