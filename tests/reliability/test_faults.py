"""The disk is full, the database locked, the clock wrong: refuse or 503, never admit, and then go on (invariant 10)."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import QueuePool, make_url, text

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.pool import PoolUsage
from app.service.verification import verify
from tests.conftest import open_ledger
from tests.reliability.clients import SAMPLED, Trainer
from tests.reliability.conftest import Service

pytestmark = pytest.mark.both_databases

HOUR = 3600


@pytest.fixture
def trainer(service: Service) -> Iterator[Trainer]:
    """A client whose run has taken three steps."""
    with service.server.client("trainer") as http:
        made = Trainer(http, service.journal, 0)
        made.register(service.open_budget(epsilon=1.5))
        made.ask({"first_step": 0, "count": 3}, None)
        yield made


def is_unavailable(reply: httpx2.Response) -> None:
    assert reply.status_code == 503, reply.text
    assert reply.json()["code"] == "ledger_unavailable"
    assert reply.headers["retry-after"].isdigit()


def nothing_is_admitted(trainer: Trainer) -> None:
    """Every kind of write is told to come back later; what was answered before is answered still."""
    journal = trainer.journal
    asks: list[tuple[dict[str, object], str | None]] = [
        ({"first_step": 3}, None),
        ({"count": 2}, f"{trainer.run}/lost-1"),
        ({"first_step": 3, "count": 10**6}, f"{trainer.run}/lost-2"),
    ]
    for body, key in asks:
        is_unavailable(trainer.once(body, key))
        journal.ask(trainer.run, body, key)
    run = {"name": "new", "budget": "none/of/that", "event": None}
    assert trainer.http.post("/v1/runs", json=run).status_code in {404, 503}
    is_unavailable(trainer.http.post(f"/v1/runs/{trainer.run}/pause"))


def the_service_goes_on(service: Service, trainer: Trainer) -> None:
    """Without being told: the same requests are admitted now, once, and the ledger proves it."""
    trainer.ask({"first_step": 3}, None)
    trainer.ask({"count": 2}, f"{trainer.run}/lost-1")
    trainer.ask({"first_step": 6}, f"{trainer.run}/k")
    assert [asked.answers[0].json()["next_step"] for asked in service.journal.asked if asked.answers] == [3, 4, 6, 7]
    service.check()


@pytest.mark.parametrize("failure", ["disk full", "read only"])
def test_nothing_is_admitted_while_the_database_takes_no_writes(
    service: Service, trainer: Trainer, failure: str
) -> None:
    service.breaks(fail=failure)
    nothing_is_admitted(trainer)
    assert trainer.http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == 3
    service.breaks()
    the_service_goes_on(service, trainer)


WRITES = (
    "COMMIT",
    *(
        "INSERT INTO decisions",
        "INSERT INTO decision_events",
        "INSERT INTO event_costs",
        "UPDATE runs",
        "UPDATE accounts",
    ),
)
"""PostgreSQL gets the first of them."""


@pytest.mark.parametrize("at", WRITES)
def test_nothing_of_a_charge_remains_when_one_of_its_writes_fails(service: Service, trainer: Trainer, at: str) -> None:
    noises = 20.0 + WRITES.index(at), 30.0 + WRITES.index(at)
    body = {"events": [{"event": {"type": "gaussian", "noise_multiplier": noise}, "count": 2} for noise in noises]}
    service.breaks(fail="disk full", at=at)
    is_unavailable(trainer.once(body, f"{trainer.run}/new"))
    is_unavailable(trainer.once(body, f"{trainer.run}/new"))
    service.breaks()
    assert trainer.http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == 3
    assert trainer.ask(body, f"{trainer.run}/new").answers[0].json()["first_step"] == 3
    service.check()


@pytest.mark.parametrize("at", ["INSERT INTO accounts", "INSERT INTO runs", "INSERT INTO idempotent_responses"])
def test_nothing_of_a_registration_remains_when_one_of_its_writes_fails(
    service: Service, trainer: Trainer, at: str
) -> None:
    budget = service.open_budget(epsilon=1.0)
    body = {"name": "model", "budget": budget, "event": SAMPLED}
    headers = {"Idempotency-Key": budget}
    service.breaks(fail="disk full", at=at)
    is_unavailable(trainer.http.post("/v1/runs", json=body, headers=headers))
    service.breaks()
    made = trainer.http.post("/v1/runs", json=body, headers=headers)
    assert made.status_code == 201, made.text
    assert "idempotent-replayed" not in made.headers
    found = trainer.http.get("/v1/runs", params={"budget": budget}).json()["items"]
    assert [run["id"] for run in found] == [made.json()["id"]]


@pytest.mark.parametrize("shift", [-24 * HOUR, 24 * HOUR])
def test_steps_and_order_of_runs_are_right_when_the_clock_jumps(service: Service, trainer: Trainer, shift: int) -> None:
    first = service.journal.asked[0]
    budget = service.open_budget(epsilon=1.5)
    runs = [trainer.run]
    for clock in (shift, 0):
        service.breaks(clock=clock)
        trainer.again(first)
        assert trainer.step()
        other = Trainer(trainer.http, service.journal, len(runs))
        runs.append(other.register(budget))
        assert other.step()
    listed = trainer.http.get("/v1/runs", params={"limit": 200, "budget": budget}).json()["items"]
    assert [run["id"] for run in listed] == runs[:0:-1]
    assert runs == sorted(runs), "a cursor over runs would miss one"
    service.check()


@contextmanager
def locked(database_url: str) -> Iterator[None]:
    """Another process writes, and does not come to an end."""
    if database_url.startswith("sqlite"):
        with closing(sqlite3.connect(str(make_url(database_url).database), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
        return
    database = Database(database_url)
    with database.write(ALL_TENANTS) as tx:
        tx.execute(text("LOCK TABLE accounts, runs, decisions IN EXCLUSIVE MODE"))
        yield
    database.dispose()


def test_nothing_is_admitted_while_another_process_holds_the_database_locked(
    service: Service, trainer: Trainer
) -> None:
    with locked(service.server.database_url):
        is_unavailable(trainer.once({"first_step": 3}, None))
        assert trainer.http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == 3
    trainer.journal.ask(trainer.run, {"count": 2}, f"{trainer.run}/lost-1")
    the_service_goes_on(service, trainer)


def test_requests_are_unavailable_while_every_connection_is_in_use(tmp_path: Path, database_url: str) -> None:
    """Nothing is admitted until a connection comes back; the metrics tell who waits, and who waited in vain."""
    with open_ledger(tmp_path, database_url) as ledger, ExitStack() as held:
        ledger.population()
        ledger.budget()
        run = ledger.run()
        pool = ledger.database.engine.pool
        assert isinstance(pool, QueuePool)
        pool._timeout = 0.3
        ledger.database.dispose()
        for _ in range(pool.size()):
            held.enter_context(ledger.database.engine.connect())
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(ledger.get, f"/v1/runs/{run}")
            while ledger.database.connections().pending == 0:
                assert not waiting.done()
            is_unavailable(waiting.result())
        is_unavailable(ledger.post(f"/v1/runs/{run}/steps", {"first_step": 0}, "trainer"))
        is_unavailable(ledger.post(f"/v1/runs/{run}/steps", {}, "trainer", Idempotency_Key="k"))
        usage = ledger.database.connections()
        assert usage == PoolUsage(used=pool.size(), limit=pool.size(), timeouts=usage.timeouts)
        assert usage.timeouts >= 3
        held.close()
        assert ledger.database.connections().used == 0
        assert ledger.get("/readyz").json() == {"status": "ok"}
        assert ledger.get(f"/v1/runs/{run}").json()["next_step"] == 0
        assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer", Idempotency_Key="k").json()["next_step"] == 1
        assert verify(ledger.database).sound


def test_lease_does_not_end_when_the_clock_is_set_ahead(service: Service, trainer: Trainer) -> None:
    """The database's own clock, where it is the machine's: what was lent before goes by what it was lent by."""
    plan = {"plan": [{"event": SAMPLED, "count": 4}], "lease_seconds": 600}
    made = trainer.http.post(f"/v1/runs/{trainer.run}/reservations", json=plan)
    assert made.status_code == 201, made.text
    service.breaks(clock=HOUR)
    reply = trainer.http.post(f"/v1/runs/{trainer.run}/steps", json={"first_step": 3})
    assert (reply.status_code, reply.json()["reservation"]) == (200, made.json()["id"])
    renewed = trainer.http.post(f"/v1/reservations/{made.json()['id']}/renew")
    assert renewed.json()["status"] == "active", renewed.text
    assert trainer.http.get(f"/v1/runs/{trainer.run}").json()["reservation"] is not None
