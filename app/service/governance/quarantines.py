"""Quarantines: listing them, and lifting them after approval and verification."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit import AuditAction
from app.ledger.errors import AccountQuarantinedError, InvalidInputError, PreconditionFailedError
from app.ledger.governance.proposals import Proposal, ProposalKind
from app.ledger.permissions import Permission
from app.persistence.repositories import locks, raw_rows
from app.service.accounts.lookup import find_account
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.change_control import open_error, open_proposals, propose
from app.service.verification.requests import verification_lock
from app.service.verification.verify import verify

MOST_FAULTS: Final = 20
"""Maximum number of discrepancies in the error."""


def list_quarantined(context: RequestContext) -> Mapping[str, str]:
    """Map the organisation's quarantined accounts to their reasons."""
    with context.read(whole_organisation=True) as tx:
        return _quarantined(tx, context)


def find_open(context: RequestContext, account: str) -> Proposal | None:
    """Find the open proposal to lift an account's quarantine."""
    with context.read() as tx:
        found = find_account(tx, context, account).account.id
        return next(iter(open_proposals(tx, context, found, {ProposalKind.QUARANTINE}, limit=1)), None)


@use_case(Permission.LEDGER_VERIFY)
def propose_lift(tx: Connection, context: RequestContext, account: str, reason: str) -> Proposal:
    """Propose to lift all quarantines at or under an account.

    Raises:
        InvalidInputError: no account at or under it is quarantined, or a proposal is open.
    """
    record = find_account(tx, context, account)
    found = _quarantined(tx, context, record.account.id)
    if not found:
        raise InvalidInputError(f"Neither {record.account.path} nor an account under it is quarantined.")
    for waiting in open_proposals(tx, context, record.account.id, {ProposalKind.QUARANTINE}, limit=1):
        raise open_error(waiting)
    facts = {"quarantined": dict(found)}
    return propose(tx, context, ProposalKind.QUARANTINE, record.account.id, facts, reason)


@contextmanager
def verify_before_lift(context: RequestContext, proposal: Proposal) -> Iterator[None]:
    """Verify the organisation and hold the verification lock until the approval is written.

    Raises:
        AccountQuarantinedError: a discrepancy remains at or under the proposal's account, or in data shared by all
            accounts, such as a cost or the audit log.
    """
    with verification_lock(context.db):
        found = verify(context.db, context.organisation_id)
        with context.db.read(context.organisation_id) as tx:
            under = _under(tx, context, proposal.subject)
        faults = [each.detail for each in found.discrepancies if each.account_id is None or each.account_id in under]
        if faults:
            raise AccountQuarantinedError(
                f"Verification still finds {len(faults)} faults here, the first: {faults[0]} Restore the rows that it "
                "names; then approve.",
                account=proposal.subject,
                discrepancies=faults[:MOST_FAULTS],
            )
        yield


def approve_lift(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Lift quarantines inside `verified`; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: no quarantine remains there, or one is newer than the proposal.
    """
    found = _quarantined(tx, context, proposal.subject)
    if not found:
        raise PreconditionFailedError(
            "Nothing at or under this account is quarantined any more: the approval of another proposal lifted it. "
            "Reject this one."
        )
    proposed = proposal.proposed["quarantined"]
    new = [why for each, why in found.items() if proposed.get(each) != why]
    if new:
        raise PreconditionFailedError(
            f"Since this was proposed, verification has found something else, the first: {new[0]} Reject the proposal, "
            "look at that too, and propose to lift both."
        )
    raw_rows.set_quarantine(tx, context.organisation_id, dict.fromkeys(found), context.now)
    after = {"proposal": proposal.id, "proposed_by": proposal.proposed_by, "approved_by": context.principal.actor}
    before = {"quarantined": dict(found)}
    context.record(tx, AuditAction.QUARANTINE_LIFTED, proposal.subject, before, after, proposal.reason)


def _quarantined(tx: Connection, context: RequestContext, account_id: str | None = None) -> dict[str, str]:
    found = {each: why for (_, each), why in raw_rows.quarantined(tx, context.organisation_id).items()}
    if account_id is None:
        return found
    under = _under(tx, context, account_id)
    return {each: why for each, why in found.items() if each in under}


def _under(tx: Connection, context: RequestContext, account_id: str) -> set[str]:
    return {row.account_id for row in tx.execute(locks.descendant_ids(context.organisation_id, account_id))}
