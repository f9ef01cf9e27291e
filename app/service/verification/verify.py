"""Verify the ledger: recompute every account from its charges, and check every chain."""

import json
import re
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Row
from sqlalchemy.exc import DatabaseError

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.runs.origins import origin_runs
from app.ledger.runs.run import declaration_of, registration_payload
from app.ledger.verification import Discrepancy
from app.persistence.database import ALL_TENANTS, Database, error_summary
from app.persistence.repositories import accounts, partitions, raw_rows
from app.persistence.repositories.audit import all_checkpoints, all_entries, list_records
from app.persistence.repositories.raw_rows import Key
from app.service.accounts.spec import account_audit_payload, budget_payload, partition_payload
from app.service.verification.audit_replay import AuditState, account_discrepancies, replay_audit_log, skeleton_of
from app.service.verification.balances import check_balance, read_prices
from app.service.verification.decision_chains import check_run
from app.service.verification.filter_choices import keep_registered_steps, runs_of_tunings
from app.service.verification.record_replay import compare, missing
from app.service.verification.report import CHECKED, Balance, VerificationContext, VerificationReport
from app.service.verification.trusted_checkpoints import (
    NO_EVIDENCE,
    Evidence,
    contradictions,
    document_discrepancy,
    last_trusted_checkpoint,
)

__all__ = ["VerificationReport"]

MOST_DAMAGE: Final = 20
"""Sentences about a damaged file."""

_OF_A_CELL: Final = re.compile(r"(CHECK constraint failed|[\w-]+ value) in ")
"""A value that the schema does not admit, in a whole file: the rest of a verification says what it means."""

UNREADABLE: Final = (DatabaseError, ArithmeticError, LookupError, TypeError, ValueError)
"""Exceptions that reading a damaged file raises; those of a database that does not answer, see `require_damage`."""

_NOT_ANSWERING: Final = tuple(
    f"SQLITE_{each}" for each in ("BUSY", "LOCKED", "CANTOPEN", "READONLY", "FULL", "IOERR", "NOMEM", "INTERRUPT")
)

ROWS_AT_ONCE = 100
"""Rows fetched at a time; one row of an account has 22 KB."""


def verify(db: Database, organisation_id: str | None = None, evidence: Evidence = NO_EVIDENCE) -> VerificationReport:
    """Recompute accounts from their charges, and check all chains; change nothing.

    Without an id, of every organisation on the database, whose file is checked first. What a damaged file does not let
    read is a discrepancy, too.

    Raises:
        SQLAlchemyError: the database does not answer.
    """
    damage = [] if organisation_id is not None else damage_of_file(db)
    try:
        found = _verify(db, organisation_id, evidence)
    except UNREADABLE as error:
        require_damage(error)
        damage.append(f"The rest of the ledger cannot be read: {type(error).__name__} {error_summary(error)}.")
        found = VerificationReport(dict.fromkeys(CHECKED, 0), (), {}, organisation_id)
    broken = tuple(Discrepancy(None, None, None, each) for each in damage)
    return replace(found, discrepancies=broken + found.discrepancies)


def damage_of_file(db: Database) -> list[str]:
    """List what SQLite finds damaged in its file, at most 20 sentences; nothing of another database."""
    if db.dialect != "sqlite":
        return []
    try:
        with db.read(ALL_TENANTS, patient=True) as tx:
            rows = tx.exec_driver_sql("PRAGMA integrity_check(1000)").scalars().all()
    except UNREADABLE as error:
        require_damage(error)
        rows = [error_summary(error)]
    broken = [row for row in rows if row != "ok" and not _OF_A_CELL.match(row)]
    return [f"SQLite finds its file damaged: {row}. Restore a backup." for row in broken[:MOST_DAMAGE]]


def require_damage(error: Exception) -> None:
    """Raise an error of reading if it only means that the database does not answer."""
    cause = getattr(error, "orig", None)
    is_of_file = isinstance(cause, sqlite3.Error)
    if isinstance(error, DatabaseError) and (
        not is_of_file or getattr(cause, "sqlite_errorname", "").startswith(_NOT_ANSWERING)
    ):
        raise error


