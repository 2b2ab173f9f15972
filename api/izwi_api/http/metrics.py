"""HTTP metrics for Prometheus. Each app has its own registry."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi.engine_client.protocol import EngineClient, ReplicaReport, ReplicaStatus, replicas_of
from izwi.metrics import DISTRIBUTIONS, FIGURES
from izwi_api.http.auth import LINE_OWNER
from izwi_api.services.answer_figures import AnswerFigures, TurnEvent
from izwi_api.telemetry.metrics import CallMetrics

_SESSION_BUCKETS_S = (1.0, 4.0, 15.0, 60.0, 240.0, 900.0, 3600.0)
_LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)


class HttpMetrics:
    """The metrics of one app.

    Args:
        folder: Folder in which several API servers share their counts; None counts in this process
            only.

    Attributes:
        registry: What /metrics shows.
        calls: Counts what used a model.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.registry = counts = CollectorRegistry()
        if folder is not None:
            # Each process counts in its own files; prometheus_client was told so by its environment
            # when it was imported. What is shown is the sum of all files.
            counts = CollectorRegistry()
            MultiProcessCollector(self.registry, str(folder))  # type: ignore[no-untyped-call]
        self.requests = Counter(
            "izwi_http_requests",
            "Requests answered, by route and status.",
            ["route", "status"],
            registry=counts,
        )
        self.in_flight = Gauge(
            "izwi_http_in_flight",
            "Requests being answered now.",
            registry=counts,
            multiprocess_mode="livesum",
        )
        self.first_byte_s = Histogram(
            "izwi_http_first_byte_seconds",
            "Seconds from the request to the first byte of its body.",
            ["route"],
            buckets=_LATENCY_BUCKETS_S,
            registry=counts,
        )
        self.sessions = Gauge(
            "izwi_websocket_sessions",
            "WebSockets that are open now.",
            registry=counts,
            multiprocess_mode="livesum",
        )
        self.sessions_ended = Counter(
            "izwi_websocket_sessions_ended",
            "WebSockets that were closed, by route and close code, or by the status that refused.",
            ["route", "code"],
            registry=counts,
        )
        self.session_s = Histogram(
            "izwi_websocket_session_seconds",
            "Seconds that a WebSocket was open.",
            ["route"],
            buckets=_SESSION_BUCKETS_S,
            registry=counts,
        )
        self.session_messages = Counter(
            "izwi_websocket_messages",
            "Messages of WebSockets, by route and direction.",
            ["route", "direction"],
            registry=counts,
        )
        self.prepared = Counter(
            "izwi_live_prepared_answers",
            "Answers that live sessions prepared before the turn had ended: given, or discarded "
            "because the speaker went on.",
            ["outcome"],
            registry=counts,
        )
        self.webhooks = Counter(
            "izwi_webhooks",
            "Attempts to send an event to the webhook: delivered, failed and tried again later, or "
            "given up.",
            ["outcome"],
            registry=counts,
        )
        self._add_answers(counts)
        self._add_turns(counts)
        self.calls = CallMetrics(counts)
        self.restarts = Restarts()
        self.registry.register(self.restarts)

    def _add_answers(self, counts: CollectorRegistry) -> None:
        """Add the metrics of spoken answers of live sessions."""
        self.answer_latency_s = Histogram(
            "izwi_live_latency_seconds",
            "Seconds from the user's last word until the end of the turn was detected, the "
            "transcript was complete, the first text of the answer, and its first audio.",
            ["until"],
            buckets=_LATENCY_BUCKETS_S,
            registry=counts,
        )
        self.answers = Counter("izwi_live_answers", "Spoken live answers.", registry=counts)
        self.answer_gaps = Counter(
            "izwi_live_gaps",
            "Gaps in the playback of live answers: the client had played all that it was sent.",
            registry=counts,
        )
        self.answer_gaps_s = Counter(
            "izwi_live_gap_seconds", "Seconds of gaps in live answers.", registry=counts
        )

    def _add_turns(self, counts: CollectorRegistry) -> None:
        """Add the metrics of what users of live sessions say."""
        self.turns = Counter(
            "izwi_live_turns", "Turns of users of live sessions that have ended.", registry=counts
        )
        self.interruptions = Counter(
            "izwi_live_interruptions",
            "Speech over live answers: confirmed, which ended the answer; or refuted, after which "
            "a paused answer went on.",
            ["outcome"],
            registry=counts,
        )
        for outcome in ("confirmed", "refuted"):
            self.interruptions.labels(outcome)

    def count_turn(self, event: TurnEvent) -> None:
        """Count what a user of a live session has done."""
        if event is TurnEvent.ENDED:
            self.turns.inc()
        else:
            self.interruptions.labels(event.value).inc()

    def count_webhook(self, outcome: str) -> None:
        """Count an attempt to send an event."""
        self.webhooks.labels(outcome).inc()

    def count_prepared(self, is_given: bool) -> None:
        """Count an answer that was prepared before the turn had ended."""
        self.prepared.labels("given" if is_given else "discarded").inc()

    def observe_answer(self, figures: AnswerFigures) -> None:
        """Count a spoken answer of a live session, its gaps, and its latency."""
        for until, seconds in figures.latency_s.items():
            self.answer_latency_s.labels(until).observe(seconds)
        self.answers.inc()
        self.answer_gaps.inc(figures.num_gaps)
        self.answer_gaps_s.inc(figures.gaps_s)


