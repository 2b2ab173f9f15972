"""Encode clips to voice prompts of a model. Used by HTTP and by the command line."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from uuid import uuid4

from izwi.arrays import Float32
from izwi.audio.decode import DecodeLimits
from izwi.capability import Capability
from izwi.errors import InvalidRequest, IzwiError, VoiceExists
from izwi.inputs import VoicePrompt
from izwi.model import ClonesVoices
from izwi.threads import compute
from izwi_api.services.context import Services, chunks_of
from izwi_api.voices.store import REFERENCE_RATE, StoredVoice

_FIRST_PAUSE_S = 0.005
_MAX_PAUSE_S = 0.1


def cloning_model(services: Services) -> str:
    """Return the first served model that can clone. Raises InvalidRequest if there is none."""
    for name in speech_models(services):
        if services.registry.speech(name).can_clone:
            return name
    raise InvalidRequest("no served model can clone a voice", param="audio_sample")


def speech_models(services: Services) -> list[str]:
    """Return the names of the served models that speak."""
    names = services.registry.names()
    return [
        name for name in names if Capability.SPEAK in services.registry.model(name).capabilities
    ]


async def decode_clip(services: Services, content: bytes, rate: int, param: str) -> Float32:
    """Decode a clip under the API server's limits.

    Args:
        services: Whose limits hold.
        content: The file's bytes.
        rate: Sample rate of the answer in Hz.
        param: What the caller calls the file, for messages.

    Returns:
        (samples,) float32 mono.

    Raises:
        InvalidAudio: It is no audio that can be used.
        TooLarge: It is longer than a clip may be.
    """
    try:
        return await services.decoder.decode(content, rate, services.settings.reference_limits)
    except InvalidRequest as error:
        raise type(error)(str(error), param=param) from error


class NewVoice(NamedTuple):
    """A voice to keep.

    Attributes:
        sample: A file of audio.
        text: What it says, or None.
        consent: A recording's id, or words.
        prompt: The description that the sample was made from.
    """

    name: str
    sample: bytes
    text: str | None
    consent: str | None = None
    prompt: str | None = None


async def keep_voice(services: Services, model_name: str | None, voice: NewVoice) -> StoredVoice:
    """Keep a voice, with what a model makes of its clip.

    The clip is encoded first: one that cannot be, or a caller who leaves, leaves no voice behind.

    Args:
        services: The engine, the models and the store.
        model_name: Who encodes the clip now, or None; others do when they are asked to speak.
        voice: The new voice.

    Raises:
        InvalidRequest: The name or the clip cannot be used.
        VoiceExists: The name is taken, in the store or by a model's speaker.
        StorageFull: There is no room.
    """
    check_not_speaker(services, voice.name)
    await asyncio.to_thread(services.voices.check_free, voice.name)
    samples = await decode_clip(services, voice.sample, REFERENCE_RATE, "audio_sample")
    encoded = {}
    if model_name is not None:
        prompt_voice = await encode_clip(services, model_name, samples, voice.text)
        encoded[checkpoint_name(services, model_name)] = prompt_voice
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
    """Raise VoiceExists if a model has a speaker of that name: the voice could not be requested."""
    for model_name in speech_models(services):
        speakers = services.registry.speech(model_name).speakers
        if name.lower() in {speaker.lower() for speaker in speakers}:
            raise VoiceExists(f"a model has a speaker {name!r}", param="name")


async def encoded_voice(services: Services, model_name: str, stored: StoredVoice) -> VoicePrompt:
    """Return a stored voice as this model hears it, encoding it the first time.

    Of many who ask for the first time at once, in this process or in others, one encodes.

    Raises:
        InvalidRequest: The model cannot clone.
        VoiceNotFound: The voice was deleted meanwhile.
    """
    checkpoint = checkpoint_name(services, model_name)
    voices, pause_s = services.voices, _FIRST_PAUSE_S
    while True:
        kept = await asyncio.to_thread(voices.load_prompt, stored, checkpoint)
        if kept is not None:
            return kept
        with voices.encoding_turn(stored, checkpoint) as is_ours:
            if is_ours:
                return await _encode_stored(services, model_name, stored)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


async def encode_clip(
    services: Services, model_name: str, samples: Float32, text: str | None
) -> VoicePrompt:
    """Let a model encode a clip.

    Args:
        services: The engine and the models.
        model_name: One that can clone.
        samples: (n,) mono at REFERENCE_RATE.
        text: What it says, or None.

    Raises:
        InvalidRequest: The clip cannot be used.
        IzwiError: The engine failed.
    """
    model = services.registry.speech(model_name)
    if not isinstance(model, ClonesVoices):
        raise _cannot_clone(model_name)
    name = f"voice-{uuid4().hex}"
    request = await compute(model.prepare_voice, name, model_name, samples, text)
    stream = services.engine.submit(request)
    try:
        encoded = [array async for chunk in chunks_of(stream) for array in chunk.encoded]
    finally:
        stream.abort()
    if not encoded:
        raise IzwiError("the engine gave no encoding of the voice")
    return await asyncio.to_thread(model.read_voice, encoded, text)


def checkpoint_name(services: Services, model_name: str) -> str:
    """Return the name under which a model's prompts are kept: they die with its checkpoint.

    Raises:
        InvalidRequest: The model cannot clone.
    """
    if not services.registry.speech(model_name).can_clone:
        raise _cannot_clone(model_name)
    return f"{model_name}@{services.registry.fingerprint(model_name)}"


def _cannot_clone(model_name: str) -> InvalidRequest:
    return InvalidRequest(f"model {model_name!r} cannot speak with cloned voices", param="voice")


async def _encode_stored(services: Services, model_name: str, stored: StoredVoice) -> VoicePrompt:
    checkpoint = checkpoint_name(services, model_name)
    # The previous lock holder may have finished after the first look-up.
    kept = await asyncio.to_thread(services.voices.load_prompt, stored, checkpoint)
    if kept is not None:
        return kept
    sample = await asyncio.to_thread(stored.sample)
    samples = await services.decoder.decode(sample, REFERENCE_RATE, DecodeLimits())
    prompt = await encode_clip(services, model_name, samples, stored.text)
    await asyncio.to_thread(services.voices.save_prompt, stored, checkpoint, prompt)
    return prompt
