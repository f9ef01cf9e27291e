"""The service, started so that a test can break it: `python -m tests.reliability.failing_server serve --port N`.

What is broken stands in the file that EPSILON_LEDGER_FAULTS names, as JSON, and can change while the service runs:
`{"die": "before insert" | "before commit" | "after commit", "writes": 7}` kills the process there, in the seventh
transaction from then on that appends decisions; `{"fail": "disk full" | "read only"}` makes the driver fail whatever
would write, or with `"at": "UPDATE runs"` only statements that begin so (`"COMMIT"`: the commit of decisions);
`{"clock": -3600}` sets the clock of the service back by an hour.
"""

import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError

FAULTS = "EPSILON_LEDGER_FAULTS"
LOCK_TIMEOUT_SECONDS = 1
"""Waiting for another writer ends so soon here, so that tests need not wait long."""

_WRITING = ("INSERT", "UPDATE", "DELETE")
COMMIT = "COMMIT"
_GUARD = "WITH found AS ("
"""What a statement begins with that must change all of its rows."""

_MESSAGES = {"disk full": "database or disk is full", "read only": "attempt to write a readonly database"}


class Faults:
    """The faults that a file asks for.

    Args:
        path: of the file; without it nothing is broken.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._asked: dict[str, Any] = {}
        self._writes = 0
        self._deciding: set[int] = set()

    def asked(self) -> dict[str, Any]:
        """What is broken now."""
        with self._lock:  # no thread sees an old fault while another one reads the new file
            try:
                now = self._path.stat()
            except FileNotFoundError:
                return {}
            changed = now.st_mtime_ns, now.st_ino
            if changed != self._seen:
                self._asked = json.loads(self._path.read_text())
                self._seen, self._writes = changed, 0
            return self._asked

    def execute(self, connection: object, statement: str) -> None:
        """Fail or die before a statement."""
        asked, statement = self.asked(), statement.removeprefix(_GUARD)
        if "fail" in asked and statement.startswith(asked.get("at", _WRITING)):
            raise _failure(connection, asked["fail"])
        if statement.startswith("INSERT INTO decisions"):
            self._deciding.add(id(connection))
            self._writes += 1
            self._die(asked, "before insert")

    def commit(self, connection: object, *, done: bool) -> None:
        """Fail or die before a commit, or die behind it."""
        if id(connection) not in self._deciding:
            return
        asked = self.asked()
        if done:
            self._deciding.discard(id(connection))
            self._die(asked, "after commit")
        else:
            if "fail" in asked and asked.get("at", COMMIT) == COMMIT:
                raise _failure(connection, asked["fail"])
            self._die(asked, "before commit")

    def rollback(self, connection: object) -> None:
        """Forget what the transaction did."""
        self._deciding.discard(id(connection))

    def _die(self, asked: dict[str, Any], where: str) -> None:
        if asked.get("die") == where and self._writes >= asked["writes"]:
            self._path.unlink(missing_ok=True)  # the next process is to live
            os.kill(os.getpid(), signal.SIGKILL)


def _failure(connection: object, kind: str) -> Exception:
    if isinstance(connection, sqlite3.Connection):
        return sqlite3.OperationalError(_MESSAGES[kind])
    from psycopg import errors  # noqa: PLC0415 - only where the database is PostgreSQL

    return errors.DiskFull(_MESSAGES[kind]) if kind == "disk full" else errors.ReadOnlySqlTransaction(_MESSAGES[kind])


def break_database(faults: Faults) -> None:
    """Let the driver of every database do what the faults ask for."""

    def executes(cursor: Any, statement: str, parameters: object, context: object) -> None:  # noqa: ANN401 - a driver's
        del parameters, context
        faults.execute(cursor.connection, statement)

    def executes_bare(cursor: Any, statement: str, context: object) -> None:  # noqa: ANN401 - a driver's
        del context
        faults.execute(cursor.connection, statement)

    event.listen(Engine, "do_execute", executes)
    event.listen(Engine, "do_executemany", executes)
    event.listen(Engine, "do_execute_no_params", executes_bare)
    commit: Callable[..., None] = DefaultDialect.do_commit
    rollback: Callable[..., None] = DefaultDialect.do_rollback

    def commits(self: DefaultDialect, connection: Any) -> None:  # noqa: ANN401 - a driver's
        driver = connection.dbapi_connection
        faults.commit(driver, done=False)
        commit(self, connection)
        faults.commit(driver, done=True)

    def rolls_back(self: DefaultDialect, connection: Any) -> None:  # noqa: ANN401 - a driver's
        faults.rollback(getattr(connection, "dbapi_connection", connection))
        rollback(self, connection)

    DefaultDialect.do_commit = commits  # type: ignore[method-assign]
    DefaultDialect.do_rollback = rolls_back  # type: ignore[method-assign]
    _break_sqlite(faults)
    _break_pipelines(faults)


def _break_sqlite(faults: Faults) -> None:
    """Break the statements of groups, which do not pass SQLAlchemy."""
    from app.persistence import sqlite  # noqa: PLC0415 - the clock is broken before

    execute_many, commit = sqlite.execute_many, sqlite.commit

    def executes(connection: Connection, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        try:
            faults.execute(sqlite.driver(connection), statement)
        except sqlite3.Error as error:
            raise sqlite.translated(statement, error, connection.dialect) from error
        return execute_many(connection, statement, rows)

    def commits(connection: Connection) -> None:
        driver = sqlite.driver(connection)
        try:
            faults.commit(driver, done=False)
        except sqlite3.Error as error:
            raise sqlite.translated(COMMIT, error, connection.dialect) from error
        commit(connection)
        faults.commit(driver, done=True)

    sqlite.execute_many, sqlite.commit = executes, commits


def _break_pipelines(faults: Faults) -> None:
    """Break pipelines: what a statement breaks is told in the end, as by the server."""
    from app.persistence.pipeline import Pipeline  # noqa: PLC0415 - as above

    send, commit = Pipeline.send, Pipeline.commit
    broken: dict[int, Exception] = {}

    def sends(self: Pipeline, statement: bytes, values: Sequence[bytes] = ()) -> None:
        try:
            faults.execute(self, statement.decode())
        except Exception as error:  # noqa: BLE001 - the driver's
            broken[id(self)] = error
        send(self, statement, values)

    def commits(self: Pipeline) -> None:
        error = broken.pop(id(self), None)
        if error is None:
            try:
                faults.commit(self, done=False)
            except Exception as failed:  # noqa: BLE001 - as above
                error = failed
        if error is not None:
            faults.rollback(self)
            raise DBAPIError.instance(COMMIT, None, error, type(error)) from error
        commit(self)
        faults.commit(self, done=True)

    Pipeline.send, Pipeline.commit = sends, commits  # type: ignore[method-assign]


def break_clock(faults: Faults) -> None:
    """Let every module of the service read a clock that can be set back."""

    class SetClock(datetime):
        """The time, as far off as the faults ask for."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            moment = datetime.now(tz) + timedelta(seconds=faults.asked().get("clock", 0))
            return cls.fromtimestamp(moment.timestamp(), tz)

    for name, module in list(sys.modules.items()):
        if name.startswith("app.") and getattr(module, "datetime", None) is datetime:
            module.datetime = SetClock  # type: ignore[attr-defined]


def main() -> None:
    """Break what can be broken, and serve."""
    from app import cli, main  # noqa: F401, PLC0415 - the clock is broken in all of their modules
    from app.persistence import database  # noqa: PLC0415 - as above

    faults = Faults(Path(os.environ[FAULTS]))
    database.LOCK_TIMEOUT_SECONDS = LOCK_TIMEOUT_SECONDS
    break_database(faults)
    break_clock(faults)
    cli.main()


if __name__ == "__main__":
    main()
