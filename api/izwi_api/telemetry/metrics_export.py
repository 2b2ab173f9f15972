"""Metrics over OTLP: what /metrics shows, read from the same registry and sent at intervals.

Nothing is counted twice. Families become the data of opentelemetry-sdk, whose exporters send them;
OpenTelemetry's own variables configure exporter, interval and timeout.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from os import fstat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from izwi import __version__
from izwi.errors import InvalidRequest
from izwi_api.telemetry import conventions as names
from izwi_api.telemetry.exporters import Signal, open_exporter, own_resource

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

logger = logging.getLogger(__name__)

_NS = 1_000_000_000
# What a collector that does not answer may delay the end of a server, in seconds.
_LAST_EXPORT_S = 2.0
# Names of the conventions; all other metrics keep the name that they have for Prometheus.
_CONVENTIONS = {
    f"{name.replace('.', '_')}_seconds": name
    for name in (names.REQUEST_DURATION, names.TIME_TO_FIRST_TOKEN, names.TIME_PER_OUTPUT_TOKEN)
} | {
    f"{name.replace('.', '_')}_{unit}": name
    for name, unit in (
        (names.GPU_UTILIZATION, "ratio"),
        (names.GPU_MEMORY_USAGE, "bytes"),
        (names.GPU_MEMORY_LIMIT, "bytes"),
        (names.HARDWARE_POWER, "watts"),
    )
}
_ATTRIBUTES = {
    name.replace(".", "_"): name
    for name in (
        *(names.OPERATION_NAME, names.REQUEST_MODEL, names.ERROR_TYPE),
        *(names.HARDWARE_ID, names.HARDWARE_NAME),
    )
}
_UNITS = {"_seconds": "s", "_bytes": "By", "_ratio": "1", "_watts": "W"}
Labels = tuple[tuple[str, str], ...]


def open_metrics_export(
    environ: Mapping[str, str], registry: CollectorRegistry, folder: Path | None
) -> MetricsExport | None:
    """Return the export that the environment asks for, or None, which imports nothing.

    Args:
        environ: The environment.
        registry: What /metrics shows.
        folder: Folder in which several API servers share their counts; one of them exports.

    Raises:
        InvalidRequest: It asks for an exporter that is not installed, or an interval that is none.
    """
    exporter = open_exporter(Signal.METRICS, environ)
    if exporter is None:
        return None
    every_s = _milliseconds(environ, "OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000
    timeout_ms = _milliseconds(environ, "OTEL_METRIC_EXPORT_TIMEOUT", 30_000)
    has_exemplars = environ.get("OTEL_METRICS_EXEMPLAR_FILTER", "").strip() != "always_off"
    lock = ExportLock(folder)
    reading = MetricsReading(registry, lock.began_ns, has_exemplars=has_exemplars)
    return MetricsExport(reading, exporter, every_s, timeout_ms, lock)


class MetricsReading:
    """Reads a registry of prometheus-client as data of opentelemetry-sdk.

    Args:
        registry: The registry.
        began_ns: When it began to count, in nanoseconds since 1970.
        has_exemplars: Whether values have the trace that they are an example of.
        wall_clock: Nanoseconds since 1970.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        began_ns: int,
        *,
        has_exemplars: bool = True,
        wall_clock: Callable[[], int] = time.time_ns,
    ):
        self._registry, self._has_exemplars, self._wall_clock = registry, has_exemplars, wall_clock
        self._resource = own_resource()
        self._began_ns = self._read_ns = began_ns
        # Of each series: since when it counts, and its last value (lower if an engine restarts).
        self._counts: dict[tuple[str, Labels], tuple[int, float]] = {}

    def read(self) -> MetricsData:
        """Return all metrics, cumulative."""
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        at_ns = self._wall_clock()
        metrics = [self._metric(family, at_ns) for family in self._registry.collect()]
        self._read_ns = at_ns
        scope = InstrumentationScope("izwi", __version__)
        scopes = [ScopeMetrics(scope, [one for one in metrics if one is not None], "")]
        return MetricsData([ResourceMetrics(self._resource, scopes, "")])

    def _metric(self, family: Metric, at_ns: int) -> Any:
        """Return a family as a metric; None if it has no values."""
        from opentelemetry.sdk.metrics.export import (
            AggregationTemporality,
            Gauge,
            Histogram,
            Sum,
        )
        from opentelemetry.sdk.metrics.export import Metric as Exported

        cumulative = AggregationTemporality.CUMULATIVE
        data: Histogram | Sum | Gauge
        if family.type == "histogram":
            data = Histogram(self._histograms(family, at_ns), cumulative)
        elif family.type == "counter":
            data = Sum(self._numbers(family, at_ns), cumulative, is_monotonic=True)
        else:
            data = Gauge(self._numbers(family, at_ns))
        if not data.data_points:
            return None
        name = _CONVENTIONS.get(family.name, family.name)
        unit = next((unit for end, unit in _UNITS.items() if family.name.endswith(end)), "")
        return Exported(name, family.documentation, unit, data)

    def _numbers(self, family: Metric, at_ns: int) -> list[Any]:
        from opentelemetry.sdk.metrics.export import NumberDataPoint

        is_count = family.type == "counter"
        created = _created_ns(family)
        points = []
        for sample in family.samples:
            if sample.name == f"{family.name}_created":
                continue
            labels = _labels(sample)
            start_ns = self._start_ns(family, labels, sample.value, created) if is_count else 0
            points.append(NumberDataPoint(_attributes(labels), start_ns, at_ns, sample.value))
        return points

    def _histograms(self, family: Metric, at_ns: int) -> list[Any]:
        from opentelemetry.sdk.metrics.export import HistogramDataPoint

        created, points = _created_ns(family), []
        for labels, parts in _by_labels(family.samples):
            # None if a bound is below 0: prometheus-client shows no sum of values that may fall
            sums = (one.value for one in parts if one.name == f"{family.name}_sum")
            buckets = [sample for sample in parts if sample.name.endswith("_bucket")]
            buckets.sort(key=lambda sample: float(sample.labels["le"]))
            totals = [0.0, *(sample.value for sample in buckets)]
            exemplars = self._exemplars(buckets)
            points.append(
                HistogramDataPoint(
                    attributes=_attributes(labels),
                    start_time_unix_nano=self._start_ns(family, labels, totals[-1], created),
                    time_unix_nano=at_ns,
                    count=int(totals[-1]),
                    sum=next(sums, None),  # type: ignore[arg-type]  # optional in OTLP
                    bucket_counts=[int(b - a) for a, b in itertools.pairwise(totals)],
                    explicit_bounds=[float(sample.labels["le"]) for sample in buckets[:-1]],
                    min=None,  # type: ignore[arg-type]  # as sum; Prometheus keeps none
                    max=None,  # type: ignore[arg-type]
                    exemplars=exemplars,
                )
            )
        return points

    def _exemplars(self, buckets: Iterable[Sample]) -> list[Any]:
        from opentelemetry.sdk.metrics import Exemplar

        return [
            Exemplar(
                filtered_attributes={},
                value=sample.exemplar.value,
                time_unix_nano=round(float(sample.exemplar.timestamp or 0.0) * _NS),
                span_id=int(sample.exemplar.labels["span_id"], 16),
                trace_id=int(sample.exemplar.labels["trace_id"], 16),
            )
            for sample in buckets
            if self._has_exemplars and sample.exemplar is not None
        ]

    def _start_ns(
        self, family: Metric, labels: Labels, value: float, created: Mapping[Labels, int]
    ) -> int:
        """Return since when a series counts: a count that falls has begun anew."""
        began_ns = created.get(labels, self._began_ns)
        start_ns, last = self._counts.get((family.name, labels), (began_ns, 0.0))
        start_ns = self._read_ns if value < last else start_ns
        self._counts[family.name, labels] = start_ns, value
        return start_ns


