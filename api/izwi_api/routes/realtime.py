"""WebSocket /v1/realtime: live conversations and transcriptions in OpenAI's Realtime protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, WebSocket
from starlette.responses import JSONResponse, Response

from izwi.errors import InvalidRequest, IzwiError, ModelNotFound
from izwi.model.capability import Capability
from izwi_api.http.app_state import AppState, state_of
from izwi_api.http.bodies import read_json
from izwi_api.http.client_secrets import ClientSecret
from izwi_api.http.errors import response_to
from izwi_api.http.live_socket import serve_socket
from izwi_api.realtime.answering.response_maker import check_settings, takes_audio
from izwi_api.realtime.protocol.errors import EventError, describe
from izwi_api.realtime.protocol.rate_limits import rate_limits
from izwi_api.realtime.protocol.settings import (
    AudioInput,
    RealtimeSettings,
    Settings,
    Transcription,
    TranscriptionAudio,
    TranscriptionSettings,
    as_json,
    named,
    updated,
)
from izwi_api.realtime.session import RealtimeSession
from izwi_api.services.context import Services
from izwi_api.sessions.core import Session
from izwi_api.usage.metering import Usage, current_usage

router = APIRouter()

_SECRET_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "expires_after": {"type": "object"},
                        "session": {"type": "object"},
                    },
                }
            }
        },
    }
}


@router.websocket("/v1/realtime")
async def converse(socket: WebSocket) -> None:
    """Talk with a chat model, or transcribe live audio."""
    state: AppState = socket.app.state.izwi
    secret: ClientSecret | None = socket.scope.get("state", {}).get("client_secret")
    try:
        if secret is not None:
            settings = secret_settings(state.services, secret.session)
        else:
            settings = first_settings(state.services, socket.query_params)
        await check_settings(state.services, settings)
    except IzwiError as error:
        await socket.send_denial_response(response_to(error))
        return
    limits = state.services.settings.session_limits

    usage = current_usage.get() or Usage()

    def open_service(session: Session) -> RealtimeSession:
        left = partial(rate_limits, usage)
        return RealtimeSession(session, state.services, settings, limits.total_s, rate_limits=left)

    await serve_socket(socket, limits, open_service, "realtime")


def first_settings(services: Services, query: Mapping[str, str]) -> Settings:
    """Return the initial settings of a connection.

    Raises:
        ModelNotFound: The model is not served, or no model has the needed capability.
        InvalidRequest: The model has another capability, or the intent is unknown.
    """
    intent, name = query.get("intent", "conversation"), query.get("model")
    if intent == "transcription":
        transcription = Transcription(model=name)
        return TranscriptionSettings(
            audio=TranscriptionAudio(input=AudioInput(transcription=transcription))
        )
    if intent != "conversation":
        raise InvalidRequest("intent must be 'conversation' or 'transcription'", param="intent")
    name = name or _first_to_answer(services)
    if not takes_audio(services, name):
        services.registry.chat(name)
    return RealtimeSettings(model=name)


def _first_to_answer(services: Services) -> str:
    try:
        return services.registry.default(Capability.CHAT)
    except ModelNotFound:
        return services.registry.default(Capability.CONVERSE)


def secret_settings(services: Services, session: Mapping[str, Any]) -> Settings:
    """Return the session settings of a client secret. Raises as `first_settings`."""
    is_transcription = session.get("type") == "transcription"
    query = {"intent": "transcription"} if is_transcription else {}
    if isinstance(model := session.get("model"), str) and not is_transcription:
        query["model"] = model
    return updated(first_settings(services, query), session)


class _Expiry(msgspec.Struct, forbid_unknown_fields=True):
    seconds: Annotated[int, msgspec.Meta(ge=10, le=7200)] = 600
    anchor: Literal["created_at"] = "created_at"


class SecretBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a client secret."""

    expires_after: _Expiry | None = None
    session: dict[str, Any] | None = None


@router.post("/v1/realtime/client_secrets", openapi_extra=_SECRET_BODY, response_class=Response)
async def create_client_secret(request: Request) -> Response:
    """Make a short-lived key for a client that must not have a real one, such as a browser."""
    state = state_of(request)
    value = await read_json(request, state.services.settings.max_json_bytes)
    try:
        body = msgspec.convert(value, SecretBody)
    except msgspec.ValidationError as error:
        message, param, code = describe(error)
        raise EventError(message, code, param=param) from error
    session = body.session or {"type": "realtime"}
    settings = secret_settings(state.services, session)
    await check_settings(state.services, settings)
    expires_at = int(time.time()) + (body.expires_after or _Expiry()).seconds
    usage = current_usage.get()
    made = ClientSecret(expires_at, None if usage is None else usage.key_name, session)
    answer = {
        "value": state.client_secrets.make(made),
        "expires_at": expires_at,
        "session": as_json(named(settings, expires_at)),
    }
    return JSONResponse(answer)
