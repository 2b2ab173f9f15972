"""ElevenLabs' list of models: those that speak."""

from __future__ import annotations

from fastapi import APIRouter, Request

from izwi.model.frontend import SpeechFrontend
from izwi_api.http.app_state import services_of
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.voices.encoding import speech_models
from izwi_api.vendors.elevenlabs.formats import PREFIX

router = APIRouter()


@router.get(f"{PREFIX}/v1/models")
async def list_models(request: Request) -> list[dict[str, object]]:
    """List the speech models under their names, and under their aliases."""
    services = services_of(request)
    models = speech_models(services)
    entries = [_entry(services, model.name, model) for model in models]
    by_name = {model.name: model for model in models}
    aliases = services.registry.aliases().items()
    return entries + [
        _entry(services, alias, by_name[name]) for alias, name in aliases if name in by_name
    ]


def _entry(services: Services, name: str, model: ServedModel[SpeechFrontend]) -> dict[str, object]:
    limit = services.settings.max_input_chars
    return {
        "model_id": name,
        "name": name,
        "can_do_text_to_speech": True,
        "can_do_voice_conversion": False,
        "can_be_finetuned": False,
        "can_use_style": False,
        "can_use_speaker_boost": False,
        "serves_pro_voices": False,
        "token_cost_factor": 1.0,
        "maximum_text_length_per_request": limit,
        "max_characters_request_free_user": limit,
        "max_characters_request_subscribed_user": limit,
        "languages": [
            {"language_id": language, "name": language.capitalize()}
            for language in model.frontend.languages
        ],
    }
