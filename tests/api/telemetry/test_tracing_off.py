"""Without an exporter nothing of OpenTelemetry is imported; the environment says which it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from izwi.errors import InvalidRequest
from izwi_api.telemetry import exporters
from izwi_api.telemetry.exporters import Signal, exporter_name
from izwi_api.telemetry.tracing import open_tracing

HTTP, GRPC = "otlp_proto_http", "otlp_proto_grpc"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        (ENDPOINT, HTTP),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4318/v1/traces"}, HTTP),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, GRPC),
        (
            ENDPOINT
            | {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            HTTP,
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, HTTP),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, ""),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, ""),
    ],
)
def test_the_environment_names_the_exporter(environ, expected) -> None:
    assert exporter_name(Signal.TRACES, environ) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        (ENDPOINT, HTTP),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4318/v1/traces"}, ""),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://a:4318/v1/metrics"}, HTTP),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, GRPC),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, HTTP),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, HTTP),
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, ""),
    ],
)
def test_metrics_have_variables_of_their_own(environ, expected) -> None:
    assert exporter_name(Signal.METRICS, environ) == expected


def test_an_unknown_protocol_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidRequest, match=r"http/protobuf or grpc.*'http/json'"):
        exporter_name(Signal.TRACES, ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})


def test_an_exporter_that_is_not_installed_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(exporters, "entry_points", lambda **_: ())
    with pytest.raises(InvalidRequest, match=r"pip install 'izwi\[otel\]'"):
        open_tracing(ENDPOINT)


def test_nothing_is_imported_while_tracing_is_off() -> None:
    code = (
        "import sys\n"
        "from izwi_api.telemetry.metrics_export import open_metrics_export\n"
        "from izwi_api.telemetry.tracing import open_tracing\n"
        "assert open_tracing({}) is None\n"
        "assert open_metrics_export({}, None, None) is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
