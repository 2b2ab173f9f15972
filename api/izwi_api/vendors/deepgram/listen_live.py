"""Deepgram's live transcription, over the session of /v1/audio/transcriptions/stream.

Speech is detected here: each utterance, from some silence before it to the silence that ends it, is
an input of our session, so that silence costs nothing and the end of an utterance is known at once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, WebSocket
from starlette.datastructures import QueryParams

from izwi.arrays import Float32
from izwi.audio.pcm import to_s16le
from izwi.errors import InvalidRequest, IzwiError
from izwi_api.http.errors import response_to
from izwi_api.http.live_socket import serve_socket
from izwi_api.realtime.hearing.vad import FRAME_MS, SpeechFrame, VoiceDetector
from izwi_api.realtime.protocol.formats import INPUT_RATE, InputDecoder, WireFormat
from izwi_api.routes import transcription_stream
from izwi_api.routes.openapi import ignored_header
from izwi_api.schemas.transcription_stream import MAX_BYTES
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModels
from izwi_api.services.transcription.live import default_streaming_model
from izwi_api.services.transcription.session import TranscriptionSession
from izwi_api.services.transcription.subtitles import estimate_words
from izwi_api.sessions.core import Message, Session
from izwi_api.sessions.errors import NORMAL, POLICY, SessionOver
from izwi_api.settings import VadName
from izwi_api.vendors.deepgram.formats import (
    CONFIDENCE,
    EXPECTED,
    LISTEN_MODELS,
    PREFIX,
    closing_metadata,
    expected_words,
    input_format,
    is_true,
    language_of,
    model_info,
    new_id,
    refuse_unanswerable,
)
from izwi_api.vendors.translated_wire import (
    Failure,
    Pause,
    Reply,
    TranslatedWire,
    check_size,
    failure_of,
)

router = APIRouter()
# Speech begins with this much of it. Audio before it belongs to the utterance as well: the first
# consonant is often too quiet to be detected.
_ONSET_MS, _PREROLL_MS = 60, 300
_SPEECH = 0.5
# A shorter pause ends no utterance: it may be within a word.
_LEAST_ENDPOINTING_MS, _LEAST_UTTERANCE_END_MS = 200, 1000
# Deepgram's is 10 ms, and means the first pause that it is sure of.
_ENDPOINTING_MS = 300
_MOST_MS = 10_000
# Audio that is processed at once.
_PIECE_MS = 100
_INTERIM_S = 0.4  # audio between two interim results


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What the query of a connection asks.

    Attributes:
        model: Name of the model.
        wire: Format of the client's audio.
        config: Our configuration of the session.
        interim: Send the text of an utterance while it grows.
        endpointing_ms: Silence that ends an utterance; None transcribes all audio as one.
        utterance_end_ms: Silence after which UtteranceEnd is sent; None sends none.
        vad_events: Send SpeechStarted.
        vad: What detects speech.
    """

    model: str
    wire: WireFormat
    config: dict[str, Any]
    interim: bool
    endpointing_ms: int | None
    utterance_end_ms: int | None
    vad_events: bool
    vad: VadName = "webrtc"


@router.websocket(f"{PREFIX}/v1/listen")
async def listen_live(socket: WebSocket) -> None:
    """Transcribe audio while it arrives."""
    services: Services = socket.app.state.izwi.services
    services = replace(services, registry=services.registry.live())
    try:
        options = parse_options(services.registry, socket.query_params)
    except IzwiError as error:
        await socket.send_denial_response(response_to(error))
        return
    options = replace(options, vad=services.settings.live_vad)

    def open_session(session: Session) -> TranscriptionSession:
        return TranscriptionSession(session, services, transcription_stream.error_message)

    wire_over = partial(
        TranslatedWire, translation=ListenMessages(options), turns=services.loop_turns
    )
    follows = services.registry.transcription(options.model).frontend.follows_context
    given = [name for name in EXPECTED if name in socket.query_params]
    await serve_socket(
        socket,
        transcription_stream.LIMITS,
        open_session,
        wire_over=wire_over,
        headers=ignored_header([] if follows else given),
    )


