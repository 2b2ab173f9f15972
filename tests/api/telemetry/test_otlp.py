"""Traces and metrics as a collector of OTLP receives them, over HTTP and gRPC."""

from __future__ import annotations

import itertools
import re

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from izwi_api.telemetry.calls import CallObserver, current_call
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeSpeech
from tests.realtime.world import World, recorded

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="needs the extra otel")

from izwi_api.telemetry.tracing import open_tracing
from tests.api.telemetry.otlp_collector import collecting

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
OPEN = {"accept": "application/openmetrics-text; version=1.0.0"}


@pytest.fixture(scope="module", params=["http/protobuf", "grpc"])
def collector(request):
    with collecting(request.param) as found:
        yield found


@pytest.fixture
async def served(collector, tmp_path, monkeypatch):
    """A collector, and what /metrics showed at the end of a server that exported to it."""
    for name, value in collector.environ.items():
        monkeypatch.setenv(name, value)
    engine, registry = FakeEngine(alive=True), FakeRegistry(tts=FakeSpeech(), chat=FakeChat())
    app = create_app(engine, registry, Settings(home=tmp_path, decode_workers=0))
    transport = httpx.ASGITransport(app)
    body = {"model": "tts", "voice": "Ann", "input": "A hidden word.", "response_format": "pcm"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        await http.post("/v1/audio/speech", json=body, headers=CALLER)
        await http.post("/v1/audio/speech", json=body | {"model": "none"})
        shown = (await http.get("/metrics", headers=OPEN)).text
    return collector, shown


def prometheus_name(metric) -> str:
    """The name that OpenTelemetry's rules give a metric in Prometheus."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", metric.name)
    unit = {"s": "_seconds", "By": "_bytes"}.get(metric.unit, "")
    return name if name.endswith(unit) else name + unit


def labels_of(point) -> tuple:
    pairs = ((one.key.replace(".", "_"), one.value.string_value) for one in point.attributes)
    return tuple(sorted(pairs))


def exported_values(metrics) -> dict:
    """Values by the names and labels of Prometheus."""
    found = {}
    for metric in metrics.values():
        name, kind = prometheus_name(metric), metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = labels_of(point)
            if kind != "histogram":
                end = "_total" if kind == "sum" else ""
                found[f"{name}{end}", labels] = point.as_double or float(point.as_int)
                continue
            if point.HasField("sum"):  # Prometheus shows neither with bounds below 0
                found[f"{name}_sum", labels] = point.sum
                found[f"{name}_count", labels] = point.count
            bounds = [*point.explicit_bounds, float("inf")]
            for bound, below in zip(bounds, itertools.accumulate(point.bucket_counts), strict=True):
                found[f"{name}_bucket", (*labels, bound)] = below
    return found


def shown_values(text) -> dict:
    """The same of Prometheus' own format."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            labels = {name: value for name, value in sample.labels.items() if value}
            bound = labels.pop("le", None)
            key = tuple(sorted(labels.items()))
            key = key if bound is None else (*key, float(bound))
            found[sample.name, key] = sample.value
    return found


async def test_exported_metrics_have_the_names_and_values_of_prometheus(served):
    collector, shown = served
    expected, found = shown_values(shown), exported_values(collector.metrics())
    # the call of /metrics itself ended after it was shown
    differ = {key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)}
    assert {name for name, labels in differ if ("route", "/metrics") not in labels} <= {
        "izwi_http_in_flight"
    }
    assert len(found) > 100
    of = ("gen_ai_operation_name", "text_to_speech"), ("gen_ai_request_model", "tts")
    assert found["gen_ai_server_request_duration_seconds_count", of] == 1
    assert found["izwi_engine_running", (("model", "tts"),)] == 7, "as FakeEngine says"


async def test_exported_values_have_their_trace_as_an_exemplar(served):
    collector, _ = served
    points = collector.metrics()["gen_ai.server.request.duration"].histogram.data_points
    (done,) = [point for point in points if ("error_type", "404") not in labels_of(point)]
    (exemplar,) = done.exemplars
    assert exemplar.trace_id.hex() == TRACE
    span = next(one for one in collector.spans if one.span_id == exemplar.span_id)
    assert exemplar.as_double == pytest.approx(
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9, abs=1e-6
    )
    assert done.start_time_unix_nano <= span.end_time_unix_nano + 10**7
    assert not done.HasField("min"), "Prometheus keeps neither the least nor the greatest"


async def test_no_export_has_content(served):
    collector, _ = served
    for requests in collector.requests.values():
        assert requests
        assert not any("hidden" in str(request) for request in requests)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield World(tmp_path_factory.mktemp("world"), patch)


LIVE = {
    "audio": {
        "input": {"turn_detection": {"type": "server_vad"}, "transcription": {"model": "whisper-1"}}
    }
}


def seconds(span) -> float:
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def test_trace_of_a_live_turn_sums_to_what_the_client_measured(collector, world, monkeypatch):
    """The client: from the user's last word to the first audio, and to the answer's end."""
    for name, value in collector.environ.items():
        monkeypatch.setenv(name, value)
    collector.requests["traces"].clear()
    world.answer = "It leaves at seven."
    measured = {}

    async def script(phone, _):
        await phone.hear(recorded("question"))
        await phone.until("response.done")
        stopped = phone.of("input_audio_buffer.speech_stopped")[-1]
        word_s = stopped.at_s - stopped.event["silence_ms"] / 1000
        measured["first"] = phone.of("response.output_audio.delta")[0].at_s - word_s
        measured["whole"] = phone.of("response.done")[-1].at_s - word_s
        await phone.be_silent(0.5)

    tracing = open_tracing(collector.environ)
    observer = CallObserver((tracing,), traces=True)
    call = observer.open_call("call-9", CALLER["traceparent"])
    token = current_call.set(call)
    try:
        world.talk(script, session=LIVE)
    finally:
        current_call.reset(token)
    tracing.close()
    spans = collector.spans
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    (root,) = [span for span in spans if span.parent_span_id.hex() == PARENT]
    inside = {}
    for span in sorted(spans, key=lambda one: one.start_time_unix_nano):
        inside.setdefault(span.parent_span_id, []).append(span)
    parts = inside[root.span_id]
    assert [part.name for part in parts] == ["hearing", "thinking", "speaking"]
    (first,) = [event for event in parts[2].events if event.name == "first_audio"]
    spoke_s = (first.time_unix_nano - parts[2].start_time_unix_nano) / 1e9
    waited_s = seconds(parts[0]) + seconds(parts[1]) + spoke_s
    assert waited_s == pytest.approx(measured["first"], rel=0.1)
    assert sum(map(seconds, parts)) == pytest.approx(measured["whole"], rel=0.1)
    for part, purpose in zip(parts, ("speech_to_text", "chat", "text_to_speech"), strict=True):
        requests = inside[part.span_id]
        assert {request.name.split()[0] for request in requests} == {purpose}
        phases = inside[requests[-1].span_id]
        assert {"queue", "prefill"} <= {phase.name for phase in phases}
        assert sum(map(seconds, phases)) == pytest.approx(seconds(requests[-1]), rel=0.1)
        assert any(phase.name == "codec" for phase in phases) == (purpose == "text_to_speech")
