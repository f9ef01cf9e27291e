"""Sessions on PostgreSQL: durable, in UTC and bounded in time, whatever the server's and the role's settings are."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import DBAPIError, OperationalError

from app.ledger.errors import LedgerUnavailableError
from app.ledger.ids import number_of
from app.persistence import pipeline, postgresql
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.rehearsal import Fault, rehearse
from app.persistence.schema import is_current, upgrade
from app.persistence.tables import organisations
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


@pytest.fixture(params=[False, True], ids=["session", "transaction"])
def database(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Database]:
    """A ledger on a database whose own settings are as bad as they can be, in both modes of pooling."""
    with new_database("postgresql", tmp_path_factory.mktemp("unused")) as url:
        name = url.rpartition("/")[2]
        for setting, value in HOSTILE.items():
            cluster.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
        opened = Database(url, pooled=request.param)
        yield opened
        opened.dispose()


def _name(database: Database) -> str:
    return str(database.engine.url.database)


def _setting(tx: Connection, name: str) -> str:
    return str(tx.exec_driver_sql(f"SHOW {name}").scalar_one())


def test_a_session_is_what_the_ledger_needs(database: Database) -> None:
    with database.write(ALL_TENANTS) as tx:
        assert _setting(tx, "synchronous_commit") == "on"
        assert _setting(tx, "timezone") == "UTC"
        assert _setting(tx, "lock_timeout") == f"{postgresql.LOCK_TIMEOUT_SECONDS}s"
        assert _setting(tx, "statement_timeout") == f"{postgresql.STATEMENT_TIMEOUT_SECONDS}s"
        assert _setting(tx, "idle_in_transaction_session_timeout") == f"{postgresql.STATEMENT_TIMEOUT_SECONDS}s"
        assert _setting(tx, "transaction_isolation") == "read committed"
        assert _setting(tx, "transaction_read_only") == "off"
        assert _setting(tx, "jit") == "off"
        assert _setting(tx, "application_name") == "epsilon-ledger"
    with database.read(ALL_TENANTS) as tx:
        assert _setting(tx, "transaction_isolation") == "repeatable read"
        assert _setting(tx, "transaction_read_only") == "on"
        assert _setting(tx, "statement_timeout") == f"{postgresql.STATEMENT_TIMEOUT_SECONDS}s"
    with database.read(ALL_TENANTS, patient=True) as tx:
        assert _setting(tx, "transaction_isolation") == "repeatable read"
        assert _setting(tx, "transaction_read_only") == "on"
        assert _setting(tx, "statement_timeout") == "0"
        assert _setting(tx, "idle_in_transaction_session_timeout") == "0"
    with database.read(ALL_TENANTS) as tx:
        assert _setting(tx, "statement_timeout") == f"{postgresql.STATEMENT_TIMEOUT_SECONDS}s"


def test_a_stronger_durability_stays(database: Database, cluster: Cluster) -> None:
    cluster.execute(f"ALTER DATABASE {_name(database)} SET synchronous_commit = 'remote_apply'")
    with database.write(ALL_TENANTS) as tx:
        assert _setting(tx, "synchronous_commit") == "remote_apply"


def test_a_pipeline_is_what_the_ledger_needs(database: Database) -> None:
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


def test_a_transaction_of_a_pooled_session_leaves_nothing_behind(cluster: Cluster) -> None:
    """The next one may be another client's, and its own next one in another session."""
    database = Database(cluster.create_database("pooled", postgres.TEMPLATE), pool_size=1, pooled=True)
    left = (
        "SELECT (SELECT count(*) FROM pg_prepared_statements),"
        " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),"
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


def test_an_error_of_the_connection_is_known() -> None:
    assert all(map(postgresql.is_gone, ["08006", "08P01", "0A000", "25006", "57P01"]))
    assert not any(map(postgresql.is_gone, [None, "40001", "23505", "57014"]))


def test_moments_numbers_and_bytes_survive_hostile_settings(database: Database) -> None:
    now = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
    organisation = create_organisation(database, "hospital", now)
    with database.read(ALL_TENANTS) as tx:
        found = tx.execute(text("SELECT created_at FROM organisations WHERE id = :id"), {"id": number_of(organisation)})
        assert found.scalar_one() == now
        assert tx.execute(
            text("SELECT CAST(:x AS float8), CAST(:y AS bytea)"), {"x": 0.1 + 0.2, "y": b"\\\0\xff"}
        ).one() == (
            0.1 + 0.2,
            b"\\\0\xff",
        )


def test_every_column_of_text_compares_by_bytes(database: Database) -> None:
    """The server sorts as English dictionaries do; cursors and the newest id need the order of the bytes."""
    with database.read(ALL_TENANTS) as tx:
        others = tx.exec_driver_sql(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' "
            "AND data_type IN ('text', 'character varying') AND collation_name IS DISTINCT FROM 'C' "
            "AND table_name <> 'alembic_version'"
        ).all()
    assert others == []


def test_a_session_that_was_ended_while_idle_is_replaced_unnoticed(database: Database, cluster: Cluster) -> None:
    with database.read(ALL_TENANTS), database.read(ALL_TENANTS):
        pass  # two connections lie in the pool
    for transaction in (database.read, database.write):
        assert cluster.terminate_backends(_name(database)) > 0
        with transaction(ALL_TENANTS) as tx:
            assert is_current(tx)
    assert rehearse(database) is None


def test_a_session_that_is_ended_at_work_fails_and_leaves_nothing(database: Database, cluster: Cluster) -> None:
    def work() -> None:
        with database.write(ALL_TENANTS) as tx:
            tx.exec_driver_sql("INSERT INTO organisations (id, name, created_at) VALUES (1, 'x', now())")
            assert cluster.terminate_backends(_name(database)) == 1
            tx.exec_driver_sql("SELECT 1")

    with pytest.raises(OperationalError):
        work()
    with database.read(ALL_TENANTS) as tx:
        assert tx.exec_driver_sql("SELECT count(*) FROM organisations").scalar_one() == 0


def test_a_connection_that_breaks_at_the_commit_says_that_nobody_knows(database: Database, cluster: Cluster) -> None:
    def work() -> None:
        with database.write(ALL_TENANTS) as tx:
            tx.exec_driver_sql("INSERT INTO organisations (id, name, created_at) VALUES (1, 'x', now())")
            assert cluster.terminate_backends(_name(database)) == 1

    with pytest.raises(LedgerUnavailableError, match="may or may not"):
        work()


def test_who_waits_for_a_lock_too_long_is_told_to_repeat(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_deadlock_is_run_again(database: Database) -> None:
    """Two transactions take the same two rows in opposite order; both get through in the end."""
    names = ("one", "two")
    for name in names:
        create_organisation(database, name, datetime.now(UTC))
    both = threading.Barrier(2, timeout=30)
    tries: list[str] = []

    def take(order: tuple[str, str]) -> None:
        def work() -> None:
            tries.append(order[0])
            with database.write(ALL_TENANTS) as tx:
                for place, name in enumerate(order):
                    tx.execute(text("SELECT 1 FROM organisations WHERE name = :name FOR UPDATE"), {"name": name})
                    if place == 0 and tries.count(order[0]) == 1:
                        both.wait()

        database.retried(work)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take, [names, names[::-1]]))
    assert len(tries) > 2


