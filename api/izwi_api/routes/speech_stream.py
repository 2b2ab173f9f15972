"""WebSocket /v1/audio/speech/stream: text in pieces, audio before the text is complete."""

from __future__ import annotations

import logging

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError

from izwi.errors import IzwiError
from izwi_api.http.errors import body_of, error_body, invalid_body, is_internal
from izwi_api.http.live_socket import serve_socket
from izwi_api.schemas.speech_stream import StreamLimits
from izwi_api.services.context import Services
from izwi_api.services.speech.session import SpeechSession
from izwi_api.sessions.core import Session
from izwi_api.sessions.errors import INTERNAL, SessionOver

logger = logging.getLogger(__name__)
router = APIRouter()

LIMITS = StreamLimits()


@router.websocket("/v1/audio/speech/stream")
async def stream_speech(socket: WebSocket) -> None:
    """Speak text while it is written."""
    services: Services = socket.app.state.izwi.services
    limits = LIMITS.under(services.settings)

    def open_session(session: Session) -> SpeechSession:
        return SpeechSession(session, services, limits, error_message)

    await serve_socket(socket, limits.of_session, open_session)


def error_message(error: Exception) -> dict[str, object]:
    """Return OpenAI's error object, and its message beside it for vLLM-Omni's clients."""
    reported = _error_of(error)
    inner = reported["error"]
    assert isinstance(inner, dict)
    return {"type": "error", "message": inner["message"], **reported}


def _error_of(error: Exception) -> dict[str, object]:
    if isinstance(error, SessionOver):
        kind = "server_error" if error.close_code == INTERNAL else "invalid_request_error"
        return error_body(str(error), kind, code=error.code)
    if isinstance(error, ValidationError):
        return invalid_body(list(error.errors()))
    if is_internal(error):
        logger.error("a speech session continues after a failure", exc_info=error)
    if not isinstance(error, IzwiError):
        return error_body("internal error", "server_error", code="internal_error")
    reported = body_of(error)
    wait_s = getattr(error, "retry_after_s", None)
    if wait_s is not None:
        reported["retry_after_s"] = wait_s
    return reported
