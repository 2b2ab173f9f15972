"""POST /v1/audio/speech: speak a text; audio streams while it is generated."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from izwi.audio.encode import CONTENT_TYPES, stream_encoder
from izwi.errors import InvalidRequest, IzwiError
from izwi.model.alignment import AlignedWord
from izwi.model.frontend import SpeechFrontend
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.http.sse import MEDIA_TYPE, event
from izwi_api.routes.openapi import answers, ignored_header, json_body
from izwi_api.routes.plain_route import PlainRoute
from izwi_api.schemas.alignment import word_json
from izwi_api.schemas.speech import HINTS, SpeechBody
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speech.request import asked_speech, check_texts, ignored_fields
from izwi_api.services.speech.spoken_text import SpokenPart
from izwi_api.services.speech.synthesis import CollectedCodes, Speech, encoded_audio, open_speech
from izwi_api.services.speech.word_times import PARAM as WORDS_PARAM
from izwi_api.services.speech.word_times import TimedSpeech, find_word_aligner
from izwi_api.services.transcription.align import Aligner

router = APIRouter(route_class=PlainRoute)


@router.post(
    "/v1/audio/speech",
    openapi_extra=json_body(SpeechBody, HINTS),
    response_class=Response,
    responses=answers(*CONTENT_TYPES.values(), MEDIA_TYPE, names_ignored=True),
)
async def create_speech(request: Request) -> Response:
    """Speak a text."""
    services = services_of(request)
    body = SpeechBody.model_validate(await read_json(request, services.settings.max_json_bytes))
    check_texts(body, services.settings)
    return await unless_left(request.receive, _answer(services, body))


async def _answer(services: Services, body: SpeechBody) -> Response:
    model = services.registry.speech(body.model)  # an unknown model is reported first
    model.check_admission()  # before SSML is read and a clip decoded
    timing = _word_aligner(services, body)
    if body.include_codes and body.stream_format != "sse":
        raise InvalidRequest(
            "include_codes needs stream_format 'sse'; plain audio cannot carry codes",
            param="include_codes",
        )
    ask = await asked_speech(services, model, body)
    headers = ignored_header(ignored_fields(model.frontend, body))
    if body.stream_format == "sse":
        return await live_response(_events(model, body, ask, timing), MEDIA_TYPE, headers)
    media_type = CONTENT_TYPES[body.response_format]
    return await live_response(_audio(model, body, ask), media_type, headers)


async def _audio(
    model: ServedModel[SpeechFrontend], body: SpeechBody, ask: Sequence[SpokenPart]
) -> AsyncGenerator[bytes]:
    async with await open_speech(model, ask) as speech:
        encoder = stream_encoder(body.response_format, speech.sample_rate)
        async with aclosing(encoded_audio(speech, encoder, body.speed)) as pieces:
            async for piece in pieces:
                yield piece


def _word_aligner(services: Services, body: SpeechBody) -> tuple[Aligner, str | None] | None:
    """Return the aligner, if word times are requested. Raises ModelNotFound and InvalidRequest."""
    if not body.word_timestamps:
        return None
    if body.stream_format != "sse":
        raise InvalidRequest(
            "word_timestamps needs stream_format 'sse'; plain audio cannot carry them",
            param=WORDS_PARAM,
        )
    return find_word_aligner(services.registry, body.language)


async def _events(
    model: ServedModel[SpeechFrontend],
    body: SpeechBody,
    ask: Sequence[SpokenPart],
    timing: tuple[Aligner, str | None] | None,
) -> AsyncGenerator[bytes]:
    async with await open_speech(model, ask) as speech:
        timed = TimedSpeech(speech, *timing, body.speed) if timing is not None else None
        async with timed or speech, aclosing(_events_of(speech, timed, body)) as events:
            async for one in events:
                yield one


async def _events_of(
    speech: Speech, timed: TimedSpeech | None, body: SpeechBody
) -> AsyncGenerator[bytes]:
    encoder = stream_encoder(body.response_format, speech.sample_rate)
    codes = CollectedCodes(timed or speech, speech.audio_entries) if body.include_codes else None
    begun = False
    try:
        async with aclosing(encoded_audio(codes or timed or speech, encoder, body.speed)) as pieces:
            async for piece in pieces:
                audio = base64.b64encode(piece).decode("ascii")
                yield event({"type": "speech.audio.delta", "audio": audio})
                begun = True
                if timed is not None and (words := timed.known()):
                    yield _words_event(words)
                if codes is not None and (made := codes.pop_codes()):
                    yield event({"type": "speech.audio.codes", "codes": made})
        if codes is not None and (made := codes.pop_codes()):
            yield event({"type": "speech.audio.codes", "codes": made})
        if timed is not None and (words := await timed.rest()):
            yield _words_event(words)
    except IzwiError as error:
        # Before the first event the error can still be an HTTP status.
        if not begun:
            raise
        yield error_line(error)
        return
    usage = {
        "input_tokens": speech.num_prompt_positions,
        "output_tokens": speech.num_frames,
        "total_tokens": speech.num_prompt_positions + speech.num_frames,
    }
    yield event({"type": "speech.audio.done", "usage": usage})


def _words_event(words: Sequence[AlignedWord]) -> bytes:
    return event({"type": "speech.audio.words", "words": list(map(word_json, words))})
