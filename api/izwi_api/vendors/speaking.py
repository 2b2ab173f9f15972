"""Speak a text for a vendor's endpoint, in its format, as it is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from izwi.model.frontend import SpeechFrontend
from izwi_api.http.app_state import services_of
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.schemas.speech import SpeechBody
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speech.request import asked_speech, check_texts
from izwi_api.services.speech.spoken_text import SpokenPart
from izwi_api.services.speech.synthesis import encoded_audio, open_speech
from izwi_api.vendors.audio_formats import AudioFormat


async def speech_response(
    request: Request, body: SpeechBody, audio: AudioFormat, headers: Mapping[str, str] | None = None
) -> Response:
    """Respond with the audio of a text. Raises as POST /v1/audio/speech does.

    Args:
        request: The request; its body has been read.
        body: What to say, as OpenAI's clients ask it; its format is ignored.
        audio: The format.
        headers: Additional headers.
    """

    async def answer() -> Response:
        model, ask = await prepared(request, body)
        content = _audio(model, body, ask, audio)
        return await live_response(content, audio.content_type, headers)

    return await unless_left(request.receive, answer())


async def prepared(
    request: Request, body: SpeechBody
) -> tuple[ServedModel[SpeechFrontend], list[SpokenPart]]:
    """Return the model and its input. Raises ModelNotFound, InvalidRequest and Overloaded."""
    services = services_of(request)
    check_texts(body, services.settings)
    model = services.registry.speech(body.model)
    model.check_admission()  # before SSML is read and a clip decoded
    return model, await asked_speech(services, model, body)


async def _audio(
    model: ServedModel[SpeechFrontend],
    body: SpeechBody,
    ask: Sequence[SpokenPart],
    audio: AudioFormat,
) -> AsyncGenerator[bytes]:
    async with await open_speech(model, ask) as speech:
        encoder = audio.encoder(speech.sample_rate)
        async with aclosing(encoded_audio(speech, encoder, body.speed)) as pieces:
            async for piece in pieces:
                yield piece
