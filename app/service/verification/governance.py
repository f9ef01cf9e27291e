"""Compare rows other than accounts with the audit log."""

from collections.abc import Iterator

from app.persistence.repositories import records
from app.service.verification.audit_replay import AuditState
from app.service.verification.records import compare, missing
from app.service.verification.report import VerificationContext


def governance_discrepancies(audit: VerificationContext, organisation_id: str | None) -> Iterator[tuple[str, str]]:
    """Compare organisations, keys, sessions, proposals, experiments, webhooks, attempts and anchors with the audit log.

    Yields organisation ids and discrepancies; nothing for an organisation with a broken log.
    """
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
    yield from sorted((owner, detail) for owner, detail in found if audit.told[owner].fault is None)
