"""POST /v1/audio/translations: refused, because no served model translates."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from izwi.errors import UnsupportedTranslation
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form
from izwi_api.routes.openapi import form_body
from izwi_api.schemas.transcription import TranslationForm, parse_translation
from izwi_api.services.context import Services

router = APIRouter()


@router.post("/v1/audio/translations", openapi_extra=form_body(TranslationForm, "file"))
async def create_translation(request: Request) -> Response:
    """Refuse to translate a file, and say what is possible instead."""
    services = services_of(request)
    form = await read_form(request, services.settings.max_upload_bytes)
    fields = parse_translation(form)
    form.file("file")
    raise _refusal(services, fields.model)


def _refusal(services: Services, model_name: str) -> UnsupportedTranslation:
    """Raise the reason. Raises ModelNotFound and InvalidRequest for wrong names first."""
    # Capabilities are protocols, and none of ours is translation.
    services.registry.transcription(model_name)
    return UnsupportedTranslation(
        f"model {model_name!r} transcribes speech in its own language and does not "
        "translate; POST /v1/audio/transcriptions takes the same file",
        param="model",
    )
