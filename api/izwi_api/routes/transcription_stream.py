"""WebSocket /v1/audio/transcriptions/stream: transcribe audio while it arrives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, WebSocket

from izwi.arrays import Float32
from izwi.errors import IzwiError
from izwi_api.http.errors import body_of, error_body, is_internal
from izwi_api.http.live_socket import serve_socket
from izwi_api.realtime.hearing.turn_speakers import TurnSpeakers
from izwi_api.realtime.protocol.settings import Transcription
from izwi_api.realtime.protocol.transcript_events import SpeakerSegment
from izwi_api.schemas.known_speakers import SpeakerSetting
from izwi_api.schemas.transcription_stream import SessionConfig
from izwi_api.services.context import Services
from izwi_api.services.speakers.live import check_speakers
from izwi_api.services.transcription.session import TranscriptionSession
from izwi_api.sessions.core import Session
from izwi_api.sessions.errors import INTERNAL, POLICY, SessionOver
from izwi_api.sessions.limits import SessionLimits

logger = logging.getLogger(__name__)
router = APIRouter()

LIMITS = SessionLimits(total_s=86_400.0, idle_s=60.0, idle_code=POLICY)


@router.websocket("/v1/audio/transcriptions/stream")
async def stream_transcription(socket: WebSocket) -> None:
    """Transcribe audio while it arrives."""
    services: Services = socket.app.state.izwi.services
    services = replace(services, registry=services.registry.live())

    def open_session(session: Session) -> TranscriptionSession:
        return TranscriptionSession(
            session, services, error_message, partial(open_speakers, services)
        )

    await serve_socket(socket, LIMITS, open_session)


async def open_speakers(services: Services, config: SessionConfig, model: str) -> SegmentSpeakers:
    """Return what tells the speakers of a session apart.

    Raises:
        InvalidRequest: No served model has a speaker encoder, or a clip is not usable.
    """
    await check_speakers(services, config.speaker_setting or SpeakerSetting())
    return SegmentSpeakers(services, config, model)


class SegmentSpeakers:
    """Tells the speakers of a session apart as /v1/realtime does, segment by segment."""

    def __init__(self, services: Services, config: SessionConfig, model: str):
        self._speakers = TurnSpeakers(services, config.speaker_setting or SpeakerSetting())
        self._setting = Transcription(model=model, language=config.language, prompt=config.prompt)

    async def parts(self, samples: Float32, text: str) -> Sequence[SpeakerSegment]:
        """Return what each speaker says: see `SpeakersOfSegments`."""
        transcript: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        transcript.set_result(text)
        return await self._speakers.segments(self._setting, samples, transcript)


def error_message(error: Exception) -> dict[str, object]:
    """Return the message that reports an error, with OpenAI's error object."""
    if isinstance(error, SessionOver):
        kind = "server_error" if error.close_code == INTERNAL else "invalid_request_error"
        reported = error_body(str(error), kind, code=error.code)
    elif isinstance(error, IzwiError):
        reported = body_of(error)
    else:
        reported = error_body("internal error", "server_error", code="internal_error")
    if is_internal(error) and not isinstance(error, SessionOver):
        logger.error("a transcription session continues after a failure", exc_info=error)
    return {"type": "error", **reported}
