"""/v1/audio/voices: the checkpoints' speakers, the stored voices, and OpenAI's names."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from izwi.errors import ConsentNotFound, InvalidRequest, ModelNotFound, VoiceNotFound
from izwi.host.threads import compute
from izwi.inputs.speech import TranscriptionInput
from izwi.model.capability import Capability
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form
from izwi_api.http.live_response import unless_left
from izwi_api.routes.openapi import answers, form_body, json_body
from izwi_api.routes.voice_forms import read_fields
from izwi_api.schemas.form import Form
from izwi_api.schemas.voices import (
    ClipBody,
    PromptVoiceBody,
    SampleVoiceBody,
    clip_report,
    stored_entry,
)
from izwi_api.services.context import Services
from izwi_api.services.speech.voice_design import design_voice
from izwi_api.services.transcription.transcribe import SAMPLE_RATE, PieceOptions, open_transcription
from izwi_api.services.voices.encoding import (
    NewVoice,
    cloning_model,
    decode_clip,
    keep_voice,
    speech_models,
)
from izwi_api.services.voices.names import alias_speaker
from izwi_api.settings import OPENAI_VOICES
from izwi_api.voices.clip_check import check_length, measure_clip
from izwi_api.voices.files import is_id
from izwi_api.voices.store import REFERENCE_RATE, check_name

router = APIRouter()

_BODY = form_body(SampleVoiceBody, "audio_sample")
_BODY["requestBody"]["content"] |= json_body(PromptVoiceBody, {})["requestBody"]["content"]

# A clip is personal data, so caches must not store it.
_SAMPLE_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


@router.get("/v1/audio/voices")
async def list_voices(request: Request) -> dict[str, object]:
    """List all voices, in the formats that different clients expect."""
    entries = await asyncio.to_thread(voice_entries, services_of(request))
    stored = [entry for entry in entries if entry["kind"] == "cloned"]
    return {"object": "list", "data": entries, "voices": entries, "uploaded_voices": stored}


@router.post("/v1/audio/voices", openapi_extra=_BODY)
async def create_voice(request: Request) -> dict[str, object]:
    """Make a voice from a clip, or from a description (`type`: "prompt")."""
    services = services_of(request)
    form = await read_fields(request, "audio_sample", services.settings)
    return await unless_left(request.receive, create_from_form(services, form))


@router.post("/v1/audio/voices/check", openapi_extra=form_body(ClipBody, "audio_sample"))
async def check_clip(request: Request) -> dict[str, object]:
    """Measure a clip before a voice is made from it; nothing is stored."""
    services = services_of(request)
    form = await read_form(request, services.settings.max_reference_bytes)
    ClipBody.model_validate(form.values())
    sample = form.file("audio_sample")
    samples = await decode_clip(services, sample, REFERENCE_RATE, "audio_sample")
    check_length(len(samples), REFERENCE_RATE)
    return clip_report(await compute(measure_clip, samples, REFERENCE_RATE))


@router.get("/v1/audio/voices/{key}")
async def get_voice(request: Request, key: str) -> dict[str, object]:
    """Describe a voice, by its id or its name."""
    services = services_of(request)
    try:
        return stored_entry(await asyncio.to_thread(services.voices.get, key))
    except VoiceNotFound:
        for entry in (*_speakers(services), *_aliases(services)):
            if str(entry["id"]).lower() == key.lower():
                return entry
        raise


@router.get("/v1/audio/voices/{key}/sample", response_class=Response, responses=answers("audio/*"))
async def get_sample(request: Request, key: str) -> Response:
    """Return the clip of a stored voice as it was uploaded."""
    stored = await asyncio.to_thread(services_of(request).voices.get, key)
    content = await asyncio.to_thread(stored.sample)
    return Response(content, media_type=stored.media_type, headers=_SAMPLE_HEADERS)


@router.delete("/v1/audio/voices/{key}")
async def delete_voice(request: Request, key: str) -> dict[str, object]:
    """Delete a stored voice, by id or name; requests that already use it finish."""
    stored = await asyncio.to_thread(services_of(request).voices.delete, key)
    return {"id": stored.id, "object": "audio.voice.deleted", "deleted": True}


async def create_from_form(services: Services, form: Form) -> dict[str, object]:
    """Make a voice from the fields of a form, and return its entry. Raises InvalidRequest."""
    fields = form.values()
    check_name(fields.get("name", ""))
    if fields.get("type") == "prompt":
        wish = PromptVoiceBody.model_validate(fields)
        stored = await design_voice(
            services, wish.name, wish.prompt, model_name=wish.model, script=wish.script_hint
        )
        return stored_entry(stored)
    body = SampleVoiceBody.model_validate(fields)
    sample = form.file("audio_sample")
    await _check_consent(services, body.consent)
    # Without a model the voice is only stored; a model encodes it at its first use.
    model = cloning_model(services) if services.registry.names() else None
    await asyncio.to_thread(services.voices.check_free, body.name)
    text = None if body.x_vector_only else body.ref_text or await _heard(services, sample)
    voice = NewVoice(body.name, sample, text, body.consent, body.prompt)
    return stored_entry(await keep_voice(services, model, voice))


async def _check_consent(services: Services, consent: str | None) -> None:
    """Check the statement of the speaker's consent.

    Raises:
        InvalidRequest: It is missing; or this server requires a consent recording, and none has
            this id.
    """
    if not (consent or "").strip():
        raise InvalidRequest(
            "consent must say that the speaker agreed to be cloned", param="consent"
        )
    if not services.settings.require_consent:
        return
    known = consent is not None and is_id(consent)
    try:
        if known:
            await asyncio.to_thread(services.voices.consents.get, consent or "")
    except ConsentNotFound:
        known = False
    if not known:
        raise InvalidRequest(
            "consent must be the id of a recording of POST /v1/audio/voice_consents",
            param="consent",
        )


async def _heard(services: Services, sample: bytes) -> str | None:
    """Transcribe a clip; return None if no transcriber is served or nothing is said."""
    try:
        model = services.registry.transcription(services.registry.default(Capability.TRANSCRIBE))
    except ModelNotFound:
        return None
    samples = await decode_clip(services, sample, SAMPLE_RATE, "audio_sample")
    ask = TranscriptionInput(samples)
    options = PieceOptions(detects_speech=services.settings.detects_speech)
    async with await open_transcription(model, ask, options) as heard:
        await heard.finish()
    return heard.text.strip() or None


def voice_entries(services: Services) -> list[dict[str, object]]:
    """Return an entry for each speaker, stored voice and alias; reads the disk."""
    stored = [stored_entry(voice) for voice in services.voices.voices()]
    # A stored voice takes precedence over OpenAI's name, so it is not an alias.
    taken = {str(entry["name"]).lower() for entry in stored}
    aliases = [alias for alias in _aliases(services) if alias["name"] not in taken]
    return [*_speakers(services), *stored, *aliases]


def _speakers(services: Services) -> list[dict[str, object]]:
    return [
        {"id": speaker, "name": speaker, "kind": "speaker", "model": model.name}
        for model in speech_models(services)
        for speaker in model.frontend.speakers
    ]


def _aliases(services: Services) -> list[dict[str, object]]:
    models = speech_models(services)
    if not models:
        return []
    model = models[0].frontend
    aliases = dict.fromkeys((*OPENAI_VOICES, *services.settings.voice_aliases))
    return [
        {"id": alias, "name": alias, "kind": "alias", "speaker": speaker}
        for alias in aliases
        if (speaker := alias_speaker(model, services.settings, alias)) is not None
    ]
