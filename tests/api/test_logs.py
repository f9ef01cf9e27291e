"""Lines of the log: for people or for programs, each with its request, none with a secret."""

import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.logging_config import HIDDEN, JsonFormatter, TextFormatter, install_redaction, request_id
from tests.servers import LiveServer

KEY = f"key_0123456789abcdef.{secrets.token_urlsafe(32)}"


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Every line of a server that logs requests as JSON."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {"FORMAT": "json", "LEVEL": "info", "REQUESTS": "true"}.items():
            environment.setenv(f"EPSILON_LEDGER_LOG_{name}", value)
        server = LiveServer(tmp_path_factory.mktemp("logging"))
        server.start()
    with server.client("viewer") as http:
        http.get("/v1/runs", headers={"X-Request-Id": "asked-1"}).raise_for_status()
        http.get(f"/v1/runs/{KEY}?key={KEY}", headers={"X-Request-Id": "asked-2"})
        http.post("/v1/runs/run_1/steps", json={}, headers={"X-Request-Id": "asked-3"})
    server.stop()
    lines = server.log().splitlines()
    started = next(place for place, line in enumerate(lines) if line.startswith("{"))
    assert KEY not in server.log()
    return [json.loads(line) for line in lines[started:]]


def test_each_request_has_a_line_by_its_id(answer: list[dict[str, Any]]) -> None:
    lines = {line["request_id"]: line for line in answer if line["logger"] == "app.requests"}
    asked = [
        (lines[name]["method"], lines[name]["route"], lines[name]["status"]) for name in sorted(lines) if "-" in name
    ]
    assert asked == [
        ("GET", "/v1/runs", 200),
        ("GET", "/v1/runs/{run_id}", 422),
        ("POST", "/v1/runs/{run_id}/steps", 403),
    ]
    assert all(line["duration_seconds"] > 0 and line["level"] == "info" for line in lines.values())


def test_the_servers_own_lines_are_json_too(answer: list[dict[str, Any]]) -> None:
    own = [line for line in answer if line["logger"].startswith("uvicorn")]
    assert {"Application startup complete.", "Shutting down"} <= {line["message"] for line in own}
    assert all(line["timestamp"].endswith("+00:00") and line["process_id"] > 1 for line in own)


def test_requests_have_no_lines_unless_they_are_asked_for(tmp_path: Path) -> None:
    server = LiveServer(tmp_path)
    server.start()
    with server.client("viewer") as http:
        http.get("/v1/runs").raise_for_status()
    server.stop()
    assert "/v1/runs" not in server.log()


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
    assert KEY not in line
    assert line.count(HIDDEN) == 2
    assert "RuntimeError" in line
    assert "asked-4" in line


def test_a_line_of_json_is_one_line(record: logging.LogRecord) -> None:
    line = json.loads(JsonFormatter().format(record))
    assert line.keys() == {"timestamp", "level", "logger", "message", "exception", "process_id"}
    assert (line["level"], line["logger"], line["message"]) == ("error", "app", f"with {HIDDEN}")
    assert "\n" not in JsonFormatter().format(record)
