"""The database: one way to read and one way to write, each a transaction."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Final, Literal, TypeVar

from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from app.ledger.errors import InvalidInputError, LedgerUnavailableError
from app.persistence import postgresql, sqlite
from app.persistence.clock import Clock, Reading

T = TypeVar("T")

LOCK_TIMEOUT_SECONDS = 10
TRIAL_SECONDS = 1.0
"""For how long a trial waits for a lock. A request waits longer, but a health check asks often."""

POOL_SIZE = 20
URL_SETTING = "EPSILON_LEDGER_DATABASE_URL"
MAX_TRIES = 5


class Rows(Enum):
    """Whose rows a transaction sees and changes, if not those of one organisation."""

    EVERYONES = auto()
    NOBODYS = auto()


ALL_TENANTS: Final = Rows.EVERYONES
"""The rows of every organisation: for whoever looks after the whole ledger, and to find out who asks."""

NO_TENANT: Final = Rows.NOBODYS
"""No organisation's rows: for questions about the database itself."""

Whose = str | Rows
"""The id of the one organisation whose rows a transaction is about; or EVERYONE, or NOBODY."""

_BUSY = "Other writers did not finish in time; nothing was changed. Repeat the request."
_IN_DOUBT = (
    "The connection to the database broke while the request was being committed, so it may or may not have been "
    "carried out. Repeat it as it was: with its idempotency key, or the number of its first step, it counts once."
)


class WriteLockBusyError(Exception):
    """Another thread or process writes at this moment; only who asked not to wait is told."""


