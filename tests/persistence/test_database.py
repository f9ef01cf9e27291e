"""The database: how it is opened, and what its two kinds of transaction promise."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, event, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, StatementError

from app.ledger.errors import LedgerUnavailableError
from app.persistence import database as database_module
from app.persistence.database import (
    ALL_TENANTS,
    LOCK_TIMEOUT_SECONDS,
    MAX_TRIES,
    NO_TENANT,
    Database,
)
from app.persistence.sqlite import WriteLockBusyError
from app.persistence.tables.base import UtcDateTime

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
    yield from _with_notes(empty_database_url)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Database]:
    """The same as a SQLite file, for what only that does."""
    yield from _with_notes(f"sqlite:///{tmp_path / 'file.db'}")


def _with_notes(url: str) -> Iterator[Database]:
    found = Database(url)
    with found.write(ALL_TENANTS) as tx:
        NOTES.create(tx)
    yield found
    found.dispose()


def _url(database: Database) -> str:
    return database.engine.url.render_as_string(hide_password=False)


def _pragmas(connection: Connection) -> dict[str, object]:
    return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in PRAGMAS}


def _notes(database: Database) -> list[int]:
    with database.read(ALL_TENANTS) as tx:
        return list(tx.execute(select(NOTES.c.id).order_by(NOTES.c.id)).scalars())


def test_the_pragmas_hold_on_every_connection(file: Database) -> None:
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


def test_a_write_is_there_after_it_and_only_after_it(database: Database) -> None:
    with database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES).values(id=1))
        assert _notes(database) == []
    assert _notes(database) == [1]


def test_a_write_that_fails_leaves_nothing(database: Database) -> None:
    def fail() -> None:
        with database.write(ALL_TENANTS) as tx:
            tx.execute(insert(NOTES).values(id=1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert _notes(database) == []
    with database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES).values(id=2))
    assert _notes(database) == [2]


def test_a_read_changes_nothing_even_if_it_tries(database: Database) -> None:
    if database.dialect == "sqlite":
        with database.read(ALL_TENANTS) as tx:
            tx.execute(insert(NOTES).values(id=1))
    else:
        with pytest.raises(DBAPIError, match="read-only"), database.read(ALL_TENANTS) as tx:
            tx.execute(insert(NOTES).values(id=1))
    assert _notes(database) == []


def test_a_read_sees_one_state_while_others_write(database: Database) -> None:
    with database.read(ALL_TENANTS) as tx:
        assert list(tx.execute(select(NOTES.c.id)).scalars()) == []
        with database.write(ALL_TENANTS) as other:
            other.execute(insert(NOTES).values(id=1))
        assert list(tx.execute(select(NOTES.c.id)).scalars()) == []
    assert _notes(database) == [1]


def test_writers_of_a_file_wait_for_each_other(file: Database) -> None:
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.wait(10)
        with file.write(ALL_TENANTS) as tx:
            order.append("second")
            assert list(tx.execute(select(NOTES.c.id)).scalars()) == [1]

    writer = threading.Thread(target=second)
    writer.start()
    with file.write(ALL_TENANTS) as tx:
        entered.set()
        tx.execute(insert(NOTES).values(id=1))
        writer.join(0.2)
        order.append("first")
    writer.join(10)
    assert order == ["first", "second"]


def test_two_processes_worth_of_writers_never_interleave(file: Database) -> None:
    """Two databases on one file have no lock in common but the file's own."""
    other = Database(_url(file))

    def add(target: Database) -> None:
        for _ in range(20):
            with target.write(ALL_TENANTS) as tx:
                known = tx.execute(select(NOTES.c.id)).scalars().all()
                tx.execute(insert(NOTES).values(id=len(known)))

    writers = [threading.Thread(target=add, args=(target,)) for target in (file, other)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    other.dispose()
    assert _notes(file) == list(range(40))


def test_who_does_not_wait_is_told_of_a_writer_in_this_process_or_another(file: Database) -> None:
    other = Database(_url(file))
    for waiting in (file, other):
        with file.write(ALL_TENANTS) as tx:
            with pytest.raises(WriteLockBusyError), waiting.write(ALL_TENANTS, wait=False):
                raise AssertionError("two writers at once")
            tx.execute(insert(NOTES).values(id=len(_notes(file))))
        with waiting.write(ALL_TENANTS, wait=False) as tx:
            tx.execute(insert(NOTES).values(id=len(_notes(file))))
    other.dispose()
    assert _notes(file) == [0, 1, 2, 3]


def test_who_waits_too_long_is_told_to_repeat(file: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "LOCK_TIMEOUT_SECONDS", 0.01)
    with file.write(ALL_TENANTS), pytest.raises(LedgerUnavailableError, match="Repeat"), file.write(ALL_TENANTS):
        raise AssertionError("two writers at once")


def test_who_does_not_wait_is_told_of_a_real_fault(file: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.persistence.sqlite.WRITE", "BEGIN NONSENSE")
    another = Database(str(file.engine.url))
    with pytest.raises(OperationalError, match="syntax"), another.write(ALL_TENANTS, wait=False):
        raise AssertionError("nonsense was begun")
    another.dispose()


def test_a_race_that_was_lost_is_run_again_and_sees_the_winner(database: Database) -> None:
    """Somebody adds the same note between the look and the insert; only PostgreSQL lets that happen."""
    seen: list[list[int]] = []

    def work() -> None:
        with database.write(ALL_TENANTS) as tx:
            seen.append(list(tx.execute(select(NOTES.c.id)).scalars()))
            if len(seen) == 1 and database.dialect == "postgresql":
                with database.write(ALL_TENANTS) as other:
                    other.execute(insert(NOTES).values(id=0))
            tx.execute(insert(NOTES).values(id=len(seen[-1])))

    database.retried(work)
    assert seen == ([[], [0]] if database.dialect == "postgresql" else [[]])
    assert _notes(database) == ([0, 1] if database.dialect == "postgresql" else [0])


def test_a_violation_that_is_no_race_is_raised_as_it_is(database: Database) -> None:
    tries = 0

    def work() -> None:
        nonlocal tries
        tries += 1
        with database.write(ALL_TENANTS) as tx:
            tx.execute(insert(NOTES), [{"id": 1}])
            tx.execute(insert(NOTES), [{"id": 1}])

    with pytest.raises(IntegrityError):
        database.retried(work)
    assert tries == (MAX_TRIES if database.dialect == "postgresql" else 1)
    assert _notes(database) == []


def test_what_is_no_race_is_not_run_again(database: Database) -> None:
    tries = 0

    def work() -> None:
        nonlocal tries
        tries += 1
        with database.write(ALL_TENANTS) as tx:
            tx.exec_driver_sql("SELECT nonsense")

    with pytest.raises(DBAPIError):
        database.retried(work)
    assert tries == 1


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 11, 21, 9, 0, 0, 123456, tzinfo=UTC),
        datetime(2026, 11, 21, 9, 0, tzinfo=timezone(timedelta(hours=14))),
        datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        None,
    ],
)
def test_a_moment_comes_back_as_the_same_moment_in_utc(database: Database, moment: datetime | None) -> None:
    with database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES).values(id=1, at=moment))
    with database.read(ALL_TENANTS) as tx:
        found = tx.execute(select(NOTES.c.at)).scalar_one()
    assert found == moment
    if moment is not None:
        assert found.tzinfo is UTC
        assert found.utcoffset() == timedelta(0)


