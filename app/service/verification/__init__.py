"""Verify the ledger: recompute every account from its charges, and check every chain."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from app.ledger.accounts import AccountKind
from app.ledger.hash_chain import Actor
from app.ledger.permissions import Permission
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.postgresql import is_id
from app.persistence.repositories import accounts, audit_entries, checkpoints, partitions, raw_rows
from app.persistence.repositories.accounts import StoredAccount
from app.persistence.repositories.raw_rows import StoredRun
from app.service.accounts.partitions import budget_payload, partition_payload
from app.service.accounts.spec import account_audit_payload, run_audit_payload
from app.service.auth.request_context import RequestContext
from app.service.metrics import counters
from app.service.verification.audit_replay import disagreements, replay_audit_log, skeleton_of
from app.service.verification.balances import judge
from app.service.verification.decision_chains import replay
from app.service.verification.event_costs import read_prices
from app.service.verification.governance import governance_discrepancies
from app.service.verification.lock import verification_lock
from app.service.verification.quarantines import place_quarantines
from app.service.verification.report import Balance, Discrepancy, VerificationContext, VerificationReport, merge_reports
from app.service.verification.trusted_checkpoints import (
    TrustedCheckpoint,
    contradictions,
    document_fault,
    last_trusted_checkpoint,
)

__all__ = ["Discrepancy", "VerificationReport", "apply_quarantines", "merge_reports", "verify", "verify_organisation"]

ROWS_AT_ONCE = 100
"""Rows fetched at a time; one row of an account has 22 KB."""


def verify(
    db: Database, organisation_id: str | None = None, witnesses: Collection[TrustedCheckpoint] = ()
) -> VerificationReport:
    """Recompute accounts from their charges, and check all chains; change nothing.

    Args:
        db: the ledger's database.
        organisation_id: None: every organisation.
        witnesses: checkpoints that were kept outside the ledger.
    """
    with db.read(organisation_id or ALL_TENANTS, patient=True) as tx:
        # By default PostgreSQL's driver fetches the whole result first.
        tx.execution_options(yield_per=ROWS_AT_ONCE)
        audit = VerificationContext(tx)
        read_prices(audit, organisation_id)
        _replay_audit_log(audit, organisation_id, witnesses)
        audit.paths = raw_rows.ancestors(tx, organisation_id, audit.report)
        audit.charged = raw_rows.charged_budgets(tx, organisation_id, audit.report)
        audit.attested, audit.blocks = partitions.list_all(tx, organisation_id, audit.report)
        audit.reservations = raw_rows.list_reservations(tx, organisation_id, audit.report)
        for (owner, _), reservation in audit.reservations.items():
            audit.plans.setdefault((owner, reservation.run_id), []).append(reservation)
        _judge_accounts(audit, organisation_id)
        quarantined = raw_rows.quarantined(tx, organisation_id, audit.report)
    return VerificationReport(
        accounts=audit.accounts,
        runs=audit.runs,
        decisions=audit.decisions,
        reservations=len(audit.reservations),
        charges=audit.charges,
        steps=audit.steps,
        acts=sum(told.acts for told in audit.told.values()),
        faults=tuple(audit.faults),
        quarantined=quarantined,
        organisation_id=organisation_id,
    )


def _replay_audit_log(
    audit: VerificationContext, organisation_id: str | None, witnesses: Collection[TrustedCheckpoint]
) -> None:
    """Check the audit logs, also against the checkpoints that signed them."""
    kept = list(checkpoints.list_all(audit.tx, organisation_id, audit.report))
    known = [*map(last_trusted_checkpoint, kept), *witnesses]
    signed = {(witness.organisation_id, witness.acts) for witness in known}
    audit.told = replay_audit_log(audit_entries.list_all(audit.tx, organisation_id, audit.report), signed)
    wrong = [(owner, told.fault) for owner, told in audit.told.items() if told.fault is not None]
    wrong += [(each.organisation_id, fault) for each in kept if (fault := document_fault(each)) is not None]
    wrong += contradictions(audit.told, known)
    wrong += governance_discrepancies(audit, organisation_id)
    audit.faults += [Discrepancy(owner, None, None, f"{owner}: {detail}") for owner, detail in wrong]


def _judge_accounts(audit: VerificationContext, organisation_id: str | None) -> None:
    """Check each run as it is read, and the accounts above at the end."""
    runs = {(run.organisation_id, run.id): run for run in raw_rows.list_runs(audit.tx, organisation_id, audit.report)}
    missing = {owner: set(told.terms) for owner, told in audit.told.items() if told.fault is None}
    for kept in accounts.list_all(audit.tx, organisation_id, audit.report):
        key = (kept.organisation_id, kept.id)
        missing.get(key[0], set()).discard(key[1])
        audit.accounts += 1
        audit.balances[key] = Balance(kept.account)
        run = runs.pop(key, None)
        if audit.believes(key[0]):
            with audit.guarded(key):
                _compare(audit, kept, run)
        if kept.name_skeleton != skeleton_of(kept.account):
            audit.add(key, "what is kept of its name, to refuse others that look alike, is not of this name.")
        if kept.account.kind is AccountKind.RUN:
            with audit.guarded(key):
                if run is not None:
                    replay(audit, run)
                judge(audit, key)
            del audit.balances[key]
    audit.know_children()
    for key in audit.balances:
        with audit.guarded(key):
            judge(audit, key)
    _name_missing(audit, missing)


def _compare(audit: VerificationContext, kept: StoredAccount, run: StoredRun | None) -> None:
    """Compare an account with the audit log."""
    key = (kept.organisation_id, kept.id)
    facts = account_audit_payload(kept.account, kept.population)
    facts |= run_audit_payload(run.event, run.declared_steps, run.declared_steps_per_hour) if run else {}
    facts |= partition_payload(audit.attested.get(key), audit.blocks.get(key))
    facts |= budget_payload(audit.charged.get(key, ()))
    told = audit.told.get(key[0])
    for detail in disagreements(kept.record, facts, audit.terms(key), told.house_policy if told else None):
        audit.add(key, detail)


def _name_missing(audit: VerificationContext, missing: Mapping[str, Collection[str]]) -> None:
    """Report accounts in the audit log that have no readable row."""
    for owner, account_ids in missing.items():
        for account_id in sorted(account_ids):
            path = json.loads(audit.told[owner].terms[account_id].facts).get("path")
            detail = f"{path} ({account_id}): it was opened, and its row is missing, or cannot be read."
            audit.faults.append(Discrepancy(owner, account_id, None, detail))


def apply_quarantines(db: Database, found: VerificationReport, asker: Actor, now: datetime) -> VerificationReport:
    """Quarantine accounts with discrepancies; only two people can lift a quarantine, never a verification.

    The report may be outdated, because rows may have been restored since. So it only selects the organisations to
    verify again: those with an unproven account that has no quarantine for that reason. Under a lock, each result is
    written before the next verification runs. So an account that is charged meanwhile is quarantined as well.
    """
    with verification_lock(db):
        with db.read(found.organisation_id or ALL_TENANTS) as tx:
            standing = raw_rows.quarantined(tx, found.organisation_id, lambda _: None)  # already reported
        other = {key[0] for key, why in found.unproven.items() if standing.get(key) != why}
        again = [
            place_quarantines(db, organisation_id, verify(db, organisation_id), asker, now)
            for organisation_id in sorted(filter(is_id, other))  # no charge uses a malformed id
        ]
    return replace(found, quarantined=standing).revised(again)


def verify_organisation(call: RequestContext) -> VerificationReport:
    """Verify the caller's organisation, and quarantine unproven accounts."""
    call.require_organisation_scope(Permission.LEDGER_VERIFY)
    found = apply_quarantines(call.db, verify(call.db, call.organisation_id), call.actor, call.now)
    counters.verified(sound=found.sound)
    return found