def parse_options(registry: ServedModels, query: QueryParams) -> LiveOptions:
    """Read the query of a connection. Raises ModelNotFound and InvalidRequest."""
    refuse_unanswerable(query)
    wire = input_format(query, default_rate=INPUT_RATE)
    if wire is None:
        message = "live audio needs encoding=linear16, mulaw or alaw, and its sample_rate"
        raise InvalidRequest(message, param="encoding")
    name = query.get("model", "")
    is_known = name in registry.names() or name in registry.aliases()
    if not is_known and (not name or LISTEN_MODELS.fullmatch(name)):
        name = default_streaming_model(registry)
    model = registry.transcription(name)
    endpointing = query.get("endpointing", "")
    is_off = endpointing.lower() == "false"
    return LiveOptions(
        model=model.name,
        wire=wire,
        config={
            "type": "session.config",
            "model": model.name,
            "language": language_of(query),
            "prompt": expected_words(query),
            "sample_rate": INPUT_RATE,
            # most utterances are shorter than the model's own interval between partial texts
            "chunk_s": _INTERIM_S if is_true(query, "interim_results") else None,
        },
        interim=is_true(query, "interim_results"),
        endpointing_ms=None
        if is_off
        else _milliseconds(query, "endpointing", _ENDPOINTING_MS, _LEAST_ENDPOINTING_MS),
        utterance_end_ms=_milliseconds(query, "utterance_end_ms", 0, _LEAST_UTTERANCE_END_MS)
        if "utterance_end_ms" in query
        else None,
        vad_events=is_true(query, "vad_events"),
    )


