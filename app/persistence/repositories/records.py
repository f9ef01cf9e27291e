"""Read the rows that the audit log proves, and unproven ones."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, Table, select

from app.ledger.experiments import ChargingMode
from app.ledger.permissions import Role
from app.ledger.proposals import ProposalKind, ProposalStatus
from app.persistence.repositories.account_values import read_policy
from app.persistence.tables import (
    account_usage_snapshots,
    alerts,
    api_keys,
    attempts,
    deliveries,
    experiments,
    idempotent_responses,
    organisations,
    proposals,
    run_anchors,
    sessions,
    verifications,
    webhooks,
)
from app.persistence.tolerant import Contents, Report, TolerantQuery, json_object

RECORDED: Final = (api_keys, attempts, experiments, organisations, proposals, run_anchors, sessions, webhooks)
"""Tables whose rows follow from the audit log."""

UNPROVEN: Final = (account_usage_snapshots, alerts, deliveries, idempotent_responses, verifications)
"""Tables of which only readability is verified; docs/explanation/verification.md has the reasons."""

_CONTENTS: Final[Contents] = {
    api_keys.c.role: Role,
    experiments.c.charging_mode: ChargingMode,
    organisations.c.policy: read_policy,
    proposals.c.kind: ProposalKind,
    proposals.c.status: ProposalStatus,
    proposals.c.payload: json_object,
    sessions.c.role: Role,
    webhooks.c.types: json.loads,
    alerts.c.payload: json_object,
    verifications.c.report: json_object,
}


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A row, its organisation, and its key within the organisation as text."""

    table: str
    organisation_id: str
    key: str
    row: Row[Any]


def list_all(tx: Connection, organisation_id: str | None, report: Report) -> Iterator[StoredRecord]:
    """Yield the rows that the audit log proves, reporting damage everywhere."""
    for table in UNPROVEN:
        for _ in _rows(tx, table, organisation_id, report):
            pass  # reading them is the check
    for table in RECORDED:
        names = [column.name for column in table.primary_key if column.name != "organisation_id"]
        owner = _owner(table)
        for row in _rows(tx, table, organisation_id, report):
            cells = row._mapping  # noqa: SLF001 - public, despite its name
            yield StoredRecord(table.name, cells[owner], "/".join(str(cells[name]) for name in names), row)


def _rows(tx: Connection, table: Table, organisation_id: str | None, report: Report) -> Iterator[Row[Any]]:
    found = select(table).order_by(*table.primary_key)
    if organisation_id is not None:
        found = found.where(table.c[_owner(table)] == organisation_id)
    return TolerantQuery(found, _CONTENTS).rows(tx, report)


def _owner(table: Table) -> str:
    return "id" if table is organisations else "organisation_id"
