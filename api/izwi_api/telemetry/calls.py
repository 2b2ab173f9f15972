"""One call of a client: an HTTP request, a WebSocket, or one answer of a live session.

A call has the requests to the engine that were made for it, by whatever task: `current_call` is
inherited by tasks. When it ends, its `CallObserver` writes a log line, counts, and makes spans.
"""

from __future__ import annotations

import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

from izwi.engine_client.protocol import Answer, Answers
from izwi.model.frontend import Frontend
from izwi.request.correlation import Correlation
from izwi.request.request import Request
from izwi_api.telemetry.conventions import Operation
from izwi_api.telemetry.engine_request import EngineRequest, Phase, wish_of
from izwi_api.telemetry.observed_answer import ObservedAnswer

# A session may make any number of requests; the last ones are kept.
_MAX_REQUESTS = 256
# Ids of callers: enough for UUIDs and hosts' names, and nothing that breaks a log line.
_CALL_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def now_s() -> float:
    """Return monotonic seconds."""
    return time.monotonic()


def call_id_of(given: str | None) -> str:
    """Return the id of a call: the caller's, if it can be used, or a new one."""
    if given is not None and _CALL_ID.fullmatch(given):
        return given
    return f"req_{uuid4().hex}"


def traceparent_of(given: str | None) -> str:
    """Return a caller's trace context (W3C `traceparent`), or an empty text if it has none."""
    return given if given is not None and _TRACEPARENT.fullmatch(given) else ""


@dataclass(slots=True)
class Turn:
    """What a live session adds to one of its answers.

    Attributes:
        times_s: When the user's last word ended (`speech`), the turn was over (`turn_end`), the
            transcript was complete (`transcript`), and the first text and audio were sent, on the
            call's clock; those that are known.
        session_id: The session.
        conversation_id: Its conversation.
        status: How the answer ended, in the words of the protocol.
        reason: Why, if it was not completed.
        hearing: The requests that transcribed the turn.
    """

    times_s: dict[str, float]
    session_id: str
    conversation_id: str
    status: str
    reason: str | None = None
    hearing: Sequence[EngineRequest] = ()


@dataclass(slots=True, eq=False)
class Call:
    """A call that is being answered.

    Attributes:
        correlation: Its id, and the trace context that its requests belong to.
        parent: The caller's trace context, or an empty text.
        started_s: When it began, on the observer's clock.
        requests: Its requests to the engine, of a session the last ones.
        method: Of HTTP, or WEBSOCKET.
        route: The route's template, or None for an unknown path.
        status: The response's status; 499 if the caller left before it.
        ended_s: When it ended.
        turn: What is known of an answer of a live session; None for other calls.
        key: What metrics call the caller's API key (`ApiKey.label`); empty without one.
        conversation_id: Of the conversation that it continues or begins; None if it has no id.
        degraded: What was changed because its model is loaded, such as `max_tokens=100`.
    """

    observer: CallObserver
    correlation: Correlation
    parent: str
    started_s: float
    requests: deque[EngineRequest] = field(default_factory=lambda: deque(maxlen=_MAX_REQUESTS))
    method: str = ""
    route: str | None = None
    status: int = 499
    ended_s: float = 0.0
    turn: Turn | None = None
    key: str = ""
    conversation_id: str | None = None
    degraded: str = ""

    def watch(
        self, requests: Sequence[Request], answers: Iterable[Answer], frontend: Frontend
    ) -> Answers[Answer]:
        """Return answers whose chunks are noted.

        Args:
            requests: The requests that were submitted.
            answers: Their answers.
            frontend: Of their model.
        """
        clock, rate = self.observer.clock, getattr(frontend, "sample_rate", None)
        at_s, purpose = clock(), frontend.capabilities[0]
        watched = []
        for request, answer in zip(requests, answers, strict=True):
            noted = EngineRequest(wish_of(request, purpose), at_s, self.key)
            self.requests.append(noted)
            watched.append(ObservedAnswer(answer, noted, rate, clock, self.observer.request_ended))
        return Answers(watched)

    def note_heard(self, model: str, seconds: float) -> None:
        """Note audio that a model hears while it arrives; other requests say how much they have."""
        self.observer.audio_heard(self.key, model, seconds)

    def answer(self) -> Call:
        """Return a call for one answer of this live session."""
        call = self.observer.open_call(self.correlation.call_id, self.parent)
        call.method, call.route, call.key = self.method, LIVE_ROUTE, self.key
        return call

    def take_requests(self, operation: Operation) -> list[EngineRequest]:
        """Remove the requests of one kind, and return them."""
        taken = [one for one in self.requests if one.wish.operation is operation]
        for one in taken:
            self.requests.remove(one)
        return taken

    def end(self) -> None:
        """Note that it has ended, with all its requests, and report it."""
        self.ended_s = self.observer.clock()
        for request in self.requests:
            if request.ended_s is None:
                request.end(self.ended_s)
                self.observer.request_ended(request)
        self.observer.call_ended(self)

    @property
    def operation(self) -> Operation | None:
        """What it asked for; None if it used no model itself."""
        if self.turn is not None:
            return Operation.REALTIME
        if self.route in _SESSIONS:  # each of its answers is a call
            return None
        known = _OPERATIONS_OF_ROUTES.get(self.route or "")
        return known or (self.requests[0].wish.operation if self.requests else None)

    @property
    def main_requests(self) -> list[EngineRequest]:
        """The requests that do what it asked for, without those that help (all if none does)."""
        main = [one for one in self.requests if one.wish.operation is self.operation]
        return main or list(self.requests)

    @property
    def model(self) -> str:
        """The model that does what it asked for, or an empty text."""
        main = self.main_requests
        return main[0].wish.model if main else ""

    @property
    def error(self) -> str:
        """Code of the error that it ended with, or an empty text."""
        found = next((one.error for one in self.requests if one.error), "")
        return found or (str(self.status) if self.status >= 400 else "")

    @property
    def first_s(self) -> float | None:
        """When the first output of what it asked for arrived."""
        found = (one.first_s for one in self.main_requests if one.first_s is not None)
        return min(found, default=None)

    @property
    def first_audio_s(self) -> float | None:
        """When the first audio of what it asked for arrived."""
        found = (one.first_audio_s for one in self.main_requests if one.first_audio_s is not None)
        return min(found, default=None)

    def phases(self) -> list[Phase]:
        """Return its phases, which follow each other from its beginning to its end.

        `prepare` is before the first request and `send` after the last one. Several requests of one
        kind, such as the pieces of a text, overlap: the first one's phases are followed by a
        `decode` until the end of the last.
        """
        main = self.main_requests
        if not main:
            return [Phase("prepare", self.started_s, self.ended_s)]
        first = main[0]
        phases = [Phase("prepare", self.started_s, first.submitted_s), *first.phases()]
        end_s = max(one.ended_s or 0.0 for one in main)
        if len(main) > 1:
            keeps = [phase for phase in phases if phase.name not in ("decode", "last_chunk")]
            phases = [*keeps, Phase("decode", keeps[-1].end_s, max(end_s, keeps[-1].end_s))]
        return [*phases, Phase("send", phases[-1].end_s, max(self.ended_s, phases[-1].end_s))]


