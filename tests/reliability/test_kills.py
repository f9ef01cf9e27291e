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
from tests.reliability.conftest import LONG, ROUNDS, Service, at_work
from tests.reliability.waiters import Waiters, training
from tests.service.endpoint import Endpoint, receiving

pytestmark = pytest.mark.both_databases

CLIENTS, KILLS, PLANS = (32, 2, 24) if LONG else (8, 1, 5)
FAILPOINTS = ["before insert", "before commit", "after commit"]
LONGEST_LIFE_SECONDS = 0.4
LOUD = {"type": "gaussian", "noise_multiplier": 60.0}


@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("where", [*FAILPOINTS, pytest.param("anywhere", marks=pytest.mark.soak)])
def test_acknowledged_steps_are_kept_once_when_the_server_is_killed(service: Service, where: str, round_: int) -> None:
    chance = Random(f"{where}/{round_}")  # noqa: S311 - repeatable, not secret
    assert service.server.process is not None
    with at_work(service, CLIENTS):
        for _ in range(KILLS):
            if where == "anywhere":
                time.sleep(chance.uniform(0.05, LONGEST_LIFE_SECONDS))
                service.server.kill()
            else:
                service.breaks(die=where, writes=chance.randint(1, 20))
                assert service.server.process.wait(60) == -signal.SIGKILL
                assert not service.faults.exists(), "it did not die at the failpoint"
            service.server.start()
    service.check()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_waiting_plans_are_granted_once_and_in_turn_when_the_server_is_killed(service: Service, round_: int) -> None:
    """Plans that can be granted when nothing serves are granted by the next process, though nothing changed since."""
    chance = Random(round_)  # noqa: S311 - as above
    waiters = Waiters([service.server], service.open_budget(epsilon=2.0))
    with service.server.client("admin") as http:
        full = waiters.fill(http, 3)
        waiters.queue(PLANS)
        assert http.post(f"/v1/reservations/{full}/void", json=None).status_code == 200
    service.restart()

    def kill() -> None:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.2, 1.0))
            service.restart()

    training(waiters, kill)
    waiters.check(service.server.database_url)


def _alerts_of(http: httpx2.Client, endpoint: Endpoint) -> set[str]:
    """Charge a run until thresholds of three accounts are reached; the ids of the alerts."""
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
        until = time.monotonic() + 30
        while http.get("/v1/deliveries?status=pending").json()["items"]:
            assert time.monotonic() < until
            time.sleep(0.05)
    database.dispose()
    assert set(endpoint.ids) == alerts
    assert len(endpoint.ids) == 1 + len(alerts)  # the one that was on its way comes twice
