"""The head of a step that is kept by its text, and what is asked anew for each request."""

import pytest
from fastapi import FastAPI

from app.http import step_path
from app.http.step_path import MOST_HEAD_BYTES, StepPath
from tests.api.step_routes import JSON, SHORT, Ports, request, watched
from tests.api.test_fast_path import VAST, ports
from tests.api.trainer import issue

__all__ = ["ports"]


def test_repeated_head_is_kept_but_not_its_caller(ports: Ports) -> None:
    ledger = ports.seeded.ledger
    key = issue(ledger, "kept", "trainer")["id"]
    authorization = (b"authorization", ledger.headers("kept")["Authorization"].encode())
    sent = request(f"/v1/runs/{ports.seeded.run}/steps", VAST, authorization, JSON)
    assert ledger.get("/v1/runs", "kept").status_code == 200  # now this process knows it
    with watched() as asked:
        assert [ports.ask(SHORT, sent).status for _ in range(2)] == [403, 403]
        assert asked == [ports.seeded.run] * 2
        assert ledger.post(f"/v1/api-keys/{key}/revoke", {}).is_success
        assert isinstance(ledger.http.app, FastAPI)
        ledger.http.app.state.keys.refresh()  # as a task does every 0.4 seconds
        assert ports.ask(SHORT, sent).status == 401
    assert asked == [ports.seeded.run] * 2


def test_kept_heads_are_few_short_and_without_what_changes(monkeypatch: pytest.MonkeyPatch, ports: Ports) -> None:
    app = ports.seeded.ledger.http.app
    assert isinstance(app, FastAPI)
    monkeypatch.setattr(step_path, "MOST_HEADS", 2)
    path = StepPath(app)

    def head(*headers: tuple[bytes, bytes], run: bytes = b"run") -> object:
        raw = b"/v1/runs/%b/steps" % run
        sent = [(b"content-type", b"application/json"), (b"content-length", b"2"), *headers]
        scope = {"method": "POST", "query_string": b"", "root_path": "", "raw_path": raw, "headers": sent}
        return path._plain_head(scope)

    for changing in ((b"idempotency-key", b"k"), (b"x-request-id", b"r"), (b"x-long", b"l" * MOST_HEAD_BYTES)):
        assert head(changing) is not None
        assert len(path._heads) == 0
    assert head() is head() is not None
    for number in range(5):
        assert head(run=b"run%d" % number) is not None
        assert 0 < len(path._heads) <= 2
    assert head((b"expect", b"100-continue")) is head(run=b"a/b") is None
