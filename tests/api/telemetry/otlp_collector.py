"""A collector of OTLP in memory, over HTTP or gRPC, on a port of its own."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service

_SERVICES = {
    "traces": (trace_service.ExportTraceServiceRequest, trace_service.ExportTraceServiceResponse),
    "metrics": (
        metrics_service.ExportMetricsServiceRequest,
        metrics_service.ExportMetricsServiceResponse,
    ),
}


class Collector:
    """What arrived, and the variables that make a server send it here."""

    def __init__(self, protocol: str):
        self.protocol, self.port = protocol, 0
        self.requests = {"traces": [], "metrics": []}

    @property
    def environ(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": self.protocol,
        }

    @property
    def spans(self) -> list:
        return [
            span
            for request in self.requests["traces"]
            for one in request.resource_spans
            for scope in one.scope_spans
            for span in scope.spans
        ]

    def metrics(self, number: int = -1) -> dict:
        """Metrics of one export, by name."""
        (of,) = self.requests["metrics"][number].resource_metrics
        (scope,) = of.scope_metrics
        found = {metric.name: metric for metric in scope.metrics}
        assert len(found) == len(scope.metrics)
        return found


@contextmanager
def collecting(protocol: str) -> Iterator[Collector]:
    """Run a collector of `http/protobuf` or `grpc`."""
    with (_over_grpc if protocol == "grpc" else _over_http)(Collector(protocol)) as collector:
        yield collector


@contextmanager
def _over_http(collector: Collector) -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            signal = self.path.removeprefix("/v1/")
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            received, answer = _SERVICES[signal]
            collector.requests[signal].append(received.FromString(body))
            content = answer().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def _over_grpc(collector: Collector) -> Iterator[Collector]:
    import grpc

    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    for signal, service in (
        ("traces", "trace.v1.TraceService"),
        ("metrics", "metrics.v1.MetricsService"),
    ):
        received, answer = _SERVICES[signal]

        def export(request, _context, signal=signal, answer=answer):
            collector.requests[signal].append(request)
            return answer()

        handler = grpc.unary_unary_rpc_method_handler(
            export, received.FromString, lambda message: message.SerializeToString()
        )
        name = f"opentelemetry.proto.collector.{service}"
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, {"Export": handler}),)
        )
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()