def test_a_migration_that_a_service_deadlocks_with_is_run_again(database: Database) -> None:
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


@pytest.mark.usefixtures("cluster")
def test_concurrent_migrations_wait_for_each_other() -> None:
    with postgres.database(postgres.EMPTY) as url:
        both = threading.Barrier(4, timeout=30)

        def migrate(_: int) -> None:
            database = Database(url)
            both.wait()
            upgrade(database)
            with database.read(ALL_TENANTS) as tx:
                assert is_current(tx)
            database.dispose()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(migrate, range(4)))


def test_a_database_in_another_encoding_is_refused_in_a_sentence(cluster: Cluster) -> None:
    cluster.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0")
    database = Database(cluster.url("latin"))
    with pytest.raises(LedgerUnavailableError, match=r"LATIN1.*UTF8"), database.read(ALL_TENANTS):
        raise AssertionError("it was opened")
    assert rehearse(database) is Fault.SILENT
    database.dispose()
    cluster.drop_database("latin")


def test_an_old_server_is_refused_in_a_sentence(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "OLDEST_VERSION", 99)
    database.dispose()
    with pytest.raises(LedgerUnavailableError, match="needs 99 or newer"), database.read(ALL_TENANTS):
        raise AssertionError("it was opened")


def test_a_restarted_server_is_found_again() -> None:
    need_postgresql()
    own = Cluster.create()
    try:
        database = Database(own.create_database("ledger"))
        upgrade(database)
        for stop in (own.stop, own.kill):
            create_organisation(database, f"before {stop.__name__}", datetime.now(UTC))
            stop()
            assert rehearse(database) is Fault.SILENT
            with pytest.raises(OperationalError), database.read(ALL_TENANTS):
                raise AssertionError("nobody answers")
            own.start()
            assert rehearse(database) is None
            with database.read(ALL_TENANTS) as tx:
                assert is_current(tx)
        with database.read(ALL_TENANTS) as tx:
            names = tx.exec_driver_sql("SELECT name FROM organisations ORDER BY created_at").scalars().all()
        assert names == ["before stop", "before kill"]
        database.dispose()
    finally:
        own.remove()


