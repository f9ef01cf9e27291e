"""The audit chain of an organisation, its checkpoints, and the rows that it proves."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Final

from sqlalchemy import CompoundSelect, Connection, Row, delete, func, insert, or_, select, true, union_all

from app.ledger.accounts.calendar import CalendarPeriod
from app.ledger.accounts.receivers import ReceiverKind
from app.ledger.audit import (
    Actor,
    AuditAction,
    AuditEntry,
    AuditEvent,
    AuditFilter,
    AuditOrder,
    Checkpoint,
    audit_entry_hash,
    audit_genesis,
    canonical,
)
from app.ledger.experiments import ChargingMode
from app.ledger.governance.proposals import ProposalKind, ProposalStatus
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Role
from app.persistence import tolerant_rows as tolerant
from app.persistence.repositories.account_values import read_policy
from app.persistence.repositories.expressions import (
    RecordTable,
    as_text,
    in_period,
    join_on,
    matches,
    owned_by,
)
from app.persistence.repositories.locks import descendant_ids
from app.persistence.repositories.organisations import lock as lock_organisation
from app.persistence.tables import (
    account_ancestors,
    account_labels,
    account_metadata,
    account_usage_snapshots,
    alerts,
    api_keys,
    attempts,
    audit_entries,
    block_schedules,
    checkpoints,
    deliveries,
    experiments,
    idempotent_responses,
    organisations,
    proposals,
    receivers,
    run_anchors,
    runs,
    sessions,
    sign_in_links,
    verifications,
)
from app.persistence.tolerant_rows import Contents, Report, TolerantQuery, json_object, refuse

_ENTRIES = RecordTable(audit_entries, AuditEntry)
_CHECKPOINTS = RecordTable(checkpoints, Checkpoint)
_STORED_ENTRIES = TolerantQuery(_ENTRIES.select(None).order_by(*audit_entries.primary_key))
_STORED_CHECKPOINTS = TolerantQuery(
    _CHECKPOINTS.select(None).order_by(*checkpoints.primary_key), {checkpoints.c.document: json_object}
)


def head(tx: Connection, organisation_id: str) -> tuple[int, bytes]:
    """Get the length of the chain and its last hash."""
    last = (
        select(audit_entries.c.position, audit_entries.c.entry_hash)
        .where(audit_entries.c.organisation_id == organisation_id)
        .order_by(audit_entries.c.position.desc())
        .limit(1)
    )
    row = tx.execute(last).one_or_none()
    return (0, audit_genesis(organisation_id)) if row is None else (row.position + 1, row.entry_hash)


def events_since(
    tx: Connection, organisation_id: str, position: int, entry_hash: bytes, limit: int
) -> list[tuple[int, bytes, str]] | None:
    """List position, hash and subject of the events after one, oldest first.

    None: the chain has another event there, or none, or more than `limit` have followed.
    """
    found = (
        select(audit_entries.c.position, audit_entries.c.entry_hash, audit_entries.c.subject)
        .where(audit_entries.c.organisation_id == organisation_id, audit_entries.c.position >= position)
        .order_by(audit_entries.c.position)
        .limit(limit + 2)
    )
    rows = [(row.position, row.entry_hash, row.subject) for row in tx.execute(found)]
    known = bool(rows) and rows[0][:2] == (position, entry_hash)
    return rows[1:] if known and len(rows) <= limit + 1 else None


def record_event(tx: Connection, organisation_id: str, actor: Actor, event: AuditEvent, now: datetime) -> None:
    """Append an event to an organisation's chain, in the transaction of the change.

    Organisations are locked first: `tx` must not have locked an account before, unless it holds the organisation's
    lock.
    """
    lock_organisation(tx, organisation_id)
    position, previous = head(tx, organisation_id)
    entry = AuditEntry(
        organisation_id=organisation_id,
        position=position,
        actor=actor.id,
        action=str(event.action),
        subject=event.subject,
        before=None if event.before is None else canonical(event.before),
        after=None if event.after is None else canonical(event.after),
        reason=event.reason,
        request_id=actor.request_id,
        created_at=now,
    )
    _ENTRIES.add(tx, organisation_id, replace(entry, entry_hash=audit_entry_hash(previous, entry)))


def list_entries(tx: Connection, organisation_id: str, wanted: AuditFilter, request: PageRequest) -> Page[AuditEntry]:
    """List entries of the chain."""
    if wanted.action is not None and wanted.action.endswith("*"):
        action = [audit_entries.c.action.startswith(wanted.action.removesuffix("*"), autoescape=True)]
    else:
        action = matches(audit_entries, action=wanted.action)
    return _ENTRIES.page(
        tx,
        organisation_id,
        request,
        *action,
        *matches(audit_entries, actor=wanted.actor, subject=wanted.subject),
        *in_period(audit_entries.c.created_at, wanted.since, wanted.until),
        true() if wanted.within is None else audit_entries.c.subject.in_(_subjects(organisation_id, wanted.within)),
        oldest_first=wanted.order is AuditOrder.OLDEST,
    )


def has_entry(tx: Connection, organisation_id: str, action: AuditAction, subject: str) -> bool:
    """Return whether an action on a subject was recorded."""
    found = select(audit_entries.c.position).where(
        owned_by(audit_entries, organisation_id, action=str(action), subject=subject)
    )
    return tx.execute(found.limit(1)).scalar() is not None


def last_sign_ins(tx: Connection, organisation_id: str, actors: Collection[str]) -> dict[str, dict[str, Any]]:
    """Get what was recorded of each actor's last sign-in, by actor."""
    last = (
        select(func.max(audit_entries.c.position))
        .where(
            audit_entries.c.organisation_id == organisation_id,
            audit_entries.c.action == str(AuditAction.SESSION_CREATED),
            audit_entries.c.actor.in_(list(actors)),
        )
        .group_by(audit_entries.c.actor)
    )
    found = select(audit_entries.c.actor, audit_entries.c.after).where(
        audit_entries.c.organisation_id == organisation_id, audit_entries.c.position.in_(last)
    )
    return {row.actor: _facts_in(row.after) for row in tx.execute(found)}


