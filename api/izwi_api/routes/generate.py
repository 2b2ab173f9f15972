"""POST /generate: continue texts or ids, in SGLang's format."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from izwi.errors import IzwiError
from izwi.inputs.chat import ChatInput
from izwi.model.capability import Capability
from izwi.model.frontend import ChatFrontend
from izwi.request.request import Reason
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.http.sse import DONE, MEDIA_TYPE, event
from izwi_api.routes.openapi import answers, json_body
from izwi_api.schemas.generate import GenerateBody, SamplingOptions, generate_inputs
from izwi_api.services.chat.answer import ChatAnswer, finish_all, merged_deltas, open_answers
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel

router = APIRouter()

_SEED_BITS = 63


@router.post(
    "/generate",
    openapi_extra=json_body(GenerateBody, {}),
    response_class=Response,
    responses=answers("application/json", MEDIA_TYPE),
)
async def generate(request: Request) -> Response:
    """Continue texts or ids."""
    services = services_of(request)
    body = GenerateBody.model_validate(await read_json(request, services.settings.max_json_bytes))
    return await unless_left(request.receive, _generate(services, body))


async def _generate(services: Services, body: GenerateBody) -> Response:
    name = body.model or services.registry.default(Capability.CHAT)
    asks = generate_inputs(body, secrets.randbits(_SEED_BITS))
    opening = _opened(services.registry.chat(name), asks, body.sampling_params)
    if body.stream:
        return await live_response(_opened_events(opening, body), MEDIA_TYPE)
    async with opening as answers:
        await finish_all(answers)
    whole = [_generated(answer, uuid4().hex) for answer in answers]
    return JSONResponse(whole if body.is_batch else whole[0])


@asynccontextmanager
async def _opened(
    model: ServedModel[ChatFrontend], asks: Sequence[ChatInput], params: SamplingOptions
) -> AsyncGenerator[list[ChatAnswer]]:
    """Start all answers, those of one prompt together."""
    answers: list[ChatAnswer] = []
    async with AsyncExitStack() as opened:
        for ask in asks:
            more = await open_answers(model, ask, stops=params.stop, count=params.n)
            answers += await opened.enter_async_context(more)
        yield answers


async def _opened_events(
    opening: AbstractAsyncContextManager[Sequence[ChatAnswer]], body: GenerateBody
) -> AsyncGenerator[bytes]:
    async with opening as answers, aclosing(_events(body, answers)) as events:
        async for one in events:
            yield one


async def _events(body: GenerateBody, answers: Sequence[ChatAnswer]) -> AsyncGenerator[bytes]:
    begun, request_ids = False, [uuid4().hex for _ in answers]
    try:
        async with aclosing(merged_deltas(answers)) as deltas:
            async for place, _ in deltas:  # each event has the whole text so far, as in SGLang
                begun = True
                index = {"index": place} if body.is_batch else {}
                yield event(_generated(answers[place], request_ids[place]) | index)
    except IzwiError as error:
        if not begun:
            raise
        yield error_line(error)
        return
    yield DONE


def _generated(answer: ChatAnswer, request_id: str) -> dict[str, Any]:
    """Return the text generated so far, including thoughts."""
    meta: dict[str, Any] = {
        "id": request_id,
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_tokens,
        "finish_reason": _finish_reason(answer),
    }
    if answer.logprobs:
        meta["output_token_logprobs"] = [
            [token.logprob, token.token_id, token.spelled.decode(errors="replace")]
            for token in answer.logprobs
        ]
        meta["output_top_logprobs"] = [
            [[top.logprob, top.token_id, top.spelled.decode(errors="replace")] for top in token.top]
            for token in answer.logprobs
        ]
    return {"text": answer.reasoning + answer.content, "meta_info": meta}


def _finish_reason(answer: ChatAnswer) -> dict[str, Any] | None:
    """Return why an answer ended, or None while it is in progress."""
    if answer.reason is Reason.LENGTH:
        return {"type": "length", "length": answer.num_tokens}
    if answer.reason is not Reason.STOP:
        return None
    matched = {"matched": answer.stopped_by} if answer.stopped_by else {}
    return {"type": "stop", **matched}
