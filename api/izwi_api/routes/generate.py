"""POST /generate: continue a text or ids, in SGLang's format."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from izwi.capability import Capability
from izwi.errors import InvalidRequest, IzwiError
from izwi_api.http.app_state import services_of
from izwi_api.http.bodies import read_json
from izwi_api.http.errors import error_line
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.http.sse import DONE, MEDIA_TYPE, event
from izwi_api.schemas.generate import GenerateBody, generate_input, generated
from izwi_api.schemas.openapi import answers, json_body
from izwi_api.services.chat import Answer, open_answer
from izwi_api.services.context import Services

router = APIRouter()

_SEED_BITS = 63


@router.post(
    "/generate",
    openapi_extra=json_body(GenerateBody, {}),
    response_class=Response,
    responses=answers("application/json", MEDIA_TYPE),
)
async def generate(request: Request) -> Response:
    """Continue a text or ids."""
    services = services_of(request)
    body = GenerateBody.model_validate(await read_json(request, services.settings.max_json_bytes))
    if (body.text is None) == (body.input_ids is None):
        raise InvalidRequest("give text or input_ids, and not both", param="text")
    return await unless_left(request.receive, _generate(services, body))


async def _generate(services: Services, body: GenerateBody) -> Response:
    name = body.model or services.registry.default(Capability.CHAT)
    ask = generate_input(body, secrets.randbits(_SEED_BITS))
    stops = body.sampling_params.stop
    answer = await open_answer(services.engine, services.registry, name, ask, stops=stops)
    request_id = uuid4().hex
    try:
        if body.stream:
            return await live_response(_events(answer, request_id), MEDIA_TYPE)
        await answer.finish()
    except BaseException:
        answer.abort()  # a generator that was never started does not run its `finally`
        raise
    return JSONResponse(generated(answer, request_id))


async def _events(answer: Answer, request_id: str) -> AsyncGenerator[bytes]:
    begun = False
    try:
        async with aclosing(answer.deltas()) as deltas:
            async for _ in deltas:  # each event has the whole text so far, as in SGLang
                begun = True
                yield event(generated(answer, request_id))
    except IzwiError as error:
        if not begun:
            raise
        yield error_line(error)
        return
    yield event(generated(answer, request_id))
    yield DONE
