"""Serve a carrier's WebSocket as a live session, and answer its webhook."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import Request, WebSocket
from starlette.types import Scope

from izwi.errors import IzwiError
from izwi_api.http.app_state import AppState, state_of
from izwi_api.http.auth import TELEPHONY
from izwi_api.http.bodies import read_raw
from izwi_api.http.client_secrets import PREFIX, ClientSecret
from izwi_api.http.errors import response_to
from izwi_api.http.live_socket import serve_socket
from izwi_api.realtime.answering.response_maker import check_settings
from izwi_api.realtime.protocol.errors import EventError
from izwi_api.realtime.protocol.rate_limits import rate_limits
from izwi_api.realtime.protocol.settings import Settings, check_formats
from izwi_api.realtime.session import RealtimeSession
from izwi_api.routes.realtime import first_settings, secret_settings
from izwi_api.sessions.core import Session, Wire
from izwi_api.usage.metering import Usage, current_usage
from izwi_api.vendors.telephony.call import Carrier, PhoneCall
from izwi_api.vendors.vendor import password_of

# The carrier connects as soon as it has read the answer to its webhook.
_SECRET_S = 60
# A webhook's form describes the call.
_MAX_FORM_BYTES = 64 << 10


def key_of(scope: Scope) -> str | None:
    """Return the key of a carrier: a client secret in the path, or a password in the URL.

    Carriers set no headers on a WebSocket.
    """
    last: str = scope["path"].rpartition("/")[2]
    if scope["type"] == "websocket" and last.startswith(PREFIX):
        return last
    return password_of(scope)


async def serve_call(socket: WebSocket, open_carrier: Callable[[], Carrier]) -> None:
    """Serve a call, or refuse it as /v1/realtime would.

    Args:
        socket: The carrier's WebSocket, not accepted yet.
        open_carrier: Reads and writes the messages of one call.
    """
    state: AppState = socket.app.state.izwi
    try:
        settings = _settings(state, socket)
        await check_settings(state.services, settings)
        check_formats(settings)
    except IzwiError as error:
        await socket.send_denial_response(response_to(error))
        return
    limits = state.services.settings.session_limits
    usage = current_usage.get() or Usage()
    calls: list[PhoneCall] = []

    def wire_over(wire: Wire) -> Wire:
        calls.append(PhoneCall(wire, open_carrier(), state.services.loop_turns))
        return calls[0]

    def open_service(session: Session) -> RealtimeSession:
        call, left = calls[0], partial(rate_limits, usage)
        service = RealtimeSession(
            session, state.services, settings, limits.total_s, call.background_tasks, left
        )
        call.speaker = service.speaker
        return service

    await serve_socket(socket, limits, open_service, wire_over=wire_over)


def _settings(state: AppState, socket: WebSocket) -> Settings:
    """Return the settings of a call. Raises InvalidRequest and its kind."""
    secret: ClientSecret | None = socket.scope.get("state", {}).get("client_secret")
    if secret is not None:
        return secret_settings(state.services, secret.session)
    if "secret" in socket.path_params:
        raise EventError("the secret in the path is not valid, or has expired", "invalid_api_key")
    return first_settings(state.services, socket.query_params)


async def address_of_stream(request: Request, carrier: str) -> str:
    """Return the address for a carrier's WebSocket, with a secret for this call.

    The query of the webhook may have `model`, `voice` and `instructions`.

    Raises:
        InvalidRequest: They cannot be used.
        TooLarge: The instructions are too long for an address.
    """
    await read_raw(request, _MAX_FORM_BYTES)
    state, query = state_of(request), request.query_params
    session: dict[str, Any] = {"type": "realtime"}
    for name in ("model", "instructions"):
        if name in query:
            session[name] = query[name]
    if "voice" in query:
        session["audio"] = {"output": {"voice": query["voice"]}}
    await check_settings(state.services, secret_settings(state.services, session))
    usage = current_usage.get()
    key_name = None if usage is None else usage.key_name
    secret = ClientSecret(int(time.time()) + _SECRET_S, key_name, session)
    host = request.headers.get("host", "")
    return f"wss://{host}{TELEPHONY}{carrier}/{state.client_secrets.make(secret)}"


def is_greeted(request: Request) -> bool:
    """Return whether a webhook's query asks that the answering side speaks first."""
    return request.query_params.get("greet", "").lower() in ("1", "true")