def _verify(db: Database, organisation_id: str | None, evidence: Evidence) -> VerificationReport:
    with db.read(organisation_id or ALL_TENANTS, patient=True) as tx:
        # By default PostgreSQL's driver fetches the whole result first.
        tx.execution_options(yield_per=ROWS_AT_ONCE)
        audit = VerificationContext(tx)
        read_prices(audit, organisation_id)
        _replay_audit_log(audit, organisation_id, evidence)
        audit.paths = raw_rows.ancestors(tx, organisation_id, audit.report)
        audit.charged = raw_rows.charged_budgets(tx, organisation_id, audit.report)
        audit.origins = raw_rows.list_origins(tx, organisation_id, audit.report)
        audit.attested, audit.blocks = partitions.list_all(tx, organisation_id, audit.report)
        audit.reservations = raw_rows.list_reservations(tx, organisation_id, audit.report)
        for (owner, _), reservation in audit.reservations.items():
            audit.reservations_of.setdefault((owner, reservation.run_id), []).append(reservation)
        _check_accounts(audit, organisation_id)
        quarantined = raw_rows.quarantined(tx, organisation_id, audit.report)
    audit.checked["reservations"] = len(audit.reservations)
    audit.checked["audit_events"] = sum(state.length for state in audit.states.values())
    return VerificationReport(audit.checked, tuple(audit.discrepancies), quarantined, organisation_id)


def _replay_audit_log(audit: VerificationContext, organisation_id: str | None, evidence: Evidence) -> None:
    """Check the audit logs, also against the checkpoints that signed them."""
    stored = list(all_checkpoints(audit.tx, organisation_id, audit.report))
    witnesses = [each for each in evidence.checkpoints if organisation_id in {None, each.organisation_id}]
    trusted = [*map(last_trusted_checkpoint, stored), *witnesses]
    signed = {(each.organisation_id, each.audit_length) for each in trusted}
    audit.states = replay_audit_log(all_entries(audit.tx, organisation_id, audit.report), signed)
    found = [(owner, state.error) for owner, state in audit.states.items() if state.error is not None]
    documents = [(each.organisation_id, document_discrepancy(each, evidence)) for each in stored]
    found += [(owner, detail) for owner, detail in documents if detail is not None]
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
    runs = raw_rows.list_runs(audit.tx, organisation_id, audit.report)
    audit.attempts = raw_rows.list_attempts(audit.tx, organisation_id, audit.report)
    audit.ranges = raw_rows.list_ranges(audit.tx, organisation_id, audit.report)
    tuned = runs_of_tunings(audit.states)
    unseen = {owner: set(state.accounts) for owner, state in audit.states.items() if state.error is None}
    for owner, record, skeleton in accounts.list_all(audit.tx, organisation_id, audit.report):
        account, key = record.account, (owner, record.account.id)
        unseen.get(key[0], set()).discard(key[1])
        audit.checked["accounts"] += 1
        audit.balances[key] = Balance(account, record.counts)
        run = runs.pop(key, None)
        state = audit.states.get(key[0], AuditState())
        if run is not None and key in tuned:
            with audit.guarded(key):
                keep_registered_steps(audit, account, run)
        if state.error is None:
            with audit.guarded(key):
                _compare(audit, state, key, record, run)
        if skeleton != skeleton_of(account):
            audit.add(key, "what is kept of its name, to refuse others that look alike, is not of this name.")
        if account.kind is AccountKind.RUN:
            with audit.guarded(key):
                if run is not None:
                    if audit.origins.pop(key, set()) != set(origin_runs(run.starts_from)):
                        audit.add(key, "the runs that it starts from are not those that it declared.")
                    check_run(audit, run)
                check_balance(audit, key)
            del audit.balances[key]
    audit.index_children()
    for key in audit.balances:
        with audit.guarded(key):
            check_balance(audit, key)
    _report_missing(audit, unseen)


def _compare(
    audit: VerificationContext, state: AuditState, key: Key, record: AccountRecord, run: Row[Any] | None
) -> None:
    """Compare an account with the audit log."""
    account = record.account
    facts = account_audit_payload(account, record.population if account.kind is AccountKind.POPULATION else None)
    facts |= {} if run is None else registration_payload(run.event_fingerprint, declaration_of(run))
    facts |= partition_payload(audit.attested.get(key), audit.blocks.get(key))
    facts |= budget_payload(audit.charged.get(key, ()))
    for detail in account_discrepancies(record, facts, state.accounts.get(account.id), state.organisation_policy):
        audit.add(key, detail)


def _report_missing(audit: VerificationContext, missing: Mapping[str, Collection[str]]) -> None:
    """Report accounts in the audit log that have no readable row."""
    for owner, account_ids in missing.items():
        for account_id in sorted(account_ids):
            path = json.loads(audit.states[owner].accounts[account_id].fixed_fields).get("path")
            detail = f"{path} ({account_id}): it was opened, and its row is missing, or cannot be read."
            audit.discrepancies.append(Discrepancy(owner, account_id, None, detail))
