"""Checkpoints of a SQLite file's write-ahead log, beside the commits of the process (https://www.sqlite.org/wal.html).

SQLite itself copies a long log into the file during a commit, and the request of that commit waits for the copy. A long
read transaction holds checkpoints up: after it the log is as long as it has become meanwhile.
"""

import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Engine

from app.persistence import sqlite

_FEW_PAGES: Final = 500
"""Pages, 1 MB, that are copied within some 20 ms. While writers wait, it copies what is written during that."""

_PASSES: Final = 5
"""Each copies what was written during the one before, so they become short, unless the disk cannot keep pace."""

_PATIENCE_SECONDS: Final = 0.025
"""For readers that began before, and for writers of other processes."""


@dataclass(frozen=True, slots=True)
class WalState:
    """The log after a checkpoint: its pages, and how many of them were copied; -1 if another process was at it."""

    pages: int
    copied: int


def checkpoint(engine: Engine, turn: threading.Lock) -> WalState:
    """Copy into the file what no reader needs from the log, and let the next commit start a long log anew.

    Writers go on while pages are copied, and wait only while the last few are. The log's file keeps its length: to cut
    270 MB takes 200 ms.

    Args:
        engine: of the file; opens a connection for this.
        turn: lock of the writers of this process.

    Raises:
        DBAPIError: the disk is full, or fails.
    """
    with closing(engine.connect().execution_options(begin="")) as connection:
        sqlite.driver(connection).execute(f"PRAGMA busy_timeout = {int(_PATIENCE_SECONDS * 1000)}")
        state = WalState(0, 0)
        for _ in range(_PASSES):
            # SQLite does not count what is written while it copies: only a short pass leaves few pages.
            before, state = state, _run(connection, "PASSIVE")
            if state.pages - before.copied <= _FEW_PAGES:
                break
        if state.pages < sqlite.LONG_PAGES or state.pages - state.copied > _FEW_PAGES:
            return state  # it is short, or a long read transaction needs it
        with turn:
            return _run(connection, "RESTART")


def _run(connection: Connection, mode: str) -> WalState:
    """Run a checkpoint (https://www.sqlite.org/pragma.html#pragma_wal_checkpoint)."""
    statement = f"PRAGMA wal_checkpoint({mode})"
    try:
        [_, pages, copied] = sqlite.driver(connection).execute(statement).fetchone()
    except sqlite3.Error as error:
        raise sqlite.translated(statement, error, connection.dialect) from error
    return WalState(pages, copied)
