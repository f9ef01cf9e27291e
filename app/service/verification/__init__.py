"""Verify the ledger: recompute every account from its charges, and check every chain."""

import json
from collections.abc import Collection, Mapping

from app.ledger.accounts import AccountKind
from app.ledger.audit import Discrepancy
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import accounts, partitions, raw_rows
from app.persistence.repositories.accounts import StoredAccount
from app.persistence.repositories.audit import all_checkpoints, all_entries, list_records
from app.persistence.repositories.raw_rows import StoredRun
from app.service.accounts.spec import account_audit_payload, budget_payload, partition_payload, run_audit_payload
from app.service.verification.audit_replay import AuditState, account_discrepancies, replay_audit_log, skeleton_of
from app.service.verification.balances import check_balance, read_prices
from app.service.verification.decision_chains import check_run
from app.service.verification.record_replay import compare, missing
from app.service.verification.report import Balance, VerificationContext, VerificationReport
from app.service.verification.trusted_checkpoints import (
    TrustedCheckpoint,
    contradictions,
    document_discrepancy,
    last_trusted_checkpoint,
)

__all__ = ["VerificationReport"]

ROWS_AT_ONCE = 100
"""Rows fetched at a time; one row of an account has 22 KB."""


def verify(
    db: Database, organisation_id: str | None = None, witnesses: Collection[TrustedCheckpoint] = ()
) -> VerificationReport:
    """Recompute accounts from their charges, and check all chains; change nothing.

    Without an id, of every organisation on the database; `witnesses` are checkpoints that were kept outside the ledger.
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
        _check_accounts(audit, organisation_id)
        quarantined = raw_rows.quarantined(tx, organisation_id, audit.report)
    audit.checked["reservations"] = len(audit.reservations)
    audit.checked["audit_events"] = sum(state.length for state in audit.states.values())
    return VerificationReport(audit.checked, tuple(audit.discrepancies), quarantined, organisation_id)


def _replay_audit_log(
    audit: VerificationContext, organisation_id: str | None, witnesses: Collection[TrustedCheckpoint]
) -> None:
    """Check the audit logs, also against the checkpoints that signed them."""
    stored = list(all_checkpoints(audit.tx, organisation_id, audit.report))
    trusted = [*map(last_trusted_checkpoint, stored), *witnesses]
    signed = {(each.organisation_id, each.audit_length) for each in trusted}
    audit.states = replay_audit_log(all_entries(audit.tx, organisation_id, audit.report), signed)
    found = [(owner, state.error) for owner, state in audit.states.items() if state.error is not None]
    found += [(each.organisation_id, detail) for each in stored if (detail := document_discrepancy(each)) is not None]
    found += contradictions(audit.states, trusted)
    found += _record_discrepancies(audit, organisation_id)
    audit.discrepancies += [Discrepancy(owner, None, None, f"{owner}: {detail}") for owner, detail in found]


def _record_discrepancies(audit: VerificationContext, organisation_id: str | None) -> list[tuple[str, str]]:
    """Compare rows other than accounts with the unbroken audit logs; return organisation ids and discrepancies."""
    found: list[tuple[str, str]] = []
    present: set[str] = set()
    unrecorded: list[tuple[str, str]] = []
    for record in list_records(audit.tx, organisation_id, audit.report):
        owner = record.organisation_id
        state = audit.states.setdefault(owner, AuditState())
        if record.table == "organisations":
            present.add(owner)
        # Found rows are dropped: only missing ones stay in memory.
        columns = state.records.get(record.table, {}).pop(record.key, None)
        if columns is None:
            unknown = f"the row {record.key} of {record.table} is one that no entry of the audit log has made."
            unrecorded.append((owner, unknown))
        elif (detail := compare(columns, record)) is not None:
            found.append((owner, detail))
    for owner, state in audit.states.items():
        found.extend((owner, detail) for detail in missing(state.records))
    # A log that does not begin with its organisation may be younger than a row; no row may outlive its organisation.
    found.extend(each for each in unrecorded if audit.states[each[0]].complete or each[0] not in present)
    return sorted(each for each in found if audit.states[each[0]].error is None)


def _check_accounts(audit: VerificationContext, organisation_id: str | None) -> None:
    """Check each run as it is read, and the accounts above at the end."""
    runs = {(run.organisation_id, run.id): run for run in raw_rows.list_runs(audit.tx, organisation_id, audit.report)}
    unseen = {owner: set(state.accounts) for owner, state in audit.states.items() if state.error is None}
    for stored in accounts.list_all(audit.tx, organisation_id, audit.report):
        key = (stored.organisation_id, stored.id)
        unseen.get(key[0], set()).discard(key[1])
        audit.checked["accounts"] += 1
        audit.balances[key] = Balance(stored.account)
        run = runs.pop(key, None)
        state = audit.states.get(key[0], AuditState())
        if state.error is None:
            with audit.guarded(key):
                _compare(audit, state, stored, run)
        if stored.name_skeleton != skeleton_of(stored.account):
            audit.add(key, "what is kept of its name, to refuse others that look alike, is not of this name.")
        if stored.account.kind is AccountKind.RUN:
            with audit.guarded(key):
                if run is not None:
                    check_run(audit, run)
                check_balance(audit, key)
            del audit.balances[key]
    audit.index_children()
    for key in audit.balances:
        with audit.guarded(key):
            check_balance(audit, key)
    _report_missing(audit, unseen)


def _compare(audit: VerificationContext, state: AuditState, stored: StoredAccount, run: StoredRun | None) -> None:
    """Compare an account with the audit log."""
    key = (stored.organisation_id, stored.id)
    facts = account_audit_payload(stored.account, stored.population)
    facts |= run_audit_payload(run.event, run.expected_steps, run.declared_steps_per_hour) if run else {}
    facts |= partition_payload(audit.attested.get(key), audit.blocks.get(key))
    facts |= budget_payload(audit.charged.get(key, ()))
    for detail in account_discrepancies(stored.record, facts, state.accounts.get(stored.id), state.organisation_policy):
        audit.add(key, detail)


def _report_missing(audit: VerificationContext, missing: Mapping[str, Collection[str]]) -> None:
    """Report accounts in the audit log that have no readable row."""
    for owner, account_ids in missing.items():
        for account_id in sorted(account_ids):
            path = json.loads(audit.states[owner].accounts[account_id].fixed_fields).get("path")
            detail = f"{path} ({account_id}): it was opened, and its row is missing, or cannot be read."
            audit.discrepancies.append(Discrepancy(owner, account_id, None, detail))
