"""Verifications on request, and their stored results."""

from typing import Final

from sqlalchemy import Connection

from app.ledger.errors import require_found
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission
from app.ledger.verifications import QuarantinedAccount, Verification
from app.persistence.repositories import verifications
from app.service import metrics
from app.service.auth.request_context import RequestContext
from app.service.idempotency import Effect
from app.service.ids import new_id
from app.service.verification import VerificationReport, apply_quarantines, verify

MAX_LISTED: Final = 100
"""Discrepancies, and quarantined accounts, that a stored result lists; it counts all of them."""


def make_verification(context: RequestContext) -> Effect[Verification]:
    """Verify the caller's organisation and quarantine unproven accounts; the effect stores the result."""
    context.require_organisation_scope(Permission.LEDGER_VERIFY)
    found = verify(context.db, context.organisation_id)
    found = apply_quarantines(context.db, found, context.actor, context.now)
    metrics.count_verification(sound=found.sound)
    return lambda tx, _: _store(tx, context, found)


def list_verifications(context: RequestContext, page: PageRequest) -> Page[Verification]:
    """List the stored verifications of the caller's organisation."""
    with context.read(Permission.AUDIT_READ, whole_organisation=True) as tx:
        return verifications.page(tx, context.organisation_id, page)


def get_verification(context: RequestContext, verification_id: str) -> Verification:
    """Get a stored verification.

    Raises:
        NotFoundError: it does not exist, or is no longer kept.
    """
    with context.read(Permission.AUDIT_READ, whole_organisation=True) as tx:
        found = verifications.find(tx, context.organisation_id, verification_id)
    return require_found(found, "verification", verification_id)


def _store(tx: Connection, context: RequestContext, found: VerificationReport) -> Verification:
    newest = verifications.newest_id(tx, context.organisation_id)
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
    verifications.add(tx, verification)
    return verification
