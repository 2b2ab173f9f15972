"""ElevenLabs' text-to-speech over HTTP: whole, streamed, and with the times of characters."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from izwi.errors import InvalidRequest
from izwi.model.capability import Capability
from izwi.model.frontend import SpeechFrontend
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.schemas.languages import LanguageName
from izwi_api.schemas.speech import SpeechBody
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speech.request import is_ssml
from izwi_api.services.speech.spoken_text import SpokenPart
from izwi_api.services.speech.synthesis import encoded_audio, open_speech
from izwi_api.services.speech.word_times import TimedSpeech, find_word_aligner
from izwi_api.services.transcription.align import Aligner
from izwi_api.vendors.audio_formats import AudioFormat
from izwi_api.vendors.elevenlabs.alignment import CharacterTimes
from izwi_api.vendors.elevenlabs.formats import (
    DEFAULT_FORMAT,
    MODELS,
    PREFIX,
    VoiceSettings,
    parse_format,
)
from izwi_api.vendors.names import model_name
from izwi_api.vendors.speaking import prepared, speech_response

router = APIRouter()
_PATH = PREFIX + "/v1/text-to-speech/{voice_id}"


class TextToSpeech(BaseModel):
    """The body; keys that have no effect here are ignored, as ElevenLabs ignores unknown ones."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str
    model_id: str | None = None
    language_code: LanguageName | None = None
    voice_settings: VoiceSettings = VoiceSettings()
    seed: int = Field(default=0, ge=0, le=4_294_967_295)


@router.post(_PATH, response_class=Response)
@router.post(f"{_PATH}/stream", response_class=Response)
async def convert(request: Request, voice_id: str) -> Response:
    """Speak a text; audio is sent while it is made, by both endpoints."""
    audio, body = await _read(request, voice_id)
    return await speech_response(request, body, audio)


@router.post(f"{_PATH}/with-timestamps", response_class=Response)
async def convert_with_timestamps(request: Request, voice_id: str) -> Response:
    """Speak a text; the response has all audio, and when each character is said."""
    audio, body = await _read(request, voice_id)
    timing = _timing(request, body)

    async def answer() -> Response:
        content, times = bytearray(), CharacterTimes(body.input)
        model, ask = await prepared(request, body)
        async with aclosing(_timed(model, ask, audio, timing, body.speed, times)) as pieces:
            async for piece in pieces:
                content += piece
        return JSONResponse(_chunk(bytes(content), times.pop(is_last=True)))

    return await unless_left(request.receive, answer())


@router.post(f"{_PATH}/stream/with-timestamps", response_class=Response)
async def stream_with_timestamps(request: Request, voice_id: str) -> Response:
    """Speak a text; each line of the response has audio, and the times that are known by then."""
    audio, body = await _read(request, voice_id)
    timing = _timing(request, body)

    async def lines() -> AsyncGenerator[bytes]:
        times = CharacterTimes(body.input)
        model, ask = await prepared(request, body)
        async with aclosing(_timed(model, ask, audio, timing, body.speed, times)) as pieces:
            async for piece in pieces:
                yield _line(_chunk(piece, times.pop()))
        if (rest := times.pop(is_last=True)) is not None:
            yield _line(_chunk(b"", rest))

    async def answer() -> Response:
        return await live_response(lines(), "application/json")

    return await unless_left(request.receive, answer())


def _timing(request: Request, body: SpeechBody) -> tuple[Aligner, str | None]:
    """Return what times the words. Raises InvalidRequest."""
    if is_ssml(body.input):
        raise InvalidRequest("characters of SSML have no times", param="text")
    return find_word_aligner(services_of(request).registry, body.language)


async def _read(request: Request, voice_id: str) -> tuple[AudioFormat, SpeechBody]:
    services = services_of(request)
    audio = parse_format(request.query_params.get("output_format", DEFAULT_FORMAT))
    body = TextToSpeech.model_validate(await read_json(request, services.settings.max_json_bytes))
    if not body.text.strip():
        raise InvalidRequest("text has no text", param="text")
    return audio, SpeechBody(
        model=model_name(services.registry, body.model_id, Capability.SPEAK, MODELS),
        input=body.text,
        voice=voice_id,
        speed=body.voice_settings.speed,
        language=body.language_code,
        seed=body.seed,
    )


async def _timed(
    model: ServedModel[SpeechFrontend],
    ask: Sequence[SpokenPart],
    audio: AudioFormat,
    timing: tuple[Aligner, str | None],
    speed: float,
    times: CharacterTimes,
) -> AsyncGenerator[bytes]:
    """Yield encoded audio, and add the times of words as they become known."""
    async with (
        await open_speech(model, ask) as speech,
        TimedSpeech(speech, *timing, speed) as timed,
    ):
        encoder = audio.encoder(speech.sample_rate)
        async with aclosing(encoded_audio(timed, encoder, speed)) as pieces:
            async for piece in pieces:
                times.add(timed.known())
                yield piece
        times.add(await timed.rest())


def _chunk(content: bytes, alignment: dict[str, object] | None) -> dict[str, object]:
    audio = base64.b64encode(content).decode("ascii")
    return {"audio_base64": audio, "alignment": alignment, "normalized_alignment": alignment}


def _line(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode() + b"\n"
