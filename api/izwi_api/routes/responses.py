"""POST /v1/responses: a response of text and calls, whole or streamed, after earlier ones."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from izwi.errors import InvalidRequest, IzwiError
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.model.frontend import ChatFrontend
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.http.sse import MEDIA_TYPE, event, obfuscated_event
from izwi_api.routes.openapi import answers, json_body
from izwi_api.schemas.responses import ResponseBody, messages_of, response_input
from izwi_api.schemas.stream_options import obfuscates
from izwi_api.services.chat.answer import ChatAnswer, open_answer
from izwi_api.services.chat.images import with_pixels
from izwi_api.services.chat.response_events import Event, ResponseWriter
from izwi_api.services.context import Services
from izwi_api.services.models.degradation import degraded
from izwi_api.services.models.served import ServedModel
from izwi_api.services.store.responses import StoredConversation, StoredResponses
from izwi_api.telemetry.calls import current_call
from izwi_api.usage.metering import key_name

router = APIRouter()

_SEED_BITS = 63


@router.post(
    "/v1/responses",
    openapi_extra=json_body(ResponseBody, {}),
    response_class=Response,
    responses=answers("application/json", MEDIA_TYPE),
)
async def create_response(request: Request) -> Response:
    """Respond to a conversation."""
    services = services_of(request)
    body = ResponseBody.model_validate(await read_json(request, services.settings.max_json_bytes))
    return await unless_left(request.receive, _respond(services, body))


async def _respond(services: Services, body: ResponseBody) -> Response:
    before = StoredConversation(f"conv_{uuid4().hex}", ())
    if body.previous_response_id is not None:
        before = await services.responses.conversation(key_name(), body.previous_response_id)
    kept = services.responses if body.store is not False else None
    call = current_call.get()
    if call is not None and (kept is not None or before.messages):  # otherwise none continues it
        call.conversation_id = before.conversation_id
    ask = response_input(body, before.messages, secrets.randbits(_SEED_BITS))
    model = services.registry.chat(body.model)
    model = degraded(services.registry, model, ask, services.settings.degradation)
    seeing = partial(with_pixels, services, model, ask)
    writer = ResponseWriter(body, f"resp_{uuid4().hex}")
    events = _opened_events(model, seeing, writer, kept, before)
    if body.stream:
        return await live_response(_lines(events, obfuscates(body.stream_options)), MEDIA_TYPE)
    async with aclosing(events):
        async for _ in events:
            pass
    return JSONResponse(writer.response)


async def _opened_events(
    model: ServedModel[ChatFrontend],
    seeing: Callable[[], Awaitable[ChatInput]],
    writer: ResponseWriter,
    kept: StoredResponses | None,
    before: StoredConversation,
) -> AsyncGenerator[Event]:
    try:
        answer = await open_answer(model, await seeing())
    except InvalidRequest as error:
        if error.param == "messages":  # what they are called elsewhere
            error.param = "input"
        raise
    async with answer, aclosing(_events(answer, writer, kept, before)) as events:
        async for fields in events:
            yield fields


async def _events(
    answer: ChatAnswer,
    writer: ResponseWriter,
    kept: StoredResponses | None,
    before: StoredConversation,
) -> AsyncGenerator[Event]:
    begun = False
    try:
        async with aclosing(answer.deltas()) as deltas:
            async for delta in deltas:
                for fields in () if begun else writer.start_response():
                    yield fields
                begun = True
                for fields in writer.grow(delta):
                    yield fields
    except IzwiError as error:
        # Before the first event of a stream the error can still be an HTTP status.
        if not (begun and writer.body.stream):
            raise
        if isinstance(error, InvalidRequest):
            yield writer.fail(str(error), "invalid_prompt")
        else:
            yield writer.fail("the answer could not be completed")
        return
    for fields in () if begun else writer.start_response():
        yield fields
    if kept is not None:
        said = ChatMessage(
            Role.ASSISTANT, answer.content, answer.reasoning or None, tuple(answer.calls)
        )
        given = messages_of(writer.body.input)
        whole = before._replace(messages=(*before.messages, *given, said))
        await kept.store_response(key_name(), writer.response["id"], whole)
    for fields in writer.end(answer):
        yield fields


async def _lines(events: AsyncGenerator[Event], obfuscated: bool) -> AsyncGenerator[bytes]:
    async with aclosing(events):
        async for fields in events:
            hides = obfuscated and fields["type"].endswith(".delta")
            yield (obfuscated_event if hides else event)(fields, fields["type"])
