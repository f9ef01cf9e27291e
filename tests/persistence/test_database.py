"""The database: how it is opened, and what its two kinds of transaction promise."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, NullPool, Table, create_engine, event, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, StatementError

from app.ledger.errors import LedgerUnavailableError
from app.persistence import database as database_module
from app.persistence.database import ALL_TENANTS, LOCK_TIMEOUT_SECONDS, MAX_TRIES, NO_TENANT, Database
from app.persistence.pool import PoolUsage, WatchedPool, pool_usage
from app.persistence.sqlite import WriteLockBusyError
from app.persistence.tables.base import UtcDateTime

both_databases = pytest.mark.both_databases

NOTES = Table("notes", MetaData(), Column("id", Integer, primary_key=True), Column("at", UtcDateTime))
PRAGMAS = {
    "journal_mode": "wal",
    "synchronous": 2,
    "foreign_keys": 1,
    "busy_timeout": LOCK_TIMEOUT_SECONDS * 1000,
    "ignore_check_constraints": 0,
    "read_uncommitted": 0,
}


@pytest.fixture
def database(empty_database_url: str) -> Iterator[Database]:
    """A database with a table of notes."""
    with _with_notes(empty_database_url) as found:
        yield found


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Database]:
    """The same as a SQLite file, for what only that does."""
    with _with_notes(f"sqlite:///{tmp_path / 'file.db'}") as found:
        yield found


@contextmanager
def _with_notes(url: str) -> Iterator[Database]:
    found = Database(url)
    with found.write(ALL_TENANTS) as tx:
        NOTES.create(tx)
    yield found
    found.dispose()


@pytest.fixture
def other(file: Database) -> Iterator[Database]:
    """Another database on the file, as of another process: they have no lock in common but the file's own."""
    found = Database(str(file.engine.url))
    yield found
    found.dispose()


def _pragmas(connection: Connection) -> dict[str, object]:
    return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in PRAGMAS}


def _add(database: Database, *ids: int) -> None:
    with database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES), [{"id": each} for each in ids])


def _notes(database: Database) -> list[int]:
    with database.read(ALL_TENANTS) as tx:
        return list(tx.execute(select(NOTES.c.id).order_by(NOTES.c.id)).scalars())


def test_pragmas_hold_on_every_connection(file: Database) -> None:
    for _ in range(2):
        with ExitStack() as stack:
            readers = [stack.enter_context(file.read(ALL_TENANTS)) for _ in range(5)]
            writer = stack.enter_context(file.write(ALL_TENANTS))
            assert [_pragmas(connection) for connection in (*readers, writer)] == [PRAGMAS] * 6
        with file.write(ALL_TENANTS, wait=False) as writer:
            assert _pragmas(writer) == PRAGMAS
        with file.migration() as writer:
            assert _pragmas(writer) == PRAGMAS | {"foreign_keys": 0}
        with file.write(ALL_TENANTS) as writer:
            assert _pragmas(writer) == PRAGMAS
        file.dispose()  # the next ones are new


