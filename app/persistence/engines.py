"""Engines for the URLs of databases, with explicit transactions."""

from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from app.ledger.errors import InvalidInputError
from app.persistence import postgresql, sqlite


def open_engine(url: str, pool_size: int, patience: float, called: str, *, read_only: bool) -> Engine:
    """Create the engine of a SQLite file or a PostgreSQL database.

    `called` names the setting of the URL in error messages; `patience` is the seconds that a connection is waited for.

    Raises:
        InvalidInputError: the URL names neither.
    """
    right = "write sqlite:///FILE or postgresql://USER@HOST/DATABASE."
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # its message may contain a part of a password
        raise InvalidInputError(f"{called} is not a database URL; {right}") from None
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"}:
        engine = sqlite.open_engine(parsed, patience, called, read_only=read_only)
    elif parsed.drivername in {"postgresql", "postgresql+psycopg"}:
        engine = postgresql.open_engine(parsed, pool_size, patience, called)
    else:
        raise InvalidInputError(f"{called} names {parsed.drivername}, which this version does not support; {right}")
    begin_explicitly(engine)
    return engine


def begin_explicitly(engine: Engine) -> None:
    """Begin transactions by the statement in the execution option `begin`, which determines their kind."""
    event.listen(engine, "begin", _begin)


def close_on_return(engine: Engine) -> None:
    """Close every connection that is returned to the pool."""
    event.listen(engine, "checkin", _close)


def _close(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    del connection  # the record closes it and drops its reference
    record.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
