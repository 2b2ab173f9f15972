"""POST /v1/chat/completions with an answer in audio, using a chat model and a speech model.

`izwi_api.routes.chat` passes these requests on.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.responses import Response

from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import ChatFrontend
from izwi_api.http.spoken_response import Spoken, spoken_response
from izwi_api.schemas.chat import FORMATS, ChatBody, chat_input
from izwi_api.services.chat.cascade import Voice, open_spoken_answer
from izwi_api.services.chat.cascade_completion import CascadeCompletion
from izwi_api.services.chat.images import with_pixels
from izwi_api.services.chat.transcribed_turns import transcribe_turns
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speech.writer import default_writable_model
from izwi_api.services.voices.names import resolve_voice
from izwi_api.usage.metering import key_name

_SEED_BITS = 63


async def speak_answer(
    services: Services, model: ServedModel[ChatFrontend], body: ChatBody
) -> Response:
    """Answer a request for audio with a chat model and a speech model.

    Raises:
        IzwiError: It cannot be answered.
    """
    assert body.audio is not None
    assert body.audio.voice_name is not None
    audio_format = FORMATS[body.audio.format]
    name = body.speech_model or default_writable_model(services.registry)
    speech_model = services.registry.speech(name)
    voice = await resolve_voice(services, speech_model, body.audio.voice_name)
    turns = await transcribe_turns(services, key_name(), body)
    seed, kept = secrets.randbits(_SEED_BITS) if body.seed is None else body.seed, services.answers

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Spoken]:
        ask = await with_pixels(services, model, chat_input(body, seed, turns.texts))
        speaks = Voice(speech_model, SpeechInput("", voice=voice, seed=seed))
        async with await open_spoken_answer(model, ask, speaks, stops=body.stop) as spoken:
            completion = CascadeCompletion(body.model, kept.new_id(), spoken, turns.num_heard)

            async def store_answer() -> int | None:
                if not (text := spoken.answer.content):
                    return None
                return (await kept.store_answer(key_name(), body.model, text, completion.audio_id))[
                    1
                ]

            yield Spoken(spoken, completion, audio_format, store_answer)

    return await spoken_response(body, opened())
