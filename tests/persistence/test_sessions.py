"""Sessions on PostgreSQL: durable, in UTC and bounded in time, whatever the server's and the role's settings are."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, OperationalError

from app.ledger.errors import LedgerUnavailableError
from app.ledger.ids import number_of
from app.persistence import pipeline, postgresql
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.schema import is_current
from app.persistence.write_probe import rehearse
from app.service.auth.authentication import create_organisation
from tests import postgres
from tests.conftest import need_postgresql, new_database
from tests.postgres import Cluster

pytestmark = pytest.mark.postgresql

HOSTILE = {
    "synchronous_commit": "off",
    "timezone": "Asia/Kathmandu",
    "datestyle": "SQL, DMY",
    "bytea_output": "escape",
    "default_transaction_isolation": "read uncommitted",
    "default_transaction_read_only": "on",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "standard_conforming_strings": "off",
    "extra_float_digits": "-15",
    "row_security": "off",
    "jit": "on",
}


@pytest.fixture
def cluster() -> Cluster:
    need_postgresql()
    return postgres.shared()


@pytest.fixture
def database(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Database]:
    """A ledger on a database whose own settings are as bad as they can be; as a parameter, with pooled sessions."""
    with new_database("postgresql", tmp_path_factory.mktemp("unused")) as url:
        name = url.rpartition("/")[2]
        with cluster.connect() as connection:
            for setting, value in HOSTILE.items():
                connection.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'".encode())
        opened = Database(url, pooled=getattr(request, "param", False))
        yield opened
        opened.dispose()


both_modes = pytest.mark.parametrize("database", [False, True], ids=["session", "transaction"], indirect=True)


def _name(database: Database) -> str:
    return str(database.engine.url.database)


def _setting(tx: Connection, name: str) -> str:
    return str(tx.exec_driver_sql(f"SHOW {name}").scalar_one())


@both_modes
def test_session_has_the_settings_of_the_ledger(database: Database) -> None:
    bound, patient = (
        dict.fromkeys(("statement_timeout", "idle_in_transaction_session_timeout"), value)
        for value in (f"{postgresql.STATEMENT_TIMEOUT_SECONDS}s", "0")
    )
    reading = {"transaction_isolation": "repeatable read", "transaction_read_only": "on"}
    writing = {"transaction_isolation": "read committed", "transaction_read_only": "off", "synchronous_commit": "on"}
    always = {"timezone": "UTC", "jit": "off", "application_name": "epsilon-ledger"}
    always["lock_timeout"] = f"{postgresql.LOCK_TIMEOUT_SECONDS}s"
    for transaction, wanted in (
        (database.write(ALL_TENANTS), always | bound | writing),
        (database.read(ALL_TENANTS), always | bound | reading),
        (database.read(ALL_TENANTS, patient=True), patient | reading),
        (database.read(ALL_TENANTS), bound | reading),
    ):
        with transaction as tx:
            assert {name: _setting(tx, name) for name in wanted} == wanted


@both_modes
def test_stronger_durability_of_a_database_stays(database: Database, cluster: Cluster) -> None:
    cluster.execute(f"ALTER DATABASE {_name(database)} SET synchronous_commit = 'remote_apply'")
    with database.write(ALL_TENANTS) as tx:
        assert _setting(tx, "synchronous_commit") == "remote_apply"


@both_modes
def test_pipeline_has_the_settings_of_the_ledger(database: Database) -> None:
    """It fails by a division by zero, which is what a client in a pipeline can see."""
    organisation = create_organisation(database, "hospital", datetime.now(UTC))
    required = "SELECT 1 / (current_setting(%(name)s::text) = %(value)s::text)::integer"

    def require(name: str, value: str) -> None:
        with database.pipeline(organisation) as tx:
            assert tx is not None
            pipeline.execute(tx, required, {"name": name, "value": value})

    require("synchronous_commit", "on")
    require("lock_timeout", f"{postgresql.LOCK_TIMEOUT_SECONDS}s")
    require("timezone", "UTC")
    with pytest.raises(DBAPIError, match="zero"):
        require("synchronous_commit", "off")


def test_transaction_of_a_pooled_session_leaves_nothing_behind(cluster: Cluster) -> None:
    """The next one may be another client's, and its own next one in another session."""
    database = Database(cluster.create_database("pooled", postgres.TEMPLATE), pool_size=1, pooled=True)
    left = (
        "SELECT (SELECT count(*) FROM pg_prepared_statements),"
        " (SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
        "  WHERE locktype = 'advisory' AND datname = current_database()),"
        " current_setting('statement_timeout'), current_setting('epsilon_ledger.organisation', true)"
    )
    organisation = create_organisation(database, "hospital", datetime.now(UTC))
    for _ in range(10):  # the driver prepares what it has seen five times
        with database.read(organisation) as tx:
            assert is_current(tx)
        with database.pipeline(organisation) as sent:
            assert sent is not None
        with database.write(organisation) as tx:
            assert tx.execute(text("SELECT count(*) FROM organisations")).scalar_one() == 1
    with database.engine.connect().execution_options(begin="") as raw:
        assert raw.exec_driver_sql(left).one() == (0, 0, "0", "")
    database.dispose()
    cluster.drop_database("pooled")


