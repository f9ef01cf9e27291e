"""Read and write transactions on SQLite or PostgreSQL."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from typing import Final, Literal, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from app.ledger.errors import LedgerUnavailableError
from app.persistence import certificates, postgresql, sqlite, wal
from app.persistence.clock import Clock, Reading
from app.persistence.engines import begin, open_engine
from app.persistence.pipeline import IN_DOUBT, pipelined
from app.persistence.pool import PoolUsage, pool_usage
from app.persistence.sqlite import DiskSpace, WriteLockBusyError
from app.persistence.sqlite_writer import Revision, SqliteWriter

T = TypeVar("T")

LOCK_TIMEOUT_SECONDS = 10
TRIAL_SECONDS = 1.0
"""Lock timeout of a trial. Requests wait longer, but health checks are frequent."""

POOL_SIZE = 20
URL_SETTING = "EPSILON_LEDGER_DATABASE_URL"
MAX_TRIES = 5


class TenantScope(Enum):
    """The rows visible to a transaction, if not those of one organisation."""

    ALL = auto()
    """Those of every organisation: for maintenance of the whole ledger, and for authentication."""
    NONE = auto()
    """No organisation's: for queries about the database itself."""


ALL_TENANTS: Final = TenantScope.ALL
NO_TENANT: Final = TenantScope.NONE
Tenant = str | TenantScope
"""The id of a transaction's organisation, or ALL_TENANTS, or NO_TENANT."""

_BUSY = "Other writers did not finish in time; nothing was changed. Repeat the request."


