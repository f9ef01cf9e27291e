"""Lock that serializes the placing of quarantines across processes."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import func, select

from app.persistence.database import NO_TENANT, Database

LOCK: Final = 7305524921735473254
"""Key of PostgreSQL's advisory lock, fixed for ever; migrations use the one before it."""

LOOK_SECONDS: Final = 0.05
"""Polling interval of a waiting verification."""


@contextmanager
def verification_lock(db: Database) -> Iterator[None]:
    """Hold the verification lock of a database, in this process and all others.

    Charges are not blocked. The operating system or the database releases the lock of a process that dies.
    """
    if db.dialect == "postgresql":
        with db.read(NO_TENANT, patient=True) as tx:
            while not tx.scalar(select(func.pg_try_advisory_xact_lock(LOCK))):  # a blocking call would time out
                time.sleep(LOOK_SECONDS)
            yield
        return
    # Lock the folder: closing a handle of the database file would release SQLite's own locks.
    folder = os.open(Path(str(db.engine.url.database)).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
