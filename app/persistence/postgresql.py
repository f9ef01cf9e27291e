"""PostgreSQL sessions with durable commits and bounded waits that survive server restarts."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Column, Connection, Engine, String, create_engine, event
from sqlalchemy.dialects.postgresql.base import PGTypeCompiler
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import TypeEngine

from app.ledger.errors import InvalidInputError, LedgerUnavailableError
from app.ledger.ids import number_of
from app.persistence.clock import Reading, counted
from app.persistence.pool import WatchedPool

if TYPE_CHECKING:
    import psycopg

OLDEST_VERSION: Final = 13
LOCK_TIMEOUT_SECONDS: Final = 3
STATEMENT_TIMEOUT_SECONDS: Final = 30

READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
PATIENT_READ: Final = f"{READ}; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

UNIQUE_VIOLATION: Final = "23505"
RACES_LOST: Final = frozenset({UNIQUE_VIOLATION, "40001", "40P01", "55P03", "22012"})
"""Unique violation, serialization failure, deadlock, lock timeout, division by zero (see `pipeline.required`): another
transaction was faster."""

GONE: Final = frozenset({"0A000", "25006", "25P03", "57P01", "57P02", "57P03", "57P05"})
"""The server is a standby, is read-only, shuts down, or ended the session: its connections are useless."""

CONNECTION_CLASS: Final = "08"
"""Class of SQLSTATE of a broken connection; PgBouncer reports by it that it lost the server."""

SETTINGS: Final = "settings"
"""Execution option of an engine with the statement that sets a transaction's settings, if its sessions are pooled."""

CITUS: Final = "citus"
"""Key in the information about a connection: whether its database has the extension Citus."""

