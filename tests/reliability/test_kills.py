"""The server dies at the worst moments: all that was acknowledged is in the ledger, once, and the others go on."""

import signal
import time
from pathlib import Path
from random import Random

import httpx2
import pytest
from sqlalchemy import update

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import deliveries
from tests.polling import await_true
from tests.reliability.conftest import LONG, ROUNDS, Service, at_work
from tests.service.endpoint import Endpoint, receiving

CLIENTS = 32 if LONG else 4
PLACES = ["before insert", "before commit", "after commit", *(["anywhere"] if LONG else [])]
LONGEST_LIFE_SECONDS = 0.4
LOUD = {"type": "gaussian", "noise_multiplier": 60.0}


@pytest.mark.both_databases
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_acknowledged_steps_are_kept_once_when_the_server_is_killed(service: Service, round_: int) -> None:
    chance = Random(round_)  # noqa: S311 - repeatable, not secret
    with at_work(service, CLIENTS):
        for where in PLACES:
            if where == "anywhere":
                time.sleep(chance.uniform(0.05, LONGEST_LIFE_SECONDS))
                service.server.kill()
            else:
                service.dies(where, writes=chance.randint(1, 20))
                assert service.server.process.wait(60) == -signal.SIGKILL
                assert not service.death.exists(), "it did not die there"
            service.server.start()
    service.check()


def _alerts_of(http: httpx2.Client, endpoint: Endpoint) -> set[str]:
    """Charge a run until thresholds of three accounts are reached; the ids of the alerts."""
    limit = {"limit": {"epsilon": 1.0, "delta": 1e-5}}
    population = {"name": "p", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
    for path, body in (
        ("receivers", {"url": endpoint.url}),
        ("populations", population | limit),
        ("budgets", {"name": "b", "parent": "p"} | limit),
        ("runs", {"name": "r", "budget": "p/b", "event": LOUD} | limit),
    ):
        made = http.post(f"/v1/{path}", json=body).raise_for_status()
    http.post(f"/v1/runs/{made.json()['id']}/steps", json={"count": 200}).raise_for_status()
    found = {item["id"] for item in http.get("/v1/alerts").json()["items"]}
    assert len(found) == 6
    return found


def test_alert_arrives_when_the_server_is_killed_before_its_acknowledgement(service: Service, tmp_path: Path) -> None:
    database = Database(service.server.database_url)
    service.server.key("admin", tmp_path.name)  # an organisation whose only alerts are these
    with receiving() as endpoint, service.server.client("admin", tmp_path.name) as http:
        endpoint.answer = lambda _: time.sleep(2)  # it has the alert, and the ledger does not know it
        alerts = _alerts_of(http, endpoint)
        endpoint.await_messages(1)
        service.server.kill()
        endpoint.answer = None
        with database.write(ALL_TENANTS) as tx:  # as if the minute of the claim was over
            tx.execute(update(deliveries).values(next_attempt_at=deliveries.c.created_at))
        service.server.start()
        endpoint.await_messages(1 + len(alerts))
        await_true(lambda: not http.get("/v1/deliveries?status=pending").json()["items"])
    database.dispose()
    assert set(endpoint.ids) == alerts
    assert len(endpoint.ids) == 1 + len(alerts)  # the one that was on its way comes twice
