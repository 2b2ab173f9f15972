"""/v1/audio/voice_consents: consent recordings."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request

from izwi_api.http.app_state import services_of
from izwi_api.routes.openapi import form_body, json_body
from izwi_api.routes.voice_forms import read_fields
from izwi_api.schemas.voices import ConsentBody, ConsentUpdateBody
from izwi_api.services.voices.encoding import decode_clip
from izwi_api.voices.consents import StoredConsent
from izwi_api.voices.store import REFERENCE_RATE

router = APIRouter()

_FILE = "recording"
_ID = r"^cons_[0-9a-f]{32}$"


@router.post("/v1/audio/voice_consents", openapi_extra=form_body(ConsentBody, _FILE))
async def create_consent(request: Request) -> dict[str, object]:
    """Store a recording."""
    services = services_of(request)
    form = await read_fields(request, _FILE, services.settings)
    body = ConsentBody.model_validate(form.values())
    content = form.file(_FILE)
    await decode_clip(services, content, REFERENCE_RATE, _FILE)
    create = services.voices.consents.create
    return _entry(await asyncio.to_thread(create, body.name, body.language, content))


@router.get("/v1/audio/voice_consents")
async def list_consents(
    request: Request,
    after: Annotated[str | None, Query(pattern=_ID)] = None,
    limit: Annotated[int, Query(ge=0, le=100)] = 20,
) -> dict[str, object]:
    """List the recordings, newest first, in pages."""
    page = services_of(request).voices.consents.page
    found = await asyncio.to_thread(page, after, limit + 1)
    entries = [_entry(consent) for consent in found[:limit]]
    return {
        "object": "list",
        "data": entries,
        "first_id": entries[0]["id"] if entries else None,
        "last_id": entries[-1]["id"] if entries else None,
        "has_more": len(found) > limit,
    }


@router.get("/v1/audio/voice_consents/{consent_id}")
async def get_consent(request: Request, consent_id: str) -> dict[str, object]:
    """Describe a recording."""
    return _entry(await asyncio.to_thread(services_of(request).voices.consents.get, consent_id))


@router.post(
    "/v1/audio/voice_consents/{consent_id}", openapi_extra=json_body(ConsentUpdateBody, {})
)
async def update_consent(request: Request, consent_id: str) -> dict[str, object]:
    """Change the label of a recording."""
    services = services_of(request)
    form = await read_fields(request, _FILE, services.settings)
    body = ConsentUpdateBody.model_validate(form.values())
    rename = services.voices.consents.rename
    return _entry(await asyncio.to_thread(rename, consent_id, body.name))


@router.delete("/v1/audio/voice_consents/{consent_id}")
async def delete_consent(request: Request, consent_id: str) -> dict[str, object]:
    """Delete a recording; voices that were made with it remain."""
    await asyncio.to_thread(services_of(request).voices.consents.delete, consent_id)
    return {"id": consent_id, "object": "audio.voice_consent", "deleted": True}


def _entry(consent: StoredConsent) -> dict[str, object]:
    return {
        "id": consent.id,
        "object": "audio.voice_consent",
        "created_at": consent.created_at,
        "language": consent.language,
        "name": consent.name,
    }
