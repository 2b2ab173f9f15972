"""ElevenLabs' WebSocket for text in pieces, over the session of /v1/audio/speech/stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, ValidationError

from izwi.audio.encode import PCM_RATE, StreamEncoder
from izwi.audio.pcm import from_s16le
from izwi.errors import IzwiError
from izwi.model.capability import Capability
from izwi.request.input_stream import WritableFrontend
from izwi_api.http.errors import response_to
from izwi_api.http.live_socket import serve_socket
from izwi_api.routes import speech_stream
from izwi_api.services.context import Services
from izwi_api.services.speech.session import SpeechSession
from izwi_api.sessions.core import Message, Session
from izwi_api.sessions.errors import NORMAL, POLICY, SessionOver
from izwi_api.vendors.audio_formats import AudioFormat
from izwi_api.vendors.elevenlabs.formats import (
    DEFAULT_FORMAT,
    MODELS,
    PREFIX,
    VoiceSettings,
    parse_format,
)
from izwi_api.vendors.names import model_name
from izwi_api.vendors.translated_wire import Failure, TranslatedWire, failure_of

router = APIRouter()


@router.websocket(PREFIX + "/v1/text-to-speech/{voice_id}/stream-input")
async def stream_input(socket: WebSocket, voice_id: str) -> None:
    """Speak text while it is written."""
    services: Services = socket.app.state.izwi.services
    try:
        audio = parse_format(socket.query_params.get("output_format", DEFAULT_FORMAT))
        config = session_config(services, voice_id, socket.query_params, audio)
    except IzwiError as error:
        await socket.send_denial_response(response_to(error))
        return
    limits = speech_stream.LIMITS.under(services.settings)

    def open_session(session: Session) -> SpeechSession:
        return SpeechSession(session, services, limits, speech_stream.error_message)

    wire_over = partial(
        TranslatedWire, translation=StreamInput(config, audio), turns=services.loop_turns
    )
    await serve_socket(socket, limits.of_session, open_session, wire_over=wire_over)


def session_config(
    services: Services, voice_id: str, query: Mapping[str, str], audio: AudioFormat
) -> dict[str, Any]:
    """Return our configuration of a session. Raises ModelNotFound and InvalidRequest."""
    registry = services.registry
    name = model_name(registry, query.get("model_id"), Capability.SPEAK, MODELS)
    is_writable = isinstance(registry.speech(name).frontend, WritableFrontend)
    return {
        "type": "session.config",
        "model": name,
        "voice": voice_id,
        "language": query.get("language_code"),
        # other bare samples are made of these
        "response_format": "pcm" if audio.is_bare else audio.name,
        # a model that needs whole sentences gets them
        "split_granularity": "none" if is_writable else "sentence",
    }


class TextMessage(BaseModel):
    """A client's message; an empty text ends the input."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str
    flush: bool | None = None
    voice_settings: VoiceSettings | None = None


class StreamInput:
    """A `Translation` of ElevenLabs' messages.

    Args:
        config: Our configuration, without the settings of the client's first message.
        audio: The format of the audio.
        fields: In each message to the client, in addition to its own.

    Attributes:
        failure: See `Translation`.
    """

    def __init__(
        self,
        config: dict[str, Any],
        audio: AudioFormat,
        fields: Mapping[str, str] = MappingProxyType({}),
    ):
        self.failure: Failure | None = None
        self._fields = fields
        self._config: dict[str, Any] | None = config
        self._audio = audio
        self._encoder: StreamEncoder | None = None

    def greeting(self) -> Iterable[Message]:
        """Return nothing: the client speaks first."""
        return ()

    def incoming(self, message: Message) -> Iterable[Message]:
        """Return our messages for a client's. Raises SessionOver."""
        try:
            read = TextMessage.model_validate_json(message)
        except ValidationError as error:
            raise SessionOver(
                "a message must be a JSON object with a text", "invalid_message", POLICY
            ) from error
        ours: list[dict[str, Any]] = []
        if self._config is not None:
            speed = (read.voice_settings or VoiceSettings()).speed
            ours.append(self._config | {"speed": speed})
            self._config = None
        if not read.text:
            ours.append({"type": "session.close"})
        elif read.text.strip() or not ours:  # the first text is a space, which is not spoken
            ours.append({"type": "input.text", "text": read.text})
        if read.flush and read.text:
            ours.append({"type": "input.done"})
        return map(json.dumps, ours)

    def outgoing(self, message: Message) -> Iterable[Message]:
        """Return the client's messages for one of ours."""
        if isinstance(message, bytes):
            return self._audio_message(self._encoded(message))
        event = json.loads(message)
        match event["type"]:
            case "audio.start" if self._audio.is_bare:
                self._encoder = self._audio.encoder(PCM_RATE)
            case "audio.done" if self._encoder is not None:
                encoder, self._encoder = self._encoder, None
                return self._audio_message(encoder.finish())
            case "error":
                inner = event["error"]
                self.failure = failure_of(inner["code"])
                return [self.error_message(inner["code"], inner["message"])]
        return ()

    def error_message(self, code: str, message: str) -> Message:
        """Return the client's message of an error with one of our codes."""
        reported = {"message": message, "error": code, "code": failure_of(code).close_code}
        return json.dumps({**reported, **self._fields})

    def farewell(self, code: int) -> Iterable[Message]:
        """Return the last message, if all was spoken."""
        if code != NORMAL:
            return ()
        return [json.dumps({"audio": None, "isFinal": True, **self._fields})]

    def _encoded(self, content: bytes) -> bytes:
        return content if self._encoder is None else self._encoder.write(from_s16le(content))

    def _audio_message(self, content: bytes) -> list[Message]:
        if not content:
            return []
        audio = base64.b64encode(content).decode("ascii")
        times = {"alignment": None, "normalizedAlignment": None}
        return [json.dumps({"audio": audio, "isFinal": None, **times, **self._fields})]