class Restarts(Collector):
    """Processes that the supervisor has started again, as it says.

    Attributes:
        engines: Of each engine that is not gone for good, by its number.
        api_servers: Of all API servers together.
    """

    def __init__(self) -> None:
        self.engines: dict[int, int] = {0: 0}
        self.api_servers = 0

    def collect(self) -> Iterable[Metric]:
        """Yield the counts."""
        metric = CounterMetricFamily(
            "izwi_restarts",
            "Processes that were started again: engines (replica: its number), and API servers.",
            labels=["process", "replica"],
        )
        for replica, count in self.engines.items():
            metric.add_metric(["engine", str(replica)], count)
        metric.add_metric(["api_server", ""], self.api_servers)
        yield metric


class EngineFigures(Collector):
    """The engine's figures, read on demand; of several engines, each with its number."""

    def __init__(self, engine: EngineClient):
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        """Yield a metric family for each figure, with a sample for each model and engine."""
        replicas = replicas_of(self._engine)
        loads = [([str(one.replica)], one.load) for one in replicas] or [([], self._engine.load)]
        labels = ["model", "replica"] if replicas else ["model"]
        for name, figure in FIGURES.items():
            family = CounterMetricFamily if figure.grows else GaugeMetricFamily
            metric = family(f"izwi_engine_{name}", figure.help, labels=labels)
            for number, load in loads:
                for model, figures in load.items():
                    metric.add_metric([model, *number], figures[name])
            yield metric
        yield from _distributions(loads, labels)
        if replicas:
            yield _statuses(replicas)
            yield _circuits(replicas)


def _distributions(
    loads: Iterable[tuple[list[str], Mapping[str, Mapping[str, float]]]], labels: list[str]
) -> Iterable[Metric]:
    """Yield a histogram for each metric that has distributions."""
    metrics: dict[str, HistogramMetricFamily] = {}
    for name, distribution in DISTRIBUTIONS.items():
        phase = [distribution.phase] if distribution.phase else []
        metric = metrics.get(distribution.metric)
        if metric is None:
            metric = metrics[distribution.metric] = HistogramMetricFamily(
                f"izwi_engine_{distribution.metric}",
                distribution.help,
                labels=[*labels, "phase"] if phase else labels,
            )
        for number, load in loads:
            for model, figures in load.items():
                buckets, total = distribution.cumulative(name, figures)
                metric.add_metric([model, *number, *phase], buckets, total)
    yield from metrics.values()


def _statuses(replicas: Iterable[ReplicaReport]) -> Metric:
    metric = GaugeMetricFamily(
        "izwi_replica",
        "Engines by whether they get requests: 1 for the status of each.",
        labels=["replica", "status"],
    )
    for one in replicas:
        for status in ReplicaStatus:
            metric.add_metric([str(one.replica), status.value], float(one.status is status))
    return metric


def _circuits(replicas: Iterable[ReplicaReport]) -> Metric:
    metric = GaugeMetricFamily(
        "izwi_replica_circuit",
        "Models on engines: 1 while requests go elsewhere because the model keeps failing there.",
        labels=["model", "replica"],
    )
    for one in replicas:
        for model in one.load:
            metric.add_metric([model, str(one.replica)], float(model in one.circuits))
    return metric


class CountRequests:
    """ASGI middleware that counts requests and WebSockets in `HttpMetrics`."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics):
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and count its response."""
        if scope["type"] == "websocket":
            await self._count_session(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, begun_s = self._metrics, time.monotonic()
        status, has_body = 499, False  # 499: the client disconnected before the response

        async def counted(message: Message) -> None:
            nonlocal status, has_body
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not has_body:
                has_body = True
                if LINE_OWNER in scope:  # nobody waits for it
                    await send(message)
                    return
                metrics.first_byte_s.labels(_route(scope)).observe(time.monotonic() - begun_s)
            await send(message)

        with metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, receive, counted)
            except BaseException:
                status = status if has_body else 500
                raise
            finally:
                metrics.requests.labels(_route(scope), str(status)).inc()

    async def _count_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics, begun_s = self._metrics, 0.0
        num_in = num_out = 0
        code = "1006"  # of RFC 6455: it ended without a close frame

        async def received() -> Message:
            nonlocal num_in, code
            message = await receive()
            num_in += message["type"] == "websocket.receive"
            if message["type"] == "websocket.disconnect":
                code = str(message.get("code") or 1005)
            return message

        async def counted(message: Message) -> None:
            nonlocal num_out, code, begun_s
            match message["type"]:
                case "websocket.accept":
                    begun_s = time.monotonic()
                    metrics.sessions.inc()
                case "websocket.send":
                    num_out += 1
                case "websocket.close":
                    code = str(message.get("code") or 1000) if begun_s else "403"
                case "websocket.http.response.start":
                    code = str(message["status"])
            await send(message)

        try:
            await self._app(scope, received, counted)
        finally:
            route = _route(scope)
            if begun_s:
                metrics.sessions.dec()
                metrics.session_s.labels(route).observe(time.monotonic() - begun_s)
            metrics.sessions_ended.labels(route, code).inc()
            metrics.session_messages.labels(route, "in").inc(num_in)
            metrics.session_messages.labels(route, "out").inc(num_out)


def _route(scope: Scope) -> str:
    # The route's template, not the path, so that callers cannot invent label values.
    return getattr(scope.get("route"), "path", "none")
