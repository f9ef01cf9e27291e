"""One verification at a time says whose writes are stopped, in whatever process it runs."""

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
"""The number of the lock among PostgreSQL's advisory ones, for ever; migrations have the one before it."""

LOOK_SECONDS: Final = 0.05
"""How often somebody who waits looks whether it is free."""


@contextmanager
def verification_lock(db: Database) -> Iterator[None]:
    """Wait until no other verification decides about a database, in this process or in another one; then be alone.

    Whoever charges does not notice. The system takes the turn from a process that dies.

    Args:
        db: the ledger's database.
    """
    if db.dialect == "postgresql":
        with db.read(NO_TENANT, patient=True) as tx:
            while not tx.scalar(select(func.pg_try_advisory_xact_lock(LOCK))):  # a lock that is waited for times out
                time.sleep(LOOK_SECONDS)
            yield
        return
    # SQLite has only the writers' lock. The file's folder is locked: closing the file itself would lose SQLite's own.
    folder = os.open(Path(str(db.engine.url.database)).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
