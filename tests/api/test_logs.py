"""Lines of the log and traces: each with its request, none with a secret."""

import json
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app import tracing_setup
from app.configuration.settings import Settings
from app.logging_config import HIDDEN, JsonFormatter, TextFormatter, install_redaction, request_id
from app.service.metrics import TRACES
from tests.ledgers import SAMPLED
from tests.polling import await_true
from tests.reliability.clients import open_budget
from tests.servers import LiveServer, QuietHandler, background_thread

KEY = f"key_0123456789abcdef.{secrets.token_urlsafe(32)}"
TRACE = "ab" * 16
CALLER = f"00-{TRACE}-{'cd' * 8}-01"


@contextmanager
def _collector() -> Iterator[tuple[str, list[Any]]]:
    """A collector's URL, and the spans that it was sent."""
    spans: list[Any] = []

    class Collector(QuietHandler, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] is None:
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.answer(200)

    server = HTTPServer(("127.0.0.1", 0), Collector)
    with background_thread(server):
        yield f"http://127.0.0.1:{server.server_port}", spans


Served = tuple[str, list[Any]]
"""All that a server logged, and the spans that it sent to its collector."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A server that logs requests as JSON, and is traced, has answered a few requests."""
    with pytest.MonkeyPatch.context() as environment, _collector() as (url, spans):
        for name, value in {"FORMAT": "json", "LEVEL": "info", "REQUESTS": "true"}.items():
            environment.setenv(f"EPSILON_LEDGER_LOG_{name}", value)
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with LiveServer(tmp_path_factory.mktemp("logging")) as server, server.client("admin") as http:
            http.get("/v1/runs", headers={"X-Request-Id": "asked-1"}).raise_for_status()
            http.get(f"/v1/runs/{KEY}?key={KEY}", headers={"X-Request-Id": "asked-2"})
            http.post("/v1/runs/run_1/steps", json={}, headers={"X-Request-Id": "asked-3"})
            register = {"name": "model", "budget": open_budget(http, "crowd", 5.0), "event": SAMPLED}
            run = http.post("/v1/runs", json=register).raise_for_status().json()["id"]
            for _ in range(2):
                http.post(f"/v1/runs/{run}/steps", json={}, headers={"traceparent": CALLER}).raise_for_status()
        wanted = {"authorize_steps", "commit", "POST /v1/runs/{run_id}/steps"}
        await_true(lambda: wanted <= {span.name for span in spans}, lambda: {span.name for span in spans}, seconds=10)
    return server.log(), spans


def _lines(served: Served) -> list[dict[str, Any]]:
    return [json.loads(line) for line in served[0].splitlines() if line.startswith("{")]


def test_each_request_has_a_line_with_its_id(served: Served) -> None:
    lines = {line["request_id"]: line for line in _lines(served) if line["logger"] == "app.requests"}
    told = [(line["method"], line["route"], line["status"]) for name, line in sorted(lines.items()) if "-" in name]
    run = "/v1/runs/{run_id}"
    assert told == [("GET", "/v1/runs", 200), ("GET", run, 422), ("POST", f"{run}/steps", 404)]
    assert all(line["duration_seconds"] > 0 and line["level"] == "info" for line in lines.values())
    assert KEY not in served[0]
    assert Settings().log_requests is False


def test_lines_of_the_server_are_json_too(served: Served) -> None:
    own = [line for line in _lines(served) if line["logger"].startswith("uvicorn")]
    assert {"Application startup complete.", "Shutting down"} <= {line["message"] for line in own}
    assert all(line["timestamp"].endswith("+00:00") and line["process_id"] > 1 for line in own)


def test_step_is_traced_to_the_collector_and_no_secret_with_it(served: Served) -> None:
    log, spans = served
    asked = [span for span in spans if span.name == "POST /v1/runs/{run_id}/steps"]
    admitted = [span for span in spans if span.name == "authorize_steps"]
    assert [span.trace_id.hex() for span in asked].count(TRACE) == 2  # asked-3 has a trace of its own
    places = [(span.trace_id, span.span_id) for span in asked]
    assert sorted((span.trace_id, span.parent_span_id) for span in admitted) == sorted(places)
    committed = [span for span in spans if span.name == "commit"]
    assert TRACE in {link.trace_id.hex() for span in committed for link in span.links}
    assert all(KEY not in str(span) and KEY.partition(".")[2] not in str(span) for span in spans)
    assert f'"trace_id": "{TRACE}"' in log


@pytest.fixture
def record() -> Iterator[logging.LogRecord]:
    """A record of an error whose words hold a key."""
    before = logging.getLogRecordFactory()
    install_redaction()
    error = RuntimeError(f"it was {KEY}")
    made = (type(error), error, None)
    yield logging.getLogRecordFactory()("app", logging.ERROR, __file__, 1, "with %s", (KEY,), made)
    logging.setLogRecordFactory(before)


@pytest.mark.parametrize("lines", [TextFormatter(), JsonFormatter()])
def test_no_line_holds_a_secret_and_each_names_its_request(lines: TextFormatter, record: logging.LogRecord) -> None:
    token = request_id.set("asked-4")
    line = lines.format(record)
    request_id.reset(token)
    assert (KEY in line, line.count(HIDDEN), "RuntimeError" in line, "asked-4" in line) == (False, 2, True, True)


def test_line_of_json_is_one_line(record: logging.LogRecord) -> None:
    line = json.loads(JsonFormatter().format(record))
    assert line.keys() == {"timestamp", "level", "logger", "message", "exception", "process_id"}
    assert (line["level"], line["logger"], line["message"]) == ("error", "app", f"with {HIDDEN}")
    assert "\n" not in JsonFormatter().format(record)


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
