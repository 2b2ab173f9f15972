"""ElevenLabs' voices: list, describe, clone from a clip, delete."""

from __future__ import annotations

import asyncio
import json

from fastapi import APIRouter, Request

from izwi.errors import InvalidRequest, VoiceNotFound
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form
from izwi_api.http.live_response import unless_left
from izwi_api.routes.voices import create_from_form, voice_entries
from izwi_api.schemas.form import Form
from izwi_api.vendors.elevenlabs.formats import PREFIX

router = APIRouter()
# ElevenLabs has no field for it, and takes labels of any name.
_CONSENT = "consent"
_MOST_A_PAGE = 100


@router.get(f"{PREFIX}/v1/voices")
async def list_voices(request: Request) -> dict[str, object]:
    """List all voices."""
    entries = await asyncio.to_thread(voice_entries, services_of(request))
    return {"voices": list(map(_voice, entries))}


@router.get(f"{PREFIX}/v2/voices")
async def search_voices(request: Request) -> dict[str, object]:
    """List voices in pages, those that have `search` in their name if it is given."""
    query = request.query_params
    wanted = query.get("search", "").lower()
    entries = await asyncio.to_thread(voice_entries, services_of(request))
    found = [entry for entry in entries if wanted in str(entry["name"]).lower()]
    start = _number(query.get("next_page_token") or "0", "next_page_token", len(found))
    size = max(1, _number(query.get("page_size") or "10", "page_size", _MOST_A_PAGE))
    stop = start + size
    return {
        "voices": list(map(_voice, found[start:stop])),
        "has_more": stop < len(found),
        "total_count": len(found),
        "next_page_token": str(stop) if stop < len(found) else None,
    }


@router.get(PREFIX + "/v1/voices/{voice_id}")
async def get_voice(request: Request, voice_id: str) -> dict[str, object]:
    """Describe a voice, by its id or its name."""
    entries = await asyncio.to_thread(voice_entries, services_of(request))
    for entry in entries:
        if voice_id.lower() in (str(entry["id"]).lower(), str(entry["name"]).lower()):
            return _voice(entry)
    raise VoiceNotFound(f"there is no voice {voice_id[:64]!r}", param="voice_id")


@router.delete(PREFIX + "/v1/voices/{voice_id}")
async def delete_voice(request: Request, voice_id: str) -> dict[str, object]:
    """Delete a cloned voice."""
    await asyncio.to_thread(services_of(request).voices.delete, voice_id)
    return {"status": "ok"}


@router.post(f"{PREFIX}/v1/voices/add")
async def add_voice(request: Request) -> dict[str, object]:
    """Clone a voice from a clip. The speaker's consent is the label "consent"."""
    services = services_of(request)
    form = await read_form(request, services.settings.max_reference_bytes, "files")
    made = await unless_left(request.receive, create_from_form(services, _our_form(form)))
    return {"voice_id": made["id"], "requires_verification": False}


def _our_form(form: Form) -> Form:
    fields = form.values()
    consent = _labels(fields.get("labels", "{}")).get(_CONSENT)
    if not consent:
        raise InvalidRequest(
            "labels must have the key 'consent', which says that the speaker agreed to be "
            "cloned, or is the id of a recording that says so",
            param="labels",
        )
    ours = {"name": [fields.get("name", "")], "consent": [consent]}
    return Form(ours, {"audio_sample": form.file("files")})


def _labels(text: str) -> dict[str, str]:
    try:
        labels = json.loads(text)
        if isinstance(labels, str):  # the SDK writes a text as JSON once more
            labels = json.loads(labels)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("labels must be a JSON object", param="labels") from error
    if not isinstance(labels, dict):
        return {}
    return {name: value for name, value in labels.items() if isinstance(value, str)}


def _number(text: str, param: str, most: int) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise InvalidRequest(f"{param} must be a number of at least 0", param=param)
    return min(int(text), most)


def _voice(entry: dict[str, object]) -> dict[str, object]:
    is_cloned = entry["kind"] == "cloned"
    return {
        "voice_id": entry["id"],
        "name": entry["name"],
        "category": "cloned" if is_cloned else "premade",
        "description": entry.get("prompt"),
        "labels": {},
        "samples": None,
        "settings": None,
        "preview_url": None,
        "is_owner": is_cloned,
        "created_at_unix": entry.get("created_at"),
    }
