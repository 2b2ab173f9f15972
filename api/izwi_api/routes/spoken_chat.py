"""POST /v1/chat/completions with audio, using one speech-to-speech model.

`izwi_api.routes.chat` passes these requests on.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.responses import Response

from izwi.audio.resample import resampling_of
from izwi.inputs.conversation import AnswerContent, ConversationInput
from izwi.model.frontend import ConversationFrontend
from izwi_api.http.spoken_response import Spoken, spoken_response
from izwi_api.schemas.chat import FORMATS, ChatBody
from izwi_api.services.chat.speech_to_speech import open_conversation
from izwi_api.services.chat.spoken_completion import SpokenCompletion
from izwi_api.services.chat.spoken_turns import read_turns
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.store.answers import StoredAnswers
from izwi_api.usage.metering import key_name

_SEED_BITS = 63


async def answer_aloud(
    services: Services, model: ServedModel[ConversationFrontend], body: ChatBody
) -> Response:
    """Answer a request that has audio, or asks for it, with a speech-to-speech model.

    Raises:
        IzwiError: It cannot be answered.
    """
    model.check_admission()  # before audio is decoded
    ask = await _ask(services, model, body)
    return await spoken_response(body, _opened(services.answers, model, body, ask))


@asynccontextmanager
async def _opened(
    kept: StoredAnswers,
    model: ServedModel[ConversationFrontend],
    body: ChatBody,
    ask: ConversationInput,
) -> AsyncGenerator[Spoken]:
    async with await open_conversation(model, ask) as answer:
        completion = SpokenCompletion(body.model, kept.new_id(), answer, speaks=body.speaks)

        async def store_answer() -> int:
            said, audio_id = AnswerContent(answer.entries), completion.audio_id
            return (await kept.store_answer(key_name(), body.model, said, audio_id))[1]

        if body.audio is None:
            yield Spoken(answer, completion, None, _store_nothing)
        else:
            yield Spoken(answer, completion, FORMATS[body.audio.format], store_answer)


async def _store_nothing() -> None:
    """Text answers are sent back as text: they have no audio to store under an id."""


async def _ask(
    services: Services, model: ServedModel[ConversationFrontend], body: ChatBody
) -> ConversationInput:
    resampling = resampling_of(model.frontend)
    return ConversationInput(
        await read_turns(services, key_name(), body.model, body.messages, resampling),
        speaks=body.speaks,
        temperature=body.temperature,
        top_k=body.top_k,
        audio_temperature=body.audio_temperature,
        audio_top_k=body.audio_top_k,
        seed=secrets.randbits(_SEED_BITS) if body.seed is None else body.seed,
        max_new_tokens=body.max_completion_tokens or body.max_tokens,
    )
