"""Tell the speakers of a live session apart, one stretch of speech after another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from izwi.arrays import Float32
from izwi.audio.speech_regions import RegionRules, speech_regions
from izwi.host.threads import compute
from izwi_api.schemas.known_speakers import SpeakerSetting
from izwi_api.services.context import Services
from izwi_api.services.speakers.diarize import (
    THRESHOLD,
    KnownSpeaker,
    check_reference,
    known_vectors,
)
from izwi_api.services.speakers.encoder import SAMPLE_RATE, SpeakerEncoder
from izwi_api.services.speakers.online import OnlineSpeakers
from izwi_api.services.speakers.timeline import Turn, speech_windows
from izwi_api.services.voices.base64_audio import decode_base64_audio
from izwi_api.services.voices.encoding import decode_clip

_REFERENCES = "known_speaker_references"
# Quieter audio has no speaker.
_SILENT = 1e-5


async def known_speakers(
    services: Services, names: Sequence[str], references: Sequence[str]
) -> list[KnownSpeaker]:
    """Decode the clips of known speakers.

    Args:
        services: Has the limits of a clip.
        names: The names.
        references: A data: URL for each.

    Raises:
        InvalidRequest: A clip cannot be decoded, or is too short or too long.
    """
    known = []
    limit_bytes = services.settings.max_reference_bytes
    for name, text in zip(names, references, strict=True):
        content = await asyncio.to_thread(decode_base64_audio, text, limit_bytes, _REFERENCES)
        samples = await decode_clip(services, content, SAMPLE_RATE, _REFERENCES)
        check_reference(samples, _REFERENCES)
        known.append(KnownSpeaker(name, samples))
    return known


async def check_speakers(services: Services, setting: SpeakerSetting) -> None:
    """Check that speakers can be told apart so.

    Raises:
        InvalidRequest: No served model has a speaker encoder, or a clip is not usable.
    """
    SpeakerEncoder(services.registry, "speakers")
    await known_speakers(services, setting.names, setting.references)


class LiveSpeakers:
    """Names the speakers of a session, stretch by stretch, in the order of the calls.

    Args:
        services: Has the model with the speaker encoder.
        setting: How speakers are told apart.

    Raises:
        InvalidRequest: No served model has a speaker encoder.
    """

    def __init__(self, services: Services, setting: SpeakerSetting):
        self._services, self._setting = services, setting
        self._encoder = SpeakerEncoder(services.registry, "speakers")
        self._speakers: OnlineSpeakers | None = None
        self._in_order = asyncio.Lock()

    async def name_turns(self, samples: Float32) -> list[tuple[Turn, str]]:
        """Return the turns of a stretch of speech by start, each with its speaker's name.

        Args:
            samples: (n,) at 16 kHz. Without detected speech, all of it counts as speech.

        Raises:
            IzwiError: The engine failed.
        """
        async with self._in_order:
            samples = np.clip(samples, -1.0, 1.0)  # resampling may exceed full scale
            if float(np.abs(samples).max(initial=0.0)) < _SILENT:
                return []
            regions = await compute(speech_regions, samples, RegionRules())
            regions = regions or [(0, len(samples))]
            windows = speech_windows(regions, len(samples))
            vectors = await self._encoder.encode([samples[w.start : w.stop] for w in windows])
            speakers = await self._opened()
            return await compute(speakers.add, regions, windows, vectors)

    async def _opened(self) -> OnlineSpeakers:
        if self._speakers is None:
            setting = self._setting
            known = await known_speakers(self._services, setting.names, setting.references)
            vectors = await known_vectors(self._encoder, known)
            threshold = THRESHOLD if setting.threshold is None else setting.threshold
            named = list(zip(setting.names, vectors, strict=True))
            self._speakers = OnlineSpeakers(threshold, named)
        return self._speakers
