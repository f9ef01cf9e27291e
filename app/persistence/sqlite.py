"""SQLite engines with durable commits."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from app.ledger.errors import InvalidInputError, LedgerUnavailableError
from app.persistence.pool import WatchedPool

POOL_SIZE: Final = 48
"""More than the threads that serve requests, so that a writer never waits for readers."""

READ: Final = "BEGIN"
WRITE: Final = "BEGIN IMMEDIATE"  # a deferred BEGIN that turns into a write fails under load
DRIVER: Final = "driver"
"""Execution option with the driver's connection, of one that is used again and again."""

_PRIMARY_CODE: Final = 0xFF

BUSY: Final = sqlite3.SQLITE_BUSY
READ_ONLY: Final = sqlite3.SQLITE_READONLY
FULL: Final = sqlite3.SQLITE_FULL
CANNOT_OPEN: Final = sqlite3.SQLITE_CANTOPEN

_PAGE_SIZE: Final = "page_size = 2048"
"""Bytes, of a new file. A step changes one row in each of several pages, and the log gets whole pages: with the usual
4,096 bytes it is almost twice as long, and no time is saved by that."""

LONG_PAGES: Final = 16_000
"""Pages, 32 MB, of a long log. It is copied into the file and started anew: hot pages are copied once for many commits,
and the log's file is written over."""

_CHECKPOINT: Final = f"wal_autocheckpoint = {LONG_PAGES}"
"""Commits checkpoint a long log. In a service `wal.checkpoint` takes their place."""

_NO_CHECKPOINT: Final = "wal_autocheckpoint = 0"

_CACHE: Final = "cache_size = -2000"
"""KiB of pages cached by a connection that reads: each commit of another one invalidates them."""

_WRITER_CACHE: Final = "cache_size = -8000"
"""KiB of pages cached by a process's writer, which would read a larger ledger again for every group."""

_WRITING: Final = (_PAGE_SIZE, "journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", _CHECKPOINT)

_LOOKING: Final = ("query_only = ON",)

_NO_CACHE: Final = "cache_size = 1"
"""Written pages then reach the log before the end of the transaction, even if it is rolled back."""

REHEARSED_BYTES: Final = 1 << 18
"""More than a step writes to the log."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes of a file system: those that an ordinary user may still write, and all."""

    free: int
    size: int


class WriteLockBusyError(Exception):
    """Another thread or process is writing, and the caller does not wait."""


