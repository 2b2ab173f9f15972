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

from izwi import __version__
from izwi.request.timing import TimedEvent
from izwi_api.telemetry import conventions as names
from izwi_api.telemetry.calls import Call, Turn, now_s
from izwi_api.telemetry.conventions import Operation
from izwi_api.telemetry.engine_request import EngineRequest, Phase
from izwi_api.telemetry.exporters import Signal, open_exporter, own_resource

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

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
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        self._ids = _CallIds(RandomIdGenerator())
        ids: Any = self._ids  # it has the methods of the SDK's class, which is not imported here
        self._provider = TracerProvider(resource=own_resource(), id_generator=ids)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("izwi", __version__)
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
        self._provider.shutdown()

    def _trace(self, call: Call) -> None:
        turn, operation = call.turn, call.operation
        start_s = call.started_s
        if turn is not None:  # the answer begins where the user's last word ended
            start_s = min([start_s, *turn.times_s.values()])
        self._ids.preset = call.correlation.trace_id, call.correlation.span_id
        kind = _kinds().SERVER
        name = f"{operation} {call.model}".rstrip()
        root = self._tracer.start_span(
            name,
            _context_of(call.parent),
            kind,
            _call_attributes(call),
            start_time=self._ns(start_s),
        )
        self._ids.preset = None
        if root.is_recording():
            inner = _inside(root)
            if turn is not None:
                self._add_turn(root, inner, call, turn)
            else:
                self._add_requests(root, inner, call)
            if call.first_audio_s is not None:
                root.add_event("first_audio", timestamp=self._ns(call.first_audio_s))
            if call.status >= 500:
                root.set_status(_statuses().ERROR)
        root.end(self._ns(call.ended_s))

    def _add_requests(self, root: Span, context: Context, call: Call) -> None:
        if len(call.requests) == 1:
            request = call.requests[0]
            self._add_phases(call.phases(), context)
            self._add_events(root, request)
            return
        for request in call.requests:
            self._add_request(request, context, call.operation)

    def _add_request(
        self, request: EngineRequest, context: Context, operation: Operation | None
    ) -> None:
        """Add a request's own span; a piece of what the call asked for is no operation itself."""
        end_s = request.ended_s or request.submitted_s
        if request.wish.operation is operation:
            name, attributes = "piece", _usage([request])
        else:
            name = f"{request.wish.operation} {request.wish.model}"
            attributes = _operation_attributes([request], request.wish.operation)
        span = self._tracer.start_span(
            name, context, attributes=attributes, start_time=self._ns(request.submitted_s)
        )
        self._add_phases(request.phases(), _inside(span))
        self._add_events(span, request)
        if request.first_audio_s is not None:
            span.add_event("first_audio", timestamp=self._ns(request.first_audio_s))
        span.end(self._ns(end_s))

    def _add_turn(self, root: Span, context: Context, call: Call, turn: Turn) -> None:
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
            span = self._tracer.start_span(name, context, start_time=self._ns(start_s))
            inner = _inside(span)
            parts = turn.hearing if name == "hearing" else requests
            for request in parts:
                if request.wish.operation is operation:
                    self._add_request(request, inner, Operation.REALTIME)
            if name == "hearing" and "turn_end" in times_s:
                span.add_event("end_of_speech", timestamp=self._ns(times_s["turn_end"]))
            if name == "speaking" and "audio" in times_s:
                span.add_event("first_audio", timestamp=self._ns(times_s["audio"]))
            span.end(self._ns(end_s))
            start_s = end_s
        for request in requests:
            self._add_events(root, request)

    def _add_phases(self, phases: list[Phase], context: Context) -> None:
        for phase in phases:
            span = self._tracer.start_span(phase.name, context, start_time=self._ns(phase.start_s))
            span.end(self._ns(phase.end_s))

    def _add_events(self, span: Span, request: EngineRequest) -> None:
        for event, at_s, lasted_s in request.timing.events if request.timing else ():
            known = {names.EVENT_SECONDS: lasted_s} if event is TimedEvent.UNDERRUN else {}
            at_ns = self._ns(request.submitted_s + at_s)
            span.add_event(event.value, known, timestamp=at_ns)

    def _ns(self, at_s: float) -> int:
        return self._offset_ns + round(at_s * _NS)


class _CallIds:
    """Gives the next span the ids of its call, and random ones to all others."""

    def __init__(self, random: Any):
        self.preset: tuple[str, str] | None = None
        self._random = random

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        made: int = int(self.preset[0], 16) if self.preset else self._random.generate_trace_id()
        return made

    def generate_span_id(self) -> int:
        """Return the id of a new span."""
        made: int = int(self.preset[1], 16) if self.preset else self._random.generate_span_id()
        return made

    def is_trace_id_random(self) -> bool:
        """Return whether all bits of trace ids are random, as `secrets` makes them."""
        return True


def _kinds() -> Any:
    from opentelemetry.trace import SpanKind

    return SpanKind


def _statuses() -> Any:
    from opentelemetry.trace import StatusCode

    return StatusCode


def _context_of(traceparent: str) -> Context:
    """Return the context of a caller's span; an empty one starts a new trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": traceparent} if traceparent else {}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _inside(span: Span) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span, Context())


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
