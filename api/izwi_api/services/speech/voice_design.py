"""Design voices from a description.

A model that follows descriptions speaks a script once, and its audio becomes the clip that other
models clone. So the voice is the same for every text.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import numpy as np

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi.errors import InvalidRequest
from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import SpeechFrontend
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.services.voices.encoding import (
    NewVoice,
    check_not_speaker,
    cloning_model,
    keep_voice,
    speech_models,
)
from izwi_api.voices.clip_check import MAX_CLIP_S, MIN_SPEECH_S
from izwi_api.voices.store import StoredVoice

_SCRIPT = (
    "Good morning, and thank you for listening. This is how I sound when I read a story, "
    "and this is how I ask a question: shall we begin?"
)
# Sent by clients that do not know the names of our models.
_ANY_MODEL = "auto"


async def design_voice(
    services: Services,
    name: str,
    prompt: str,
    *,
    model_name: str | None = None,
    script: str | None = None,
) -> StoredVoice:
    """Make a voice from a description, and store it.

    Args:
        services: The engine, the models and the store.
        name: Name of the new voice.
        prompt: Description of how it sounds.
        model_name: The model that makes it; None or "auto" takes the first that can.
        script: The text of the clip, some 2 to 30 seconds of speech; None uses an English sentence
            of ours.

    Raises:
        InvalidRequest: No served model can do it, or the prompt or the script cannot be used.
        VoiceExists: The name is taken.
        StorageFull: The disk is full.
    """
    designer = _designing_model(services, model_name)
    cloner = cloning_model(services)
    check_not_speaker(services, name)
    await asyncio.to_thread(services.voices.check_free, name)
    text = (script or _SCRIPT).strip()
    sample = await _said(designer, text, prompt)
    voice = NewVoice(name, sample, text, prompt=prompt)
    return await keep_voice(services, cloner, voice)


def _designing_model(services: Services, wanted: str | None) -> ServedModel[SpeechFrontend]:
    able = [model for model in speech_models(services) if _follows_descriptions(model.frontend)]
    if wanted not in (None, _ANY_MODEL):
        named = [model for model in able if model.name == wanted]
        if not named:
            raise InvalidRequest(
                "no model of that name that makes voices from descriptions is served", param="model"
            )
        return named[0]
    if not able:
        raise InvalidRequest(
            "no served model makes a voice from a description; send an audio_sample",
            param="type",
        )
    return able[0]


def _follows_descriptions(model: SpeechFrontend) -> bool:
    """Whether a model makes a voice from words: it has no speakers, and does not clone."""
    return not model.speakers and not model.can_clone


async def _said(model: ServedModel[SpeechFrontend], text: str, prompt: str) -> bytes:
    """Speak a text in the described voice, and return a WAV file."""
    ask = SpeechInput(text, instruct=prompt)
    async with (
        await open_speech(model, ask, streams=False) as speech,
        aclosing(speech.output()) as chunks,
    ):
        pieces = [chunk.pcm async for chunk in chunks if chunk.pcm is not None]
    pcm = np.concatenate([np.zeros(0, np.float32), *pieces])
    seconds = len(pcm) / speech.sample_rate
    if not MIN_SPEECH_S <= seconds <= MAX_CLIP_S:
        raise InvalidRequest(
            f"the script takes {seconds:.1f} s to say; a voice needs {MIN_SPEECH_S:.0f} to "
            f"{MAX_CLIP_S:.0f}",
            param="script_hint",
        )
    content = to_s16le(pcm)
    return wav_header(speech.sample_rate, len(content)) + content
