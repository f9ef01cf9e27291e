"""Placing quarantines: in the rows of accounts, and in the chain of their organisation."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit_actions import AuditAction
from app.ledger.errors import LedgerUnavailableError
from app.ledger.hash_chain import Actor
from app.persistence.database import Database
from app.persistence.repositories import organisations, raw_rows
from app.persistence.tolerant import DAMAGED
from app.service.audit_log import AuditEvent, record_event
from app.service.verification.report import VerificationReport

STOPPED_AT_ONCE: Final = 100
"""How many accounts are stopped in one transaction; each is an entry of the audit log."""

_logger = logging.getLogger(__name__)


def place(
    db: Database, organisation_id: str, found: VerificationReport, asker: Actor, now: datetime
) -> VerificationReport:
    """Stop writes to the accounts that a verification found wrong. Those that are stopped stay so.

    Args:
        db: the ledger's database.
        organisation_id: whose ledger was verified.
        found: by the verification; the caller has the turn, so that it is the newest.
        asker: who verifies.
        now: in UTC.

    Returns:
        The same, with all accounts that are stopped now.
    """
    stopped = dict(found.quarantined)
    new = {key: why for key, why in found.unproven.items() if stopped.get(key) != why}
    accounts = sorted(account_id for _, account_id in new)
    for begin in range(0, len(accounts), STOPPED_AT_ONCE):
        sentences = {each: new[organisation_id, each] for each in accounts[begin : begin + STOPPED_AT_ONCE]}
        for account_id in _place(db, organisation_id, sentences, asker, now):
            stopped[organisation_id, account_id] = sentences[account_id]
    return replace(found, quarantined=stopped)


def _place(
    db: Database, organisation_id: str, sentences: Mapping[str, str], asker: Actor, now: datetime
) -> Mapping[str, str | None]:
    """Stop accounts and say so in the chain, or stop them alone where the chain's end is what is damaged."""

    def write(*, told: bool) -> Mapping[str, str | None]:
        with db.write(organisation_id) as tx:
            organisations.lock(tx, organisation_id)
            before = raw_rows.set_quarantine(tx, organisation_id, sentences, now)
            for account_id, old in before.items() if told else ():
                was = None if old is None else {"quarantine": old}
                act = AuditEvent(AuditAction.QUARANTINE_PLACED, account_id, was, {"quarantine": sentences[account_id]})
                record_event(tx, organisation_id, asker, act, now)
            return before

    try:
        return db.retried(lambda: write(told=True))
    except LedgerUnavailableError:
        raise  # nothing is damaged: the database is busy, or away
    except (*DAMAGED, SQLAlchemyError) as error:
        _logger.error(  # noqa: TRY400 - what is damaged is told by the verification; here its kind is enough
            "Quarantines of %s cannot be written to its audit log, and are placed without: %s",
            organisation_id,
            type(error).__name__,
        )
    return db.retried(lambda: write(told=False))
