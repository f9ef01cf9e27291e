"""Place quarantines in account rows and in the audit log, one verification at a time."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit import AuditAction
from app.ledger.errors import LedgerUnavailableError
from app.ledger.hash_chain import Actor
from app.persistence.database import NO_TENANT, Database
from app.persistence.repositories import organisations, raw_rows
from app.persistence.tolerant import DAMAGED
from app.service.audit_log import AuditEvent, record_event
from app.service.verification.report import VerificationReport

STOPPED_AT_ONCE: Final = 100
"""Accounts quarantined per transaction, each with an audit event."""

LOCK: Final = 7305524921735473254
"""Key of PostgreSQL's advisory lock, fixed for ever; migrations use the one before it."""

LOOK_SECONDS: Final = 0.05
"""Polling interval of a waiting verification."""

_logger = logging.getLogger(__name__)


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


def place_quarantines(
    db: Database, organisation_id: str, found: VerificationReport, actor: Actor, now: datetime
) -> VerificationReport:
    """Quarantine the unproven accounts of a report; return it with all quarantines.

    The caller holds the verification lock, so that the report is the newest. Existing quarantines stay.
    """
    stopped = dict(found.quarantined)
    new = {key: why for key, why in found.unproven.items() if stopped.get(key) != why}
    accounts = sorted(account_id for _, account_id in new)
    for begin in range(0, len(accounts), STOPPED_AT_ONCE):
        sentences = {each: new[organisation_id, each] for each in accounts[begin : begin + STOPPED_AT_ONCE]}
        for account_id in _place(db, organisation_id, sentences, actor, now):
            stopped[organisation_id, account_id] = sentences[account_id]
    return replace(found, quarantined=stopped)


def _place(
    db: Database, organisation_id: str, sentences: Mapping[str, str], actor: Actor, now: datetime
) -> Mapping[str, str | None]:
    """Quarantine accounts, and record it unless the audit log's end is damaged."""

    def write(tx: Connection, *, told: bool = True) -> Mapping[str, str | None]:
        organisations.lock(tx, organisation_id)
        before = raw_rows.set_quarantine(tx, organisation_id, sentences, now)
        for account_id, old in before.items() if told else ():
            was = None if old is None else {"quarantine": old}
            act = AuditEvent(AuditAction.QUARANTINE_PLACED, account_id, was, {"quarantine": sentences[account_id]})
            record_event(tx, organisation_id, actor, act, now)
        return before

    try:
        return db.transact(organisation_id, write)
    except LedgerUnavailableError:
        raise  # not damaged: the database is busy or down
    except (*DAMAGED, SQLAlchemyError) as error:
        _logger.error(  # noqa: TRY400 - the verification reports the damage
            "Quarantines of %s cannot be written to its audit log, and are placed without: %s",
            organisation_id,
            type(error).__name__,
        )
    return db.transact(organisation_id, partial(write, told=False))
