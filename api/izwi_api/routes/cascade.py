"""POST /v1/chat/completions with audio, using a transcriber, a chat model and a voice.

`izwi_api.routes.chat` passes requests on that send audio or ask for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from izwi.inputs.speech import SpeechInput
from izwi_api.http.spoken_response import spoken_response
from izwi_api.schemas.cascade import CascadeBody, chat_body
from izwi_api.schemas.chat import ChatBody, chat_input
from izwi_api.schemas.spoken_chat import FORMATS
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
    speech_model = str(values.get("speech_model") or default_writable_model(services.registry))
    voice = await resolve_voice(services, speech_model, spoken_with.voice_name)
    body, num_heard = await transcribed_body(services, values)
    seed = secrets.randbits(_SEED_BITS) if body.seed is None else body.seed
    spoken = await open_spoken_answer(
        services.engine,
        services.registry,
        body.model,
        chat_input(body, seed),
        Voice(speech_model, SpeechInput("", voice=voice, seed=seed)),
        stops=body.stop,
    )
    answers = services.answers
    completion = CascadeCompletion(body.model, answers.new_id(), spoken, num_heard)

    async def keep() -> int | None:
        if not (text := spoken.answer.content):
            return None
        said = kept_text(text)
        return (await answers.keep(key_name(), body.model, said, completion.audio_id))[1]

    return await spoken_response(body, spoken, completion, FORMATS[spoken_with.format], keep)
