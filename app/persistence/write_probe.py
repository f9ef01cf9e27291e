"""Rehearse a step: test all that its transaction needs, and undo it."""

import logging
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from app.ledger.errors import LedgerUnavailableError
from app.ledger.ids import BITS, id_of
from app.persistence import citus, postgresql, sqlite
from app.persistence.database import NO_TENANT, TRIAL_SECONDS, Database, error_summary
from app.persistence.schema import is_current
from app.persistence.sqlite import WriteLockBusyError
from app.persistence.tables import metadata, organisations


class Fault(StrEnum):
    """The reason why a database would not take a step, without secrets."""

    SILENT = "The database does not answer."
    UNMIGRATED = "The database needs `epsilon-ledger migrate` before it can be used."
    READ_ONLY = "The database takes no writes."
    FULL = "The disk of the database is full."
    FORBIDDEN = "The database forbids the service to write its tables: the service's role must own all of them."
    LOCKED = "Other sessions keep the database locked."
    BROKEN = "The database rejects a step's statements; see the log."


READABLE: Final = frozenset({Fault.READ_ONLY, Fault.FULL, Fault.FORBIDDEN, Fault.LOCKED})
"""Faults of a database that is still readable."""

_SQLITE: Final = {
    sqlite.FULL: Fault.FULL,
    sqlite.READ_ONLY: Fault.READ_ONLY,
    sqlite.BUSY: Fault.LOCKED,
    sqlite.CANNOT_OPEN: Fault.SILENT,
}
_POSTGRESQL: Final = {
    "53100": Fault.FULL,
    "25006": Fault.READ_ONLY,
    "0A000": Fault.READ_ONLY,
    "42501": Fault.FORBIDDEN,
    "55P03": Fault.LOCKED,
    "57014": Fault.LOCKED,
}
"""By SQLSTATE: disk full, read-only, not supported (to write to a standby), insufficient privilege, lock not available,
statement timeout."""

_NO_SESSION: Final = ("08", "28", "3D", "53", "57")
"""Classes of SQLSTATE: connection, authorization, database name, resources, operator intervention."""

_TABLES: Final = [(table.name, next(iter(table.primary_key)).name) for table in metadata.sorted_tables]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The result of rehearsed steps.

    Args:
        fault: why the database takes no step; None: it takes those of some organisations at least.
        workers: by the worker of a Citus cluster, as HOST:PORT, why it takes none.
    """

    fault: Fault | None
    workers: Mapping[str, Fault] = field(default_factory=dict)


def rehearse_everywhere(db: Database) -> Rehearsal:
    """Rehearse a step; on Citus, on each worker."""
    workers: Mapping[str, str] = {}
    if db.dialect == "postgresql":
        try:
            with db.read(NO_TENANT) as tx:
                workers = citus.unused_ids(tx) if citus.is_distributed(tx) else {}
        except (SQLAlchemyError, LedgerUnavailableError):
            pass  # the rehearsal tells why
    if not workers:
        return Rehearsal(rehearse(db))
    faults = {worker: fault for worker, unused in workers.items() if (fault := rehearse(db, unused)) is not None}
    if len(faults) < len(workers):
        return Rehearsal(None, faults)
    return Rehearsal(next(iter(faults.values())), faults)


def rehearse(db: Database, unused: str | None = None) -> Fault | None:
    """Try a step for a nonexistent organisation, undo it, and return any fault.

    `unused` is the id of no organisation, None: a random one.

    A row is written under row-level security. On SQLite it has the size of a step's pages and reaches the log, which a
    rolled-back row otherwise does not. PostgreSQL writes a temporary file of that size, and reads and updates no row of
    each table, which needs the same privileges as a step.
    """
    try:
        with db.read(NO_TENANT) as tx:
            if not is_current(tx):
                return Fault.UNMIGRATED
        # unique: rehearsals do not wait for each other
        _try_writing(db, unused or id_of(secrets.randbits(BITS)))
    except (SQLAlchemyError, LedgerUnavailableError, WriteLockBusyError) as error:
        fault = _fault_of(error)
        _logger.warning("A step was rehearsed in vain. %s %s", fault, error_summary(error))
        return fault
    return None


def _try_writing(db: Database, unused: str) -> None:
    row = {"id": unused, "name": unused, "created_at": datetime.fromtimestamp(0, UTC)}
    if db.dialect == "sqlite":
        row["policy"] = "x" * sqlite.REHEARSED_BYTES
    with db.trial(unused) as tx:
        tx.execute(insert(organisations), row)
        if db.dialect == "postgresql":
            if postgresql.has_citus(tx):
                citus.rehearse(tx, unused, TRIAL_SECONDS)
            else:
                postgresql.rehearse(tx, _TABLES, TRIAL_SECONDS)


def _fault_of(error: Exception) -> Fault:
    if isinstance(error, WriteLockBusyError):
        return Fault.LOCKED
    if not isinstance(error, DBAPIError):
        return Fault.SILENT  # no connection is free, or the server's version is unsupported
    if isinstance(error.orig, sqlite3.Error):
        return _SQLITE.get(sqlite.primary_code(error), Fault.BROKEN)
    state: str | None = getattr(error.orig, "sqlstate", None)
    if state is None or state.startswith(_NO_SESSION):
        return _POSTGRESQL.get(state or "", Fault.SILENT)
    return _POSTGRESQL.get(state, Fault.BROKEN)
