"""Deepgram's WebSocket for speech, over the session of /v1/audio/speech/stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
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
from izwi_api.sessions.errors import POLICY, SessionOver
from izwi_api.vendors.audio_formats import AudioFormat
from izwi_api.vendors.deepgram.formats import PREFIX, SPEAK_MODELS, new_id, voice_of
from izwi_api.vendors.deepgram.speak import DEFAULT_VOICE, parse_audio, parse_speed
from izwi_api.vendors.names import model_name
from izwi_api.vendors.translated_wire import Failure, Reply, TranslatedWire, failure_of

router = APIRouter()


@router.websocket(f"{PREFIX}/v1/speak")
async def speak_live(socket: WebSocket) -> None:
    """Speak text while it is written."""
    services: Services = socket.app.state.izwi.services
    try:
        # a socket carries bare samples
        audio = parse_audio({**socket.query_params, "container": "none"}, default="linear16")
        config = await asyncio.to_thread(_config, services, socket.query_params)
    except IzwiError as error:
        await socket.send_denial_response(response_to(error))
        return
    limits = speech_stream.LIMITS.under(services.settings)
    # an agent keeps its connection while it listens
    limits = replace(limits, idle_s=services.settings.session_limits.idle_s)

    def open_session(session: Session) -> SpeechSession:
        return SpeechSession(session, services, limits, speech_stream.error_message)

    wire_over = partial(
        TranslatedWire, translation=SpeakMessages(config, audio), turns=services.loop_turns
    )
    await serve_socket(socket, limits.of_session, open_session, wire_over=wire_over)


def _config(services: Services, query: Mapping[str, str]) -> dict[str, Any]:
    """Return our configuration of a session. Raises ModelNotFound and InvalidRequest."""
    wanted = query.get("model", DEFAULT_VOICE)
    name = model_name(services.registry, wanted, Capability.SPEAK, SPEAK_MODELS)
    is_writable = isinstance(services.registry.speech(name).frontend, WritableFrontend)
    return {
        "type": "session.config",
        "model": name,
        "voice": voice_of(services, wanted),
        "speed": parse_speed(query),
        "response_format": "pcm",
        # a model that needs whole sentences gets them
        "split_granularity": "none" if is_writable else "sentence",
    }


class SpeakMessage(BaseModel):
    """A client's message."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: str
    text: str = ""


class SpeakMessages:
    """A `Translation` of Deepgram's messages.

    Args:
        config: Our configuration.
        audio: The format of the audio.

    Attributes:
        failure: See `Translation`.
    """

    def __init__(self, config: dict[str, Any], audio: AudioFormat):
        self.failure: Failure | None = None
        self._config, self._audio = config, audio
        self._is_configured = False
        self._encoder: StreamEncoder | None = None
        self._num_unsaid = self._num_flushed = self._num_cleared = 0
        self._is_open = self._is_clearing = False

    def greeting(self) -> Iterable[Message]:
        """Return what Deepgram says of the model."""
        name = self._config["model"]
        version = {"model_name": name, "model_version": "izwi", "model_uuid": name}
        return [json.dumps({"type": "Metadata", "request_id": new_id(), **version})]

    def incoming(self, message: Message) -> Iterable[Message | Reply]:
        """Yield our messages for a client's. Raises SessionOver."""
        if not self._is_configured:
            self._is_configured = True
            yield json.dumps(self._config)
        try:
            read = SpeakMessage.model_validate_json(message)
        except ValidationError as error:
            raise SessionOver(
                "a message must be a JSON object with a type", "DATA-0000", POLICY
            ) from error
        match read.type:
            case "Speak":
                if read.text:
                    self._num_unsaid += not self._is_open
                    self._is_open = True
                    yield json.dumps({"type": "input.text", "text": read.text})
            case "Flush":
                if self._is_open:
                    self._is_open = False
                    yield '{"type": "input.done"}'
                else:
                    yield Reply(self._flushed())
            case "Clear":
                self._is_open = False
                if self._num_unsaid:
                    self._is_clearing = True
                    yield '{"type": "input.cancel"}'
                else:
                    yield Reply(self._cleared())
            case "Close":
                yield '{"type": "session.close"}'
            case kind:
                raise SessionOver(f"unknown message type {kind[:64]!r}", "DATA-0000", POLICY)

    def outgoing(self, message: Message) -> Iterable[Message]:
        """Return the client's messages for one of ours."""
        if isinstance(message, bytes):
            assert self._encoder is not None
            return filter(None, [self._encoder.write(from_s16le(message))])
        event = json.loads(message)
        match event["type"]:
            case "audio.start":
                self._encoder = self._audio.encoder(PCM_RATE)
            case "audio.done" if self._encoder is not None:
                encoder, self._encoder = self._encoder, None
                return filter(None, [encoder.finish()])
            case "session.done":
                return self._said(is_cancelled=event["cancelled"])
            case "error":
                self.failure = failure_of(event["error"]["code"])
                code, text = event["error"]["code"], event["error"]["message"]
                return [json.dumps({"type": "Error", "err_code": code, "err_msg": text})]
        return ()

    def farewell(self, code: int) -> Iterable[Message]:
        """Return nothing: the close frame says that all was sent."""
        del code
        return ()

    def _said(self, *, is_cancelled: bool) -> list[Message]:
        self._num_unsaid -= 1
        if not is_cancelled:
            return [self._flushed()]
        if not self._is_clearing:  # several texts were cleared together
            return []
        self._is_clearing = False
        return [self._cleared()]

    def _flushed(self) -> Message:
        number, self._num_flushed = self._num_flushed, self._num_flushed + 1
        return json.dumps({"type": "Flushed", "sequence_id": number})

    def _cleared(self) -> Message:
        number, self._num_cleared = self._num_cleared, self._num_cleared + 1
        return json.dumps({"type": "Cleared", "sequence_id": number})
