"""Traces: to a collector that is named, and only then."""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app import tracing_setup
from app.service.metrics import TRACES
from tests.ledgers import SAMPLED
from tests.reliability.clients import open_budget
from tests.servers import LiveServer

KEY = f"key_0123456789abcdef.{secrets.token_urlsafe(32)}"


@contextmanager
def _collector() -> Iterator[tuple[str, list[Any]]]:
    """A collector's URL, and the spans that it was sent."""
    spans: list[Any] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] is None:
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_step_is_traced_to_the_collector_and_no_secret_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _collector() as (url, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        monkeypatch.setenv("EPSILON_LEDGER_LOG_FORMAT", "json")
        monkeypatch.setenv("EPSILON_LEDGER_LOG_REQUESTS", "true")
        server = LiveServer(tmp_path)
        server.start()
        try:
            with server.client("admin") as http:
                register = {"name": "model", "budget": open_budget(http, "crowd", 5.0), "event": SAMPLED}
                run = http.post("/v1/runs", json=register).raise_for_status().json()["id"]
                caller = f"00-{'ab' * 16}-{'cd' * 8}-01"
                for _ in range(2):
                    step = http.post(f"/v1/runs/{run}/steps", json={}, headers={"traceparent": caller})
                    step.raise_for_status()
                http.get(f"/v1/runs/{KEY}", params={"key": KEY})
        finally:
            server.stop()
        until = time.monotonic() + 10
        while not {"authorize_steps", "commit", "POST /v1/runs/{run_id}/steps"} <= {span.name for span in spans}:
            assert time.monotonic() < until, {span.name for span in spans}
            time.sleep(0.05)
    asked = [span for span in spans if span.name == "POST /v1/runs/{run_id}/steps"]
    assert {span.trace_id.hex() for span in asked} == {"ab" * 16}
    admitted = [span for span in spans if span.name == "authorize_steps"]
    assert {span.parent_span_id for span in admitted} <= {span.span_id for span in asked}
    committed = [span for span in spans if span.name == "commit"]
    assert {link.trace_id.hex() for span in committed for link in span.links} == {"ab" * 16}
    assert all(KEY not in str(span) and KEY.partition(".")[2] not in str(span) for span in spans)
    assert f'"trace_id": "{"ab" * 16}"' in server.log()


def test_without_a_collector_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing_setup.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert tracing_setup.configure_tracing() == tracing_setup.OFF
    assert TRACES.trace_id() is None
    assert TRACES.span("authorize_steps") is TRACES.shared("commit", [])


def test_without_the_extra_the_service_serves_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(tracing_setup, "find_spec", lambda _: None)
    assert tracing_setup.configure_tracing() == tracing_setup.OFF
    assert "epsilon-ledger[telemetry]" in caplog.text