class MetricsExport:
    """Exports readings at intervals until it is closed.

    Args:
        reading: Reads the metrics, on the event loop.
        exporter: An exporter of opentelemetry-sdk; it sends them in a thread.
        every_s: Interval.
        timeout_ms: How long one export may take.
        lock: Whether this process is the one that exports.
    """

    def __init__(
        self,
        reading: MetricsReading,
        exporter: Any,
        every_s: float,
        timeout_ms: float,
        lock: ExportLock,
    ):
        self._reading, self._exporter, self._lock = reading, exporter, lock
        self._every_s, self._timeout_ms = every_s, timeout_ms
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to export, from now on and in the running event loop."""
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Export a last time, and end; a collector that does not answer is not waited for long."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        with suppress(TimeoutError):
            await asyncio.wait_for(self._export(), _LAST_EXPORT_S)
        await asyncio.to_thread(self._exporter.shutdown)
        self._lock.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._export()

    async def _export(self) -> None:
        if not self._lock.is_mine():
            return
        try:
            data = self._reading.read()
            await asyncio.to_thread(self._exporter.export, data, timeout_millis=self._timeout_ms)
        except Exception:
            logger.exception("metrics could not be exported")


class ExportLock:
    """Which of several API servers exports what all of them have counted.

    The first one that asks gets a lock on a file, which its end gives back, whatever ended it.

    Args:
        folder: The folder of their counts; None: there is one server.

    Attributes:
        began_ns: When they began to count, in nanoseconds since 1970.
    """

    def __init__(self, folder: Path | None):
        self._file = None if folder is None else (folder / "otlp.lock").open("ab")
        self.began_ns = (
            time.time_ns() if self._file is None else fstat(self._file.fileno()).st_mtime_ns
        )

    def is_mine(self) -> bool:
        """Return whether this process exports now."""
        if self._file is None:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let another server export."""
        if self._file is not None:
            self._file.close()


def _milliseconds(environ: Mapping[str, str], name: str, default: float) -> float:
    given = environ.get(name, "").strip()
    try:
        value = float(given) if given else default
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf):
        raise InvalidRequest(f"{name} must be milliseconds above 0, got {given!r}")
    return value


def _labels(sample: Sample) -> Labels:
    """Return the labels that tell series apart, without the bound of a bucket."""
    return tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))


def _attributes(labels: Labels) -> dict[str, str]:
    """Return labels as attributes; an empty one, such as the error of a success, is left out."""
    return {_ATTRIBUTES.get(name, name): value for name, value in labels if value}


def _by_labels(samples: Iterable[Sample]) -> Iterable[tuple[Labels, list[Sample]]]:
    found: dict[Labels, list[Sample]] = {}
    for sample in samples:
        found.setdefault(_labels(sample), []).append(sample)
    return found.items()


def _created_ns(family: Metric) -> dict[Labels, int]:
    """Return since when each series counts, of those that know it."""
    return {
        _labels(sample): round(sample.value * _NS)
        for sample in family.samples
        if sample.name == f"{family.name}_created"
    }
