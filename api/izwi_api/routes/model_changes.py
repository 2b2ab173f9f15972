"""POST /v1/models/{id}/load, /v1/models/{id}/unload and /v1/models/pull, if enabled.

Callers that accept text/event-stream get progress events; others get the last event as JSON.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from izwi.checkpoints.hub import DownloadProgress
from izwi.errors import IzwiError
from izwi_api.http.app_state import state_of
from izwi_api.http.bodies import read_json
from izwi_api.http.errors import error_body, error_line
from izwi_api.http.live_response import live_response, unless_left
from izwi_api.http.sse import MEDIA_TYPE, event
from izwi_api.routes.openapi import answers, json_body
from izwi_api.schemas.model_changes import PullBody
from izwi_api.services.models.changes import LAST_STAGES, Change

router = APIRouter()

_ANSWERS = answers("application/json", MEDIA_TYPE)


@router.post(
    "/v1/models/pull",
    openapi_extra=json_body(PullBody, {}),
    response_class=Response,
    responses=_ANSWERS,
)
async def pull_model(request: Request) -> Response:
    """Download a model from the hub into the server's cache, without serving it."""
    state = state_of(request)
    if not state.services.settings.manage_models:
        return _not_allowed()
    limit_bytes = state.services.settings.max_json_bytes
    body = PullBody.model_validate(await read_json(request, limit_bytes))
    return await _reported(request, state.changes.pull(body.model))


@router.post("/v1/models/{model_id:path}/load", response_class=Response, responses=_ANSWERS)
async def load_model(request: Request, model_id: str) -> Response:
    """Serve a model: an embedded one, one of the hub, or one given at the start."""
    state = state_of(request)
    if not state.services.settings.manage_models:
        return _not_allowed()
    return await _reported(request, state.changes.load(model_id))


@router.post("/v1/models/{model_id:path}/unload", response_class=Response, responses=_ANSWERS)
async def unload_model(request: Request, model_id: str) -> Response:
    """Accept no new requests for a model, and free its memory when the running ones have ended."""
    state = state_of(request)
    if not state.services.settings.manage_models:
        return _not_allowed()
    return await _reported(request, state.changes.unload(model_id))


async def _reported(request: Request, change: Change) -> Response:
    if MEDIA_TYPE in request.headers.get("accept", ""):
        return await live_response(_events(request, change), MEDIA_TYPE)
    return await unless_left(request.receive, _last(request, change))


async def _events(request: Request, change: Change) -> AsyncGenerator[bytes]:
    try:
        async for progress in change.follow():
            yield event(_entry(request, change, progress))
    except IzwiError as error:
        yield error_line(error)


async def _last(request: Request, change: Change) -> Response:
    async for progress in change.follow():
        last = progress
    return JSONResponse(_entry(request, change, last))


def _entry(request: Request, change: Change, progress: DownloadProgress) -> dict[str, object]:
    entry: dict[str, object] = {
        "object": "model.progress",
        "model": change.name,
        "stage": progress.stage,
    }
    if progress.stage in LAST_STAGES:
        entry["loaded"] = change.name in state_of(request).services.registry.names()
    if progress.done_bytes is not None:
        entry |= {"done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes}
    return entry


def _not_allowed() -> JSONResponse:
    body = error_body(
        "models cannot be managed over HTTP: start the server with --manage-models",
        "invalid_request_error",
        code="permission_denied",
    )
    return JSONResponse(body, 403)