class CallSink(Protocol):
    """Takes what ends: a log, metrics, or traces. Must not raise."""

    def request_ended(self, request: EngineRequest) -> None:
        """Take a request to the engine."""
        ...

    def audio_heard(self, key: str, model: str, seconds: float) -> None:
        """Take audio that a model hears while it arrives, of a caller's key."""
        ...

    def call_ended(self, call: Call) -> None:
        """Take a call with all its requests."""
        ...


class CallObserver:
    """Opens calls, and passes what ends to its sinks.

    Args:
        sinks: A log, metrics, traces.
        traces: Whether calls get a span, and so a trace context even if the caller has none.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        sinks: Sequence[CallSink] = (),
        *,
        traces: bool = False,
        clock: Callable[[], float] = now_s,
    ):
        self._sinks, self._traces, self.clock = sinks, traces, clock

    def open_call(self, call_id: str, parent: str = "") -> Call:
        """Open a call.

        Args:
            call_id: Its x-request-id.
            parent: The caller's trace context, or an empty text.
        """
        context = parent
        if self._traces:  # the span is made at the end, with these ids; nothing depends on secrecy
            trace_id = parent[3:35] or f"{random.getrandbits(128) or 1:032x}"
            context = f"00-{trace_id}-{random.getrandbits(64) or 1:016x}-{parent[53:] or '01'}"
        return Call(self, Correlation(call_id, context), parent, self.clock())

    def request_ended(self, request: EngineRequest) -> None:
        """Report a request to the engine that has ended."""
        for sink in self._sinks:
            sink.request_ended(request)

    def audio_heard(self, key: str, model: str, seconds: float) -> None:
        """Report audio that a model hears."""
        for sink in self._sinks:
            sink.audio_heard(key, model, seconds)

    def call_ended(self, call: Call) -> None:
        """Report a call that has ended."""
        for sink in self._sinks:
            sink.call_ended(call)


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)

LIVE_ROUTE = "/v1/realtime"
_SESSIONS = frozenset({LIVE_ROUTE, f"{LIVE_ROUTE}/calls"})
_OPERATIONS_OF_ROUTES = {
    "/v1/audio/speech": Operation.SPEECH,
    "/v1/audio/speech/batch": Operation.SPEECH,
    "/v1/audio/speech/stream": Operation.SPEECH,
    "/v1/audio/transcriptions": Operation.TRANSCRIPTION,
    "/v1/audio/transcriptions/stream": Operation.TRANSCRIPTION,
    "/v1/audio/translations": Operation.TRANSCRIPTION,
    "/v1/audio/align": Operation.ALIGNMENT,
    "/v1/chat/completions": Operation.CHAT,
    "/v1/responses": Operation.CHAT,
}
