"""Encode clips to voice prompts of a model, for HTTP and the command line."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, cast
from uuid import uuid4

from izwi.arrays import Float32
from izwi.audio.limits import DecodeLimits
from izwi.errors import InvalidRequest, IzwiError, VoiceExists
from izwi.host.threads import compute
from izwi.inputs.speech import VoicePrompt
from izwi.model.capability import Capability
from izwi.model.frontend import ClonesVoices, SpeechFrontend
from izwi_api.services.context import Services, chunks_of
from izwi_api.services.models.served import ServedModel, ServedModels
from izwi_api.voices.clip_check import check_length
from izwi_api.voices.store import REFERENCE_RATE, StoredVoice

_FIRST_PAUSE_S = 0.005
_MAX_PAUSE_S = 0.1


def cloning_model(services: Services) -> ServedModel[SpeechFrontend]:
    """Return the first served model that can clone. Raises InvalidRequest if there is none."""
    model = first_cloning_model(services.registry)
    if model is None:
        raise InvalidRequest("no served model can clone a voice", param="audio_sample")
    return model


def first_cloning_model(registry: ServedModels) -> ServedModel[SpeechFrontend] | None:
    """Return the first served model that can clone, or None."""
    return next((model for model in _speech_models(registry) if model.frontend.can_clone), None)


def speech_models(services: Services) -> list[ServedModel[SpeechFrontend]]:
    """Return the served speech models."""
    return _speech_models(services.registry)


def _speech_models(registry: ServedModels) -> list[ServedModel[SpeechFrontend]]:
    models = map(registry.model, registry.names())
    return [
        cast(ServedModel[SpeechFrontend], model)
        for model in models
        if Capability.SPEAK in model.frontend.capabilities
    ]


async def decode_clip(services: Services, content: bytes, rate: int, param: str) -> Float32:
    """Decode a clip within the API server's limits.

    Args:
        services: Has the limits.
        content: The file's bytes.
        rate: Sample rate of the output in Hz.
        param: Name of the field, for messages.

    Returns:
        (samples,) float32 mono.

    Raises:
        InvalidAudio: It cannot be decoded.
        TooLarge: It is too long.
    """
    try:
        return await services.decoder.decode(content, rate, services.settings.reference_limits)
    except InvalidRequest as error:
        raise type(error)(str(error), param=param) from error


class NewVoice(NamedTuple):
    """A voice to store.

    Attributes:
        sample: An audio file.
        text: What it says, or None.
        consent: The id of a recording, or a statement.
        prompt: The description that the sample was made from.
    """

    name: str
    sample: bytes
    text: str | None
    consent: str | None = None
    prompt: str | None = None


async def keep_voice(
    services: Services, model: ServedModel[SpeechFrontend] | None, voice: NewVoice
) -> StoredVoice:
    """Store a voice, with a model's prompt of its clip.

    The clip is encoded first, so that a clip that cannot be encoded, or a caller who disconnects,
    leaves no voice behind.

    Args:
        services: The engine, the models and the store.
        model: The model that encodes the clip now, or None; others encode it at their first
            use.
        voice: The new voice.

    Raises:
        InvalidRequest: The name or the clip cannot be used.
        AudioTooShort: The clip is shorter than a second.
        VoiceExists: The name is taken, by a stored voice or by a model's speaker.
        StorageFull: The disk is full.
    """
    check_not_speaker(services, voice.name)
    await asyncio.to_thread(services.voices.check_free, voice.name)
    samples = await decode_clip(services, voice.sample, REFERENCE_RATE, "audio_sample")
    check_length(len(samples), REFERENCE_RATE)
    encoded = {}
    if model is not None:
        encoded[checkpoint_name(model)] = await encode_clip(model, samples, voice.text)
    return await asyncio.to_thread(
        lambda: services.voices.create(
            voice.name,
            voice.sample,
            voice.text,
            consent=voice.consent,
            prompt=voice.prompt,
            encoded=encoded,
        )
    )


def check_not_speaker(services: Services, name: str) -> None:
    """Raise VoiceExists if a model has a speaker of that name, which would hide the voice."""
    for model in speech_models(services):
        if name.lower() in {speaker.lower() for speaker in model.frontend.speakers}:
            raise VoiceExists(f"a model has a speaker {name!r}", param="name")


async def encoded_voice(
    services: Services, model: ServedModel[SpeechFrontend], stored: StoredVoice
) -> VoicePrompt:
    """Return a stored voice as a prompt of a model; encode it at the first use.

    If many callers use it for the first time at once, in any process, one of them encodes it.

    Raises:
        InvalidRequest: The model cannot clone.
        VoiceNotFound: The voice was deleted meanwhile.
    """
    checkpoint = checkpoint_name(model)
    voices, pause_s = services.voices, _FIRST_PAUSE_S
    while True:
        kept = await asyncio.to_thread(voices.load_prompt, stored, checkpoint)
        if kept is not None:
            return kept
        with voices.encoding_turn(stored, checkpoint) as is_ours:
            if is_ours:
                return await _encode_stored(services, model, stored)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


async def encode_clip(
    model: ServedModel[SpeechFrontend], samples: Float32, text: str | None
) -> VoicePrompt:
    """Encode a clip with a model.

    Args:
        model: A model that can clone.
        samples: (n,) mono at REFERENCE_RATE.
        text: What it says, or None.

    Raises:
        InvalidRequest: The clip cannot be used.
        IzwiError: The engine failed.
    """
    frontend = model.frontend
    if not isinstance(frontend, ClonesVoices):
        raise _cannot_clone(model.name)
    name = f"voice-{uuid4().hex}"
    request = await compute(frontend.prepare_voice, name, model.name, samples, text)
    async with model.submit(request) as answer:
        encoded = [array async for chunk in chunks_of(answer) for array in chunk.encoded]
    if not encoded:
        raise IzwiError("the engine returned no encoding of the voice")
    return await asyncio.to_thread(frontend.read_voice, encoded, text)


def checkpoint_name(model: ServedModel[SpeechFrontend]) -> str:
    """Return the name under which a model's prompts are stored; it changes with the checkpoint.

    Raises:
        InvalidRequest: The model cannot clone.
    """
    if not model.frontend.can_clone:
        raise _cannot_clone(model.name)
    return f"{model.name}@{model.fingerprint}"


def _cannot_clone(model_name: str) -> InvalidRequest:
    return InvalidRequest(f"model {model_name!r} cannot speak with cloned voices", param="voice")


async def _encode_stored(
    services: Services, model: ServedModel[SpeechFrontend], stored: StoredVoice
) -> VoicePrompt:
    checkpoint = checkpoint_name(model)
    # Another process may have finished encoding since the first look-up.
    kept = await asyncio.to_thread(services.voices.load_prompt, stored, checkpoint)
    if kept is not None:
        return kept
    sample = await asyncio.to_thread(stored.sample)
    samples = await services.decoder.decode(sample, REFERENCE_RATE, DecodeLimits())
    prompt = await encode_clip(model, samples, stored.text)
    await asyncio.to_thread(services.voices.save_prompt, stored, checkpoint, prompt)
    return prompt
