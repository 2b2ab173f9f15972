"""POST /v1/chat/completions with audio, using one speech-to-speech model.

`izwi_api.routes.chat` passes these requests on.
"""

from __future__ import annotations

import secrets

from starlette.responses import Response

from izwi.inputs.conversation import AnswerContent, ConversationInput
from izwi_api.http.spoken_response import spoken_response
from izwi_api.schemas.chat import FORMATS, ChatBody
from izwi_api.services.chat.speech_to_speech import open_conversation
from izwi_api.services.chat.spoken_completion import SpokenCompletion
from izwi_api.services.chat.spoken_turns import read_turns
from izwi_api.services.context import Services
from izwi_api.usage.metering import key_name

_SEED_BITS = 63


async def answer_aloud(services: Services, body: ChatBody) -> Response:
    """Answer a request that has audio, or asks for it, with a speech-to-speech model.

    Raises:
        IzwiError: It cannot be answered.
    """
    services.registry.conversation(body.model)  # before files are decoded
    ask = await _ask(services, body)
    answer = await open_conversation(services.engine, services.registry, body.model, ask)
    answers = services.answers
    completion = SpokenCompletion(body.model, answers.new_id(), answer, speaks=body.speaks)
    if body.audio is None:
        return await spoken_response(body, answer, completion, None, _keep_nothing)

    async def keep() -> int:
        said, audio_id = AnswerContent(answer.entries), completion.audio_id
        return (await answers.keep(key_name(), body.model, said, audio_id))[1]

    return await spoken_response(body, answer, completion, FORMATS[body.audio.format], keep)


async def _keep_nothing() -> None:
    """Text answers are sent back as text: they have no audio to store under an id."""


async def _ask(services: Services, body: ChatBody) -> ConversationInput:
    return ConversationInput(
        await read_turns(services, key_name(), body.model, body.messages),
        speaks=body.speaks,
        temperature=body.temperature,
        top_k=body.top_k,
        audio_temperature=body.audio_temperature,
        audio_top_k=body.audio_top_k,
        seed=secrets.randbits(_SEED_BITS) if body.seed is None else body.seed,
        max_new_tokens=body.max_completion_tokens or body.max_tokens,
    )
