"""The service dies while it sends alerts: each of them arrives all the same."""

import signal
import time
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import update

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import deliveries
from tests.conftest import LiveServer
from tests.reliability.conftest import issue_keys
from tests.service.endpoint import Endpoint, receiving

LOUD = {"type": "gaussian", "noise_multiplier": 60.0}


def _alerted(http: httpx2.Client, endpoint: Endpoint) -> set[str]:
    """Charge a run until thresholds of three accounts are reached; the ids of what was told."""
    limit = {"epsilon": 1.0, "delta": 1e-5}
    population = {"name": "p", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one", "limit": limit}
    assert http.post("/v1/receivers", json={"url": endpoint.url}).status_code == 201
    for path, body in (
        ("populations", population),
        ("budgets", {"name": "b", "parent": "p", "limit": limit}),
        ("runs", {"name": "r", "budget": "p/b", "event": LOUD, "limit": limit}),
    ):
        made = http.post(f"/v1/{path}", json=body)
        assert made.status_code == 201, made.text
    assert http.post(f"/v1/runs/{made.json()['id']}/steps", json={"count": 200}).status_code == 200
    found = {item["id"] for item in http.get("/v1/alerts").json()["items"]}
    assert len(found) == 6
    return found


def test_kill_9_between_the_claim_and_the_acknowledgement_loses_no_alert(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_WEBHOOKS_ALLOW_PRIVATE", "true")
    server = LiveServer(tmp_path, database_url)
    database = Database(server.database_url)
    with receiving() as endpoint:
        endpoint.answer = lambda _: time.sleep(2)  # it has the alert, and the ledger does not know it
        try:
            server.start()
            issue_keys(server)
            with server.client("admin") as http:
                alerts = _alerted(http, endpoint)
                endpoint.await_messages(1)
            assert server.process is not None
            server.kill()
            assert server.process.returncode == -signal.SIGKILL
            endpoint.answer = None
            with database.write(ALL_TENANTS) as tx:  # as if the minute of the claim was over
                tx.execute(update(deliveries).values(next_attempt_at=deliveries.c.created_at))
            server.start()
            endpoint.await_messages(1 + len(alerts))
            until = time.monotonic() + 30
            with server.client("admin") as http:
                while http.get("/v1/deliveries?status=pending").json()["items"]:
                    assert time.monotonic() < until
                    time.sleep(0.05)
        finally:
            database.dispose()
            if server.process is not None and server.process.poll() is None:
                server.stop()
    assert set(endpoint.ids) == alerts
    assert len(endpoint.ids) == 1 + len(alerts)  # the one that was on its way comes twice
