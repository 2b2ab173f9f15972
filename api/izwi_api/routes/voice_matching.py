"""POST /v1/voice/verify and /v1/voice/identify: whose voice is in a clip."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from izwi.errors import InvalidRequest
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form
from izwi_api.http.live_response import unless_left
from izwi_api.routes.openapi import form_body
from izwi_api.schemas.form import Form
from izwi_api.schemas.voice_matching import IdentifyForm, VerifyForm
from izwi_api.services.context import Services
from izwi_api.services.speakers.diarize import THRESHOLD
from izwi_api.services.speakers.encoder import SAMPLE_RATE, SpeakerEncoder
from izwi_api.services.speakers.matching import (
    rank_voices,
    similarity,
    speaker_vector,
    stored_vector,
)
from izwi_api.services.voices.base64_audio import decode_base64_audio
from izwi_api.services.voices.encoding import decode_clip

router = APIRouter()


@router.post("/v1/voice/verify", openapi_extra=form_body(VerifyForm, "file"))
async def verify_voice(request: Request) -> dict[str, object]:
    """Compare the speaker of a clip with a reference clip or a stored voice."""
    services = services_of(request)
    limit_bytes = services.settings.max_reference_bytes
    form = await read_form(request, limit_bytes, max_text_bytes=2 * limit_bytes)
    return await unless_left(request.receive, _verify(services, form))


@router.post("/v1/voice/identify", openapi_extra=form_body(IdentifyForm, "file"))
async def identify_voice(request: Request) -> dict[str, object]:
    """Rank the stored voices by their similarity with the speaker of a clip."""
    services = services_of(request)
    form = await read_form(request, services.settings.max_reference_bytes)
    return await unless_left(request.receive, _identify(services, form))


async def _verify(services: Services, form: Form) -> dict[str, object]:
    fields = VerifyForm.model_validate(form.values())
    if (fields.voice is None) == (fields.reference is None):
        raise InvalidRequest("give either voice or reference", param="voice")
    encoder = SpeakerEncoder(services.registry, "file")
    samples = await decode_clip(services, form.file("file"), SAMPLE_RATE, "file")
    if fields.voice is not None:
        stored = await asyncio.to_thread(services.voices.get, fields.voice)
        vector = await speaker_vector(encoder, samples, "file")
        other = await stored_vector(services, encoder, stored)
    else:
        assert fields.reference is not None
        limit_bytes = services.settings.max_reference_bytes
        content = await asyncio.to_thread(
            decode_base64_audio, fields.reference, limit_bytes, "reference"
        )
        clip = await decode_clip(services, content, SAMPLE_RATE, "reference")
        vector = await speaker_vector(encoder, samples, "file")
        other = await speaker_vector(encoder, clip, "reference")
    score, threshold = similarity(vector, other), _threshold(fields)
    return {
        "object": "voice.verification",
        "model": encoder.model_name,
        "score": round(score, 4),
        "threshold": threshold,
        "is_same_speaker": score >= threshold,
    }


async def _identify(services: Services, form: Form) -> dict[str, object]:
    fields = IdentifyForm.model_validate(form.values())
    encoder = SpeakerEncoder(services.registry, "file")
    samples = await decode_clip(services, form.file("file"), SAMPLE_RATE, "file")
    voices = await asyncio.to_thread(services.voices.voices)
    vector = await speaker_vector(encoder, samples, "file")
    ranked = await rank_voices(services, encoder, vector, voices)
    threshold = _threshold(fields)
    return {
        "object": "list",
        "model": encoder.model_name,
        "threshold": threshold,
        "data": [
            {
                "id": each.voice.id,
                "name": each.voice.name,
                "score": round(each.score, 4),
                "is_same_speaker": each.score >= threshold,
            }
            for each in ranked
        ],
    }


def _threshold(fields: IdentifyForm) -> float:
    return THRESHOLD if fields.threshold is None else fields.threshold