@both_databases
def test_write_is_seen_by_others_after_it_only_and_leaves_nothing_when_it_fails(database: Database) -> None:
    with database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES).values(id=1))
        assert _notes(database) == []

    def fail() -> None:
        with database.write(ALL_TENANTS) as tx:
            tx.execute(insert(NOTES).values(id=2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    _add(database, 3)
    assert _notes(database) == [1, 3]


@both_databases
def test_read_sees_one_state_while_others_write_and_changes_nothing(database: Database) -> None:
    with database.read(ALL_TENANTS) as tx:
        assert list(tx.execute(select(NOTES.c.id)).scalars()) == []
        _add(database, 1)
        assert list(tx.execute(select(NOTES.c.id)).scalars()) == []
    refused = pytest.raises(DBAPIError, match="read-only") if database.dialect == "postgresql" else nullcontext()
    with refused, database.read(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES).values(id=2))
    assert _notes(database) == [1]


def test_writers_of_a_file_never_interleave(file: Database, other: Database) -> None:
    """Two threads of each of two processes."""

    def add(target: Database) -> None:
        for _ in range(10):
            with target.write(ALL_TENANTS) as tx:
                known = tx.execute(select(NOTES.c.id)).scalars().all()
                tx.execute(insert(NOTES).values(id=len(known)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, [file, other] * 2))
    assert _notes(file) == list(range(40))


def test_impatient_write_fails_when_this_or_another_process_writes(file: Database, other: Database) -> None:
    for waiting in (file, other):
        with file.write(ALL_TENANTS) as tx:
            with pytest.raises(WriteLockBusyError), waiting.write(ALL_TENANTS, wait=False):
                raise AssertionError("two writers at once")
            tx.execute(insert(NOTES).values(id=len(_notes(file))))
        with waiting.write(ALL_TENANTS, wait=False) as tx:
            tx.execute(insert(NOTES).values(id=len(_notes(file))))
    assert _notes(file) == [0, 1, 2, 3]


def test_write_asks_to_repeat_when_it_waited_too_long(file: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "LOCK_TIMEOUT_SECONDS", 0.01)
    with file.write(ALL_TENANTS), pytest.raises(LedgerUnavailableError, match="Repeat"), file.write(ALL_TENANTS):
        raise AssertionError("two writers at once")


def test_impatient_write_raises_an_error_that_is_no_lock(file: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.persistence.sqlite.WRITE", "BEGIN NONSENSE")
    another = Database(str(file.engine.url))
    with pytest.raises(OperationalError, match="syntax"), another.write(ALL_TENANTS, wait=False):
        raise AssertionError("nonsense was begun")
    another.dispose()


@both_databases
def test_lost_race_is_run_again_and_sees_the_winner(database: Database) -> None:
    """Somebody adds the same note between the look and the insert; only PostgreSQL lets that happen."""
    seen: list[list[int]] = []

    def work() -> None:
        with database.write(ALL_TENANTS) as tx:
            seen.append(list(tx.execute(select(NOTES.c.id)).scalars()))
            if len(seen) == 1 and database.dialect == "postgresql":
                _add(database, 0)
            tx.execute(insert(NOTES).values(id=len(seen[-1])))

    database.retried(work)
    assert seen == ([[], [0]] if database.dialect == "postgresql" else [[]])
    assert _notes(database) == ([0, 1] if database.dialect == "postgresql" else [0])


@both_databases
@pytest.mark.parametrize("error", [IntegrityError, DBAPIError])
def test_error_is_raised_when_it_is_no_race(database: Database, error: type[DBAPIError]) -> None:
    tries: list[int] = []

    def work() -> None:
        tries.append(len(tries))
        with database.write(ALL_TENANTS) as tx:
            tx.execute(insert(NOTES), [{"id": 1}])
            tx.exec_driver_sql("INSERT INTO notes (id) VALUES (1)" if error is IntegrityError else "SELECT nonsense")

    with pytest.raises(error):
        database.retried(work)
    assert len(tries) == (MAX_TRIES if (database.dialect, error) == ("postgresql", IntegrityError) else 1)
    assert _notes(database) == []


MOMENTS = [
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1, 23, 0, tzinfo=timezone(timedelta(hours=9))),
    datetime(2026, 1, 1, 15, 0, tzinfo=UTC),
    datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    datetime(2026, 11, 21, 9, 0, 0, 123456, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
]


@both_databases
def test_moments_are_read_in_utc_and_sorted_and_none_is_without_a_zone(database: Database) -> None:
    with database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES), [{"at": each} for each in (None, *MOMENTS[::-1])])
    naive = datetime(2026, 11, 21, 9, 0)  # noqa: DTZ001 - that is the mistake
    with pytest.raises((StatementError, AssertionError)), database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES).values(at=naive))
    with database.read(ALL_TENANTS) as tx:
        assert tx.execute(select(NOTES.c.at).where(NOTES.c.at.is_(None))).all() == [(None,)]
        found = tx.execute(select(NOTES.c.at).where(NOTES.c.at.is_not(None)).order_by(NOTES.c.at)).scalars().all()
    assert found == MOMENTS
    assert all(each.tzinfo is UTC for each in found)


@both_databases
def test_connection_is_closed_when_it_returns_to_a_closed_database(database_url: str) -> None:
    database = Database(database_url)
    closed: list[object] = []
    event.listen(database.engine, "close", lambda connection, _: closed.append(connection))
    with database.read(NO_TENANT) as tx:
        used = tx.connection.dbapi_connection
        database.dispose()
        assert closed == []
    assert closed == [used]


def test_connections_are_counted_by_their_use() -> None:
    engine = create_engine("sqlite://", poolclass=WatchedPool, pool_size=2, max_overflow=0)
    with engine.connect():
        assert pool_usage(engine.pool, kept=False) == PoolUsage(used=1, limit=2)
        assert pool_usage(engine.pool, kept=True) == PoolUsage(idle=1, limit=2)
    assert pool_usage(engine.pool, kept=False) == PoolUsage(idle=1, limit=2)
    with ThreadPoolExecutor(1) as other:
        with engine.connect(), engine.connect():
            waiting = other.submit(engine.connect)
            while pool_usage(engine.pool, kept=False).pending == 0:
                assert not waiting.done()
        waiting.result().close()
    assert pool_usage(NullPool(lambda: None), kept=False) == PoolUsage()  # type: ignore[arg-type]


def test_revision_changes_when_another_transaction_has_written(file: Database, other: Database) -> None:
    def begun() -> tuple[int, int]:
        with file.write(ALL_TENANTS) as tx:
            found = file.revision(tx)
        assert found is not None
        return found

    def fail() -> None:
        with pytest.raises(ZeroDivisionError), file.write(ALL_TENANTS):
            raise ZeroDivisionError

    def is_refused() -> None:
        with other.write(ALL_TENANTS), pytest.raises(WriteLockBusyError), file.write(ALL_TENANTS, wait=False):
            raise AssertionError("two write at once")

    unlike: dict[Callable[[], object], bool] = {
        lambda: _notes(file): False,  # only a read
        lambda: _add(other, 1): True,  # another process
        lambda: _add(file, 2): True,  # another use case of this one
        fail: True,  # a connection that may be in any state is replaced, and the new one counts anew
        is_refused: True,
    }
    for act, changes in unlike.items():
        number, version = begun()
        act()
        assert (begun() != (number + 1, version)) is changes
