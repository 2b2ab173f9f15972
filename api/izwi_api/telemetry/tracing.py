"""Traces of calls by opentelemetry-sdk, which is imported only if tracing is on.

A call's span is made when the call has ended, with the ids that its requests were given at its
beginning. Its children are its phases; a call of several requests has a span for each of them
between. OpenTelemetry's own variables configure the exporter, the sampler and the batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from izwi.request.timing import TimedEvent
from izwi_api.telemetry import conventions as names
from izwi_api.telemetry.calls import Call, Turn, now_s
from izwi_api.telemetry.conventions import Operation
from izwi_api.telemetry.engine_request import EngineRequest, Phase
from izwi_api.telemetry.exporters import Signal, open_exporter, own_resource

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from izwi_api.telemetry.spans import OpenSpan

logger = logging.getLogger(__name__)

_NS = 1_000_000_000

Attributes = dict[str, Any]


def open_tracing(environ: Mapping[str, str]) -> Tracing | None:
    """Return the tracing that the environment asks for, or None, which imports nothing.

    Raises:
        InvalidRequest: It asks for an exporter that is not installed.
    """
    exporter = open_exporter(Signal.TRACES, environ)
    if exporter is None:
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return Tracing(BatchSpanProcessor(exporter))


class Tracing:
    """Makes the spans of calls that have ended. A `CallSink`.

    Args:
        processor: Takes the spans, for example one that exports them in batches.
        clock: The clock of the calls, seconds.
        wall_clock: Nanoseconds since 1970.
    """

    def __init__(
        self,
        processor: SpanProcessor,
        clock: Callable[[], float] = now_s,
        wall_clock: Callable[[], int] = time.time_ns,
    ):
        from izwi_api.telemetry.spans import Spans

        self._spans = Spans(processor, own_resource())
        # one offset for all spans, so that the order of calls is that of the monotonic clock
        self._offset_ns = wall_clock() - round(clock() * _NS)

    def request_ended(self, request: EngineRequest) -> None:
        """Do nothing: the trace of the call has it."""

    def audio_heard(self, key: str, model: str, seconds: float) -> None:
        """Do nothing: it is counted only."""

    def call_ended(self, call: Call) -> None:
        """Make the spans of a call; calls that use no model have none."""
        if call.operation is None:
            return
        try:
            self._trace(call)
        except Exception:
            logger.exception("a trace could not be made")

    def close(self) -> None:
        """Export what is left; a collector that does not answer is not waited for long."""
        self._spans.close()

    def _trace(self, call: Call) -> None:
        turn, start_s = call.turn, call.started_s
        if turn is not None:  # the answer begins where the user's last word ended
            start_s = min([start_s, *turn.times_s.values()])
        model = call.model
        chosen_by = {names.REQUEST_MODEL: model, names.HTTP_ROUTE: call.route or ""}
        name = f"{call.operation} {model}".rstrip()
        root = self._spans.open_root(
            name, call.correlation, call.parent, chosen_by, self._ns(start_s)
        )
        if root is None:
            return
        root.attributes |= _call_attributes(call)
        if turn is not None:
            self._add_turn(root, call, turn)
        else:
            self._add_requests(root, call)
        if call.first_audio_s is not None:
            root.add_event("first_audio", self._ns(call.first_audio_s))
        root.end(self._ns(call.ended_s), is_root=True, is_error=call.status >= 500)

    def _add_requests(self, root: OpenSpan, call: Call) -> None:
        if len(call.requests) == 1:
            request = call.requests[0]
            self._add_phases(call.phases(), root)
            self._add_events(root, request)
            return
        for request in call.requests:
            self._add_request(request, root, call.operation)

    def _add_request(
        self, request: EngineRequest, parent: OpenSpan, operation: Operation | None
    ) -> None:
        """Add a request's own span; a piece of what the call asked for is no operation itself."""
        end_s = request.ended_s or request.submitted_s
        if request.wish.operation is operation:
            name, attributes = "piece", _usage([request])
        else:
            name = f"{request.wish.operation} {request.wish.model}"
            attributes = _operation_attributes([request], request.wish.operation)
        span = parent.open_child(name, self._ns(request.submitted_s), attributes)
        self._add_phases(request.phases(), span)
        self._add_events(span, request)
        if request.first_audio_s is not None:
            span.add_event("first_audio", self._ns(request.first_audio_s))
        span.end(self._ns(end_s))

    def _add_turn(self, root: OpenSpan, call: Call, turn: Turn) -> None:
        """Add what an answer waited for: hearing, thinking and speaking follow each other."""
        times_s = turn.times_s
        start_s = times_s.get("speech", call.started_s)
        requests = list(call.requests)
        for name, until, operation in (
            ("hearing", "transcript", Operation.TRANSCRIPTION),
            ("thinking", "text", Operation.CHAT),
            ("speaking", "", Operation.SPEECH),
        ):
            end_s = max(start_s, times_s.get(until, start_s) if until else call.ended_s)
            span = root.open_child(name, self._ns(start_s))
            parts = turn.hearing if name == "hearing" else requests
            for request in parts:
                if request.wish.operation is operation:
                    self._add_request(request, span, Operation.REALTIME)
            if name == "hearing" and "turn_end" in times_s:
                span.add_event("end_of_speech", self._ns(times_s["turn_end"]))
            if name == "speaking" and "audio" in times_s:
                span.add_event("first_audio", self._ns(times_s["audio"]))
            span.end(self._ns(end_s))
            start_s = end_s
        for request in requests:
            self._add_events(root, request)

    def _add_phases(self, phases: list[Phase], parent: OpenSpan) -> None:
        for phase in phases:
            parent.open_child(phase.name, self._ns(phase.start_s)).end(self._ns(phase.end_s))

    def _add_events(self, span: OpenSpan, request: EngineRequest) -> None:
        for event, at_s, lasted_s in request.timing.events if request.timing else ():
            known = {names.EVENT_SECONDS: lasted_s} if event is TimedEvent.UNDERRUN else {}
            span.add_event(event.value, self._ns(request.submitted_s + at_s), known)

    def _ns(self, at_s: float) -> int:
        return self._offset_ns + round(at_s * _NS)


