"""Speaker vectors of audio, by the speaker encoder of a served speech model."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import numpy as np
from msgspec import structs

from izwi.arrays import Float32
from izwi.audio.resample import resample
from izwi.errors import InvalidRequest, IzwiError
from izwi.host.threads import compute
from izwi.model.frontend import ClonesVoices, SpeechFrontend
from izwi.request.request import Request
from izwi_api.services.context import chunks_of
from izwi_api.services.models.served import ServedModel, ServedModels
from izwi_api.services.voices.encoding import first_cloning_model
from izwi_api.voices.store import REFERENCE_RATE

SAMPLE_RATE = 16_000
# Windows in flight: as many as the engine batches well.
_IN_FLIGHT = 16
# The encoder reads a log spectrum, so all windows get the same level.
_LEVEL = 0.06


class SpeakerEncoder:
    """Computes speaker vectors, each as an encode-only request to the engine.

    Args:
        registry: The served models; the first one with a speaker encoder is used.
        param: The parameter that needs it, for the message.

    Raises:
        InvalidRequest: No served model has a speaker encoder.
    """

    def __init__(self, registry: ServedModels, param: str):
        model = first_cloning_model(registry)
        if model is None:
            raise InvalidRequest(
                "telling speakers apart needs a model with a speaker encoder beside the "
                "transcriber, such as Qwen3-TTS Base or izwi-tiny-tts, and none is served",
                param=param,
            )
        self._model: ServedModel[SpeechFrontend] = model

    @property
    def model_name(self) -> str:
        """Name of the model whose encoder it is."""
        return self._model.name

    async def encode(self, clips: Sequence[Float32]) -> Float32:
        """Return the speaker vector of each clip, (clips, size) float32.

        Args:
            clips: (n,) each at 16 kHz, with speech. A clip below the encoder's least length is
                repeated.

        Raises:
            IzwiError: The engine failed, or its queue is full.
        """
        listener = f"speakers-{uuid4().hex}"
        vectors: list[Float32] = []
        for first in range(0, len(clips), _IN_FLIGHT):
            batch = clips[first : first + _IN_FLIGHT]
            requests = [
                await compute(self._prepare, f"{listener}-{first + n}", listener, clip)
                for n, clip in enumerate(batch)
            ]
            async with self._model.submit_all(requests) as answers:
                for answer in answers:
                    arrays = [array async for chunk in chunks_of(answer) for array in chunk.encoded]
                    if not arrays:
                        raise IzwiError("the engine returned no speaker vector")
                    vectors.append(arrays[0].astype(np.float32))
        return np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)

    def _prepare(self, name: str, listener: str, clip: Float32) -> Request:
        frontend = self._model.frontend
        assert isinstance(frontend, ClonesVoices)
        samples = resample(_leveled(clip), SAMPLE_RATE, REFERENCE_RATE)
        request = frontend.prepare_voice(name, self._model.name, samples, None)
        # one listener, so that a full queue does not refuse a later window
        return structs.replace(request, listener=listener, cacheable=False)


def _leveled(clip: Float32) -> Float32:
    """Return a clip at the common level, at least a second long."""
    level = float(np.sqrt(np.mean(np.square(clip, dtype=np.float64)))) if len(clip) else 0.0
    if level < 1e-6:
        raise InvalidRequest("the clip is silent", param="file")
    leveled = (clip * (_LEVEL / level)).astype(np.float32)
    repeats = -(-SAMPLE_RATE // len(leveled))
    return np.tile(leveled, repeats) if repeats > 1 else leveled