class Database:
    """A SQLite file or a PostgreSQL database, opened so that what was committed survives a crash.

    Args:
        url: sqlite:///FILE or postgresql://USER@HOST/DATABASE.
        pool_size: how many connections to PostgreSQL this process keeps at the most.
        called: where the URL was given, for whoever has to correct it.
        read_only: whether it is only looked at; a SQLite file may then lie where nothing can be written.

    Raises:
        InvalidInputError: the URL names neither.
    """

    def __init__(
        self, url: str, pool_size: int = POOL_SIZE, called: str = URL_SETTING, *, read_only: bool = False
    ) -> None:
        self.engine = _engine(url, pool_size, called, read_only=read_only)
        self.dialect: Literal["sqlite", "postgresql"] = (
            "sqlite" if self.engine.dialect.name == "sqlite" else "postgresql"
        )
        self._trials = self.engine
        if self.dialect == "sqlite":
            self._trials = sqlite.open_engine(self.engine.url, TRIAL_SECONDS, called, keeping=False)
            event.listen(self._trials, "begin", _begin)
        self.clock = Clock(self._read_clock if self.dialect == "postgresql" else None)
        self._writer = threading.Lock()

    def take_password_from(self, file: Path) -> None:
        """Let every new connection to a server take the password that a file holds then; SQLite needs none.

        Args:
            file: holds the password of the role that the URL names; a password in the URL comes first.
        """
        if self.dialect == "postgresql":
            postgresql.take_password_from(self.engine, file)

    @contextmanager
    def read(self, whose: Whose, *, patient: bool = False) -> Iterator[Connection]:
        """A transaction that sees one state of the database and changes nothing.

        Args:
            whose: rows are to be seen; PostgreSQL shows no others, whatever is asked for (ADR 0019).
            patient: it may take as long as it takes, for a look at the whole ledger, and meets text that is none.
        """
        begin = sqlite.READ
        if self.dialect == "postgresql":
            begin = _narrowed(postgresql.PATIENT_READ if patient else postgresql.READ, whose)
        with closing(self._begun(begin, writes=False)) as connection:
            if patient and self.dialect == "sqlite":
                with sqlite.any_text(connection):
                    yield connection
            else:
                yield connection

    @contextmanager
    def write(self, whose: Whose, *, wait: bool = True) -> Iterator[Connection]:
        """A transaction that is committed on a clean exit.

        SQLite has one writer at a time. The threads of this process wait for a lock of their own, which is fair and
        wakes at once; other processes wait at BEGIN IMMEDIATE. PostgreSQL has many: whoever decides by what it reads
        locks the rows first (`FOR UPDATE`, root to leaf), and is called by `retried`.

        Args:
            whose: rows are to be seen and changed; PostgreSQL lets no others through (ADR 0019).
            wait: for other writers; without it the caller is never blocked by one. Of no effect on PostgreSQL.

        Raises:
            WriterBusyError: another writer is at work, and the caller does not wait.
            LedgerUnavailableError: other writers did not finish in time, and nothing was changed; or the connection
                broke during the commit.
        """
        with self._turn(wait=wait), closing(self._begun_write(whose, wait=wait)) as connection:
            yield connection
            _commit(connection)

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        """A transaction in which tables may be made, changed and rebuilt; committed on a clean exit.

        It is about everyone's rows. On SQLite a rebuild must not trip over foreign keys: they are off until the end,
        and then looked through. On PostgreSQL one migration waits for the other.

        Raises:
            LedgerUnavailableError: as for `write`; or rows refer to others that are not there.
        """
        with (
            self._turn(wait=True),
            closing(self._connection(_write_statement(self.dialect, ALL_TENANTS), writes=True)) as opened,
        ):
            if self.dialect == "sqlite":
                sqlite.keep_foreign_keys(opened, on=False)
            try:
                opened.begin()
                if self.dialect == "postgresql":
                    postgresql.prepare_migration(opened)
                yield opened
                if self.dialect == "sqlite":
                    sqlite.check_foreign_keys(opened)
                _commit(opened)
            finally:
                opened.invalidate()  # a connection without foreign keys serves no one else

    def retried(self, work: Callable[[], T]) -> T:
        """Do a unit of work, and again if another transaction was faster; then it sees what the other one did.

        Args:
            work: begins its own write transaction, and does nothing else that lasts.

        Returns:
            What the work returns.

        Raises:
            LedgerUnavailableError: others were faster again and again; nothing was changed.
        """
        until = time.monotonic() + LOCK_TIMEOUT_SECONDS
        tries = 0
        while True:
            tries += 1
            try:
                return work()
            except DBAPIError as error:
                state = getattr(error.orig, "sqlstate", None)
                if state not in postgresql.RACES_LOST:
                    raise
                if tries >= MAX_TRIES or time.monotonic() > until:
                    if state == postgresql.UNIQUE_VIOLATION:
                        raise  # no race: whoever looked for the row does not find it
                    raise LedgerUnavailableError(_BUSY) from error
            time.sleep(secrets.randbelow(10_000) * 1e-6 * tries)

    def passes_walls(self) -> bool:
        """Whether PostgreSQL would show this role every organisation's rows, whatever a transaction is about."""
        if self.dialect == "sqlite":
            return False
        with self.read(NO_TENANT) as tx:
            return postgresql.bypasses_rls(tx)

    def learn_sizes(self) -> None:
        """Let PostgreSQL look at tables that have grown since nothing was known of them; SQLite needs no such look."""
        if self.dialect == "postgresql":
            with self.write(NO_TENANT) as tx:
                postgresql.analyze(tx)

    @contextmanager
    def trial(self, organisation_id: str) -> Iterator[Connection]:
        """A write transaction that is always rolled back.

        On SQLite it has a connection of its own, by which what is written reaches the log although it is not committed.

        Args:
            organisation_id: whose rows it is about.

        Raises:
            WriterBusyError: other threads did not finish in time.
        """
        begin = _write_statement(self.dialect, organisation_id)
        with (
            self._turn(wait=True, seconds=TRIAL_SECONDS),
            closing(self._trials.execution_options(begin=begin, writes=True).connect()) as connection,
        ):
            connection.begin()
            yield connection

    def _read_clock(self) -> Reading:
        with self.read(NO_TENANT) as tx:
            return postgresql.read_clock(tx)

    def connections(self) -> tuple[int, int]:
        """How many connections this process uses, and how many more it keeps open."""
        pool = self.engine.pool
        return (pool.checkedout(), pool.checkedin()) if isinstance(pool, QueuePool) else (0, 0)

    def exists(self) -> bool:
        """Whether there is anything to open; to open a file that is not there would make it."""
        return self.dialect == "postgresql" or Path(str(self.engine.url.database)).exists()

    def dispose(self) -> None:
        """Close every connection; one that is in use, or that a late look still opens, when it is given back."""
        event.listen(self.engine, "checkin", _close)
        self.engine.dispose()

    @contextmanager
    def _turn(self, *, wait: bool, seconds: float | None = None) -> Iterator[None]:
        """The turn among the threads of this process, which PostgreSQL's writers do not need."""
        if self.dialect == "postgresql":
            yield
            return
        patience = LOCK_TIMEOUT_SECONDS if seconds is None else seconds
        if not self._writer.acquire(blocking=wait, timeout=patience if wait else -1):
            if wait and seconds is None:
                raise LedgerUnavailableError(_BUSY)
            raise WriteLockBusyError
        try:
            yield
        finally:
            self._writer.release()

    def _connection(self, begin: str, *, writes: bool) -> Connection:
        return self.engine.execution_options(begin=begin, writes=writes).connect()

    def _begun_write(self, whose: Whose, *, wait: bool) -> Connection:
        begin = _write_statement(self.dialect, whose)
        if wait or self.dialect == "postgresql":
            return self._begun(begin, writes=True)
        connection = self._connection(begin, writes=True)
        try:
            if sqlite.begin_at_once(connection, LOCK_TIMEOUT_SECONDS):
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()
        raise WriteLockBusyError

    def _begun(self, begin: str, *, writes: bool) -> Connection:
        """A connection in a transaction; one that died in the pool is replaced: a BEGIN is safe to repeat."""
        connection = self._connection(begin, writes=writes)
        try:
            connection.begin()
        except BaseException as error:
            connection.close()
            if not (isinstance(error, DBAPIError) and error.connection_invalidated):
                raise
        else:
            return connection
        connection = self._connection(begin, writes=writes)
        connection.begin()
        return connection