def test_a_standby_takes_no_writes_and_a_promoted_one_does() -> None:
    need_postgresql()
    primary = Cluster.create()
    standby = None
    try:
        ready = Database(primary.create_database("ledger"))
        upgrade(ready)
        standby = primary.standby()
        create_organisation(ready, "hospital", datetime.now(UTC))
        ready.dispose()
        hosts = f"host=127.0.0.1:{primary.port}&host=127.0.0.1:{standby.port}&target_session_attrs=read-write"
        database = Database(f"postgresql://ledger:{primary.password}@/ledger?{hosts}")
        assert rehearse(database) is None
        behind = Database(standby.url("ledger"))
        assert rehearse(behind) is Fault.READ_ONLY
        with pytest.raises(DBAPIError, match="recovery") as refused, behind.write(ALL_TENANTS):
            raise AssertionError("a standby was written")
        assert refused.value.connection_invalidated  # it is not tried again for ever: the primary is elsewhere
        behind.dispose()
        primary.kill()
        standby.promote()
        create_organisation(database, "clinic", datetime.now(UTC))
        with database.read(ALL_TENANTS) as tx:
            assert set(tx.exec_driver_sql("SELECT name FROM organisations").scalars()) == {"hospital", "clinic"}
        database.dispose()
    finally:
        primary.remove()
        if standby is not None:
            standby.remove()


def test_a_table_that_has_grown_is_looked_at_before_the_server_does_so(cluster: Cluster) -> None:
    database = Database(cluster.create_database("young"))
    upgrade(database)
    size = "SELECT reltuples FROM pg_class WHERE relname = 'organisations'"
    for rows in (10, 5000):
        with database.write(ALL_TENANTS) as tx:
            ids = [f"org_{rows:07x}{number:08x}" for number in range(rows)]
            tx.execute(
                insert(organisations), [{"id": each, "name": each, "created_at": datetime.now(UTC)} for each in ids]
            )
        database.analyze()
        with database.read(ALL_TENANTS) as tx:
            assert (tx.exec_driver_sql(size).scalar_one() > 0) == (rows == 5000)
    database.dispose()


def test_a_password_is_needed(cluster: Cluster) -> None:
    """The cluster of the tests is nobody else's."""
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(cluster.url("postgres").replace(cluster.password, "wrong"))
