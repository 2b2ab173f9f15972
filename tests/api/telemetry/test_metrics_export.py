"""Metrics as data of opentelemetry-sdk: the values of the registry, under its names."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from izwi.errors import InvalidRequest
from izwi_api.http.metrics import EngineFigures, HttpMetrics
from izwi_api.telemetry.calls import CallObserver
from izwi_api.telemetry.device_figures import DeviceFigures
from izwi_api.telemetry.metrics import CallMetrics
from tests.api.conftest import FakeEngine
from tests.api.telemetry.test_device_figures import Nvml

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics.export import AggregationTemporality, ConsoleMetricExporter

from izwi_api.telemetry import metrics_export
from izwi_api.telemetry.metrics_export import (
    ExportLock,
    MetricsExport,
    MetricsReading,
    open_metrics_export,
)

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BEGAN_NS = 1_000


class Clock:
    now_ns = 2_000

    def __call__(self):
        return self.now_ns


@pytest.fixture
def registry():
    return CollectorRegistry()


def reading_of(registry, clock=None, **settings):
    return MetricsReading(registry, BEGAN_NS, wall_clock=clock or Clock(), **settings)


def metrics_of(reading):
    (resource,) = reading.read().resource_metrics
    (scope,) = resource.scope_metrics
    assert resource.resource.attributes["service.name"] == "izwi"
    return {metric.name: metric for metric in scope.metrics}


def test_counters_and_levels_keep_their_values_names_and_labels(registry):
    counter = Counter("izwi_audio_underrun_seconds", "A.", ["model"], registry=registry)
    counter.labels("tts").inc(2.5)
    Gauge("izwi_http_in_flight", "B.", registry=registry).set(3)
    found = metrics_of(reading_of(registry))
    assert set(found) == {"izwi_audio_underrun_seconds", "izwi_http_in_flight"}
    grown = found["izwi_audio_underrun_seconds"]
    assert (grown.unit, grown.description) == ("s", "A.")
    assert grown.data.is_monotonic
    assert grown.data.aggregation_temporality is AggregationTemporality.CUMULATIVE
    (point,) = grown.data.data_points
    assert (point.attributes, point.value, point.time_unix_nano) == ({"model": "tts"}, 2.5, 2_000)
    assert point.start_time_unix_nano > 10**18, "when the series was made"
    (level,) = found["izwi_http_in_flight"].data.data_points
    assert (level.attributes, level.value) == ({}, 3)


def test_buckets_of_a_histogram_are_counts_of_their_own(registry):
    waits = Histogram("izwi_x_seconds", "C.", ["route"], buckets=(0.1, 1), registry=registry)
    for seconds in (0.05, 0.5, 0.7, 9):
        waits.labels("a").observe(seconds)
    waits.labels("b").observe(1.0)
    first, second = metrics_of(reading_of(registry))["izwi_x_seconds"].data.data_points
    assert first.attributes == {"route": "a"}
    assert first.bucket_counts == [1, 2, 1]
    assert first.explicit_bounds == [0.1, 1.0]
    assert (first.count, first.sum) == (4, pytest.approx(10.25))
    assert second.bucket_counts == [0, 1, 0], "a bound belongs to its bucket, as in OTLP"


@pytest.fixture
def all_metrics():
    """The registry of a server in which every metric has a value."""
    shown = HttpMetrics()
    counted = [one for holder in (shown, shown.calls) for one in vars(holder).values()]
    for one in counted:
        if isinstance(one, Counter | Gauge | Histogram):
            named = one.labels(*("x" for _ in one._labelnames)) if one._labelnames else one
            named.observe(0.3) if isinstance(one, Histogram) else named.inc(3)
    shown.registry.register(EngineFigures(FakeEngine()))
    shown.registry.register(DeviceFigures(Nvml()))
    return shown.registry


def test_every_metric_of_a_server_is_exported(all_metrics):
    shown = {family.name: family for family in all_metrics.collect()}
    found = metrics_of(reading_of(all_metrics))
    assert len(shown) > 70
    names = {metrics_export._CONVENTIONS.get(name, name) for name in shown}
    assert set(found) == names
    for name, family in shown.items():
        points = found[metrics_export._CONVENTIONS.get(name, name)].data.data_points
        if family.type == "histogram":
            counts = [one.value for one in family.samples if one.labels.get("le") == "+Inf"]
            assert sorted(point.count for point in points) == sorted(counts), name
            sums = [one.value for one in family.samples if one.name == f"{name}_sum"]
            assert sorted(one.sum for one in points if one.sum is not None) == sorted(sums), name
            assert all(sum(one.bucket_counts) == one.count for one in points), name
        else:
            values = [one.value for one in family.samples if not one.name.endswith("_created")]
            assert sorted(point.value for point in points) == sorted(values), name


def test_a_histogram_with_bounds_below_zero_is_exported_without_a_sum(all_metrics):
    (point,) = metrics_of(reading_of(all_metrics))["izwi_engine_slack_seconds"].data.data_points
    assert point.explicit_bounds[0] < 0
    assert point.count == sum(point.bucket_counts) > 0
    assert point.sum is None, "/metrics has none either, as a sum that falls is no count"


def test_every_metric_passes_an_exporter_of_the_sdk(all_metrics):
    written = io.StringIO()
    ConsoleMetricExporter(out=written).export(reading_of(all_metrics).read())
    (scope,) = json.loads(written.getvalue())["resource_metrics"][0]["scope_metrics"]
    assert len(scope["metrics"]) == len(list(all_metrics.collect()))


def test_names_of_the_conventions_have_their_dots_and_traces_are_exemplars(registry):
    metrics = CallMetrics(registry)
    call = CallObserver([metrics]).open_call("a", TRACEPARENT)
    call.route, call.status = "/v1/audio/speech", 200
    call.end()
    found = metrics_of(reading_of(registry))
    lasted = found["gen_ai.server.request.duration"]
    assert lasted.unit == "s"
    (point,) = lasted.data.data_points
    said = {"gen_ai.operation.name": "text_to_speech"}
    assert point.attributes == said, "an error that there was not, and a model, are left out"
    (exemplar,) = point.exemplars
    assert f"{exemplar.trace_id:032x}" == TRACEPARENT[3:35]
    assert f"{exemplar.span_id:016x}" == TRACEPARENT[36:52]
    assert exemplar.value == pytest.approx(point.sum)
    assert "gen_ai.server.time_to_first_token" not in found, "a metric without values is not sent"
    off = metrics_of(reading_of(registry, has_exemplars=False))
    assert not off["gen_ai.server.request.duration"].data.data_points[0].exemplars


def test_a_counter_that_falls_has_begun_anew_since_the_reading_before(registry):
    class Engine:
        steps = 7.0

        def collect(self):
            from prometheus_client.core import CounterMetricFamily

            yield CounterMetricFamily("izwi_engine_steps", "D.", value=self.steps)

    engine, clock = Engine(), Clock()
    registry.register(engine)
    reading = reading_of(registry, clock)

    def read(at_ns, steps):
        clock.now_ns, engine.steps = at_ns, steps
        (point,) = metrics_of(reading)["izwi_engine_steps"].data.data_points
        return point.start_time_unix_nano, point.value

    assert read(2_000, 7.0) == (BEGAN_NS, 7.0)
    assert read(3_000, 9.0) == (BEGAN_NS, 9.0)
    assert read(4_000, 2.0) == (3_000, 2.0), "the engine restarted after 3,000"
    assert read(5_000, 4.0) == (3_000, 4.0)


def test_one_of_several_servers_exports_and_another_one_goes_on(tmp_path):
    first, second = ExportLock(tmp_path), ExportLock(tmp_path)
    assert first.began_ns == second.began_ns
    assert [first.is_mine(), second.is_mine(), first.is_mine()] == [True, False, True]
    first.close()
    assert second.is_mine()
    second.close()
    assert ExportLock(None).is_mine()


class Exporter:
    def __init__(self, fails=False):
        self.values, self.fails, self.is_shut = [], fails, False

    def export(self, data, timeout_millis):
        if self.fails:
            raise RuntimeError("no way")
        (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
        self.values.append(metric.data.data_points[0].value)

    def shutdown(self):
        self.is_shut = True


@pytest.mark.parametrize("fails", [False, True])
async def test_the_last_values_are_exported_at_the_end(registry, fails):
    counter, exporter = Counter("izwi_a", "A.", registry=registry), Exporter(fails)
    export = MetricsExport(reading_of(registry), exporter, 3600.0, 100.0, ExportLock(None))
    export.start()
    await asyncio.sleep(0)
    counter.inc(4)
    await export.close()
    assert exporter.values == ([] if fails else [4.0])
    assert exporter.is_shut


async def test_values_are_exported_at_intervals(registry):
    counter, exporter = Counter("izwi_a", "A.", registry=registry), Exporter()
    counter.inc()
    export = MetricsExport(reading_of(registry), exporter, 1e-6, 100.0, ExportLock(None))
    export.start()
    while len(exporter.values) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await export.close()


@pytest.mark.parametrize("value", ["0", "soon", "-5", "nan", "inf"])
def test_an_interval_that_is_none_is_refused_by_name(monkeypatch, registry, value):
    monkeypatch.setattr(metrics_export, "open_exporter", lambda *_: Exporter())
    environ = {"OTEL_METRIC_EXPORT_INTERVAL": value}
    with pytest.raises(InvalidRequest, match="OTEL_METRIC_EXPORT_INTERVAL"):
        open_metrics_export(environ, registry, None)
