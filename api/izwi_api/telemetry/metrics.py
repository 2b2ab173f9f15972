"""Metrics of calls for Prometheus: OpenTelemetry's names for generative AI, and those of audio.

Dots of OpenTelemetry's names become underscores, and the unit is appended. Labels are operations,
served models, codes of errors, thresholds, and a limited number of keys, so that callers cannot
invent values.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from izwi_api.telemetry import conventions as names
from izwi_api.telemetry.calls import Call
from izwi_api.telemetry.conventions import Operation
from izwi_api.telemetry.engine_request import EngineRequest

# The conventions' advice for each.
_DURATION_S = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_FACTORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0, 1.5, 2.0, 5.0)
_AUDIO_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 180.0, 600.0)
_CHUNK_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
# Underruns up to which a stream counts as continuous, in milliseconds.
_THRESHOLDS_MS = (0, 20, 100, 200)

# Keys that have series of their own; all others count as one.
_MAX_KEYS = 100
_OTHER_KEYS = "other"

_MODEL = ["gen_ai_request_model"]
_OPERATION = ["gen_ai_operation_name", *_MODEL]


def _named(name: str) -> str:
    return name.replace(".", "_")


class CallMetrics:
    """Counts calls and requests to the engine that have ended. A `CallSink`.

    Args:
        registry: Where the metrics are registered.
    """

    def __init__(self, registry: CollectorRegistry):
        self._registry = registry
        self.duration_s = self._histogram(
            f"{_named(names.REQUEST_DURATION)}_seconds",
            "Seconds from a call's arrival to the end of its answer.",
            [*_OPERATION, "error_type"],
            _DURATION_S,
        )
        self.first_token_s = self._histogram(
            f"{_named(names.TIME_TO_FIRST_TOKEN)}_seconds",
            "Seconds from a call's arrival to the first output of the model.",
            _OPERATION,
            _FIRST_TOKEN_S,
        )
        self.token_s = self._histogram(
            f"{_named(names.TIME_PER_OUTPUT_TOKEN)}_seconds",
            "Seconds for each token or frame after the first.",
            _OPERATION,
            _TOKEN_S,
        )
        self.first_audio_s = self._histogram(
            "izwi_audio_time_to_first_audio_seconds",
            "Seconds from a call's arrival to the first audio.",
            _MODEL,
            _FIRST_TOKEN_S,
        )
        self.real_time_factor = self._histogram(
            "izwi_audio_real_time_factor",
            "Seconds of work for each second of audio.",
            _MODEL,
            _FACTORS,
        )
        self.audio_s = self._histogram(
            "izwi_audio_duration_seconds", "Seconds of audio of a request.", _MODEL, _AUDIO_S
        )
        self.chunk_s = self._histogram(
            "izwi_audio_chunk_interval_seconds",
            "Seconds between chunks of audio.",
            _MODEL,
            _CHUNK_S,
        )
        self._add_requests()

    def _add_requests(self) -> None:
        """Add the metrics of requests to the engine."""
        self.underrun_s = self._counter(
            "izwi_audio_underrun_seconds",
            "Seconds for which listeners who play audio as it arrives heard nothing.",
            _MODEL,
        )
        self.continuous = self._counter(
            "izwi_audio_continuity_ok",
            "Streams whose underruns took no longer than a threshold.",
            [*_MODEL, "threshold_ms"],
        )
        self.streams = self._counter("izwi_audio_streams", "Streams of audio that ended.", _MODEL)
        self.queue_s = self._histogram(
            "izwi_request_queue_seconds",
            "Seconds in the engine's queue.",
            _OPERATION,
            _FIRST_TOKEN_S,
        )
        self.prefill_s = self._histogram(
            "izwi_request_prefill_seconds",
            "Seconds from the admission to the first token or frame.",
            _OPERATION,
            _FIRST_TOKEN_S,
        )
        self.ended = self._counter(
            "izwi_requests_ended",
            "Requests to the engine that ended, by reason.",
            [*_OPERATION, "reason"],
        )
        self.tokens = self._counter(
            "izwi_tokens",
            "Positions of prompts (input; cached: those that were known), and tokens and frames "
            "(output).",
            [*_OPERATION, "kind"],
        )

        self.moved = self._counter(
            "izwi_requests_moved",
            "Requests that another engine resumed, after a move to another replica or a restart.",
            _MODEL,
        )
        self.key_tokens = self._counter(
            "izwi_key_tokens",
            "Positions of prompts (input), and tokens and frames (output), by API key.",
            [*_MODEL, "key", "kind"],
        )
        self.key_audio_s = self._counter(
            "izwi_key_audio_seconds",
            "Seconds of audio that models heard and spoke, by API key.",
            [*_MODEL, "key", "kind"],
        )
        self._keys: set[str] = set()

    def request_ended(self, request: EngineRequest) -> None:
        """Count a request to the engine."""
        wish, timing = request.wish, request.timing
        labels = wish.operation.value, wish.model
        self.ended.labels(*labels, request.reason or "aborted").inc()
        self.tokens.labels(*labels, "input").inc(wish.num_prompt)
        self.tokens.labels(*labels, "output").inc(request.num_entries)
        if timing is not None and timing.admitted_s is not None:
            self.queue_s.labels(*labels).observe(timing.admitted_s)
            self.tokens.labels(*labels, "cached").inc(timing.num_cached)
            if timing.first_entry_s is not None:
                self.prefill_s.labels(*labels).observe(timing.first_entry_s - timing.admitted_s)
        if timing is not None and timing.is_resumed:
            self.moved.labels(wish.model).inc()
        if request.audio_s and request.ended_s is not None:
            self._count_audio(request, request.ended_s)
        key = self._known_key(request.key)
        self.key_tokens.labels(wish.model, key, "input").inc(wish.num_prompt)
        self.key_tokens.labels(wish.model, key, "output").inc(request.num_entries)
        if request.audio_s:
            self.key_audio_s.labels(wish.model, key, "spoken").inc(request.audio_s)
        if wish.heard_s:
            self.audio_heard(request.key, wish.model, wish.heard_s)

    def audio_heard(self, key: str, model: str, seconds: float) -> None:
        """Count audio that a model hears."""
        self.key_audio_s.labels(model, self._known_key(key), "heard").inc(seconds)

    def _known_key(self, key: str) -> str:
        if key not in self._keys:
            if len(self._keys) >= _MAX_KEYS:
                return _OTHER_KEYS
            self._keys.add(key)
        return key

    def call_ended(self, call: Call) -> None:
        """Count a call that used a model."""
        operation = call.operation
        if operation is None:
            return
        labels = operation.value, call.model
        exemplar = _exemplar(call)
        lasted_s = call.ended_s - call.started_s
        self.duration_s.labels(*labels, call.error).observe(lasted_s, exemplar)
        first_s = call.first_s
        if first_s is None or operation is Operation.REALTIME:  # which has its own metrics
            return
        self.first_token_s.labels(*labels).observe(first_s - call.started_s, exemplar)
        first = call.main_requests[0]
        if first.num_entries > 1 and first.first_s is not None and first.ended_s is not None:
            each_s = (first.ended_s - first.first_s) / (first.num_entries - 1)
            self.token_s.labels(*labels).observe(each_s, exemplar)
        if call.first_audio_s is not None:
            waited_s = call.first_audio_s - call.started_s
            self.first_audio_s.labels(call.model).observe(waited_s, exemplar)

    def _count_audio(self, request: EngineRequest, ended_s: float) -> None:
        model = request.wish.model
        self.audio_s.labels(model).observe(request.audio_s)
        self.real_time_factor.labels(model).observe(
            (ended_s - request.submitted_s) / request.audio_s
        )
        if not request.wish.is_streamed:
            return
        for gap_s in request.chunk_gaps_s:
            self.chunk_s.labels(model).observe(gap_s)
        self.streams.labels(model).inc()
        self.underrun_s.labels(model).inc(request.underrun_s)
        for threshold_ms in _THRESHOLDS_MS:
            if request.underrun_s * 1000 <= threshold_ms:
                self.continuous.labels(model, str(threshold_ms)).inc()

    def _histogram(
        self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(name, text, labels, registry=self._registry)


def _exemplar(call: Call) -> dict[str, str] | None:
    """Return the trace that a value is an example of, or None without one."""
    trace_id, span_id = call.correlation.trace_id, call.correlation.span_id
    return {"trace_id": trace_id, "span_id": span_id} if trace_id else None
