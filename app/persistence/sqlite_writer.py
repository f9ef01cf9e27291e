"""The write transactions of a process on one SQLite file: one at a time, on one connection."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine

from app.persistence import sqlite

_CHECKPOINT_SECONDS: Final = 0.1
"""More than a checkpoint has the lock."""

Revision = tuple[int, int]
"""The state of a SQLite file, comparable within a process: write transactions of its own, and SQLite's data version."""


class SqliteWriter:
    """The only writer of a process.

    Its connection is used again as long as every transaction succeeds, and so keeps its pages cached. Threads wait for
    the `lock`, which is fair and wakes immediately; other processes wait at BEGIN IMMEDIATE.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lock = threading.Lock()
        self._kept: Connection | None = None
        self._transactions = 0
        self._checkpoints = True
        self._disposed = False

    @property
    def keeps_connection(self) -> bool:
        """Whether an idle connection is kept for the next transaction."""
        return self._kept is not None

    @contextmanager
    def transaction(self, *, wait: bool) -> Iterator[Connection]:
        """Open a transaction that is committed on a clean exit; the caller holds the lock.

        Raises:
            WriteLockBusyError: another process is writing, and the caller does not wait.
        """
        connection, self._kept = self._kept, None
        if connection is None:
            connection = sqlite.prepare_writer(self._engine.connect(), checkpoints=self._checkpoints)
            self._transactions += 1  # it has data versions of its own
        try:
            sqlite.begin(connection, wait=wait)
            self._transactions += 1
            yield connection
            self._commit(connection)
        except BaseException:
            connection.close()  # rolled back, and another one is opened next time
            raise
        if self._disposed:
            connection.close()
        else:
            self._kept = connection

    def revision(self, tx: Connection) -> Revision:
        """Identify the state that a transaction began with."""
        return self._transactions - 1, sqlite.data_version(tx)

    def leave_checkpoints(self) -> None:
        """Leave the checkpoints of the log to another connection from now on."""
        if self._checkpoints:
            with self.lock:
                self._checkpoints = False
                self._close_kept()

    def dispose(self) -> None:
        """Close the connection; if it is in use, the writing thread closes it."""
        self._disposed = True
        if self.lock.acquire(timeout=_CHECKPOINT_SECONDS):
            self._close_kept()
            self.lock.release()

    def _close_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @staticmethod
    def _commit(connection: Connection) -> None:
        try:
            sqlite.commit(connection)
        except BaseException:
            connection.invalidate()  # closed, not returned: its transaction may still be open
            raise
