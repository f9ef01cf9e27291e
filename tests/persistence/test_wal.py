"""Checkpoints of a SQLite file's log apart from commits."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, LargeBinary, MetaData, Table, func, insert, select
from sqlalchemy.exc import DBAPIError

from app.persistence import sqlite, wal
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.wal import WalState

PAGE = 2048
PAGES = Table("pages", MetaData(), Column("id", Integer, primary_key=True), Column("content", LargeBinary))


@pytest.fixture(autouse=True)
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a log of 200 pages long, here and in commits."""
    monkeypatch.setattr(sqlite, "LONG_PAGES", 200)
    monkeypatch.setattr(wal, "_FEW_PAGES", 50)
    monkeypatch.setattr(sqlite, "_CHECKPOINT", "wal_autocheckpoint = 200")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "file.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    """A database with a table whose rows take more than a page each."""
    found = Database(f"sqlite:///{path}")
    with found.write(ALL_TENANTS) as tx:
        PAGES.create(tx)
    yield found
    found.dispose()


def write_pages(database: Database, count: int) -> None:
    """Write a row of more than a page in each of several transactions."""
    for _ in range(count):
        with database.write(ALL_TENANTS) as tx:
            tx.execute(insert(PAGES).values(content=bytes(PAGE)))


def checkpoint(database: Database) -> WalState:
    state = database.checkpoint_wal()
    assert state is not None
    return state


def count_rows(database: Database) -> int:
    with database.read(ALL_TENANTS) as tx:
        return int(tx.execute(select(func.count()).select_from(PAGES)).scalar_one())


def log_length(path: Path) -> int:
    """Get the length of the log's file, in bytes."""
    return path.with_name(path.name + "-wal").stat().st_size


def checkpoint_of_another_process(path: Path) -> None:
    """Checkpoint the whole log as soon as no reader needs it."""
    with closing(sqlite3.connect(path, timeout=30)) as other:
        while other.execute("PRAGMA wal_checkpoint(FULL)").fetchone() == (1, -1, -1):
            time.sleep(0.001)  # this process was at it in that moment


def test_commit_copies_a_long_log_when_no_checkpoint_was_made(database: Database, path: Path) -> None:
    before = path.stat().st_size
    write_pages(database, 200)
    assert path.stat().st_size > before + 100 * PAGE


def test_commit_leaves_the_log_to_checkpoints_after_the_first_of_them(database: Database, path: Path) -> None:
    write_pages(database, 10)
    checkpoint(database)
    before = path.stat().st_size
    write_pages(database, 500)
    assert path.stat().st_size == before
    state = checkpoint(database)
    assert state.pages == state.copied > 500
    assert path.stat().st_size > before + 500 * PAGE
    assert count_rows(database) == 510


def test_log_starts_anew_when_a_long_one_was_checkpointed(database: Database, path: Path) -> None:
    database.checkpoint_wal()
    for _ in range(20):
        write_pages(database, 100)
        database.checkpoint_wal()
    assert log_length(path) < 1500 * PAGE
    assert path.stat().st_size > 2000 * PAGE


def test_short_log_is_copied_and_goes_on(database: Database) -> None:
    checkpoint(database)
    write_pages(database, 5)
    first = checkpoint(database)
    write_pages(database, 5)
    second = checkpoint(database)
    assert 0 < first.copied == first.pages < second.pages == second.copied < 200


def test_reader_keeps_its_state_and_the_log_ends_after_it(database: Database, path: Path) -> None:
    write_pages(database, 10)
    database.checkpoint_wal()
    with database.read(ALL_TENANTS) as tx:
        seen = select(func.count()).select_from(PAGES)
        assert tx.execute(seen).scalar_one() == 10
        write_pages(database, 500)
        held = checkpoint(database)
        assert held.copied < held.pages
        assert tx.execute(seen).scalar_one() == 10
    freed = checkpoint(database)
    assert freed.copied == freed.pages == held.pages
    length = log_length(path)
    write_pages(database, 100)
    assert log_length(path) == length
    assert count_rows(database) == 610


