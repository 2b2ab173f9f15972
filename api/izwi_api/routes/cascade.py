"""POST /v1/chat/completions with audio, using a transcriber, a chat model and a voice.

`izwi_api.routes.chat` passes requests on that send audio or ask for it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import Response

from izwi.inputs.speech import SpeechInput
from izwi_api.http.spoken_response import Spoken, spoken_response
from izwi_api.schemas.cascade import CascadeBody, chat_body
from izwi_api.schemas.chat import ChatBody, chat_input
from izwi_api.schemas.spoken_chat import FORMATS
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.chat.cascade import Voice, open_spoken_answer
from izwi_api.services.chat.cascade_completion import CascadeCompletion
from izwi_api.services.chat.transcribed_turns import kept_text, placeholders, transcribe_turns
from izwi_api.services.context import Services
from izwi_api.services.speech.writer import default_writable_model
from izwi_api.services.voices.names import resolve_voice
from izwi_api.usage.metering import key_name

_SEED_BITS = 63


async def transcribed_body(services: Services, values: Mapping[str, Any]) -> tuple[ChatBody, int]:
    """Return a body with its audio transcribed, and the number of positions read for that.

    Raises:
        IzwiError: An audio part cannot be transcribed.
    """
    body = CascadeBody.model_validate(values)
    body.check()
    # before files are decoded
    chat_input(chat_body(values, placeholders(body)), 0)
    turns = await transcribe_turns(services, key_name(), str(values["model"]), body)
    return chat_body(values, turns.texts), turns.num_heard


async def speak_answer(services: Services, values: Mapping[str, Any]) -> Response:
    """Answer a request for audio.

    Raises:
        IzwiError: It cannot be answered.
    """
    asked = CascadeBody.model_validate(values)
    asked.check()
    spoken_with = asked.audio
    assert spoken_with is not None
    name = str(values.get("speech_model") or default_writable_model(services.registry))
    speech_model = services.registry.speech(name)
    voice = await resolve_voice(services, speech_model, spoken_with.voice_name)
    body, num_heard = await transcribed_body(services, values)
    seed = secrets.randbits(_SEED_BITS) if body.seed is None else body.seed
    kept, audio_format = services.answers, FORMATS[spoken_with.format]

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Spoken[AnswerDelta]]:
        model, ask = services.registry.chat(body.model), chat_input(body, seed)
        speaks = Voice(speech_model, SpeechInput("", voice=voice, seed=seed))
        async with await open_spoken_answer(model, ask, speaks, stops=body.stop) as spoken:
            completion = CascadeCompletion(body.model, kept.new_id(), spoken, num_heard)

            async def keep() -> int | None:
                if not (text := spoken.answer.content):
                    return None
                said = kept_text(text)
                return (await kept.keep(key_name(), body.model, said, completion.audio_id))[1]

            yield Spoken(spoken, completion, audio_format, keep)

    return await spoken_response(body, opened())
