"""Exporters of OpenTelemetry as its own environment variables name them, for traces and metrics.

Nothing of OpenTelemetry is imported here unless an exporter is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from izwi import __version__
from izwi.errors import InvalidRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

_EXPORTERS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


class Signal(StrEnum):
    """What is exported, as the variables and the entry points name it."""

    TRACES = "traces"
    METRICS = "metrics"


def exporter_name(signal: Signal, environ: Mapping[str, str]) -> str:
    """Return the exporter that the environment names, or an empty text if the signal is off.

    It is on if `OTEL_TRACES_EXPORTER` or `OTEL_METRICS_EXPORTER` names an exporter, or an endpoint
    is set.

    Raises:
        InvalidRequest: The protocol is unknown.
    """
    own = signal.upper()
    chosen = environ.get(f"OTEL_{own}_EXPORTER", "").strip()
    endpoints = f"OTEL_EXPORTER_OTLP_{own}_ENDPOINT", _ENDPOINT
    has_endpoint = any(environ.get(name, "").strip() for name in endpoints)
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_off or chosen == "none" or not (chosen or has_endpoint):
        return ""
    if chosen not in ("", "otlp"):
        return chosen
    protocols = f"OTEL_EXPORTER_OTLP_{own}_PROTOCOL", _PROTOCOL
    given = next((environ[name].strip() for name in protocols if environ.get(name)), "")
    if given and given not in _EXPORTERS:
        allowed = " or ".join(_EXPORTERS)
        raise InvalidRequest(f"{_PROTOCOL} must be {allowed}, got {given!r}")
    return _EXPORTERS[given or "http/protobuf"]


def open_exporter(signal: Signal, environ: Mapping[str, str]) -> Any | None:
    """Return the exporter that the environment asks for, or None, which imports nothing.

    Raises:
        InvalidRequest: It asks for an exporter that is not installed.
    """
    name = exporter_name(signal, environ)
    if not name:
        return None
    missing = f"{signal} need the exporter {name!r}: pip install 'izwi[otel]'"
    found = next(iter(entry_points(group=f"opentelemetry_{signal}_exporter", name=name)), None)
    if found is None:
        raise InvalidRequest(missing)
    try:
        return found.load()()
    except ImportError as error:
        raise InvalidRequest(f"{missing} ({error})") from error


def own_resource() -> Resource:
    """Return what all exports say of this service; the standard variables override it."""
    from opentelemetry.sdk.resources import Resource

    own = {"service.name": "izwi", "service.version": __version__}
    resource = Resource(own).merge(Resource.create())
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "izwi"}))
    return resource
