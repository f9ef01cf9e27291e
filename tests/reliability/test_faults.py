"""A write fails, the database is locked, the clock jumps: refuse or 503, never admit, and then go on (invariant 10)."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import product

import httpx2
import pytest
from sqlalchemy import QueuePool, text

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.pool import PoolUsage
from app.persistence.tables import metadata
from app.service.verification.verify import verify
from tests.asgi import AppClient
from tests.conftest import Ledger
from tests.reliability.broken_server import set_clock
from tests.reliability.clients import SAMPLED, Trainer, open_budget
from tests.reliability.history import Journal, check

pytestmark = pytest.mark.both_databases

HOUR = 3600
BUDGET = "people/team"
FULL, READ_ONLY = "53100", "25006"
"""Of PostgreSQL: disk_full and read_only_sql_transaction."""

COMMIT = "COMMIT"
WRITES = (
    *(COMMIT, "INSERT ON decisions", "INSERT ON decision_events", "INSERT ON event_costs"),
    *("UPDATE ON runs", "UPDATE ON accounts"),
)
ALL_WRITES = [f"{kind} ON {table}" for table, kind in product(metadata.tables, ("INSERT", "UPDATE", "DELETE"))]
FAIL = """
CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'x' USING ERRCODE = '{}'; END $$
"""
AT_COMMIT = """
CREATE CONSTRAINT TRIGGER t0 AFTER INSERT ON decisions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
EXECUTE FUNCTION fail()
"""
NOWHERE = "CREATE TABLE nowhere (id REFERENCES organisations (id) DEFERRABLE INITIALLY DEFERRED)"


def _client(ledger: Ledger, role: str) -> AppClient:
    client = AppClient(ledger.http.app, portal=ledger.http.portal)
    client.headers.update(ledger.headers(role))
    return client


FURNISHED = {"trainer": lambda ledger: open_budget(_client(ledger, "admin"), "people", 1.5)}


@pytest.fixture
def trainer(ledger: Ledger) -> Trainer:
    """A client whose run has taken three steps."""
    made = Trainer(_client(ledger, "trainer"), Journal(), 0).register(BUDGET)
    made.ask({"first_step": 0, "count": 3}, None)
    return made


@contextmanager
def failing(database: Database, *writes: str, sqlstate: str = FULL) -> Iterator[None]:
    """The database fails in these writes, by a trigger; on SQLite it calls a function that is not there."""
    on_sqlite = database.dialect == "sqlite"
    if on_sqlite:
        made = [f"CREATE TRIGGER t{n} BEFORE {each} BEGIN SELECT fail(); END" for n, each in enumerate(writes)]
        if writes == (COMMIT,):
            made = [NOWHERE, "CREATE TRIGGER t0 AFTER INSERT ON decisions BEGIN INSERT INTO nowhere VALUES (-1); END"]
    else:
        made = [f"CREATE TRIGGER t{n} BEFORE {each} EXECUTE FUNCTION fail()" for n, each in enumerate(writes)]
        made = [FAIL.format(sqlstate), *([AT_COMMIT] if writes == (COMMIT,) else made)]
    with database.migration() as tx:
        for statement in made:
            tx.exec_driver_sql(statement)
    yield
    with database.migration() as tx:
        for number in range(len(writes) if on_sqlite else 0):
            tx.exec_driver_sql(f"DROP TRIGGER t{number}")
        if not on_sqlite:
            tx.exec_driver_sql("DROP FUNCTION fail CASCADE")


def is_unavailable(reply: httpx2.Response) -> None:
    assert reply.status_code == 503, reply.text
    assert reply.json()["code"] == "ledger_unavailable"
    assert reply.headers["retry-after"].isdigit()


def nothing_is_admitted(trainer: Trainer) -> None:
    """Every kind of write is told to come back later."""
    for body, key in (
        ({"first_step": 3}, None),
        ({"count": 2}, "lost-1"),
        ({"first_step": 3, "count": 10**6}, "lost-2"),
    ):
        is_unavailable(trainer.once(body, key))
    run = {"name": "new", "budget": "none/of/that", "event": None}
    assert trainer.http.post("/v1/runs", json=run).status_code in {404, 503}
    is_unavailable(trainer.http.post(f"/v1/runs/{trainer.run}/pause"))
    assert trainer.http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == 3


def the_service_goes_on(trainer: Trainer) -> None:
    """Without being told: the same requests are admitted now, once."""
    asked = [({"first_step": 3}, None), ({"count": 2}, "lost-1"), ({"first_step": 6}, "k")]
    assert [trainer.ask(body, key).answers[0].json()["next_step"] for body, key in asked] == [4, 6, 7]


def test_nothing_is_admitted_while_the_database_takes_no_writes(ledger: Ledger, trainer: Trainer) -> None:
    for sqlstate in (FULL, READ_ONLY):
        with failing(ledger.database, *ALL_WRITES, sqlstate=sqlstate):
            nothing_is_admitted(trainer)
    the_service_goes_on(trainer)
    check(trainer.journal, ledger.database)


def test_nothing_of_a_charge_remains_when_one_of_its_writes_fails(ledger: Ledger, trainer: Trainer) -> None:
    for number, at in enumerate(WRITES):
        key, noises = f"key-{number}", (20.0 + number, 30.0 + number)  # new ones, whose costs are written
        body = {"events": [{"event": {"type": "gaussian", "noise_multiplier": each}, "count": 2} for each in noises]}
        with failing(ledger.database, at):
            is_unavailable(trainer.once(body, key))
            is_unavailable(trainer.once(body, key))
        assert trainer.http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == trainer.next_step
        expected = trainer.next_step
        assert trainer.ask(body, key).answers[0].json()["first_step"] == expected
    check(trainer.journal, ledger.database)


def test_nothing_of_a_registration_remains_when_one_of_its_writes_fails(ledger: Ledger, trainer: Trainer) -> None:
    made = [trainer.run]
    for table in ("accounts", "runs", "idempotent_responses"):
        body = {"name": f"model {table}", "budget": BUDGET, "event": SAMPLED}
        with failing(ledger.database, f"INSERT ON {table}"):
            is_unavailable(trainer.http.post("/v1/runs", json=body, headers={"Idempotency-Key": table}))
        reply = trainer.http.post("/v1/runs", json=body, headers={"Idempotency-Key": table})
        assert (reply.status_code, "idempotent-replayed" in reply.headers) == (201, False), reply.text
        made.insert(0, reply.json()["id"])
    assert [run["id"] for run in trainer.http.get("/v1/runs").json()["items"]] == made


def test_steps_and_order_of_runs_are_right_when_the_clock_jumps(
    ledger: Ledger, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a lease end: what was lent before goes by what it was lent by."""
    plan = {"events": [{"event": SAMPLED, "count": 40}], "lease_seconds": 600}
    lease = trainer.http.post(f"/v1/runs/{trainer.run}/reservations", json=plan).json()["id"]
    first, runs, jump = trainer.journal.asked[0], [trainer.run], [0]
    set_clock(lambda: jump[0], monkeypatch.setattr)
    for jump[0] in (-24 * HOUR, 0, HOUR, 24 * HOUR, 0):
        trainer.again(first)
        reply = trainer.ask({"first_step": trainer.next_step}, None).answers[0]
        assert (reply.status_code, reply.json()["reservation"]) == (200, lease)
        renewed = trainer.http.post(f"/v1/reservations/{lease}/renew")
        assert renewed.json()["status"] == "active", renewed.text
        other = Trainer(trainer.http, trainer.journal, len(runs)).register(BUDGET)
        runs.append(other.run)
        assert other.step()
    assert [run["id"] for run in trainer.http.get("/v1/runs").json()["items"]] == runs[::-1]
    assert runs == sorted(runs), "a cursor over runs would miss one"
    check(trainer.journal, ledger.database)