_PARAMETERS: Final = {
    "application_name": "epsilon-ledger",
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Defaults of libpq parameters that the URL does not set."""

_UNKNOWN: Final = """
    SELECT relname FROM pg_class
    WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace
      AND reltuples <= 0 AND pg_relation_size(oid) > 262144
"""

_ROOM_ON_DISK: Final = "SELECT count(*) FROM generate_series(1, 10000)"
"""This many numbers take some 300 kB, more than their memory limit."""

_MIGRATION: Final = (
    "SET LOCAL statement_timeout = 0",
    "SET LOCAL idle_in_transaction_session_timeout = 0",
    "SET LOCAL lock_timeout = 0",
    "SELECT pg_advisory_xact_lock(7305524921735473253)",  # "epsilon" as a number; must never change
    "SET LOCAL lock_timeout = '60s'",
)


_USE_LOCK: Final = 7305524921735473255
"""Key of the advisory lock that every session shares, fixed for ever: who gets it alone is the only user. The two keys
before it are of migrations and verifications."""


def open_engine(url: URL, pool_size: int, patience: float, called: str, *, pooled: bool) -> Engine:
    """Create an engine for a server's database, with explicit transactions.

    The URL's options are libpq's, such as sslmode or several hosts. `patience` is the seconds that a request waits for
    a connection. If `pooled`, each transaction may have another session of the server, so that nothing is prepared,
    set or locked beyond it.

    Raises:
        InvalidInputError: the URL names no database, or an unknown libpq option; or psycopg is not installed.
    """
    # Imported here: it takes 0.06 s, and a service on SQLite does not need the driver.
    try:
        from psycopg import Error  # noqa: PLC0415 - as said
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - as said
    except ImportError:
        raise InvalidInputError(
            f"{called} names PostgreSQL, whose driver is not installed: pip install 'epsilon-ledger[postgresql]'."
        ) from None

    if not (url.database or {"dbname", "service"} & url.query.keys()):
        raise InvalidInputError(
            f"{called} names a server, but no database on it; write postgresql://USER@HOST/DATABASE."
        )
    if "@" in (url.host or ""):
        raise InvalidInputError(f"{called} has more than one @; write one that belongs to a name or password as %40.")
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        poolclass=WatchedPool,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=patience,
        pool_use_lifo=True,  # the most recently used connection has its statements prepared
        connect_args={name: value for name, value in _PARAMETERS.items() if name not in url.query}
        | ({"prepare_threshold": None} if pooled else {}),
        execution_options={SETTINGS: _settings(local=True)} if pooled else {},
    )
    _, parameters = engine.dialect.create_connect_args(url)
    parameters.pop("context", None)  # the driver's, not libpq's
    try:
        make_conninfo(**parameters)
    except Error as error:
        raise InvalidInputError(f"{called} has options that libpq does not take: {str(error).strip()}.") from None
    engine.dialect.type_compiler_instance = _BytewiseText(engine.dialect)
    event.listen(engine, "connect", _check)
    event.listen(engine, "connect", _notice_citus)
    if not pooled:
        event.listen(engine, "connect", _configure)
    event.listen(engine, "handle_error", _notice_what_is_gone)
    return engine


def take_password_from(engine: Engine, file: Path) -> None:
    """Read the password of every new connection from a file.

    Rotation then needs no restart. A password in the URL has precedence; a trailing newline is ignored.
    """

    def fill_in(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
        if "password" in parameters:
            return
        try:
            parameters["password"] = file.read_text().removesuffix("\n")
        except (OSError, ValueError) as error:
            raise LedgerUnavailableError(
                "EPSILON_LEDGER_DATABASE_PASSWORD_FILE names no file that can be read."
            ) from error

    event.listen(engine, "do_connect", fill_in)


def for_organisation(begin: str, organisation_id: str) -> str:
    """Build a statement that begins a transaction on one organisation's rows.

    Combining both statements saves a round trip: psycopg sends text without parameters unchanged.
    """
    return f"{begin}; {set_organisation(organisation_id)}"


def set_organisation(organisation_id: str) -> str:
    """Build the statement that limits a transaction to one organisation's rows.

    Citus sends it to the workers, as it does with no call of `set_config`.
    """
    return f"SET LOCAL epsilon_ledger.organisation = '{number_of(organisation_id)}'"


def for_everyone(begin: str) -> str:
    """Build a statement that begins a transaction on all rows."""
    return f"{begin}; SET LOCAL epsilon_ledger.all_tenants = 'on'"


def has_citus(connection: Connection) -> bool:
    """Check whether a connection's database has Citus."""
    return bool(connection.info.get(CITUS))


def bypasses_rls(connection: Connection) -> bool:
    """Check whether row-level security does not apply to the role."""
    question = "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
    return bool(connection.exec_driver_sql(question).scalar())


def read_clock(connection: Connection) -> Reading:
    """Read the server's clock."""
    began = counted()
    time: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    return Reading(began, time, counted())


def prepare_migration(connection: Connection) -> None:
    """Remove time limits and wait for a concurrent migration."""
    for statement in _MIGRATION:
        connection.exec_driver_sql(statement)


def analyze(connection: Connection) -> None:
    """Collect statistics of tables that have some hundred rows and no statistics.

    The server does so within a minute. Until then it may check a foreign key by an index that shares only a prefix with
    the right one, scanning a whole run for each check.
    """
    for name in connection.exec_driver_sql(_UNKNOWN).scalars():
        connection.exec_driver_sql(f'ANALYZE "{name}"')


def is_used_by_others(connection: Connection) -> bool:
    """Check whether another session of a service or a command is connected to the database."""
    alone = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({_USE_LOCK})").scalar()
    if alone:
        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_USE_LOCK})")
    return not alone


def rehearse(connection: Connection, tables: Iterable[tuple[str, str]], patience: float) -> None:
    """Test the privileges, locks and disk space that a step needs, without lasting changes.

    A temporary file larger than memory tests the tables' disk. A row would not: it may fit into a table's page even if
    the disk is full. `tables` has names of tables with one column each; `patience` bounds each lock and the whole in
    seconds.
    """
    limit = f"{int(patience * 1000)}ms"
    asked = [
        f"SET LOCAL lock_timeout = '{limit}'; SET LOCAL statement_timeout = '{limit}'",
        "SET LOCAL work_mem = '64kB'; SET LOCAL temp_tablespaces = ''",
        _ROOM_ON_DISK,
    ]
    for table, column in tables:
        asked.append(f"UPDATE {table} SET {column} = {column} WHERE false")  # noqa: S608 - our own names
        asked.append(f"INSERT INTO {table} SELECT * FROM {table} WHERE false")  # noqa: S608 - as above
    connection.exec_driver_sql("; ".join(asked))


