"""The codec of a checkpoint as the engine runs it: frames to sound, and the clip before them."""

from __future__ import annotations

from collections.abc import Mapping

from izwi.layers import StateSpec
from izwi.ops import Array, Ops, Weights
from izwi.sequence import Sequence
from izwi_models import qwen3_codec
from izwi_models.qwen3_tts.prompt import SpeechPrompt


class Codec:
    """Implements `izwi.tracks.Codec`.

    Attributes:
        warms_up: Whether speech may continue a clip: the checkpoint clones.
    """

    def __init__(
        self, ops: Ops, weights: Weights, config: qwen3_codec.CodecConfig, *, warms_up: bool
    ):
        """Bind weights that were prepared for serving."""
        self._ops, self.weights, self.config, self.warms_up = ops, weights, config, warms_up

    lookahead_samples = 0

    @property
    def sample_rate(self) -> int:
        """Of the sound made, Hz."""
        return self.config.output_sample_rate

    @property
    def frame_samples(self) -> int:
        """Samples of one frame."""
        return self.config.decode_upsample_rate

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """What a stream of sound keeps between chunks."""
        return qwen3_codec.state_shapes(self.config)

    def warm_codes(self, sequence: Sequence) -> Array | None:
        """The reference clip's frames, on the device, where the speech continues a clip."""
        prompt = sequence.request.prompt
        assert isinstance(prompt, SpeechPrompt)
        if prompt.num_reference_frames == 0:
            return None
        return voice_of(self._ops, sequence)[1]

    def decode(self, codes: Array, state: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Turn (rows, frames, codebooks) into (rows, samples) in [-1, 1] and the next state."""
        return qwen3_codec.decode(self._ops, self.weights, self.config, codes, state)


def voice_of(ops: Ops, sequence: Sequence) -> tuple[Array, Array]:
    """The cloned speaker's vector and the clip's codes, None where the prompt has none."""
    prompt = sequence.request.prompt
    assert isinstance(prompt, SpeechPrompt)
    voice = prompt.voice
    if voice is not None:
        codes = None if voice.codes is None else ops.array(voice.codes)
        return ops.array(voice.speaker_embedding), codes
    vector, codes = [*sequence.encoded, None, None][:2]
    return vector, codes
