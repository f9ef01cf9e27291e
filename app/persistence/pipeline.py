"""Write transactions that PostgreSQL answers once: statements and COMMIT are sent without waiting for results.

Source: https://www.postgresql.org/docs/current/libpq-pipeline-mode.html. After an error the server skips the rest, so
that everything is done or nothing.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import count
from select import select
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from app.ledger.errors import LedgerUnavailableError
from app.persistence.postgresql import SETTINGS, WRITE, has_citus, is_in_doubt, set_organisation

if TYPE_CHECKING:
    import psycopg

IN_DOUBT: Final = (
    "The connection to the database broke while the request was being committed, so it may or may not have been "
    "carried out. Repeat it as it was: with its idempotency key, or the number of its first step, it counts once."
)

NOT_PREPARED: Final = "26000"
"""SQLSTATE of a statement that another user of the connection has deallocated, as psycopg does after a rollback."""

PIPELINE: Final = "pipeline"
"""Execution option with the pipeline of a connection."""

_PREPARED: Final = "prepared"
_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
_numbers = count()


def required(rows: str, number: str) -> str:
    """Build a statement that fails with a division by zero unless another one returns so many rows.

    A client that sends further statements without waiting could not stop them otherwise.
    """
    return f"WITH found AS ({rows}) SELECT 1 / (count(*) = {number})::integer FROM found"  # noqa: S608 - our own text


# Arrays as text: the driver takes ten times as long.
def numbers(values: Iterable[int | float | None]) -> str:
    """Write an array of numbers."""
    return "{" + repr(list(values))[1:-1].replace("None", "NULL") + "}"


def texts(values: Iterable[object]) -> str:
    """Write an array of texts or times."""
    return "{" + ",".join(["NULL" if value is None else _quoted(str(value)) for value in values]) + "}"


def hashes(values: Iterable[bytes | str | None]) -> str:
    """Write an array of bytes, given as they are or in hexadecimal digits."""
    digits = ((value.hex() if isinstance(value, bytes) else value) for value in values)
    return "{" + ",".join(["NULL" if each is None else f'"\\\\x{each}"' for each in digits]) + "}"


def _quoted(text: str) -> str:
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def execute(connection: Connection, statement: str, parameters: Mapping[str, object]) -> None:
    """Execute a statement without a result; in a pipeline, send it."""
    pipeline: Pipeline | None = connection.get_execution_options().get(PIPELINE)
    if pipeline is None:
        connection.exec_driver_sql(statement, parameters)
        return
    text, names = _numbered(statement)
    pipeline.send(text, [str(parameters[name]).encode() for name in names])


@lru_cache
def _numbered(statement: str) -> tuple[bytes, Sequence[str]]:
    """Rewrite a statement with numbered parameters; return their names in order."""
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement).encode(), names


@contextmanager
def pipelined(engine: Engine, organisation_id: str) -> Iterator[Connection | None]:
    """Open a write transaction on an organisation's rows in a pipeline, committed on a clean exit.

    None instead of a connection that may be broken: a usual transaction can tell whether anything was done.

    Raises:
        DBAPIError: a statement failed, and nothing was changed.
        LedgerUnavailableError: the connection broke, and the outcome is unknown.
    """
    with closing(engine.connect()) as connection:
        pipeline = Pipeline(connection)
        if pipeline.may_be_broken:
            yield None
            return
        try:
            pipeline.begin(organisation_id)
            yield connection.execution_options(writes=True, **{PIPELINE: pipeline})
            pipeline.commit()
        finally:
            if pipeline.is_open:
                connection.invalidate()  # its transaction may be, too


class Pipeline:
    """A connection in libpq's pipeline mode, from the first statement to the results.

    The driver's own pipelines wait after each statement until it is sent, which wakes up the server for each.
    """

    def __init__(self, connection: Connection) -> None:
        raw: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
        self._dialect = connection.dialect
        self._libpq = raw.pgconn
        self._settings: str | None = connection.get_execution_options().get(SETTINGS)
        self._is_citus = has_citus(connection)
        self._prepared: dict[bytes, bytes] = connection.info.setdefault(_PREPARED, {})
        self._sent: list[tuple[bytes, bytes] | None] = []
        """For each result that is due: the statement that is prepared by then, and its name."""

    @property
    def may_be_broken(self) -> bool:
        """Whether the server has said something unasked, such as that it leaves."""
        return bool(select([self._libpq.socket], [], [], 0)[0])

    @property
    def is_open(self) -> bool:
        """Whether statements were sent whose results were not read."""
        return bool(self._libpq.pipeline_status)

    def begin(self, organisation_id: str) -> None:
        """Queue the begin of a write transaction on an organisation's rows.

        Raises:
            DBAPIError: the connection is broken.
        """
        self.send(WRITE.encode())
        if self._settings is not None:
            self.send(self._settings.encode())
        self.send_once(set_organisation(organisation_id).encode())

    def send(self, statement: bytes, values: Sequence[bytes] = ()) -> None:
        """Queue a statement with numbered parameters, given as text.

        It is prepared once for a connection, unless the next transaction may have another session of the server.

        Raises:
            DBAPIError: the connection is broken.
        """
        try:
            if not self.is_open:
                self._libpq.enter_pipeline_mode()
            if self._settings is None:
                self._libpq.send_query_prepared(self._named(statement), values)
            else:
                self._libpq.send_query_params(statement, values)
            self._sent.append(None)
        except _driver().Error as error:
            raise self._translated(error) from error

    def send_once(self, statement: bytes) -> None:
        """Queue a statement that is not prepared, since it differs from transaction to transaction.

        Raises:
            DBAPIError: the connection is broken.
        """
        try:
            self._libpq.send_query_params(statement, [])
            self._sent.append(None)
        except _driver().Error as error:
            raise self._translated(error) from error

    def _named(self, statement: bytes) -> bytes:
        """Return the name of a prepared statement; queue its preparation if it is new."""
        name = self._prepared.get(statement)
        if name is None:
            name = b"epsilon_ledger_%d" % next(_numbers)
            self._libpq.send_prepare(name, statement)
            self._sent.append((statement, name))
        return name

    def commit(self) -> None:
        """Send all statements and COMMIT, and wait for their results.

        Raises:
            DBAPIError, LedgerUnavailableError: as `pipelined`.
        """
        self.send(b"COMMIT")
        error: Exception | None
        committing = True
        try:  # from here on the outcome is unknown without the server's response
            error, committing = self._first_error()
            if error is not None and not self._is_broken:
                self.send(b"ROLLBACK")  # here: the driver would deallocate all prepared statements
                self._first_error()
            if not self._is_broken:
                self._libpq.exit_pipeline_mode()
        except Exception as failure:  # noqa: BLE001 - whatever it is
            error = failure
        if error is None:
            return
        if not isinstance(error, _driver().Error) or self._is_in_doubt(error.sqlstate, committing=committing):
            raise LedgerUnavailableError(IN_DOUBT) from error
        if error.sqlstate == NOT_PREPARED:
            self._prepared.clear()
        raise self._translated(error) from error

    @property
    def _is_broken(self) -> bool:
        return bool(self._libpq.status == _driver().pq.ConnStatus.BAD)

    def _is_in_doubt(self, sqlstate: str | None, *, committing: bool) -> bool:
        """Whether a transaction may have been committed in spite of an error of its COMMIT, or of another statement.

        A coordinator of Citus goes on after the broken connection of a worker.
        """
        if committing or not self._is_citus:
            return is_in_doubt(sqlstate, citus=self._is_citus)
        return sqlstate is None or self._is_broken

    def _first_error(self) -> "tuple[psycopg.Error | None, bool]":
        """Send what is queued and read all results; the first failure is the reason of the others.

        Return it, and whether the last statement failed, which is assumed if no result is a failure.
        """
        statuses, error, is_last = _driver().pq.ExecStatus, None, True
        self._libpq.pipeline_sync()
        self._flush()
        due, self._sent = deque(self._sent), []
        while not self._is_broken or error is None:
            while self._libpq.is_busy():
                select([self._libpq.socket], [], [])
                self._libpq.consume_input()
            result = self._libpq.get_result()
            if result is None:  # after each statement's results
                continue
            if result.status == statuses.PIPELINE_SYNC:
                break
            prepared = due.popleft() if due else None
            if result.status == statuses.FATAL_ERROR and error is None:
                error, is_last = _driver().errors.error_from_result(result), not due
            elif prepared is not None and error is None:
                self._prepared.update([prepared])
        return error, is_last

    def _flush(self) -> None:
        """Send what is queued, and read meanwhile: the server may wait for that."""
        while self._libpq.flush():
            readable, _, _ = select([self._libpq.socket], [self._libpq.socket], [])
            if readable:
                self._libpq.consume_input()

    def _translated(self, error: "psycopg.Error") -> Exception:
        """Wrap an error of the driver as SQLAlchemy would."""
        base = _driver().Error
        found: Exception = DBAPIError.instance("COMMIT", None, error, base, hide_parameters=True, dialect=self._dialect)
        return found


def _driver() -> Any:  # noqa: ANN401 - the module
    """Import psycopg, which a service on SQLite does not need."""
    import psycopg  # noqa: PLC0415 - as said
    import psycopg.errors  # noqa: PLC0415 - as said
    import psycopg.pq  # noqa: PLC0415 - as said

    return psycopg
