"""GET, POST and DELETE /v1/audio/voices: the checkpoints' speakers and the cloned voices."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from izwi.audio.decode import decode_audio
from izwi.errors import InvalidRequest, VoiceExists
from izwi.request import Task
from izwi_api.app_state import door_of
from izwi_api.bodies import Form, read_form
from izwi_api.door import Door
from izwi_api.live_response import unless_left
from izwi_api.settings import OPENAI_VOICES
from izwi_api.voice_store import REFERENCE_RATE, StoredVoice, check_name
from izwi_api.voices import alias_speaker, encoded_voice

router = APIRouter()

_FIELDS = {"name", "consent", "ref_text", "x_vector_only", "type"}


@router.get("/v1/audio/voices")
async def list_voices(request: Request) -> dict[str, object]:
    """List every voice, in the shapes that today's clients look for."""
    entries = await asyncio.to_thread(_entries, door_of(request))
    return {"object": "list", "data": entries, "voices": entries}


@router.post("/v1/audio/voices")
async def create_voice(request: Request) -> dict[str, object]:
    """Clone a voice from `audio_sample`, what it says in `ref_text` (or `x_vector_only`)."""
    door = door_of(request)
    form = await read_form(request, door.settings.max_reference_bytes)
    return await unless_left(request.receive, _create(door, form))


@router.delete("/v1/audio/voices/{name}")
async def delete_voice(request: Request, name: str) -> dict[str, object]:
    """Forget a cloned voice; requests that speak with it go on."""
    await asyncio.to_thread(door_of(request).voices.delete, name)
    return {"id": name, "object": "audio.voice.deleted", "deleted": True}


async def _create(door: Door, form: Form) -> dict[str, object]:
    for key in form.fields:
        if key not in _FIELDS:
            raise InvalidRequest(f"unknown parameter: {key[:64]!r}", param=key[:64])
    name = form.fields.get("name", [""])[0]
    check_name(name)
    if "audio_sample" not in form.files:
        raise InvalidRequest("missing required parameter: 'audio_sample'", param="audio_sample")
    if not form.fields.get("consent", [""])[0]:
        raise InvalidRequest(
            "consent must say that the speaker agreed to be cloned", param="consent"
        )
    text = form.fields.get("ref_text", [""])[0].strip() or None
    if text is None and form.fields.get("x_vector_only", [""])[0].lower() not in ("true", "1"):
        raise InvalidRequest(
            "ref_text must be what the clip says; or set x_vector_only", param="ref_text"
        )
    model_name = cloning_model(door)
    if name.lower() in {str(voice["name"]).lower() for voice in _speakers(door)}:
        raise VoiceExists(f"a model has a speaker {name!r}", param="name")
    samples = await asyncio.to_thread(
        decode_audio,
        form.files["audio_sample"],
        REFERENCE_RATE,
        limits=door.settings.reference_limits,
    )
    stored = await asyncio.to_thread(door.voices.create, name, samples, text)
    try:
        await encoded_voice(door, model_name, stored)
    except BaseException:
        # A clip that cannot be encoded, or a caller who left: no half voice stays behind.
        door.voices.delete(name)
        raise
    return _cloned_entry(stored) | {"object": "audio.voice", "type": "audio_sample"}


def cloning_model(door: Door) -> str:
    """Return the first served model that can clone. Raises InvalidRequest if there is none."""
    for name in door.registry.names():
        if _is_speech(door, name) and door.registry.speech(name).can_clone:
            return name
    raise InvalidRequest("no model that is served can clone a voice", param="audio_sample")


def _entries(door: Door) -> list[dict[str, object]]:
    cloned = [_cloned_entry(door.voices.get(name)) for name in door.voices.names()]
    return [*_speakers(door), *cloned, *_aliases(door)]


def _speakers(door: Door) -> list[dict[str, object]]:
    return [
        {"id": speaker, "name": speaker, "kind": "speaker", "model": name}
        for name in door.registry.names()
        if _is_speech(door, name)
        for speaker in door.registry.speech(name).speakers
    ]


def _cloned_entry(voice: StoredVoice) -> dict[str, object]:
    return {
        "id": voice.name,
        "name": voice.name,
        "kind": "cloned",
        "created_at": voice.created_at,
        "ref_text": voice.text,
    }


def _aliases(door: Door) -> list[dict[str, object]]:
    model_name = next((n for n in door.registry.names() if _is_speech(door, n)), None)
    if model_name is None:
        return []
    model = door.registry.speech(model_name)
    aliases = dict.fromkeys((*OPENAI_VOICES, *door.settings.voice_aliases))
    return [
        {"id": alias, "name": alias, "kind": "alias", "speaker": speaker}
        for alias in aliases
        if (speaker := alias_speaker(model, door.settings, alias)) is not None
    ]


def _is_speech(door: Door, name: str) -> bool:
    return door.registry.model(name).task is Task.SPEECH