@both_modes
def test_values_are_read_as_written_when_settings_are_hostile(database: Database) -> None:
    now = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
    given = {"x": 0.1 + 0.2, "y": b"\\\0\xff", "id": number_of(create_organisation(database, "hospital", now))}
    found = "SELECT CAST(:x AS float8), CAST(:y AS bytea), created_at FROM organisations WHERE id = :id"
    with database.read(ALL_TENANTS) as tx:
        assert tx.execute(text(found), given).one() == (given["x"], given["y"], now)


def test_column_of_text_compares_by_bytes(database: Database) -> None:
    """The server sorts as English dictionaries do; cursors and the newest id need the order of the bytes."""
    with database.read(ALL_TENANTS) as tx:
        others = tx.exec_driver_sql(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' "
            "AND data_type IN ('text', 'character varying') AND collation_name IS DISTINCT FROM 'C' "
            "AND table_name <> 'alembic_version'"
        ).all()
    assert others == []


def test_session_is_replaced_when_it_was_ended_while_idle(database: Database, cluster: Cluster) -> None:
    with database.read(ALL_TENANTS), database.read(ALL_TENANTS):
        pass  # two connections lie in the pool
    for transaction in (database.read, database.write):
        assert cluster.terminate_backends(_name(database)) > 0
        with transaction(ALL_TENANTS) as tx:
            assert is_current(tx)
    assert rehearse(database) is None


@both_modes
@pytest.mark.parametrize("goes_on", [True, False])
def test_transaction_leaves_nothing_or_is_in_doubt_when_its_session_is_ended(
    database: Database, cluster: Cluster, *, goes_on: bool
) -> None:
    def work() -> None:
        with database.write(ALL_TENANTS) as tx:
            tx.exec_driver_sql("INSERT INTO organisations (id, name, created_at) VALUES (1, 'x', now())")
            assert cluster.terminate_backends(_name(database)) == 1
            if goes_on:
                tx.exec_driver_sql("SELECT 1")

    with pytest.raises((OperationalError, LedgerUnavailableError)) as failed:
        work()
    assert (failed.type is LedgerUnavailableError and "may or may not" in str(failed.value)) is not goes_on
    with database.read(ALL_TENANTS) as tx:
        assert tx.exec_driver_sql("SELECT count(*) FROM organisations").scalar_one() == 0


def test_lock_asks_to_repeat_when_it_waited_too_long(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.persistence.database.MAX_TRIES", 2)
    create_organisation(database, "hospital", datetime.now(UTC))

    def lock() -> None:
        with database.write(ALL_TENANTS) as tx:
            tx.exec_driver_sql("SET LOCAL lock_timeout = '1ms'")
            tx.exec_driver_sql("SELECT * FROM organisations FOR UPDATE")

    with database.write(ALL_TENANTS) as tx:
        tx.exec_driver_sql("SELECT * FROM organisations FOR UPDATE")
        with pytest.raises(LedgerUnavailableError, match="Other writers"):
            database.retried(lock)
    database.retried(lock)


def test_deadlock_is_run_again(database: Database) -> None:
    """Two transactions take the same two rows in opposite order; both get through in the end."""
    names = ("one", "two")
    for name in names:
        create_organisation(database, name, datetime.now(UTC))
    both = threading.Barrier(2, timeout=30)
    tries: list[tuple[str, ...]] = []

    def take(order: tuple[str, ...]) -> None:
        def work() -> None:
            tries.append(order)
            with database.write(ALL_TENANTS) as tx:
                for name in order:
                    tx.execute(text("SELECT 1 FROM organisations WHERE name = :name FOR UPDATE"), {"name": name})
                    if name == order[0] and tries.count(order) == 1:
                        both.wait()

        database.retried(work)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take, [names, names[::-1]]))
    assert len(tries) > 2


def test_migration_is_run_again_after_a_deadlock_with_a_service(database: Database) -> None:
    """The service's transaction waits longer, so that PostgreSQL ends the migration."""
    blocked = threading.Event()
    tries: list[int] = []

    def serve() -> None:
        with database.write(ALL_TENANTS) as tx:
            tx.exec_driver_sql("LOCK TABLE runs IN ROW EXCLUSIVE MODE")
            locked.set()
            assert blocked.wait(30)
            tx.exec_driver_sql("LOCK TABLE decisions IN ROW EXCLUSIVE MODE")

    def migrate(tx: Connection) -> None:
        tries.append(len(tries))
        tx.exec_driver_sql("ALTER TABLE decisions ADD COLUMN source text")
        if not blocked.is_set():
            blocked.set()
            _wait_for_deadlock_timeout(tx)
        tx.exec_driver_sql("ALTER TABLE runs ADD COLUMN label text")

    locked = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        service = pool.submit(serve)
        assert locked.wait(30)
        database.migrate(migrate)
        service.result()
    assert len(tries) == 2
    with database.read(ALL_TENANTS) as tx:
        tx.exec_driver_sql("SELECT source, label FROM decisions, runs")


def _wait_for_deadlock_timeout(tx: Connection) -> None:
    """Wait until another transaction has waited so long that it looked for a deadlock, in vain."""
    waits = (
        "SELECT bool_or(now_ - waitstart > interval '1.5 s') FROM pg_locks, clock_timestamp() now_ WHERE NOT granted"
    )
    while not tx.exec_driver_sql(waits).scalar():
        time.sleep(0.05)


def test_old_server_is_refused_in_a_sentence(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "OLDEST_VERSION", 99)
    with pytest.raises(LedgerUnavailableError, match="needs 99 or newer"), database.read(ALL_TENANTS):
        raise AssertionError("it was opened")
