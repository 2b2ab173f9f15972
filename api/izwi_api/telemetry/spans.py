"""Spans that are made whole once all their times are known. Imports opentelemetry-sdk.

A `Tracer` makes a span for code that runs: it takes locks, draws ids, asks the sampler, and copies
attributes, for each span. Here a call is sampled once, and its spans go to the processor as they
end, which takes a third of the time.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from izwi import __version__
from izwi.request.correlation import Correlation

Attributes = dict[str, Any]

_RANDOM_ID = 0x02  # flag of a trace context, level 2: all bits of the trace's id are random
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class OpenSpan:
    """A span that has begun.

    Args:
        spans: What it is given to when it ends.
        name: Its name.
        context: Its ids.
        parent: The ids of the span around it, or None.
        start_ns: Nanoseconds since 1970.
        attributes: Its attributes, which may be added to.
    """

    __slots__ = ("_context", "_events", "_name", "_parent", "_spans", "_start_ns", "attributes")

    def __init__(
        self,
        spans: Spans,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        start_ns: int,
        attributes: Attributes,
    ):
        self._spans, self._name, self._context = spans, name, context
        self._parent, self._start_ns, self.attributes = parent, start_ns, attributes
        self._events: list[Event] = []

    def open_child(
        self, name: str, start_ns: int, attributes: Attributes | None = None
    ) -> OpenSpan:
        """Begin a span inside it, of the same trace."""
        own = self._context
        span_id = random.getrandbits(64) or 1
        context = SpanContext(own.trace_id, span_id, False, own.trace_flags)
        return OpenSpan(self._spans, name, context, own, start_ns, attributes or {})

    def add_event(self, name: str, at_ns: int, attributes: Attributes | None = None) -> None:
        """Add something that happened at one moment."""
        self._events.append(Event(name, attributes, at_ns))

    def end(self, end_ns: int, *, is_root: bool = False, is_error: bool = False) -> None:
        """Give it to the processor."""
        self._spans.processor.on_end(
            ReadableSpan(
                self._name,
                self._context,
                self._parent,
                self._spans.resource,
                self.attributes,
                self._events,
                kind=SpanKind.SERVER if is_root else SpanKind.INTERNAL,
                status=_ERROR if is_error else _UNSET,
                start_time=self._start_ns,
                end_time=end_ns,
                instrumentation_scope=self._spans.scope,
            )
        )


class Spans:
    """Begins the spans of calls that the environment's sampler chooses.

    Args:
        processor: Takes the spans.
        resource: What they say of this service.
    """

    def __init__(self, processor: SpanProcessor, resource: Resource):
        self.processor, self.resource = processor, _HashedResource(resource)
        self.scope = InstrumentationScope("izwi", __version__)
        self._provider = TracerProvider(resource=resource)  # closes the processor at the exit, too
        self._provider.add_span_processor(processor)
        self._sampler = self._provider.sampler

    def open_root(
        self, name: str, ids: Correlation, caller: str, attributes: Mapping[str, Any], start_ns: int
    ) -> OpenSpan | None:
        """Begin the span of a call, or return None if it is not sampled.

        Args:
            name: Its name.
            ids: Its own trace context.
            caller: The caller's trace context (W3C `traceparent`, valid), or an empty text.
            attributes: Those that samplers may look at.
            start_ns: Nanoseconds since 1970.
        """
        trace_id = int(ids.trace_id, 16)
        context, parent = Context(), _context_of(caller)
        if parent is not None:
            context = set_span_in_context(NonRecordingSpan(parent), context)
        sampled = self._sampler.should_sample(context, trace_id, name, SpanKind.SERVER, attributes)
        if sampled.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        # our own ids are random; a caller says it of its own
        is_random = _RANDOM_ID if parent is None else parent.trace_flags & _RANDOM_ID
        flags = TraceFlags(TraceFlags.SAMPLED | is_random)
        own = SpanContext(trace_id, int(ids.span_id, 16), False, flags, sampled.trace_state)
        return OpenSpan(self, name, own, parent, start_ns, dict(sampled.attributes or {}))

    def close(self) -> None:
        """Export what is left; a collector that does not answer is not waited for long."""
        self._provider.shutdown()


class _HashedResource(Resource):
    """A resource that computes its hash once: exporters ask for it with every span."""

    def __init__(self, resource: Resource):
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


def _context_of(traceparent: str) -> SpanContext | None:
    if not traceparent:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in traceparent.split("-")[1:4])
    return SpanContext(trace_id, span_id, True, TraceFlags(flags))
