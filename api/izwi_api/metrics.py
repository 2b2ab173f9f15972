"""Count what goes through the doors, for Prometheus. One registry an app, no global one."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from izwi.metrics import FIGURES
from izwi_api.door import Engine

_LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)


class DoorMetrics:
    """The figures of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "izwi_http_requests",
            "Requests answered, by route and status.",
            ["route", "status"],
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "izwi_http_in_flight", "Requests being answered now.", registry=self.registry
        )
        self.first_byte_s = Histogram(
            "izwi_http_first_byte_seconds",
            "Seconds from the request to the first byte of its body.",
            ["route"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )


class EngineFigures(Collector):
    """The engine's own figures, read when they are asked for."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        """Yield a family for each figure, with a sample for each model."""
        load = self._engine.load
        for name, figure in FIGURES.items():
            family = CounterMetricFamily if figure.grows else GaugeMetricFamily
            metric = family(f"izwi_engine_{name}", figure.help, labels=["model"])
            for model, figures in load.items():
                metric.add_metric([model], figures[name])
            yield metric


class CountRequests:
    """ASGI middleware that keeps DoorMetrics."""

    def __init__(self, app: ASGIApp, metrics: DoorMetrics):
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app and count what it answers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, begun_s = self._metrics, time.monotonic()
        status, has_body = 499, False  # 499: the client left before there was an answer

        async def counted(message: Message) -> None:
            nonlocal status, has_body
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not has_body:
                has_body = True
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


def _route(scope: Scope) -> str:
    # The route's template, not the path: a caller must not be able to invent label values.
    return getattr(scope.get("route"), "path", "none")
