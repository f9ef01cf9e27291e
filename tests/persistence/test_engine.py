"""The database: how it is opened, and what its two kinds of transaction promise."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, insert, select
from sqlalchemy.exc import StatementError

from app.ledger.errors import InvalidInputError
from app.persistence.engine import LOCK_TIMEOUT_SECONDS, Database
from app.persistence.tables import UtcDateTime

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
def database(tmp_path: Path) -> Iterator[Database]:
    """A database with a table of notes."""
    found = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    with found.write() as tx:
        NOTES.create(tx)
    yield found
    found.dispose()


def _pragmas(connection: Connection) -> dict[str, object]:
    return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in PRAGMAS}


def _notes(database: Database) -> list[int]:
    with database.read() as tx:
        return list(tx.execute(select(NOTES.c.id).order_by(NOTES.c.id)).scalars())


def test_the_pragmas_hold_on_every_connection(database: Database) -> None:
    for _ in range(2):
        with ExitStack() as stack:
            readers = [stack.enter_context(database.read()) for _ in range(5)]
            writer = stack.enter_context(database.write())
            assert [_pragmas(connection) for connection in (*readers, writer)] == [PRAGMAS] * 6
        database.engine.dispose()


def test_a_write_is_there_after_it_and_only_after_it(database: Database) -> None:
    with database.write() as tx:
        tx.execute(insert(NOTES).values(id=1))
        assert _notes(database) == []
    assert _notes(database) == [1]


def test_a_write_that_fails_leaves_nothing(database: Database) -> None:
    def fail() -> None:
        with database.write() as tx:
            tx.execute(insert(NOTES).values(id=1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert _notes(database) == []
    with database.write() as tx:
        tx.execute(insert(NOTES).values(id=2))
    assert _notes(database) == [2]


def test_a_read_changes_nothing_even_if_it_tries(database: Database) -> None:
    with database.read() as tx:
        tx.execute(insert(NOTES).values(id=1))
    assert _notes(database) == []


def test_a_read_sees_one_state_while_others_write(database: Database) -> None:
    with database.read() as tx:
        assert list(tx.execute(select(NOTES.c.id)).scalars()) == []
        with database.write() as other:
            other.execute(insert(NOTES).values(id=1))
        assert list(tx.execute(select(NOTES.c.id)).scalars()) == []
    assert _notes(database) == [1]


def test_writers_wait_for_each_other(database: Database) -> None:
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.wait(10)
        with database.write() as tx:
            order.append("second")
            assert list(tx.execute(select(NOTES.c.id)).scalars()) == [1]

    writer = threading.Thread(target=second)
    writer.start()
    with database.write() as tx:
        entered.set()
        tx.execute(insert(NOTES).values(id=1))
        writer.join(0.2)
        order.append("first")
    writer.join(10)
    assert order == ["first", "second"]


def test_two_processes_worth_of_writers_never_interleave(database: Database) -> None:
    """Two databases on one file have no lock in common but the file's own."""
    other = Database(str(database.engine.url))

    def add(target: Database) -> None:
        for _ in range(20):
            with target.write() as tx:
                known = tx.execute(select(NOTES.c.id)).scalars().all()
                tx.execute(insert(NOTES).values(id=len(known)))

    writers = [threading.Thread(target=add, args=(target,)) for target in (database, other)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    other.dispose()
    assert _notes(database) == list(range(40))


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
    with database.write() as tx:
        tx.execute(insert(NOTES).values(id=1, at=moment))
    with database.read() as tx:
        found = tx.execute(select(NOTES.c.at)).scalar_one()
    assert found == moment
    if moment is not None:
        assert found.tzinfo is UTC
        assert found.utcoffset() == timedelta(0)


def test_moments_sort_as_they_passed(database: Database) -> None:
    early = datetime(2026, 1, 1, 23, 0, tzinfo=timezone(timedelta(hours=9)))
    late = datetime(2026, 1, 1, 15, 0, tzinfo=UTC)
    with database.write() as tx:
        tx.execute(insert(NOTES), [{"id": 1, "at": late}, {"id": 2, "at": early}])
        assert list(tx.execute(select(NOTES.c.id).order_by(NOTES.c.at)).scalars()) == [2, 1]


def test_a_moment_without_a_zone_is_refused(database: Database) -> None:
    naive = datetime(2026, 11, 21, 9, 0)  # noqa: DTZ001 - that is the mistake
    with pytest.raises((StatementError, AssertionError)), database.write() as tx:
        tx.execute(insert(NOTES).values(id=1, at=naive))
    assert _notes(database) == []


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql://localhost/ledger", "postgresql+psycopg://u:secret@h/d", "mysql://h/d", "bogus://x"),
        *("postgresql://h:port/d", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"),
        "sqlite:///file:x?mode=memory&cache=shared&uri=true",
        *("nonsense", "", " ", "ledger.db", "/tmp/ledger.db", "://", "http://example.org"),  # noqa: S108 - a URL that is refused
        *("sqlite+aiosqlite:///ledger.db", "sqlite+bogus:///ledger.db"),
    ],
)
def test_a_url_that_names_no_sqlite_file_is_refused_in_one_sentence(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError) as refused:
        Database(url)
    assert "EPSILON_LEDGER_DATABASE_URL" in refused.value.detail
    assert "sqlite:///FILE" in refused.value.detail
    assert "secret" not in refused.value.detail
    assert list(tmp_path.iterdir()) == []