def open_engine(url: URL, patience: float, called: str, *, keeping: bool = True, read_only: bool = False) -> Engine:
    """Create an engine for a file, with explicit transactions.

    `patience` is the seconds that a connection waits for another writing process. Without `keeping`, connections and
    pages are not cached, so that all writes reach the log. A `read_only` file may be on a read-only disk.

    Raises:
        InvalidInputError: the URL has options, or names no file.
    """
    if url.query:
        raise InvalidInputError(
            f"{called} names a SQLite file with options, of which there are none; write sqlite:///FILE."
        )
    if url.database in {None, "", ":memory:"} or str(url.database).startswith("file:"):
        raise InvalidInputError(
            f"{called} names no file, and an in-memory database would lose the balances; write sqlite:///FILE."
        )

    def configure(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        del record
        connection.isolation_level = None  # sqlite3 must not begin transactions by itself
        for pragma in (
            f"busy_timeout = {int(patience * 1000)}",
            *(_LOOKING if read_only else _WRITING),
            _CACHE if keeping else _NO_CACHE,
        ):
            connection.cursor().execute(f"PRAGMA {pragma}")

    if keeping:
        engine = create_engine(
            url, poolclass=WatchedPool, pool_size=POOL_SIZE, max_overflow=0, pool_timeout=patience, pool_use_lifo=True
        )
    else:
        engine = create_engine(url, poolclass=NullPool)
    event.listen(engine, "connect", configure)
    if read_only:
        event.listen(engine, "do_connect", _look_only)
    return engine


@contextmanager
def any_text(connection: Connection) -> Iterator[None]:
    """Escape invalid UTF-8 on reading, which would otherwise abort the whole result."""
    raw = driver(connection)
    raw.text_factory = lambda text: text.decode(errors="backslashreplace")
    try:
        yield
    finally:
        raw.text_factory = str


def driver(connection: Connection) -> sqlite3.Connection:
    """Get the driver's connection: SQLAlchemy takes ten times as long for a short statement."""
    raw = connection.get_execution_options().get(DRIVER) or connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def translated(statement: str, error: sqlite3.Error, dialect: Dialect) -> DBAPIError:
    """Wrap an error of the driver as SQLAlchemy would."""
    found = DBAPIError.instance(statement, None, error, sqlite3.Error, hide_parameters=True, dialect=dialect)
    assert isinstance(found, DBAPIError)
    return found


def begin(connection: Connection, *, wait: bool) -> None:
    """Begin a write transaction behind SQLAlchemy's back, on a connection whose transactions it does not begin.

    Without `wait` raise WriteLockBusyError if another process is writing.
    """
    raw = driver(connection)
    try:
        if wait:
            raw.execute(WRITE)
            return
        [patience] = raw.execute("PRAGMA busy_timeout").fetchone()
        raw.execute("PRAGMA busy_timeout = 0")
        try:
            raw.execute(WRITE)
        finally:
            raw.execute(f"PRAGMA busy_timeout = {patience}")
    except sqlite3.Error as error:
        if not wait and error.sqlite_errorcode & _PRIMARY_CODE == BUSY:
            raise WriteLockBusyError from error
        raise translated(WRITE, error, connection.dialect) from error


def commit(connection: Connection) -> None:
    """Commit what `begin` has begun."""
    if connection.in_transaction():  # of SQLAlchemy, which joined this one
        connection.commit()
        return
    try:
        driver(connection).commit()
    except sqlite3.Error as error:
        raise translated("COMMIT", error, connection.dialect) from error


def execute_many(connection: Connection, statement: str, rows: Iterable[Sequence[Any]]) -> int:
    """Execute a statement for each row of parameters; return the number of changed rows."""
    try:
        return driver(connection).executemany(statement, rows).rowcount
    except sqlite3.Error as error:
        raise translated(statement, error, connection.dialect) from error


def prepare_writer(connection: Connection, *, checkpoints: bool) -> Connection:
    """Let a connection cache what a writer needs again, and its commits checkpoint a long log or not; return it."""
    raw = driver(connection)
    for pragma in (_WRITER_CACHE, _CHECKPOINT if checkpoints else _NO_CHECKPOINT):
        raw.execute(f"PRAGMA {pragma}")
    return connection.execution_options(begin="", writes=True, **{DRIVER: raw})


def data_version(connection: Connection) -> int:
    """Get the number that changes when another connection commits (https://www.sqlite.org/pragma.html)."""
    return int(driver(connection).execute("PRAGMA data_version").fetchone()[0])


def keep_foreign_keys(connection: Connection, *, on: bool) -> None:
    """Switch the enforcement of foreign keys, which SQLite allows outside transactions only."""
    driver(connection).execute(f"PRAGMA foreign_keys = {'ON' if on else 'OFF'}")


def check_foreign_keys(connection: Connection) -> None:
    """Raise LedgerUnavailableError if a foreign key is broken after tables were rebuilt."""
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    if broken:
        raise LedgerUnavailableError(
            f"{len(broken)} rows refer to others that are not there, the first in {broken[0][0]}; nothing was changed."
        )


def disk_space(file: Path) -> DiskSpace:
    """Measure the file system that a file is on.

    Raises:
        OSError: its folder is not there.
    """
    found = os.statvfs(file.absolute().parent)
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def is_used_by_others(file: Path) -> bool:
    """Check whether a connection to a file is open, of this process or another one.

    In WAL mode each open connection holds a shared lock, also while it is idle
    (https://www.sqlite.org/wal.html#use_of_wal_without_shared_memory).
    """
    with closing(sqlite3.connect(file.absolute().as_uri() + "?mode=rw", uri=True, timeout=0)) as connection:
        connection.isolation_level = None
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY_CODE != BUSY:
                raise
            return True
    return False


def primary_code(error: DBAPIError) -> int:
    """Get SQLite's primary result code of an error, or 0."""
    code: int = getattr(error.orig, "sqlite_errorcode", 0)
    return code & _PRIMARY_CODE


def read_only_uri(file: Path) -> str:
    """Choose a URI that opens a file read-only (https://www.sqlite.org/wal.html#readonly).

    Raises:
        LedgerUnavailableError: the latest commits are in a log that cannot be read in that folder.
    """
    uri = file.absolute().as_uri()
    logs = [log for suffix in ("-wal", "-journal") if _holds_something(log := file.with_name(file.name + suffix))]
    if os.access(file.parent, os.W_OK):
        # SQLite creates and removes files beside a writable one, but would also apply an existing log to it.
        return f"{uri}?mode={'ro' if logs else 'rw'}"
    if file.with_name(f"{file.name}-wal").exists() and file.with_name(f"{file.name}-shm").exists():
        return f"{uri}?mode=ro"
    if logs:
        raise LedgerUnavailableError(
            f"{logs[0]} holds what was committed last, and SQLite can only read it where it can write: copy {file} and "
            "all files whose names begin like its own into a folder that can be written, and name the copy."
        )
    return f"{uri}?mode=ro&immutable=1"  # SQLite would create one unless it is declared immutable


def _holds_something(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _look_only(dialect: object, record: object, given: list[object], options: dict[str, object]) -> None:
    """Connect to the same file read-only."""
    del dialect, record
    given[0] = read_only_uri(Path(str(given[0])))
    options["uri"] = True
