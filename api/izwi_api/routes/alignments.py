"""POST /v1/audio/align: align the words of a text with an audio file."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from izwi.inputs.speech import AlignmentInput
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_form
from izwi_api.http.live_response import unless_left
from izwi_api.routes.openapi import answers, form_body
from izwi_api.schemas.alignment import AlignmentForm, alignment_json, parse_form
from izwi_api.schemas.form import Form
from izwi_api.services.context import Services
from izwi_api.services.transcription.align import find_aligner
from izwi_api.services.transcription.formats import srt, vtt
from izwi_api.services.transcription.subtitles import cut_cues
from izwi_api.services.transcription.transcribe import SAMPLE_RATE
from izwi_api.services.uploads import Upload

router = APIRouter()


@router.post(
    "/v1/audio/align",
    openapi_extra=form_body(AlignmentForm, "file"),
    response_class=Response,
    responses=answers("application/json", "application/x-subrip", "text/vtt"),
)
async def create_alignment(request: Request) -> Response:
    """Return the start and end of each word."""
    services = services_of(request)
    with await services.uploads.enter() as upload:
        with upload.client_acts():
            form = await read_form(request, services.settings.max_upload_bytes)
        fields = parse_form(form)
        return await unless_left(request.receive, _answer(services, form, fields, upload))


async def _answer(
    services: Services, form: Form, fields: AlignmentForm, upload: Upload
) -> Response:
    content = form.file("file")
    # An unknown model is reported before the file is decoded.
    aligner = find_aligner(services.registry, fields.model)
    limits = services.settings.upload_limits
    await upload.wait_for_turn()
    with await services.decoder.spool(content, SAMPLE_RATE, limits) as audio:
        upload.count(1)
        (words,) = await aligner.align([AlignmentInput(audio, fields.text, fields.language)])
    match fields.response_format:
        case "srt":
            return Response(srt(cut_cues(fields.text, words)), media_type="application/x-subrip")
        case "vtt":
            return Response(vtt(cut_cues(fields.text, words)), media_type="text/vtt")
        case "json":
            return JSONResponse(alignment_json(fields, words, len(audio) / SAMPLE_RATE))
