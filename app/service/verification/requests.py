"""Verify on request, one verification at a time: quarantine unproven accounts, and store the result."""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit import Actor, AuditAction
from app.ledger.errors import LedgerUnavailableError, require_found
from app.ledger.ids import is_id
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission, Role
from app.ledger.verification import QuarantinedAccount, Verification
from app.persistence.database import ALL_TENANTS, NO_TENANT, Database
from app.persistence.repositories import raw_rows, verification_results
from app.persistence.tolerant_rows import DAMAGED
from app.service import metrics
from app.service.auth.authentication import Principal
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.ids import new_id
from app.service.verification.report import VerificationReport
from app.service.verification.trusted_checkpoints import NO_EVIDENCE, Evidence
from app.service.verification.verify import verify

QUARANTINED_AT_ONCE: Final = 100
"""Accounts quarantined per transaction, each with an audit event."""

LOCK: Final = 7305524921735473254
"""Key of PostgreSQL's advisory lock, fixed for ever; migrations use the one before it."""

POLL_SECONDS: Final = 0.05
"""Polling interval of a waiting verification."""

MAX_LISTED: Final = 100
"""Discrepancies, and quarantined accounts, that a stored result lists; it counts all of them."""

_logger = logging.getLogger(__name__)


def verify_organisation(context: RequestContext) -> VerificationReport:
    """Verify the caller's organisation and quarantine unproven accounts; `store_verification` stores the report."""
    context.require_permission(Permission.LEDGER_VERIFY, whole_organisation=True)
    found = verify(context.db, context.organisation_id)
    found = apply_quarantines(context.db, found, context.actor, context.now)
    metrics.count_verification(sound=found.sound)
    return found


def list_verifications(context: RequestContext, page: PageRequest) -> Page[Verification]:
    """List the stored verifications of the caller's organisation."""
    with context.read(Permission.AUDIT_READ, whole_organisation=True) as tx:
        return verification_results.page(tx, context.organisation_id, page)


def get_verification(context: RequestContext, verification_id: str) -> Verification:
    """Get a stored verification.

    Raises:
        NotFoundError: it does not exist, or is no longer kept.
    """
    with context.read(Permission.AUDIT_READ, whole_organisation=True) as tx:
        found = verification_results.find(tx, context.organisation_id, verification_id)
    return require_found(found, "verification", verification_id)


@use_case(Permission.LEDGER_VERIFY, whole_organisation=True)
def store_verification(tx: Connection, context: RequestContext, found: VerificationReport) -> Verification:
    """Store the report of a verification."""
    newest = verification_results.newest_id(tx, context.organisation_id)
    liftable = found.liftable
    quarantined = [QuarantinedAccount(key[1], why, key in liftable) for key, why in sorted(found.quarantined.items())]
    verification = Verification(
        id=new_id("ver", context.now, after=newest),
        organisation_id=context.organisation_id,
        actor=context.principal.actor,
        checked=found.checked,
        discrepancies=found.discrepancies[:MAX_LISTED],
        discrepancy_count=len(found.discrepancies),
        quarantined=tuple(quarantined[:MAX_LISTED]),
        quarantined_count=len(quarantined),
        created_at=context.now,
    )
    verification_results.add(tx, verification)
    return verification


def apply_quarantines(
    db: Database, found: VerificationReport, actor: Actor, now: datetime, evidence: Evidence = NO_EVIDENCE
) -> VerificationReport:
    """Quarantine accounts with discrepancies; only two people can lift a quarantine, never a verification.

    The report may be outdated, because rows may have been restored since. So it only selects the organisations to
    verify again: those with an unproven account that has no quarantine for that reason. Under a lock, each result is
    written before the next verification runs. So an account that is charged meanwhile is quarantined as well.
    """
    with verification_lock(db):
        with db.read(found.organisation_id or ALL_TENANTS) as tx:
            standing = raw_rows.quarantined(tx, found.organisation_id, lambda _: None)  # already reported
        other = {key[0] for key, why in found.unproven.items() if standing.get(key) != why}
        again = []
        for organisation_id in sorted(filter(is_id, other)):  # no charge uses another one
            principal = Principal(organisation_id, actor.id, Role.ADMIN)
            context = RequestContext(db, principal, now, actor.request_id)
            again.append(place_quarantines(context, verify(db, organisation_id, evidence)))
    return replace(found, quarantined=standing).revised(again)


@contextmanager
def verification_lock(db: Database) -> Iterator[None]:
    """Hold the verification lock of a database, in this process and all others.

    Charges are not blocked. The operating system or the database releases the lock of a process that dies.
    """
    if db.dialect == "postgresql":
        with db.read(NO_TENANT, patient=True) as tx:
            while not tx.scalar(select(func.pg_try_advisory_xact_lock(LOCK))):  # a blocking call would time out
                time.sleep(POLL_SECONDS)
            yield
        return
    import fcntl  # noqa: PLC0415 - Windows has none, and no ledgers (`open_engine`), but imports this

    # Lock the folder: closing a handle of the database file would release SQLite's own locks.
    folder = os.open(Path(str(db.engine.url.database)).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def place_quarantines(context: RequestContext, found: VerificationReport) -> VerificationReport:
    """Quarantine the unproven accounts of a report; return it with all quarantines.

    The caller holds the verification lock, so that the report is the newest. Existing quarantines stay.
    """
    owner, quarantined = context.organisation_id, dict(found.quarantined)
    new = {key: why for key, why in found.unproven.items() if quarantined.get(key) != why}
    accounts = sorted(account_id for _, account_id in new)
    for begin in range(0, len(accounts), QUARANTINED_AT_ONCE):
        reasons = {each: new[owner, each] for each in accounts[begin : begin + QUARANTINED_AT_ONCE]}
        try:
            placed = _place(context, reasons)
        except LedgerUnavailableError:
            raise  # not damaged: the database is busy or down
        except (*DAMAGED, SQLAlchemyError) as error:
            _logger.error(  # noqa: TRY400 - the verification reports the damage
                "Quarantines of %s cannot be written to its audit log, and are placed without: %s",
                owner,
                type(error).__name__,
            )
            placed = _place(context, reasons, recorded=False)
        quarantined |= {(owner, account_id): reasons[account_id] for account_id in placed}
    return replace(found, quarantined=quarantined)


@use_case()
def _place(
    tx: Connection, context: RequestContext, reasons: Mapping[str, str], *, recorded: bool = True
) -> Mapping[str, str | None]:
    """Quarantine accounts, and record it unless the audit log's end is damaged; return their former reasons."""
    previous = raw_rows.set_quarantine(tx, context.organisation_id, reasons, context.now)
    for account_id, reason in previous.items() if recorded else ():
        before = None if reason is None else {"quarantine": reason}
        context.record(tx, AuditAction.QUARANTINE_PLACED, account_id, before, {"quarantine": reasons[account_id]})
    return previous
