"""POST /v1/audio/convert: encode an audio file in another format."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack

from fastapi import APIRouter, Request
from starlette.responses import Response

from izwi.audio.decoded_audio import DecodedAudio
from izwi.audio.encode import CONTENT_TYPES, PCM_RATE, StreamEncoder, stream_encoder
from izwi.host.threads import compute
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.routes.openapi import answers, form_body
from izwi_api.schemas.conversion import ConversionForm
from izwi_api.schemas.form import Form
from izwi_api.services.context import Services

router = APIRouter()

# Samples encoded at a time: some milliseconds of work.
_BLOCK = 10 * PCM_RATE


@router.post(
    "/v1/audio/convert",
    openapi_extra=form_body(ConversionForm, "file"),
    response_class=Response,
    responses=answers(*CONTENT_TYPES.values()),
)
async def convert(request: Request) -> Response:
    """Encode a file in another format, as mono audio at 24 kHz; no model runs."""
    services = services_of(request)
    form = await read_form(request, services.settings.max_upload_bytes)
    fields = ConversionForm.model_validate(form.values())
    return await unless_left(request.receive, _answer(services, form, fields))


async def _answer(services: Services, form: Form, fields: ConversionForm) -> Response:
    content = form.pop_file("file")
    limits = services.settings.upload_limits
    with ExitStack() as resources:
        decoded = await services.decoder.spool(content, PCM_RATE, limits)
        audio = resources.enter_context(decoded)
        del content
        encoder = stream_encoder(fields.response_format, PCM_RATE)
        pieces = _encoded(audio, encoder, resources.pop_all())
        return await live_response(pieces, CONTENT_TYPES[fields.response_format])


async def _encoded(
    audio: DecodedAudio, encoder: StreamEncoder, resources: ExitStack
) -> AsyncGenerator[bytes]:
    """Yield the bytes of the file; `resources` is closed after the last ones."""
    with resources:
        for start in range(0, len(audio), _BLOCK):
            if content := await compute(encoder.write, audio[start : start + _BLOCK]):
                yield content
        if content := await compute(encoder.finish):
            yield content
