"""POST /v1/audio/transcriptions: write down what a file says, all at once or as it is heard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from izwi.audio.decode import decode_audio
from izwi.errors import InvalidRequest, IzwiError
from izwi.request import TranscriptionInput
from izwi_api.app_state import door_of
from izwi_api.bodies import Form, read_form
from izwi_api.door import Door
from izwi_api.http_errors import error_line
from izwi_api.live_response import live_response, unless_left
from izwi_api.schemas.transcription import (
    TranscriptionForm,
    parse_form,
    srt,
    usage_of,
    verbose_json,
    vtt,
)
from izwi_api.transcribe import SAMPLE_RATE, Transcription, open_transcription

router = APIRouter()


@router.post("/v1/audio/transcriptions")
async def create_transcription(request: Request) -> Response:
    """Write down what a file says."""
    door = door_of(request)
    form = await read_form(request, door.settings.max_upload_bytes)
    fields = parse_form(form)
    if fields.stream and fields.response_format != "json":
        raise InvalidRequest("stream goes with response_format json", param="stream")
    return await unless_left(request.receive, _answer(door, form, fields))


async def _answer(door: Door, form: Form, fields: TranscriptionForm) -> Response:
    if "file" not in form.files:
        raise InvalidRequest("missing required parameter: 'file'", param="file")
    # An unknown model is said before the work of decoding.
    door.registry.transcription(fields.model)
    samples = await asyncio.to_thread(
        decode_audio, form.files["file"], SAMPLE_RATE, limits=door.settings.upload_limits
    )
    ask = TranscriptionInput(
        samples,
        language=fields.forced_language,
        context=fields.context,
        temperature=fields.temperature,
    )
    transcription = await open_transcription(door.engine, door.registry, fields.model, ask)
    try:
        if fields.stream:
            return await live_response(_events(transcription), "text/event-stream")
        await transcription.finish()
    except BaseException:
        # A generator that never began has no `finally` to run.
        transcription.abort()
        raise
    return _whole(transcription, fields)


def _whole(transcription: Transcription, fields: TranscriptionForm) -> Response:
    match fields.response_format:
        case "text":
            return PlainTextResponse(transcription.text)
        case "srt":
            return Response(srt(transcription.segments), media_type="application/x-subrip")
        case "vtt":
            return Response(vtt(transcription.segments), media_type="text/vtt")
        case "verbose_json":
            return JSONResponse(verbose_json(transcription, fields.temperature))
        case "json":
            return JSONResponse({"text": transcription.text, "usage": usage_of(transcription)})


async def _events(transcription: Transcription) -> AsyncGenerator[bytes]:
    begun = False
    try:
        async with aclosing(transcription.deltas(live=True)) as deltas:
            async for delta in deltas:
                yield _event({"type": "transcript.text.delta", "delta": delta})
                begun = True
    except IzwiError as error:
        # Before the first event there is still a status to say it with.
        if not begun:
            raise
        yield error_line(error)
        return
    yield _event(
        {
            "type": "transcript.text.done",
            "text": transcription.text,
            "usage": usage_of(transcription),
        }
    )


def _event(fields: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"
