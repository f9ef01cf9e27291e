"""Verify the ledger: recompute every account from its charges, and check every chain."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from app.ledger.accounts import AccountKind
from app.ledger.hash_chain import Actor
from app.ledger.verifications import Discrepancy
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.postgresql import is_id
from app.persistence.repositories import accounts, audit_entries, checkpoints, partitions, raw_rows, records
from app.persistence.repositories.accounts import StoredAccount
from app.persistence.repositories.raw_rows import StoredRun
from app.service.accounts.partitions import budget_payload, partition_payload
from app.service.accounts.spec import account_audit_payload, run_audit_payload
from app.service.verification.audit_replay import AuditState, disagreements, replay_audit_log, skeleton_of
from app.service.verification.balances import judge
from app.service.verification.decision_chains import replay
from app.service.verification.event_costs import read_prices
from app.service.verification.quarantines import place_quarantines, verification_lock
from app.service.verification.record_replay import compare, missing
from app.service.verification.report import Balance, VerificationContext, VerificationReport, merge_reports
from app.service.verification.trusted_checkpoints import (
    TrustedCheckpoint,
    contradictions,
    document_fault,
    last_trusted_checkpoint,
)

__all__ = ["VerificationReport", "apply_quarantines", "merge_reports"]

ROWS_AT_ONCE = 100
"""Rows fetched at a time; one row of an account has 22 KB."""


def verify(
    db: Database, organisation_id: str | None = None, witnesses: Collection[TrustedCheckpoint] = ()
) -> VerificationReport:
    """Recompute accounts from their charges, and check all chains; change nothing.

    Without an id, of every organisation; `witnesses` are checkpoints that were kept outside the ledger.
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
        audit_events=sum(told.audit_events for told in audit.told.values()),
        discrepancies=tuple(audit.discrepancies),
        quarantined=quarantined,
        organisation_id=organisation_id,
    )


def _replay_audit_log(
    audit: VerificationContext, organisation_id: str | None, witnesses: Collection[TrustedCheckpoint]
) -> None:
    """Check the audit logs, also against the checkpoints that signed them."""
    kept = list(checkpoints.list_all(audit.tx, organisation_id, audit.report))
    known = [*map(last_trusted_checkpoint, kept), *witnesses]
    signed = {(witness.organisation_id, witness.audit_length) for witness in known}
    audit.told = replay_audit_log(audit_entries.list_all(audit.tx, organisation_id, audit.report), signed)
    wrong = [(owner, told.fault) for owner, told in audit.told.items() if told.fault is not None]
    wrong += [(each.organisation_id, fault) for each in kept if (fault := document_fault(each)) is not None]
    wrong += contradictions(audit.told, known)
    wrong += _record_discrepancies(audit, organisation_id)
    audit.discrepancies += [Discrepancy(owner, None, None, f"{owner}: {detail}") for owner, detail in wrong]


def _record_discrepancies(audit: VerificationContext, organisation_id: str | None) -> list[tuple[str, str]]:
    """Compare rows other than accounts with the unbroken audit logs; return organisation ids and discrepancies."""
    found: list[tuple[str, str]] = []
    present: set[str] = set()
    unmade: list[tuple[str, str]] = []
    for record in records.list_all(audit.tx, organisation_id, audit.report):
        owner = record.organisation_id
        said = audit.told.setdefault(owner, AuditState())
        if record.table == "organisations":
            present.add(owner)
        # Found rows are dropped: only missing ones stay in memory.
        columns = said.records.get(record.table, {}).pop(record.key, None)
        if columns is None:
            unmade.append(
                (owner, f"the row {record.key} of {record.table} is one that no entry of the audit log has made.")
            )
        elif (detail := compare(columns, record)) is not None:
            found.append((owner, detail))
    for owner, told in audit.told.items():
        found.extend((owner, detail) for detail in missing(told.records))
    # A log that does not begin with its organisation may be younger than a row; no row may outlive its organisation.
    found.extend((owner, detail) for owner, detail in unmade if audit.told[owner].founded or owner not in present)
    return sorted((owner, detail) for owner, detail in found if audit.told[owner].fault is None)


def _judge_accounts(audit: VerificationContext, organisation_id: str | None) -> None:
    """Check each run as it is read, and the accounts above at the end."""
    runs = {(run.organisation_id, run.id): run for run in raw_rows.list_runs(audit.tx, organisation_id, audit.report)}
    unseen = {owner: set(told.terms) for owner, told in audit.told.items() if told.fault is None}
    for kept in accounts.list_all(audit.tx, organisation_id, audit.report):
        key = (kept.organisation_id, kept.id)
        unseen.get(key[0], set()).discard(key[1])
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
    _name_missing(audit, unseen)


def _compare(audit: VerificationContext, kept: StoredAccount, run: StoredRun | None) -> None:
    """Compare an account with the audit log."""
    key = (kept.organisation_id, kept.id)
    facts = account_audit_payload(kept.account, kept.population)
    facts |= run_audit_payload(run.event, run.declared_steps, run.declared_steps_per_hour) if run else {}
    facts |= partition_payload(audit.attested.get(key), audit.blocks.get(key))
    facts |= budget_payload(audit.charged.get(key, ()))
    told = audit.told.get(key[0])
    for detail in disagreements(kept.record, facts, audit.terms(key), told.organisation_policy if told else None):
        audit.add(key, detail)


def _name_missing(audit: VerificationContext, missing: Mapping[str, Collection[str]]) -> None:
    """Report accounts in the audit log that have no readable row."""
    for owner, account_ids in missing.items():
        for account_id in sorted(account_ids):
            path = json.loads(audit.told[owner].terms[account_id].facts).get("path")
            detail = f"{path} ({account_id}): it was opened, and its row is missing, or cannot be read."
            audit.discrepancies.append(Discrepancy(owner, account_id, None, detail))


def apply_quarantines(db: Database, found: VerificationReport, actor: Actor, now: datetime) -> VerificationReport:
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
            place_quarantines(db, organisation_id, verify(db, organisation_id), actor, now)
            for organisation_id in sorted(filter(is_id, other))  # no charge uses a malformed id
        ]
    return replace(found, quarantined=standing).revised(again)