class Database:
    """A SQLite file or a PostgreSQL database with durable commits.

    Args:
        url: sqlite:///FILE or postgresql://USER@HOST/DATABASE.
        pool_size: maximum connections of this process.
        called: the setting of the URL in error messages.
        password_file: has the password of every new PostgreSQL connection, unless the URL has one; empty: libpq finds
            one.
        read_only: whether writes are refused; the SQLite file may be on a read-only disk.
        pooled: whether sessions of PostgreSQL belong to a transaction each, as PgBouncer's transaction mode has it.

    Raises:
        InvalidInputError: the URL names neither.
    """

    def __init__(
        self,
        url: str,
        pool_size: int = POOL_SIZE,
        called: str = URL_SETTING,
        *,
        password_file: str = "",
        read_only: bool = False,
        pooled: bool = False,
    ) -> None:
        self.engine = open_engine(url, pool_size, LOCK_TIMEOUT_SECONDS, called, read_only=read_only, pooled=pooled)
        is_file = self.engine.dialect.name == "sqlite"
        self.dialect: Literal["sqlite", "postgresql"] = "sqlite" if is_file else "postgresql"
        if password_file and not is_file:
            postgresql.take_password_from(self.engine, Path(password_file))
        self._trials = self.engine
        if is_file:
            self._trials = sqlite.open_engine(self.engine.url, TRIAL_SECONDS, called, keeping=False)
            event.listen(self._trials, "begin", begin)
        self.clock = Clock(self._read_clock if self.dialect == "postgresql" else None)
        self._writer = SqliteWriter(self.engine) if is_file else None

    @contextmanager
    def read(self, tenant: Tenant, *, patient: bool = False) -> Iterator[Connection]:
        """Open a read-only transaction with a consistent snapshot of a tenant's rows (ADR 0019).

        A `patient` one has no time limit, for reading the whole ledger, and escapes invalid UTF-8.
        """
        statement = sqlite.READ
        if self.dialect == "postgresql":
            statement = _narrowed(postgresql.PATIENT_READ if patient else postgresql.READ, tenant)
        escapes = sqlite.any_text if patient and self.dialect == "sqlite" else nullcontext
        with closing(self._begun(statement, writes=False)) as connection, escapes(connection):
            yield connection
            if self.dialect == "postgresql":
                with suppress(DBAPIError):  # psycopg deallocates all prepared statements after a rollback
                    connection.commit()

    @contextmanager
    def write(self, tenant: Tenant, *, wait: bool = True) -> Iterator[Connection]:
        """Open a transaction that is committed on a clean exit.

        It changes a tenant's rows only (ADR 0019). SQLite has one writer at a time (`SqliteWriter`); without `wait` the
        caller is never blocked by another one. PostgreSQL has many: a caller that decides by what it reads locks the
        rows first (`FOR UPDATE`, root to leaf) and runs under `retried`.

        Raises:
            WriteLockBusyError: another writer is active, and the caller does not wait.
            LedgerUnavailableError: other writers did not finish in time, and nothing was changed; or the connection
                broke during the commit.
        """
        if self._writer is None:
            with closing(self._begun(_write_statement(self.dialect, tenant), writes=True)) as connection:
                yield connection
                _commit(connection)
            return
        turn = self._turn(LOCK_TIMEOUT_SECONDS, _BUSY) if wait else self._turn(None)
        with turn, self._writer.transaction(wait=wait) as connection:
            yield connection

    def pipeline(self, organisation_id: str) -> AbstractContextManager[Connection | None]:
        """Open a write transaction on PostgreSQL in one round trip; see `pipelined`."""
        return pipelined(self.engine, organisation_id)

    def revision(self, tx: Connection) -> Revision | None:
        """Identify the state that a write transaction on SQLite began with; None on PostgreSQL.

        It is the number of this process's write transactions before, and SQLite's `data_version` of their connection,
        which changes with every commit of another one. A new connection counts as a transaction.
        """
        return None if self._writer is None else self._writer.revision(tx)

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        """Open a transaction for schema changes on all rows, committed on a clean exit.

        On SQLite foreign keys are off, since tables are rebuilt, and checked at the end. On PostgreSQL migrations wait
        for each other.

        Raises:
            LedgerUnavailableError: as for `write`, or a foreign key is broken.
        """
        with self._turn(LOCK_TIMEOUT_SECONDS, _BUSY), closing(self.engine.connect()) as opened:
            opened.execution_options(begin=_write_statement(self.dialect, ALL_TENANTS), writes=True)
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
                opened.invalidate()  # a connection without foreign keys must not be reused

    def retried(self, work: Callable[[], T]) -> T:
        """Run a unit of work, again after losing a race to another transaction.

        `work` begins its own write transaction and has no other side effect.

        Raises:
            LedgerUnavailableError: it lost races until the timeout; nothing was changed.
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
                        raise  # no race: the row does not exist
                    raise LedgerUnavailableError(_BUSY) from error
            time.sleep(secrets.randbelow(10_000) * 1e-6 * tries)

    def transact(self, tenant: Tenant, work: Callable[[Connection], T]) -> T:
        """Run a unit of work in a write transaction of its own, again after losing a race (see `retried`)."""

        def attempt() -> T:
            with self.write(tenant) as tx:
                return work(tx)

        return self.retried(attempt)

    def migrate(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work in a schema change of its own, again after a deadlock (see `retried`).

        A service that runs meanwhile locks the same tables in another order.
        """

        def attempt() -> T:
            with self.migration() as tx:
                return work(tx)

        return self.retried(attempt)

    def bypasses_rls(self) -> bool:
        """Check whether PostgreSQL's row-level security does not apply to this role."""
        if self.dialect == "sqlite":
            return False
        with self.read(NO_TENANT) as tx:
            return postgresql.bypasses_rls(tx)

    def analyze(self) -> None:
        """Collect PostgreSQL statistics of grown tables that have none."""
        if self.dialect == "postgresql":
            with self.write(NO_TENANT) as tx:
                postgresql.analyze(tx)

    @contextmanager
    def trial(self, organisation_id: str) -> Iterator[Connection]:
        """Open a write transaction that is always rolled back.

        Raise WriteLockBusyError if other threads are busy. On SQLite it has its own connection, whose writes reach the
        log without a commit.
        """
        statement = _write_statement(self.dialect, organisation_id)
        with self._turn(TRIAL_SECONDS), closing(self._trials.connect()) as connection:
            connection.execution_options(begin=statement, writes=True).begin()
            yield connection

    def _read_clock(self) -> Reading:
        with self.read(NO_TENANT) as tx:
            return postgresql.read_clock(tx)

    def checkpoint_wal(self) -> wal.WalState | None:
        """Checkpoint the log of a SQLite file apart from commits (`wal.checkpoint`); None on PostgreSQL.

        From the first call on, commits of this object checkpoint nothing: it must be called again every few seconds.

        Raises:
            DBAPIError: the disk is full, or fails.
        """
        if self._writer is None:
            return None
        self._writer.leave_checkpoints()
        return wal.checkpoint(self._trials, self._writer.lock)

    def connections(self) -> PoolUsage:
        """Count the connections of this process, and the threads that wait for one."""
        return pool_usage(self.engine.pool, kept=self._writer is not None and self._writer.keeps_connection)

    def disk_space(self) -> DiskSpace | None:
        """Measure the file system of a SQLite file; None on PostgreSQL, whose disk belongs to another machine.

        Raises:
            OSError: the folder is not there.
        """
        return sqlite.disk_space(Path(str(self.engine.url.database))) if self.dialect == "sqlite" else None

    def certificate_expiries(self) -> dict[str, datetime]:
        """Read when the certificates of connections to PostgreSQL expire; SQLite has none.

        Raises:
            LedgerUnavailableError: as for `certificates.certificate_expiries`.
        """
        return certificates.certificate_expiries(self.engine) if self.dialect == "postgresql" else {}

    def exists(self) -> bool:
        """Check whether the database exists; opening a missing file would create it."""
        return self.dialect == "postgresql" or Path(str(self.engine.url.database)).exists()

    def is_used_by_others(self) -> bool:
        """Check whether a service or a command is connected to it; this object must not have been used before.

        Raises:
            SQLAlchemyError: the database does not answer.
        """
        if self.dialect == "postgresql":
            with self.read(NO_TENANT) as tx:
                return postgresql.is_used_by_others(tx)
        return sqlite.is_used_by_others(Path(str(self.engine.url.database)))

    def dispose(self) -> None:
        """Close every connection; one in use is closed on return to the pool."""
        event.listen(self.engine, "checkin", lambda _, record: record.close())  # closes and drops it
        if self._writer is not None:
            self._writer.dispose()
        self.engine.dispose()

    @contextmanager
    def _turn(self, seconds: float | None, busy: str | None = None) -> Iterator[None]:
        """Hold the lock of this process's SQLite writers.

        After some seconds, None: at once, raise LedgerUnavailableError with this message, or else WriteLockBusyError.
        """
        if self._writer is None:
            yield
            return
        lock = self._writer.lock
        if not lock.acquire(blocking=seconds is not None, timeout=-1 if seconds is None else seconds):
            raise WriteLockBusyError if busy is None else LedgerUnavailableError(busy)
        try:
            yield
        finally:
            lock.release()

    def _begun(self, statement: str, *, writes: bool) -> Connection:
        """Begin a transaction on a connection of the pool, or on a new one if that has died."""
        connection = self.engine.connect().execution_options(begin=statement, writes=writes)
        try:
            connection.begin()
        except BaseException as error:
            connection.close()
            if not (isinstance(error, DBAPIError) and error.connection_invalidated):
                raise
        else:
            return connection
        connection = self.engine.connect().execution_options(begin=statement, writes=writes)
        connection.begin()
        return connection


def error_summary(error: Exception) -> str:
    """Summarize an error in one line, preferably the database's."""
    return str(getattr(error, "orig", None) or error).partition("\n")[0]


def _write_statement(dialect: str, tenant: Tenant) -> str:
    return sqlite.WRITE if dialect == "sqlite" else _narrowed(postgresql.WRITE, tenant)


def _narrowed(begin: str, tenant: Tenant) -> str:
    if tenant is NO_TENANT:
        return begin
    return postgresql.for_everyone(begin) if tenant is ALL_TENANTS else postgresql.for_organisation(begin, str(tenant))


def _commit(connection: Connection) -> None:
    citus = postgresql.has_citus(connection)
    try:
        connection.commit()
    except BaseException as error:
        in_doubt = isinstance(error, DBAPIError) and (
            error.connection_invalidated
            or (citus and postgresql.is_in_doubt(getattr(error.orig, "sqlstate", None), citus=True))
        )
        connection.invalidate()  # closed, not returned: its transaction may still be open
        if in_doubt:
            raise LedgerUnavailableError(IN_DOUBT) from error
        raise
