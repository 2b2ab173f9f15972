"""POST /v1/audio/speech: speak a text; audio streams while it is generated."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from izwi.audio.encode import CONTENT_TYPES, stream_encoder
from izwi.errors import InvalidAudio, InvalidRequest, IzwiError, TooLarge
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, VoicePrompt
from izwi.model.alignment import AlignedWord
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.http.sse import MEDIA_TYPE, event
from izwi_api.routes.openapi import answers, json_body
from izwi_api.routes.plain_route import PlainRoute
from izwi_api.schemas.alignment import word_json
from izwi_api.schemas.speech import HINTS, SpeechBody
from izwi_api.services.context import Services
from izwi_api.services.speech.synthesis import CollectedCodes, Speech, encoded_audio, open_speech
from izwi_api.services.speech.word_times import PARAM as WORDS_PARAM
from izwi_api.services.speech.word_times import TimedSpeech, find_word_aligner
from izwi_api.services.transcription.align import Aligner
from izwi_api.services.voices.names import resolve_voice
from izwi_api.settings import Settings
from izwi_api.voices.reference_hosts import is_address
from izwi_api.voices.store import REFERENCE_RATE

router = APIRouter(route_class=PlainRoute)
IGNORED = "x-izwi-ignored"  # fields of the request that the model cannot follow


@router.post(
    "/v1/audio/speech",
    openapi_extra=json_body(SpeechBody, HINTS),
    response_class=Response,
    responses=answers(*CONTENT_TYPES.values(), MEDIA_TYPE),
)
async def create_speech(request: Request) -> Response:
    """Speak a text."""
    services = services_of(request)
    body = SpeechBody.model_validate(await read_json(request, services.settings.max_json_bytes))
    check_texts(body, services.settings)
    return await unless_left(request.receive, _answer(services, body))


async def _answer(services: Services, body: SpeechBody) -> Response:
    services.registry.speech(body.model)  # an unknown model is reported first
    timing = _word_aligner(services, body)
    if body.include_codes and body.stream_format != "sse":
        raise InvalidRequest(
            "include_codes needs stream_format 'sse'; plain audio cannot carry codes",
            param="include_codes",
        )
    ask = speech_input(body, await find_voice(services, body))
    speech = await open_speech(services.engine, services.registry, body.model, ask)
    try:
        timed = TimedSpeech(speech, *timing, body.speed) if timing is not None else None
        encoder = stream_encoder(body.response_format, speech.sample_rate)
        codes = (
            CollectedCodes(timed or speech, speech.audio_entries) if body.include_codes else None
        )
        audio = encoded_audio(codes or timed or speech, encoder, body.speed)
        ignored = ignored_fields(services, body)
        headers = {IGNORED: ", ".join(ignored)} if ignored else {}
        if body.stream_format == "sse":
            events = _events(speech, audio, timed, codes)
            return await live_response(events, MEDIA_TYPE, headers)
        return await live_response(audio, CONTENT_TYPES[body.response_format], headers)
    except BaseException:
        # The encoder failed to open, or the generator was never started and does not run its
        # `finally`.
        speech.abort()
        raise


def _word_aligner(services: Services, body: SpeechBody) -> tuple[Aligner, str | None] | None:
    """Return the aligner, if word times are requested. Raises ModelNotFound and InvalidRequest."""
    if not body.word_timestamps:
        return None
    if body.stream_format != "sse":
        raise InvalidRequest(
            "word_timestamps needs stream_format 'sse'; plain audio cannot carry them",
            param=WORDS_PARAM,
        )
    return find_word_aligner(services.engine, services.registry, body.language)


async def _events(
    speech: Speech,
    pieces: AsyncGenerator[bytes],
    timed: TimedSpeech | None,
    codes: CollectedCodes | None,
) -> AsyncGenerator[bytes]:
    begun = False
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                audio = base64.b64encode(piece).decode("ascii")
                yield event({"type": "speech.audio.delta", "audio": audio})
                begun = True
                if timed is not None and (words := timed.known()):
                    yield _words_event(words)
                if codes is not None and (made := codes.take()):
                    yield event({"type": "speech.audio.codes", "codes": made})
        if codes is not None and (made := codes.take()):
            yield event({"type": "speech.audio.codes", "codes": made})
        if timed is not None and (words := await timed.rest()):
            yield _words_event(words)
    except IzwiError as error:
        # Before the first event the error can still be an HTTP status.
        if not begun:
            raise
        yield error_line(error)
        return
    finally:
        if timed is not None:
            timed.abort()
    usage = {
        "input_tokens": speech.num_prompt_positions,
        "output_tokens": speech.num_frames,
        "total_tokens": speech.num_prompt_positions + speech.num_frames,
    }
    yield event({"type": "speech.audio.done", "usage": usage})


def _words_event(words: Sequence[AlignedWord]) -> bytes:
    return event({"type": "speech.audio.words", "words": list(map(word_json, words))})


def check_texts(body: SpeechBody, settings: Settings) -> None:
    """Check that the texts are not too long, and that one is not empty. Raises InvalidRequest."""
    for name, text in (
        ("input", body.input),
        ("instructions", body.instructions),
        ("ref_text", body.ref_text),
    ):
        if text is not None and len(text) > settings.max_input_chars:
            raise InvalidRequest(
                f"{name} has {len(text)} characters; at most "
                f"{settings.max_input_chars} are allowed",
                param=name,
            )
    if not body.input.strip():
        raise InvalidRequest("input has no text", param="input")


def ignored_fields(services: Services, body: SpeechBody) -> list[str]:
    """Return the fields of a request that its model cannot follow."""
    follows = services.registry.speech(body.model).follows_instructions
    return ["instructions"] if (body.instructions or "").strip() and not follows else []


def speech_input(body: SpeechBody, voice: str | VoicePrompt | ReferenceClip | None) -> SpeechInput:
    """Return the model's input for a request."""
    return SpeechInput(
        text=body.input,
        voice=voice,
        language=body.language,
        instruct=body.instructions,
        text_mode=TextMode(body.text_mode) if body.text_mode else None,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=body.seed,
        max_new_tokens=body.max_new_tokens,
        pronunciations=body.pronunciations,
    )