def test_moments_sort_as_they_passed(database: Database) -> None:
    early = datetime(2026, 1, 1, 23, 0, tzinfo=timezone(timedelta(hours=9)))
    late = datetime(2026, 1, 1, 15, 0, tzinfo=UTC)
    with database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES), [{"id": 1, "at": late}, {"id": 2, "at": early}])
        assert list(tx.execute(select(NOTES.c.id).order_by(NOTES.c.at)).scalars()) == [2, 1]


def test_a_moment_without_a_zone_is_refused(database: Database) -> None:
    naive = datetime(2026, 11, 21, 9, 0)  # noqa: DTZ001 - that is the mistake
    with pytest.raises((StatementError, AssertionError)), database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES).values(id=1, at=naive))
    assert _notes(database) == []


def test_a_connection_in_use_is_closed_when_it_is_given_back_to_a_database_that_was_closed(database_url: str) -> None:
    database = Database(database_url)
    closed: list[object] = []
    event.listen(database.engine, "close", lambda connection, _: closed.append(connection))
    with database.read(NO_TENANT) as tx:
        used = tx.connection.dbapi_connection
        database.dispose()
        assert closed == []
    assert closed == [used]


def test_a_revision_shows_whether_anybody_else_has_written(file: Database) -> None:
    def begun(database: Database = file) -> tuple[int, int]:
        with database.write(ALL_TENANTS) as tx:
            found = database.revision(tx)
        assert found is not None
        return found

    def expected(last: tuple[int, int]) -> tuple[int, int]:
        return last[0] + 1, last[1]

    last = begun()
    assert begun() == expected(last)
    last = begun()
    with file.read(ALL_TENANTS) as tx:
        tx.execute(select(NOTES)).all()
    assert begun() == expected(last)
    other = Database(str(file.engine.url))
    unlike: list[Callable[[], None]] = [
        lambda: _note(other),  # another process
        lambda: _note(file),  # another use case of this one
        lambda: _failed(file),  # a connection that may be in any state is replaced, and the new one counts anew
        lambda: _refused(file, other),
    ]
    for write in unlike:
        last = begun()
        write()
        assert begun() != expected(last)
    other.dispose()


def _note(database: Database) -> None:
    with database.write(ALL_TENANTS) as tx:
        tx.execute(insert(NOTES).values(at=datetime.now(UTC)))


def _failed(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.write(ALL_TENANTS):
        raise ZeroDivisionError


def _refused(database: Database, other: Database) -> None:
    with other.write(ALL_TENANTS), pytest.raises(WriteLockBusyError), database.write(ALL_TENANTS, wait=False):
        raise AssertionError("two write at once")