class _BytewiseText(PGTypeCompiler):
    """Compare text columns bytewise, as SQLite does, for every locale of the database.

    Cursors and the newest id depend on it, and it is faster.
    """

    def process(self, type_: TypeEngine[Any], **how: Any) -> str:  # noqa: ANN401 - as in SQLAlchemy
        """Render a type, in column definitions with its collation."""
        text = super().process(type_, **how)
        if isinstance(how.get("type_expression"), Column) and isinstance(type_, String) and not type_.collation:
            return f'{text} COLLATE "C"'
        return text


def _check(connection: "psycopg.Connection[Any]", record: ConnectionPoolEntry) -> None:
    """Refuse an unsupported server, and leave transactions to SQLAlchemy."""
    del record
    connection.autocommit = True  # psycopg must not begin transactions by itself
    version = connection.info.server_version
    if version < OLDEST_VERSION * 10_000:
        raise LedgerUnavailableError(
            f"The database is PostgreSQL {version // 10_000}; this version needs {OLDEST_VERSION} or newer."
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise LedgerUnavailableError(
            f"The database keeps text as {encoding}; make one WITH ENCODING 'UTF8' TEMPLATE template0."
        )


def _notice_citus(connection: "psycopg.Connection[Any]", record: ConnectionPoolEntry) -> None:
    """Note whether the database has Citus, which takes some statements in another form."""
    found = connection.execute(b"SELECT FROM pg_extension WHERE extname = 'citus'")
    record.info[CITUS] = found.rowcount > 0


def _configure(connection: "psycopg.Connection[Any]", record: ConnectionPoolEntry) -> None:
    """Set a session's settings, and mark the database as used."""
    del record
    connection.execute(_settings(local=False).encode())
    connection.execute(f"SELECT pg_advisory_lock_shared({_USE_LOCK})".encode())


def _settings(*, local: bool) -> str:
    """Build the statement that sets a session, or its transaction.

    Settings of the server or role could lose acknowledged commits or digits of floats, or refuse every step under
    row-level security; stronger settings stay. Compiling a statement takes a second, which no page is worth.
    """
    stronger = "CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END"
    values = {
        "synchronous_commit": stronger,
        "statement_timeout": f"'{STATEMENT_TIMEOUT_SECONDS}s'",
        "idle_in_transaction_session_timeout": f"'{STATEMENT_TIMEOUT_SECONDS}s'",
        "lock_timeout": f"'{LOCK_TIMEOUT_SECONDS}s'",
        "jit": "'off'",
        "timezone": "'UTC'",
        "datestyle": "'ISO'",
        "extra_float_digits": "'1'",
        "standard_conforming_strings": "'on'",
        "row_security": "'on'",
    }
    return "SELECT " + ", ".join(f"set_config('{name}', {value}, {local})" for name, value in values.items())


def is_gone(sqlstate: str | None) -> bool:
    """Return whether an error says that its connection is useless."""
    return sqlstate is not None and (sqlstate in GONE or sqlstate.startswith(CONNECTION_CLASS))


def is_in_doubt(sqlstate: str | None, *, citus: bool) -> bool:
    """Return whether a failed COMMIT may have been carried out.

    A coordinator of Citus may fail, or give up, after the worker has committed: it reports an internal error (XX000), a
    broken connection or a cancelled statement. Only a lost race is certain then.
    """
    if sqlstate is None or is_gone(sqlstate):
        return True
    return citus and sqlstate not in RACES_LOST


def _notice_what_is_gone(context: ExceptionContext) -> None:
    """Let the pool drop connections to a stopped or demoted server.

    A coordinator of Citus reports a worker's failures as they are, and serves the other organisations.
    """
    if context.connection is not None and has_citus(context.connection):
        return
    if is_gone(getattr(context.original_exception, "sqlstate", None)):
        context.is_disconnect = True