def _facts_in(text: str | None) -> dict[str, Any]:
    """Parse what was recorded; nothing if the entry is damaged, which verification reports."""
    try:
        facts = json.loads(text or "{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _subjects(organisation_id: str, account_id: str) -> CompoundSelect[tuple[str]]:
    """Build a subquery for the ids of subjects at or under an account, as text."""
    within = descendant_ids(organisation_id, account_id)
    of_these = [
        select(table.c.id).where(table.c.organisation_id == organisation_id, column.in_(within))
        for table, column in (
            (api_keys, api_keys.c.scope_id),
            (proposals, proposals.c.account_id),
            (experiments, experiments.c.account_id),
        )
    ]
    return union_all(within.with_only_columns(as_text(account_ancestors.c.account_id)), *of_these)


def all_entries(tx: Connection, organisation_id: str | None = None, report: Report = refuse) -> Iterator[AuditEntry]:
    """List the entries of one or every organisation in chain order, reporting damage."""
    return _STORED_ENTRIES.objects(tx, organisation_id, _ENTRIES.read, report)


def unanchored(tx: Connection, organisation_id: str, most: int) -> list[tuple[str, int, bytes]]:
    """List id, length and head of runs with decisions since their last anchor."""
    found = (
        select(runs.c.account_id, runs.c.decision_count, runs.c.chain_head)
        .outerjoin(run_anchors, join_on(run_anchors, runs, run_id="account_id"))
        .where(
            runs.c.organisation_id == organisation_id,
            runs.c.decision_count > 0,
            or_(run_anchors.c.decision_count.is_(None), run_anchors.c.decision_count != runs.c.decision_count),
        )
        .order_by(runs.c.account_id)
        .limit(most)
    )
    return [(row.account_id, row.decision_count, row.chain_head) for row in tx.execute(found)]


def anchor(tx: Connection, organisation_id: str, anchored: Sequence[tuple[str, int, bytes]]) -> None:
    """Store the anchored lengths of runs' chains."""
    ids = [run_id for run_id, _, _ in anchored]
    here = (run_anchors.c.organisation_id == organisation_id) & run_anchors.c.run_id.in_(ids)
    tx.execute(delete(run_anchors).where(here))
    rows = [{"organisation_id": organisation_id, "run_id": run, "decision_count": count} for run, count, _ in anchored]
    tx.execute(insert(run_anchors), rows)


def add_checkpoint(tx: Connection, checkpoint: Checkpoint) -> None:
    """Add a checkpoint."""
    _CHECKPOINTS.add(tx, checkpoint.organisation_id, checkpoint)


def list_checkpoints(tx: Connection, organisation_id: str, request: PageRequest) -> Page[Checkpoint]:
    """List checkpoints, newest first."""
    return _CHECKPOINTS.page(tx, organisation_id, request)


def latest_checkpoint(tx: Connection, organisation_id: str) -> Checkpoint | None:
    """Get the newest checkpoint."""
    return next(iter(list_checkpoints(tx, organisation_id, PageRequest(1)).items), None)


def all_checkpoints(
    tx: Connection, organisation_id: str | None = None, report: Report = refuse
) -> Iterator[Checkpoint]:
    """List the checkpoints of one or every organisation, reporting damage."""
    return _STORED_CHECKPOINTS.objects(tx, organisation_id, _CHECKPOINTS.read, report)


RECORDED: Final = (
    *(account_labels, account_metadata, api_keys, attempts, block_schedules, experiments),
    *(organisations, proposals, receivers, run_anchors, sessions, sign_in_links),
)
"""Tables whose rows follow from the audit log."""

UNPROVEN: Final = (account_usage_snapshots, alerts, deliveries, idempotent_responses, verifications)
"""Tables of which only readability is verified; docs/explanation/verification.md has the reasons."""

_CONTENTS: Final[Contents] = {
    account_metadata.c.links: json.loads,
    account_metadata.c.deployment: json.loads,
    api_keys.c.role: Role,
    block_schedules.c.period: CalendarPeriod,
    block_schedules.c.start: date.fromisoformat,
    experiments.c.charging_mode: ChargingMode,
    organisations.c.policy: read_policy,
    proposals.c.kind: ProposalKind,
    proposals.c.status: ProposalStatus,
    proposals.c.payload: json_object,
    sessions.c.role: Role,
    receivers.c.kind: ReceiverKind,
    receivers.c.types: json.loads,
    receivers.c.addresses: json.loads,
    alerts.c.payload: json_object,
    verifications.c.report: json_object,
}
_STORED_RECORDS: Final = {table: tolerant.by_key(table, _CONTENTS) for table in (*UNPROVEN, *RECORDED)}


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A row, its organisation, and its key within the organisation as text."""

    table: str
    organisation_id: str
    key: str
    row: Row[Any]


def list_records(tx: Connection, organisation_id: str | None, report: Report) -> Iterator[StoredRecord]:
    """Yield the rows that the audit log proves, reporting damage everywhere."""
    for table, query in _STORED_RECORDS.items():
        owner = "id" if table is organisations else "organisation_id"
        names = [column.name for column in table.primary_key if column.name != "organisation_id"]
        for row in query.rows(tx, organisation_id, report):
            if table in RECORDED:  # reading the others is their check
                cells = row._mapping  # noqa: SLF001 - public, despite its name
                yield StoredRecord(table.name, cells[owner], "/".join(str(cells[name]) for name in names), row)