def _milliseconds(query: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = query.get(name, "")
    if text.lower() in ("", "true"):
        return default
    if not text.isdecimal() or int(text[:9]) > _MOST_MS:
        raise InvalidRequest(f"{name} must be up to {_MOST_MS} milliseconds", param=name)
    return max(least, int(text))


class ListenMessages:
    """A `Translation` of Deepgram's messages.

    Attributes:
        failure: See `Translation`.
    """

    def __init__(self, options: LiveOptions):
        self.failure: Failure | None = None
        self._options, self._request_id = options, new_id()
        self._decoder = InputDecoder(options.wire)
        self._utterances = Utterances(options)
        self._results = Results(options, self._request_id)
        self._is_configured = False

    def greeting(self) -> Iterable[Message]:
        """Return nothing: the client speaks first."""
        return ()

    def incoming(self, message: Message) -> Iterator[Message | Reply | Pause]:
        """Yield our messages for a client's. Raises SessionOver."""
        check_size(message, MAX_BYTES)  # detecting speech in it delays others
        if not self._is_configured:
            self._is_configured = True
            yield json.dumps(self._options.config)
        if isinstance(message, bytes):
            size = self._options.wire.num_bytes(_PIECE_MS)
            for start in range(0, len(message), size):
                if start:
                    yield Pause()
                samples = self._decoder.write(message[start : start + size])
                yield from self._heard(self._utterances.write(samples))
            return
        match _kind_of(message):
            case "KeepAlive":
                yield b""
            case "Finalize":
                yield from self._finalized()
            case "CloseStream":
                yield from self._heard(self._utterances.write(self._decoder.finish()))
                self._results.add_input(self._utterances.finish())
                yield '{"type": "session.close"}'
            case kind:
                raise SessionOver(f"unknown message type {kind[:64]!r}", "DATA-0000", POLICY)

    def outgoing(self, message: Message) -> Iterable[Message]:
        """Return the client's messages for one of ours."""
        assert isinstance(message, str)
        event = json.loads(message)
        if event["type"] != "error":
            return self._results.messages(event)
        self.failure = failure_of(event["error"]["code"])
        error = event["error"]
        code, text = error["code"], error["message"]
        return [
            json.dumps(
                {
                    "type": "Error",
                    "variant": code,
                    "code": code,
                    "description": text,
                    "message": text,
                }
            )
        ]

    def farewell(self, code: int) -> Iterable[Message]:
        """Return the summary of the session, if the client has ended it."""
        if code != NORMAL:
            return ()
        duration_s = self._utterances.end_ms / 1000
        return [closing_metadata(self._request_id, duration_s, self._options.model)]

    def _finalized(self) -> Iterator[Message | Reply]:
        ended = self._utterances.finish()
        if ended is None:
            yield Reply(self._results.empty(self._utterances.end_ms / 1000, from_finalize=True))
            return
        self._results.add_input(replace(ended, from_finalize=True))
        yield '{"type": "input.done"}'

    def _heard(self, events: Iterable[UtteranceEvent]) -> Iterator[Message | Reply]:
        for event in events:
            match event:
                case Speech(samples, start_ms):
                    self._results.start_input(start_ms)
                    yield to_s16le(samples)
                case SpeechStarted(start_ms):
                    if self._options.vad_events:
                        yield Reply(_event("SpeechStarted", channel=[0], timestamp=start_ms / 1000))
                case SpeechEnded():
                    self._results.add_input(event)
                    yield '{"type": "input.done"}'
                case LongSilence(last_word_ms):
                    end_s = last_word_ms / 1000
                    yield Reply(_event("UtteranceEnd", channel=[0, 1], last_word_end=end_s))


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """Audio of an utterance.

    Attributes:
        samples: (n,) float32 at 16 kHz.
        start_ms: Position of the utterance's first sample, in milliseconds.
    """

    samples: Float32
    start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Speech begins at a position in milliseconds."""

    start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """An utterance ends.

    Attributes:
        is_endpoint: It ended in silence; otherwise by the client's message.
        from_finalize: That message was Finalize.
    """

    is_endpoint: bool
    from_finalize: bool = False


@dataclass(frozen=True, slots=True)
class LongSilence:
    """Silence has lasted for `utterance_end_ms` since a position in milliseconds."""

    last_word_ms: int


UtteranceEvent = Speech | SpeechStarted | SpeechEnded | LongSilence


class Utterances:
    """Cuts a stream of audio into utterances. Pure: samples in, events out.

    Attributes:
        end_ms: Position of the end of the audio.
    """

    def __init__(self, options: LiveOptions):
        self.end_ms = 0
        self._options = options
        self._detector = VoiceDetector(options.vad)
        self._before: deque[Float32] = deque(maxlen=_PREROLL_MS // FRAME_MS)
        self._num_samples = 0  # without endpointing
        self._start_ms: int | None = None  # of the utterance in progress
        self._speech_ms = self._silence_ms = 0  # in a row
        self._last_speech_ms = 0
        self._awaits_long_silence = False

    def write(self, samples: Float32) -> Iterator[UtteranceEvent]:
        """Add samples at 16 kHz, and yield what happens in them."""
        if self._options.endpointing_ms is None and len(samples):
            if self._start_ms is None:
                self._start_ms = self.end_ms
            self._num_samples += len(samples)
            self.end_ms = self._num_samples * 1000 // INPUT_RATE
            yield Speech(samples, self._start_ms)
            return
        for frame in self._detector.write(samples):
            yield from self._judge(frame)

    def finish(self) -> SpeechEnded | None:
        """End the utterance in progress, and return it."""
        start_ms, self._start_ms = self._start_ms, None
        self._speech_ms = self._silence_ms = 0
        return None if start_ms is None else SpeechEnded(is_endpoint=False)

    def _judge(self, frame: SpeechFrame) -> Iterator[UtteranceEvent]:
        self.end_ms += FRAME_MS
        is_speech = frame.speech >= _SPEECH
        self._speech_ms = self._speech_ms + FRAME_MS if is_speech else 0
        self._silence_ms = 0 if is_speech else self._silence_ms + FRAME_MS
        if is_speech:
            self._last_speech_ms = self.end_ms
        if self._start_ms is not None:
            yield Speech(frame.samples, self._start_ms)
            yield from self._end()
            return
        self._before.append(frame.samples)
        if self._speech_ms >= _ONSET_MS:
            self._awaits_long_silence = False
            yield SpeechStarted(self.end_ms - _ONSET_MS)
            self._start_ms = self.end_ms - FRAME_MS * len(self._before)
            yield Speech(np.concatenate(self._before), self._start_ms)
            self._before.clear()
        elif self._awaits_long_silence:
            yield from self._notice_long_silence()

    def _end(self) -> Iterator[UtteranceEvent]:
        assert self._options.endpointing_ms is not None
        if self._silence_ms < self._options.endpointing_ms:
            return
        self._start_ms = None
        self._awaits_long_silence = self._options.utterance_end_ms is not None
        yield SpeechEnded(is_endpoint=True)
        yield from self._notice_long_silence()

    def _notice_long_silence(self) -> Iterator[UtteranceEvent]:
        wanted_ms = self._options.utterance_end_ms
        if wanted_ms is not None and self._silence_ms >= wanted_ms and self._awaits_long_silence:
            self._awaits_long_silence = False
            yield LongSilence(self._last_speech_ms)


class Results:
    """Writes Deepgram's results of our transcripts, in the order of the utterances.

    A final text is kept back until it is known whether it is the last one of its utterance.
    """

    def __init__(self, options: LiveOptions, request_id: str):
        self._options, self._request_id = options, request_id
        self._ended: SpeechEnded | None = None  # the input that our session completes now
        self._start_s = 0.0  # of the input
        self._final: dict[str, Any] | None = None

    def add_input(self, ended: SpeechEnded | None) -> None:
        """Note what the input that our session is about to complete is."""
        self._ended = ended

    def start_input(self, start_ms: int) -> None:
        """Note where the input in progress begins."""
        self._start_s = start_ms / 1000

    def messages(self, event: Mapping[str, Any]) -> list[Message]:
        """Return the messages for one of our session's events."""
        match event["type"]:
            case "transcript.partial":
                released = self._release(is_last=False)
                text = (event["stable"] + event["unstable"]).strip()
                if not self._options.interim or not text:
                    return released
                return [*released, self._result(event, text, is_final=False)]
            case "transcript.segment":
                released = self._release(is_last=False)
                self._final = dict(event)
                return released
            case "transcript.done":
                return self._release(is_last=True)
        return []

    def empty(self, at_s: float, *, from_finalize: bool) -> Message:
        """Return a result without text."""
        place = {"start": at_s - self._start_s, "end": at_s - self._start_s}
        return self._result(place, "", is_final=True, from_finalize=from_finalize)

    def _release(self, *, is_last: bool) -> list[Message]:
        final, self._final = self._final, None
        ended = self._ended if is_last else None
        if is_last:
            self._ended = None
        if final is None:
            return []
        return [
            self._result(
                final,
                final["text"].strip(),
                is_final=True,
                speech_final=ended is not None and ended.is_endpoint,
                from_finalize=ended is not None and ended.from_finalize,
            )
        ]

    def _result(
        self,
        place: Mapping[str, Any],
        text: str,
        *,
        is_final: bool,
        speech_final: bool = False,
        from_finalize: bool = False,
    ) -> Message:
        start_s, end_s = self._start_s + place["start"], self._start_s + place["end"]
        alternative = {
            "transcript": text,
            "confidence": CONFIDENCE if text else 0.0,
            "words": _words(text, start_s, end_s),
        }
        model = self._options.model
        return _event(
            "Results",
            channel_index=[0, 1],
            start=round(start_s, 3),
            duration=round(end_s - start_s, 3),
            is_final=is_final,
            speech_final=speech_final,
            from_finalize=from_finalize,
            channel={"alternatives": [alternative]},
            metadata={
                "request_id": self._request_id,
                "model_uuid": model,
                "model_info": model_info(model),
            },
        )


def _words(text: str, start_s: float, end_s: float) -> list[dict[str, Any]]:
    """Return the words of a text with times that are estimated from their length."""
    words = estimate_words(text, start_s, end_s)
    stops = [word.start for word in words[1:]] + [len(text)] * bool(words)
    return [
        {
            "word": word.word.lower(),
            "punctuated_word": text[word.start : stop].strip(),
            "start": word.start_s,
            "end": word.end_s,
            "confidence": CONFIDENCE,
        }
        for word, stop in zip(words, stops, strict=True)
    ]


def _kind_of(message: str) -> str:
    try:
        kind = json.loads(message)["type"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SessionOver(
            "a message must be audio, or a JSON object with a type", "DATA-0000", POLICY
        ) from error
    return str(kind)


def _event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})