async def find_voice(
    services: Services, body: SpeechBody
) -> str | VoicePrompt | ReferenceClip | None:
    """Return the voice that a request names or contains.

    Raises:
        ModelNotFound: No such model.
        InvalidRequest: The voice does not exist, or the model cannot clone.
    """
    model = services.registry.speech(body.model)
    if body.ref_audio is not None:
        if not model.can_clone:
            raise InvalidRequest(
                f"model {body.model!r} cannot follow a reference clip", param="ref_audio"
            )
        return await _reference_clip(body, services)
    if body.ref_text is not None or body.x_vector_only:
        name = "ref_text" if body.ref_text is not None else "x_vector_only"
        raise InvalidRequest(f"{name} needs ref_audio", param=name)
    if body.voice is not None:
        return await resolve_voice(services, body.model, body.voice)
    if model.speakers:
        raise InvalidRequest("missing required parameter: 'voice'", param="voice")
    return None


async def _reference_clip(body: SpeechBody, services: Services) -> ReferenceClip:
    assert body.ref_audio is not None
    if not body.x_vector_only and not (body.ref_text or "").strip():
        raise InvalidRequest(
            "ref_text must be what ref_audio says; or set x_vector_only", param="ref_text"
        )
    settings = services.settings
    if is_address(body.ref_audio):
        content = await services.references.fetch(body.ref_audio)
    else:
        limit_bytes = settings.max_reference_bytes
        content = await asyncio.to_thread(_decode_base64, body.ref_audio, limit_bytes)
    try:
        samples = await services.decoder.decode(content, REFERENCE_RATE, settings.reference_limits)
    except InvalidRequest as error:
        raise type(error)(str(error), param="ref_audio") from error
    return ReferenceClip(samples, None if body.x_vector_only else body.ref_text)


def _decode_base64(text: str, limit_bytes: int) -> bytes:
    """Decode a data: URL or plain base64."""
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64") or head.startswith("data:text"):
            raise InvalidAudio("a data: URL must hold audio in base64", param="ref_audio")
    if len(text) * 3 // 4 > limit_bytes + 2:
        raise TooLarge(f"the clip is larger than {limit_bytes} bytes", param="ref_audio")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidAudio("ref_audio is not valid base64", param="ref_audio") from error
