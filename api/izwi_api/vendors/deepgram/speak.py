"""Deepgram's speech over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from izwi.errors import InvalidRequest
from izwi.model.capability import Capability
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.schemas.speech import SpeechBody
from izwi_api.vendors.audio_formats import AudioFormat
from izwi_api.vendors.deepgram.formats import (
    PREFIX,
    SPEAK_MODELS,
    new_id,
    parse_rate,
    refuse_unanswerable,
    voice_of,
)
from izwi_api.vendors.names import model_name
from izwi_api.vendors.speaking import speech_response

router = APIRouter()
DEFAULT_VOICE = "aura-asteria-en"
DEFAULT_RATE = 24_000
_LEAST_SPEED, _MOST_SPEED = 0.7, 1.5
_BARE = {"linear16": "pcm", "mulaw": "mulaw", "alaw": "alaw"}
_G711_RATE = 8000


class SpeakBody(BaseModel):
    """The body."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str


@router.post(f"{PREFIX}/v1/speak", response_class=Response)
async def speak(request: Request) -> Response:
    """Speak a text; audio is sent while it is made."""
    services, query = services_of(request), request.query_params
    refuse_unanswerable(query)
    audio = parse_audio(query)
    body = SpeakBody.model_validate(await read_json(request, services.settings.max_json_bytes))
    if not body.text.strip():
        raise InvalidRequest("text has no text", param="text")
    wanted = query.get("model", DEFAULT_VOICE)
    name = model_name(services.registry, wanted, Capability.SPEAK, SPEAK_MODELS)
    voice = await asyncio.to_thread(voice_of, services, wanted)
    wish = SpeechBody(model=name, input=body.text, voice=voice, speed=parse_speed(query))
    headers = {
        "dg-model-name": name,
        "dg-request-id": new_id(),
        "dg-char-count": str(len(body.text)),
    }
    return await speech_response(request, wish, audio, headers)


def parse_audio(query: Mapping[str, str], *, default: str = "mp3") -> AudioFormat:
    """Return the format that a query asks for.

    Args:
        query: The query.
        default: The encoding if it names none.

    Raises:
        InvalidRequest: The encoding, the container or the rate is not supported.
    """
    encoding, container = query.get("encoding", default), query.get("container")
    if encoding == "linear16" and container in (None, "wav"):
        return AudioFormat("wav", parse_rate(query, DEFAULT_RATE))
    if encoding in _BARE:
        if container != "none":
            raise InvalidRequest(f"{encoding} needs container=none", param="container")
        rate = DEFAULT_RATE if encoding == "linear16" else _G711_RATE
        return AudioFormat(_BARE[encoding], parse_rate(query, rate))
    if encoding in ("mp3", "opus", "flac", "aac"):
        return AudioFormat(encoding)
    raise InvalidRequest(
        f"encoding must be linear16, mulaw, alaw, mp3, opus, flac or aac, got {encoding[:64]!r}",
        param="encoding",
    )


def parse_speed(query: Mapping[str, str]) -> float:
    """Return the speed that a query asks for. Raises InvalidRequest."""
    try:
        speed = float(query.get("speed", "1.0"))
    except ValueError:
        speed = 0.0
    if not _LEAST_SPEED <= speed <= _MOST_SPEED:
        raise InvalidRequest(f"speed must be from {_LEAST_SPEED} to {_MOST_SPEED}", param="speed")
    return speed
