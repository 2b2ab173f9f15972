"""WebSocket /v1/realtime: live conversations and transcriptions in OpenAI's Realtime protocol."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from starlette.responses import JSONResponse

from izwi.capability import Capability
from izwi.errors import InvalidRequest, IzwiError
from izwi_api.http.app_state import AppState
from izwi_api.http.errors import body_of, status_of
from izwi_api.realtime.making import check_settings
from izwi_api.realtime.session import ClientLeft, RealtimeSession, SessionLimits
from izwi_api.realtime.settings import (
    AudioInput,
    RealtimeSettings,
    Settings,
    Transcription,
    TranscriptionAudio,
    TranscriptionSettings,
)
from izwi_api.services.context import Services

router = APIRouter()

LIMITS = SessionLimits()


@router.websocket("/v1/realtime")
async def converse(socket: WebSocket) -> None:
    """Talk with a chat model, or transcribe live sound."""
    state: AppState = socket.app.state.izwi
    try:
        settings = first_settings(state.services, socket.query_params)
        await check_settings(state.services, settings)
    except IzwiError as error:
        await socket.send_denial_response(JSONResponse(body_of(error), status_of(error)))
        return
    # A browser that offers protocols leaves unless one of them is taken.
    offered: list[str] = socket.scope.get("subprotocols", [])
    await socket.accept("realtime" if "realtime" in offered else next(iter(offered), None))
    await RealtimeSession(_SocketWire(socket), state.services, settings, LIMITS).run()


def first_settings(services: Services, query: Mapping[str, str]) -> Settings:
    """Return the settings with which a connection begins.

    Raises:
        ModelNotFound: No such model, or none of the kind that is needed.
        InvalidRequest: The model does something else, or there is no such intent.
    """
    intent, name = query.get("intent", "conversation"), query.get("model")
    if intent == "transcription":
        transcription = Transcription(model=name)
        return TranscriptionSettings(
            audio=TranscriptionAudio(input=AudioInput(transcription=transcription))
        )
    if intent != "conversation":
        raise InvalidRequest("intent must be 'conversation' or 'transcription'", param="intent")
    name = name or services.registry.default(Capability.CHAT)
    services.registry.chat(name)
    return RealtimeSettings(model=name)


class _SocketWire:
    """A `Wire` over a WebSocket."""

    def __init__(self, socket: WebSocket):
        self._socket = socket

    async def receive(self) -> str | None:
        event = await self._socket.receive()
        if event["type"] == "websocket.disconnect":
            raise ClientLeft
        text: str | None = event.get("text")
        return text

    async def send(self, message: str) -> None:
        try:
            await self._socket.send_text(message)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ClientLeft from error

    async def close(self, code: int, reason: str) -> None:
        try:
            await self._socket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ClientLeft from error