def test_checkpoint_of_a_long_log_waits_for_readers_that_are_about_to_end(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "_PATIENCE_SECONDS", 30)
    database.checkpoint_wal()
    write_pages(database, 300)
    reading = threading.Event()

    def read() -> None:
        with database.read(ALL_TENANTS) as tx:
            tx.execute(select(PAGES)).all()
            reading.set()
            time.sleep(0.3)

    reader = threading.Thread(target=read)
    reader.start()
    assert reading.wait(30)
    database.checkpoint_wal()
    length = log_length(path)
    write_pages(database, 10)
    reader.join()
    assert log_length(path) == length


def test_writer_goes_on_while_the_log_is_copied(database: Database, path: Path) -> None:
    database.checkpoint_wal()
    writer = threading.Thread(target=write_pages, args=(database, 600))
    writer.start()
    checkpoints = 0
    while writer.is_alive():
        database.checkpoint_wal()
        checkpoints += 1
    assert checkpoints > 10
    assert count_rows(database) == 600
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_pages_written_during_a_long_copy_are_copied_before_writers_wait(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.checkpoint_wal()
    write_pages(database, 300)
    passes: list[tuple[str, int]] = []
    run = wal._run
    with ExitStack() as reading:  # so that the log is not started anew
        reading.enter_context(database.read(ALL_TENANTS)).execute(select(PAGES)).all()

        def run_while_another_writes(connection: Connection, mode: str) -> WalState:
            state = run(connection, mode)
            if not passes:
                write_pages(database, 300)
                reading.close()
            passes.append((mode, state.copied))
            return state

        monkeypatch.setattr(wal, "_run", run_while_another_writes)
        database.checkpoint_wal()
    assert [mode for mode, _ in passes] == ["PASSIVE", "PASSIVE", "PASSIVE", "RESTART"]
    first, second, third, last = (copied for _, copied in passes)
    assert first + 300 <= second == third == last


def test_checkpoint_is_deferred_when_another_process_writes(database: Database, path: Path) -> None:
    database.checkpoint_wal()
    write_pages(database, 300)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        state = checkpoint(database)  # gives up after its patience
        other.execute("ROLLBACK")
    assert state.pages == state.copied
    length = log_length(path)
    write_pages(database, 10)
    database.checkpoint_wal()
    write_pages(database, 10)
    assert log_length(path) <= length + 40 * PAGE


def test_checkpoint_is_passed_over_when_another_process_makes_one(database: Database, path: Path) -> None:
    database.checkpoint_wal()
    with database.read(ALL_TENANTS) as tx:
        tx.execute(select(PAGES)).all()
        write_pages(database, 300)
        waiting = threading.Thread(target=checkpoint_of_another_process, args=(path,))
        waiting.start()  # for the reader, as long as that reads
        for _ in range(1000):
            if (found := database.checkpoint_wal()) == WalState(-1, -1):
                break
            time.sleep(0.01)
        assert found == WalState(-1, -1)
    waiting.join(30)
    assert not waiting.is_alive()
    write_pages(database, 10)
    assert count_rows(database) == 310


def test_error_of_the_disk_is_an_error_of_the_database(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pages(database, 10)
    real = sqlite.driver

    class Failing:
        def __init__(self, raw: sqlite3.Connection) -> None:
            self.raw = raw

        def execute(self, statement: str) -> sqlite3.Cursor:
            if "wal_checkpoint" in statement:
                raise sqlite3.OperationalError("database or disk is full")
            return self.raw.execute(statement)

    monkeypatch.setattr(sqlite, "driver", lambda connection: Failing(real(connection)))
    with pytest.raises(DBAPIError, match="disk is full"):
        database.checkpoint_wal()


def test_log_is_removed_when_a_database_closes_after_a_checkpoint(database: Database, path: Path) -> None:
    write_pages(database, 300)
    database.checkpoint_wal()
    database.dispose()
    assert not path.with_name(path.name + "-wal").exists()
