"""The database: one way to read and one way to write, each a transaction."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from app.ledger.errors import InvalidInputError, LedgerUnavailableError

LOCK_TIMEOUT_SECONDS = 10
POOL_SIZE = 40


class Database:
    """A SQLite file, opened so that what was committed survives a crash.

    Args:
        url: an SQLAlchemy URL, such as sqlite:///epsilon-ledger.db.

    Raises:
        InvalidInputError: the URL names no SQLite file.
    """

    def __init__(self, url: str) -> None:
        self.engine = _sqlite_engine(url)
        self._writer = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database and changes nothing."""
        with self.engine.connect() as connection, connection.begin() as transaction:
            yield connection
            transaction.rollback()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that no other writer can interleave with; committed on a clean exit.

        The threads of this process wait for a lock of their own, which is fair and wakes at once;
        other processes wait at BEGIN IMMEDIATE.

        Raises:
            LedgerUnavailableError: other writers did not finish in time; nothing was changed.
        """
        if not self._writer.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            raise LedgerUnavailableError("Other writers did not finish in time. Repeat the request.")
        try:
            with self.engine.execution_options(writes=True).begin() as connection:
                yield connection
        finally:
            self._writer.release()

    def writable(self) -> bool:
        """Whether the database takes writes; another writer at work says that it does."""
        if not self._writer.acquire(blocking=False):
            return True
        try:
            with self.engine.execution_options(writes=True).connect() as connection:
                connection.begin().rollback()
        except OperationalError:
            return False
        finally:
            self._writer.release()
        return True

    def exists(self) -> bool:
        """Whether the file is there; to open it would make it."""
        return Path(str(self.engine.url.database)).exists()

    def dispose(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def writes(connection: Connection) -> bool:
    """Whether a connection's transaction was begun by `Database.write`."""
    return bool(connection.get_execution_options().get("writes", False))


def _sqlite_engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise InvalidInputError("EPSILON_LEDGER_DATABASE_URL is not a database URL; write sqlite:///FILE.") from error
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite"} or parsed.query:
        raise InvalidInputError(
            f"EPSILON_LEDGER_DATABASE_URL names {parsed.drivername} with options or a driver that this version does "
            "not support; write sqlite:///FILE."
        )
    if parsed.database in {None, "", ":memory:"} or str(parsed.database).startswith("file:"):
        raise InvalidInputError(
            "EPSILON_LEDGER_DATABASE_URL names no file, and a database in memory would forget what was spent; "
            "write sqlite:///FILE."
        )
    engine = create_engine(parsed, pool_size=POOL_SIZE, max_overflow=0, pool_timeout=LOCK_TIMEOUT_SECONDS)
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    del record
    connection.isolation_level = None  # sqlite3 must not begin transactions by itself: _begin_sqlite does
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {LOCK_TIMEOUT_SECONDS * 1000}",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A deferred BEGIN that turns into a write fails under load; IMMEDIATE waits for its turn.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes(connection) else "BEGIN")