def error_summary(error: Exception) -> str:
    """What a failure says, in one line: the database's own words where there are some."""
    return str(getattr(error, "orig", None) or error).partition("\n")[0]


def writes(connection: Connection) -> bool:
    """Whether a connection's transaction was begun by `Database.write`."""
    return bool(connection.get_execution_options().get("writes", False))


def _write_statement(dialect: str, whose: Whose) -> str:
    return sqlite.WRITE if dialect == "sqlite" else _narrowed(postgresql.WRITE, whose)


def _narrowed(begin: str, whose: Whose) -> str:
    if whose is NO_TENANT:
        return begin
    return postgresql.for_everyone(begin) if whose is ALL_TENANTS else postgresql.for_organisation(begin, str(whose))


def _commit(connection: Connection) -> None:
    transaction = connection.get_transaction()
    assert transaction is not None, "it was begun here, and nobody else ends it"
    try:
        transaction.commit()
    except BaseException as error:
        broken = isinstance(error, DBAPIError) and error.connection_invalidated
        connection.invalidate()  # closed, not given back: its transaction may still be open
        if broken:
            raise LedgerUnavailableError(_IN_DOUBT) from error
        raise


def _engine(url: str, pool_size: int, called: str, *, read_only: bool) -> Engine:
    right = "write sqlite:///FILE or postgresql://USER@HOST/DATABASE."
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # its words may hold a part of a password
        raise InvalidInputError(f"{called} is not a database URL; {right}") from None
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"}:
        engine = sqlite.open_engine(parsed, LOCK_TIMEOUT_SECONDS, called, read_only=read_only)
    elif parsed.drivername in {"postgresql", "postgresql+psycopg"}:
        engine = postgresql.open_engine(parsed, pool_size, LOCK_TIMEOUT_SECONDS, called)
    else:
        raise InvalidInputError(f"{called} names {parsed.drivername}, which this version does not support; {right}")
    event.listen(engine, "begin", _begin)
    return engine


def _close(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    del connection  # the record closes it, and knows that it has none
    record.close()


def _begin(connection: Connection) -> None:
    # Neither driver begins by itself: the statement says what kind of transaction it is to be.
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
