"""POST /v1/chat/completions: answer a conversation, whole or streamed."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from izwi.engine_client.protocol import Answers
from izwi.errors import IzwiError
from izwi.model.frontend import ChatFrontend
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.http.sse import DONE, MEDIA_TYPE, event, obfuscated_event
from izwi_api.routes.cascade import speak_answer
from izwi_api.routes.openapi import answers, json_body
from izwi_api.routes.spoken_chat import answer_aloud
from izwi_api.schemas.chat import ChatBody, chat_input
from izwi_api.schemas.stream_options import includes_usage, obfuscates
from izwi_api.services.chat.answer import ChatAnswer, finish_all, merged_deltas, open_answers
from izwi_api.services.chat.completion import Completion
from izwi_api.services.chat.images import with_pixels
from izwi_api.services.chat.pipeline import Pipeline, choose_pipeline
from izwi_api.services.chat.transcribed_turns import transcribe_turns
from izwi_api.services.context import Services
from izwi_api.services.models.degradation import degraded
from izwi_api.services.models.served import ServedModel
from izwi_api.usage.metering import key_name

router = APIRouter()

_SEED_BITS = 63
Store = Callable[[Sequence[ChatAnswer]], Awaitable[None]]


@router.post(
    "/v1/chat/completions",
    openapi_extra=json_body(ChatBody, {}),
    response_class=Response,
    responses=answers("application/json", MEDIA_TYPE),
)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    services = services_of(request)
    values = await read_json(request, services.settings.max_json_bytes)
    body = ChatBody.model_validate(values)
    return await unless_left(request.receive, _answer(services, body))


async def _answer(services: Services, body: ChatBody) -> Response:
    """Answer with the models that can do what is asked."""
    pipeline, model = choose_pipeline(services.registry, body)
    match pipeline:
        case Pipeline.SPEECH_TO_SPEECH:
            return await answer_aloud(services, model.as_conversation(), body)
        case Pipeline.CASCADE:
            return await speak_answer(services, model.as_chat(), body)
        case Pipeline.TRANSCRIBED:
            turns = await transcribe_turns(services, key_name(), body)
            return await _write_answer(services, model.as_chat(), body, turns.texts)
        case Pipeline.TEXT:
            return await _write_answer(services, model.as_chat(), body)


async def _write_answer(
    services: Services,
    model: ServedModel[ChatFrontend],
    body: ChatBody,
    texts: Sequence[str | None] | None = None,
) -> Response:
    """Answer in text.

    Args:
        services: The engine, and what is stored.
        model: The model that answers.
        body: The request.
        texts: The text of messages with audio, as `chat_input`.
    """
    # Without a seed each call gets another answer.
    ask = chat_input(body, secrets.randbits(_SEED_BITS), texts)

    model = degraded(services.registry, model, ask, services.settings.degradation)

    async def open_seen() -> Answers[ChatAnswer]:
        model.check_admission()  # before images are decoded
        seen = await with_pixels(services, model, ask)
        return await open_answers(model, seen, stops=body.stop, count=body.n or 1)

    opening = open_seen()
    completion = Completion(body.model)

    async def store(answers: Sequence[ChatAnswer]) -> None:
        if body.store:
            whole = completion.full(answers) | {"metadata": body.metadata or {}}
            await services.completions.store_completion(key_name(), whole, body.messages)

    if body.stream:
        return await live_response(_opened_events(opening, completion, store, body), MEDIA_TYPE)
    async with await opening as answers:
        await finish_all(answers)
    await store(answers)
    return JSONResponse(completion.full(answers))


async def _opened_events(
    opening: Awaitable[Answers[ChatAnswer]], completion: Completion, store: Store, body: ChatBody
) -> AsyncGenerator[bytes]:
    async with (
        await opening as answers,
        aclosing(_events(answers, completion, store, body)) as events,
    ):
        async for one in events:
            yield one


async def _events(
    answers: Sequence[ChatAnswer], completion: Completion, store: Store, body: ChatBody
) -> AsyncGenerator[bytes]:
    blank: dict[str, object] = {"usage": None} if includes_usage(body.stream_options) else {}
    sent = obfuscated_event if obfuscates(body.stream_options) else event
    begun: set[int] = set()
    try:
        async with aclosing(merged_deltas(answers)) as deltas:
            async for place, delta in deltas:
                if place not in begun:
                    begun.add(place)
                    yield sent(completion.first_chunk(place) | blank)
                if delta is None:
                    yield sent(completion.last_chunk(place, answers[place]) | blank)
                else:
                    yield sent(completion.delta_chunk(place, delta) | blank)
    except IzwiError as error:
        # Before the first event the error can still be an HTTP status.
        if not begun:
            raise
        yield error_line(error)
        return
    await store(answers)
    if includes_usage(body.stream_options):
        yield event(completion.usage_chunk(answers))
    yield DONE
