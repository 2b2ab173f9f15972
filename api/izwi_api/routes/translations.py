"""POST /v1/audio/translations: say in English what a file says. No model here can: it says so."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from izwi.errors import InvalidRequest
from izwi_api.app_state import door_of
from izwi_api.bodies import read_form
from izwi_api.door import Door
from izwi_api.schemas.openapi import form_body
from izwi_api.schemas.translation import TranslationForm, parse_form

router = APIRouter()


class CannotTranslate(InvalidRequest):
    """The model writes down what it hears, in the language that is spoken."""

    code = "translation_unsupported"


@router.post("/v1/audio/translations", openapi_extra=form_body(TranslationForm, "file"))
async def create_translation(request: Request) -> Response:
    """Refuse to translate a file, and say what can be done with it instead."""
    door = door_of(request)
    form = await read_form(request, door.settings.max_upload_bytes)
    fields = parse_form(form)
    form.file("file")
    raise _refusal(door, fields.model)


def _refusal(door: Door, model_name: str) -> CannotTranslate:
    """Say why not. Raises ModelNotFound and InvalidRequest for names that are wrong in any case."""
    # What a family can do is in its protocol, and no protocol of ours has a translation.
    door.registry.transcription(model_name)
    return CannotTranslate(
        f"model {model_name!r} writes down what is said in the language that is spoken, and does "
        "not translate; POST /v1/audio/transcriptions takes the same file",
        param="model",
    )