def _call_attributes(call: Call) -> Attributes:
    assert call.operation is not None
    attributes = _operation_attributes(call.main_requests, call.operation)
    attributes |= {names.REQUEST_ID: call.correlation.call_id, names.HTTP_METHOD: call.method}
    if call.route is not None:
        attributes[names.HTTP_ROUTE] = call.route
    if call.error:
        attributes[names.ERROR_TYPE] = call.error
    if call.first_s is not None:
        attributes[names.RESPONSE_TIME_TO_FIRST_CHUNK] = call.first_s - call.started_s
    turn = call.turn
    if call.conversation_id is not None:
        attributes[names.CONVERSATION_ID] = call.conversation_id
    if turn is None:
        return attributes | {names.HTTP_STATUS: call.status}
    return attributes | {
        names.REALTIME_SESSION_ID: turn.session_id,
        names.CONVERSATION_ID: turn.conversation_id,
        names.INTERRUPTED: turn.reason == "turn_detected",
        names.END_REASON: _end_reason(turn),
        names.RESPONSE_FINISH_REASONS: [turn.reason or turn.status],
    }


def _end_reason(turn: Turn) -> str:
    if turn.status == "cancelled":
        return "session_closed" if turn.reason == "session_closed" else "interrupted"
    return "completed" if turn.status in ("completed", "incomplete") else turn.status


def _operation_attributes(requests: list[EngineRequest], operation: Operation) -> Attributes:
    """Return the attributes of an operation: its name, what it asked for, and what it used."""
    attributes: Attributes = {
        names.OPERATION_NAME: operation.value,
        names.PROVIDER_NAME: names.PROVIDER,
    }
    if not requests:
        return attributes
    wish = requests[0].wish
    attributes |= {
        names.REQUEST_MODEL: wish.model,
        names.RESPONSE_MODEL: wish.model,
        names.REQUEST_SEED: wish.seed,
        names.REQUEST_MAX_TOKENS: wish.max_entries,
        names.REQUEST_TEMPERATURE: wish.sampling.temperature,
        names.REQUEST_TOP_P: wish.sampling.top_p,
        names.REQUEST_TOP_K: wish.sampling.top_k,
        names.REQUEST_STREAM: wish.is_streamed,
        names.OUTPUT_TYPE: "speech" if any(one.audio_s for one in requests) else "text",
        names.RESPONSE_FINISH_REASONS: [one.reason.value for one in requests if one.reason],
    }
    if wish.voice is not None:
        attributes[names.SPEECH_VOICE] = wish.voice
    if wish.language is not None and operation is Operation.TRANSCRIPTION:
        attributes[names.SPEECH_INPUT_LANGUAGE] = wish.language
    return attributes | _usage(requests)


def _usage(requests: list[EngineRequest]) -> Attributes:
    cached = sum(one.timing.num_cached for one in requests if one.timing)
    attributes: Attributes = {
        names.USAGE_INPUT_TOKENS: sum(one.wish.num_prompt for one in requests),
        names.USAGE_OUTPUT_TOKENS: sum(one.num_entries for one in requests),
        names.USAGE_CACHE_READ: cached,
    }
    audio = [one for one in requests if one.audio_s]
    if audio:
        attributes |= {
            names.USAGE_OUTPUT_AUDIO_TOKENS: sum(one.num_entries for one in audio),
            names.AUDIO_SECONDS: sum(one.audio_s for one in audio),
            names.UNDERRUN_SECONDS: sum(one.underrun_s for one in audio),
        }
    return attributes