@contextmanager
def locked(database: Database) -> Iterator[None]:
    """Another process writes, and does not come to an end."""
    if database.dialect == "sqlite":
        with closing(sqlite3.connect(str(database.engine.url.database), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
        return
    with database.write(ALL_TENANTS) as tx:
        tx.execute(text("LOCK TABLE accounts, runs, decisions IN EXCLUSIVE MODE"))
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no one wait long for another writer; before the database is opened."""
    monkeypatch.setattr("app.persistence.database.LOCK_TIMEOUT_SECONDS", 1)


@pytest.mark.usefixtures("impatient")
def test_nothing_is_admitted_while_another_process_holds_the_database_locked(ledger: Ledger, trainer: Trainer) -> None:
    with locked(ledger.database):
        is_unavailable(trainer.once({"first_step": 3}, None))
        assert trainer.http.get(f"/v1/runs/{trainer.run}").json()["next_step"] == 3
    the_service_goes_on(trainer)
    check(trainer.journal, ledger.database)


def test_requests_are_unavailable_while_every_connection_is_in_use(ledger: Ledger, trainer: Trainer) -> None:
    """Nothing is admitted until a connection comes back; the metrics tell who waits, and who waited in vain."""
    pool, run = ledger.database.engine.pool, f"/v1/runs/{trainer.run}"
    assert isinstance(pool, QueuePool)
    pool._timeout = 0.3
    ledger.database.dispose()
    with ExitStack() as held:
        for _ in range(pool.size()):
            held.enter_context(ledger.database.engine.connect())
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(ledger.get, run)
            while ledger.database.connections().pending == 0:
                assert not waiting.done()
            is_unavailable(waiting.result())
        is_unavailable(trainer.once({"first_step": 3}, None))
        is_unavailable(trainer.once({}, "lost-1"))
        usage = ledger.database.connections()
        assert usage == PoolUsage(used=pool.size(), limit=pool.size(), timeouts=usage.timeouts)
        assert usage.timeouts >= 3
    assert ledger.database.connections().used == 0
    assert ledger.get("/readyz").json() == {"status": "ok"}
    assert ledger.get(run).json()["next_step"] == 3
    assert trainer.once({}, "lost-1").json()["next_step"] == 4
    assert verify(ledger.database).sound
