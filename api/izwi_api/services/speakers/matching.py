"""Compare a clip's speaker with a reference or with stored voices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from izwi.arrays import Float32
from izwi.audio.limits import DecodeLimits
from izwi.errors import AudioTooShort
from izwi_api.services.context import Services
from izwi_api.services.speakers.clusters import unit
from izwi_api.services.speakers.diarize import KnownSpeaker, known_vectors
from izwi_api.services.speakers.encoder import SAMPLE_RATE, SpeakerEncoder
from izwi_api.usage.metering import Charge, seconds
from izwi_api.voices.store import StoredVoice

_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class VoiceScore:
    """How similar a stored voice is.

    Attributes:
        score: Cosine of the two speaker vectors, from -1 to 1.
    """

    voice: StoredVoice
    score: float


async def speaker_vector(encoder: SpeakerEncoder, samples: Float32, param: str) -> Float32:
    """Return the speaker vector of a clip; charges the caller for hearing it.

    Raises:
        AudioTooShort: It is shorter than a second.
        IzwiError: The engine failed.
    """
    if len(samples) < _LEAST_S * SAMPLE_RATE:
        raise AudioTooShort(f"the clip is shorter than {_LEAST_S:.0f} s", param=param)
    charge = Charge(heard_s=seconds(len(samples)))
    with charge.unless_refused():
        (vector,) = await known_vectors(encoder, [KnownSpeaker("", samples)])
    charge.settle()
    return vector


def similarity(one: Float32, other: Float32) -> float:
    """Return the cosine of two speaker vectors."""
    return float(unit(one) @ unit(other))


async def stored_vector(
    services: Services, encoder: SpeakerEncoder, stored: StoredVoice
) -> Float32:
    """Return the speaker vector of a stored voice's clip, at the rate of other recordings."""
    content = await asyncio.to_thread(stored.sample)
    samples = await services.decoder.decode(content, SAMPLE_RATE, DecodeLimits())
    (vector,) = await known_vectors(encoder, [KnownSpeaker(stored.name, samples)])
    return vector


async def rank_voices(
    services: Services, encoder: SpeakerEncoder, vector: Float32, voices: Sequence[StoredVoice]
) -> list[VoiceScore]:
    """Return the voices with their scores, the most similar first; raises as the engine."""
    scores = [
        VoiceScore(voice, similarity(vector, await stored_vector(services, encoder, voice)))
        for voice in voices
    ]
    return sorted(scores, key=lambda each: -each.score)
