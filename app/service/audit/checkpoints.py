"""Sign checkpoints of an organisation's history, to be kept outside the ledger.

First an audit event anchors the decision chains: it names the length and the head of each. So the head of the audit log
covers all changes and decisions.
"""

import json
import logging
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit import AuditAction, Checkpoint, canonical, utc_text
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission
from app.persistence.database import Database
from app.persistence.repositories import audit, organisations
from app.service.auth.request_context import RequestContext, service_context
from app.service.auth.use_cases import use_case
from app.service.background import repeat
from app.service.periodic_work import find_due, isolated
from app.service.signing.signatures import Signer

RUNS_AN_ACT: Final = 500
"""Runs anchored per audit event."""

LOOK_SECONDS: Final = 30.0
"""Interval at which due checkpoints are looked for."""

_logger = logging.getLogger(__name__)


@use_case(Permission.AUDIT_READ, whole_organisation=True)
def make_checkpoint(tx: Connection, context: RequestContext, signer: Signer) -> Checkpoint:
    """Anchor the decision chains in the audit log, and sign its head.

    Returns:
        A new checkpoint; the latest one if nothing has changed since and the key is the same.
    """
    organisation_id = context.organisation_id
    while moved := audit.unanchored(tx, organisation_id, RUNS_AN_ACT):
        heads = {run_id: [decisions, head.hex()] for run_id, decisions, head in moved}
        context.record(tx, AuditAction.CHAINS_ANCHORED, organisation_id, after={"runs": heads})
        audit.anchor(tx, organisation_id, moved)
    count, head = audit.head(tx, organisation_id)
    last = audit.latest_checkpoint(tx, organisation_id)
    if last is not None and last.audit_length == count:
        signed_by = json.loads(last.document)["signature"]["key_id"]
        if signed_by == signer.key_id:
            return last
        before, after = {"key_id": signed_by}, {"key_id": signer.key_id}
        context.record(tx, AuditAction.SIGNING_KEY_CHANGED, organisation_id, before, after)
        count, head = audit.head(tx, organisation_id)
    payload = {
        "type": "checkpoint",
        "organisation": organisation_id,
        "audit_length": count,
        "audit_head": head.hex(),
        "created_at": utc_text(context.now),
    }
    checkpoint = Checkpoint(organisation_id, count, head, canonical(signer.signed(payload)), context.now)
    audit.add_checkpoint(tx, checkpoint)
    return checkpoint


def list_checkpoints(context: RequestContext, page: PageRequest) -> Page[Checkpoint]:
    """List checkpoints."""
    with context.read(Permission.AUDIT_READ, whole_organisation=True) as tx:
        return audit.list_checkpoints(tx, context.organisation_id, page)


async def run_checkpoints(db: Database, signer: Signer, seconds: float) -> None:
    """Sign and log every organisation's due checkpoints until cancelled; retry after failures."""
    await repeat(
        "checkpoints",
        "No checkpoint could be signed, and it is tried again",
        min(LOOK_SECONDS, seconds),
        lambda: sign_due(db, signer, seconds, db.clock.now()),
    )


def sign_due(db: Database, signer: Signer, seconds: float, now: datetime) -> int:
    """Sign the checkpoints that are due; return the number of new ones."""
    signed = 0
    for owner in sorted(find_due(db, lambda tx, among: list(organisations.organisation_ids(tx, among)))):
        with isolated("No checkpoint of %s was signed", owner):  # such as of one that is being moved
            signed += _sign_if_due(db, owner, signer, seconds, now)
    return signed


def _sign_if_due(db: Database, owner: str, signer: Signer, seconds: float, now: datetime) -> bool:
    """Sign an organisation's checkpoint if it is due; return whether there is a new one."""
    with db.read(owner) as tx:
        last = audit.latest_checkpoint(tx, owner)
    if last is not None and now - last.created_at < timedelta(seconds=seconds):
        return False
    made = make_checkpoint(service_context(db, owner, now), signer)
    if last is not None and made.audit_length == last.audit_length:
        return False
    _logger.info("Checkpoint: %s", json.dumps(json.loads(made.document)))
    return True
