"""Engines for the URLs of databases."""

import sys

from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.exc import ArgumentError

from app.ledger.errors import InvalidInputError
from app.persistence import postgresql, sqlite
from app.persistence.pipeline import PIPELINE
from app.persistence.postgresql import SETTINGS


def open_engine(
    url: str, pool_size: int, patience: float, called: str, *, read_only: bool, pooled: bool = False
) -> Engine:
    """Create the engine of a `Database`, whose transactions begin explicitly.

    Args:
        url: of a SQLite file or a PostgreSQL database.
        pool_size: greatest number of connections to PostgreSQL.
        patience: seconds to wait for a connection, or for a writer of the file.
        called: the setting of the URL in error messages.
        read_only: whether the file may be on a read-only disk.
        pooled: whether a pooler gives each transaction another session of the server.

    Raises:
        InvalidInputError: the URL names neither; or this is Windows, where nothing of it was tried.
    """
    if sys.platform == "win32":
        raise InvalidInputError(
            "A ledger is kept on Linux or macOS: on Windows, use WSL or the container image. Commands that ask a "
            "service, such as `epsilon-ledger apply`, and the client run here."
        )
    right = "write sqlite:///FILE or postgresql://USER@HOST/DATABASE."
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # its message may contain a part of a password
        raise InvalidInputError(f"{called} is not a database URL; {right}") from None
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"}:
        engine = sqlite.open_engine(parsed, patience, called, read_only=read_only)
    elif parsed.drivername in {"postgresql", "postgresql+psycopg"}:
        engine = postgresql.open_engine(parsed, pool_size, patience, called, pooled=pooled)
    else:
        raise InvalidInputError(f"{called} names {parsed.drivername}, which this version does not support; {right}")
    event.listen(engine, "begin", begin)
    return engine


def begin(connection: Connection) -> None:
    """Begin a transaction by the statement in the execution options, which determines its kind; none if it is empty."""
    options = connection.get_execution_options()
    assert PIPELINE not in options, "a usual statement in a pipeline would wait for a result for ever"
    statement = options.get("begin", "BEGIN")
    if statement and (settings := options.get(SETTINGS)):
        kind, end, further = statement.partition(";")
        statement = f"{kind}; {settings}{end}{further}"
    if statement:
        # Citus sends the text of a SET to the workers, which must not begin the transaction again.
        parts = statement.split("; ") if "; " in statement and postgresql.has_citus(connection) else [statement]
        for part in parts:
            connection.exec_driver_sql(part)
