"""POST /v1/realtime/calls: a live session over WebRTC, for browsers.

The caller sends an SDP offer and gets an SDP answer. After that, audio travels over tracks, and
events over a data channel.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from izwi.errors import InvalidRequest
from izwi_api.http.app_state import AppState, state_of
from izwi_api.http.bodies import read_form, read_raw
from izwi_api.http.client_secrets import ClientSecret
from izwi_api.http.errors import error_body
from izwi_api.realtime.answering.response_maker import check_settings
from izwi_api.realtime.protocol.rate_limits import rate_limits
from izwi_api.realtime.protocol.settings import Settings, check_formats
from izwi_api.realtime.session import RealtimeSession
from izwi_api.routes.realtime import first_settings, secret_settings
from izwi_api.sessions.core import Session
from izwi_api.usage.metering import Usage, current_usage

if TYPE_CHECKING:
    from izwi_api.realtime.transport.webrtc import Call

router = APIRouter()

_MAX_BYTES = 256 << 10
_CALL_ID = re.compile(r"rtc_[0-9a-f]{32}")
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/sdp": {"schema": {"type": "string"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["sdp"],
                    "properties": {"sdp": {"type": "string"}, "session": {"type": "string"}},
                }
            },
        },
    }
}


def has_webrtc() -> bool:
    """Whether this server can talk over WebRTC: whether aiortc is installed."""
    return find_spec("aiortc") is not None


@router.post("/v1/realtime/calls", openapi_extra=_BODY, status_code=201, response_class=Response)
async def call(request: Request) -> Response:
    """Start a live session over WebRTC; the response is an SDP answer."""
    if not has_webrtc():
        message = "this server has no WebRTC: install izwi[webrtc], or use the WebSocket"
        raise InvalidRequest(message)
    from izwi_api.realtime.transport.webrtc import Call, SpeakerTrack

    state, usage = state_of(request), current_usage.get() or Usage()
    offer, session_settings = await _read_offer(request)
    settings = _settings(state, request, session_settings)
    await check_settings(state.services, settings)
    check_formats(settings)
    limits = state.services.settings.session_limits
    with ExitStack() as stack:
        seat = stack.enter_context(state.sessions.slot(usage))
        caller = Call()
        session = Session(caller, limits)
        total_s, left = limits.total_s, partial(rate_limits, usage)
        service = RealtimeSession(
            session, state.services, settings, total_s, caller.background_tasks, left
        )
        assert service.speaker is not None
        answer = await caller.answer(offer, SpeakerTrack(service.speaker))
        call_id = f"rtc_{uuid4().hex}"
        stack.enter_context(state.drain.running())
        stack.enter_context(state.sessions.named(call_id, usage.key_name, session))
        stack.enter_context(state.sessions.running(session, seat))
        state.sessions.run_detached(_serve(caller, session, service, stack.pop_all()))
    headers = {"location": f"/v1/realtime/calls/{call_id}"}
    return Response(answer, 201, headers, "application/sdp")


@router.post("/v1/realtime/calls/{call_id}/hangup", response_class=Response)
async def hang_up(request: Request, call_id: str) -> Response:
    """End a call; its connection is closed."""
    usage = current_usage.get() or Usage()
    sessions = state_of(request).sessions
    if not _CALL_ID.fullmatch(call_id) or not sessions.end_named(call_id, usage.key_name):
        body = error_body(
            "there is no such call", "invalid_request_error", param="call_id", code="not_found"
        )
        return JSONResponse(body, 404)
    return Response(status_code=200)


async def _serve(
    caller: Call, session: Session, service: RealtimeSession, stack: ExitStack
) -> None:
    with stack:
        try:
            await session.run(service)
        finally:
            await caller.hang_up()


async def _read_offer(request: Request) -> tuple[str, dict[str, Any] | None]:
    """Return the offer, and the requested session."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/sdp":
        return _text(await read_raw(request, _MAX_BYTES)), None
    form = await read_form(request, _MAX_BYTES)
    values = {name: given[-1].encode() for name, given in form.fields.items()} | form.files
    if "sdp" not in values:
        raise InvalidRequest("missing required parameter: 'sdp'", param="sdp")
    if "session" not in values:
        return _text(values["sdp"]), None
    try:
        session = msgspec.json.decode(values["session"], type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidRequest("session must be a JSON object", param="session") from error
    return _text(values["sdp"]), session


def _settings(state: AppState, request: Request, session: dict[str, Any] | None) -> Settings:
    secret: ClientSecret | None = request.scope.get("state", {}).get("client_secret")
    if secret is not None:
        return secret_settings(state.services, secret.session)
    if session is not None:
        return secret_settings(state.services, session)
    return first_settings(state.services, request.query_params)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("the SDP offer is not text", param="sdp") from error
