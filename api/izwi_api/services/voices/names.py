"""Resolve the voice that a request names."""

from __future__ import annotations

import asyncio

from izwi.errors import VoiceNotFound
from izwi.inputs.speech import VoicePrompt
from izwi.model.frontend import SpeechFrontend
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.voices.encoding import encoded_voice
from izwi_api.settings import OPENAI_VOICES, Settings
from izwi_api.voices.store import StoredVoice


async def resolve_voice(
    services: Services, model: ServedModel[SpeechFrontend], voice: str
) -> str | VoicePrompt | None:
    """Return what a model speaks with for a voice's name.

    The checkpoint's own speakers come first, then stored voices, then OpenAI's names. An OpenAI
    name gives None if the checkpoint neither has speakers nor clones: it follows instructions.

    Raises:
        VoiceNotFound: The name is none of the three.
        InvalidRequest: It is a stored voice, and the model cannot clone.
    """
    frontend = model.frontend
    speaker = _speaker(frontend, voice)
    if speaker is not None:
        return speaker
    stored = await asyncio.to_thread(_stored, services, voice)
    if stored is not None:
        return await encoded_voice(services, model, stored)
    if voice.lower() in OPENAI_VOICES or voice.lower() in services.settings.voice_aliases:
        speaker = alias_speaker(frontend, services.settings, voice.lower())
        # A model that follows descriptions needs no voice; one that clones needs a clip.
        if speaker is not None or not frontend.can_clone:
            return speaker
    raise VoiceNotFound(
        f"model {model.name!r} has no voice {voice[:64]!r}; GET /v1/audio/voices lists them",
        param="voice",
    )


def alias_speaker(model: SpeechFrontend, settings: Settings, alias: str) -> str | None:
    """Return the speaker that an OpenAI name stands for; None without speakers."""
    chosen = _speaker(model, settings.voice_aliases.get(alias, ""))
    if chosen is not None or not model.speakers:
        return chosen
    position = OPENAI_VOICES.index(alias) if alias in OPENAI_VOICES else 0
    return model.speakers[position % len(model.speakers)]


def _speaker(model: SpeechFrontend, voice: str) -> str | None:
    by_lower_name = {speaker.lower(): speaker for speaker in model.speakers}
    return by_lower_name.get(voice.lower())


def _stored(services: Services, voice: str) -> StoredVoice | None:
    try:
        return services.voices.get(voice)
    except VoiceNotFound:
        return None
