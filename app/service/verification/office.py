"""Are the rows beside the accounts what the audit log has made of them?"""

from collections.abc import Iterator

from app.persistence.repositories import records
from app.persistence.repositories.records import KeptRecord
from app.service.verification.findings import Audit
from app.service.verification.records import differences
from app.service.verification.terms import Told


def office_disagreements(audit: Audit, organisation_id: str | None) -> Iterator[tuple[str, str]]:
    """What is wrong with organisations, keys, sessions, proposals, experiments, webhooks, attempts and anchors.

    Args:
        audit: has read the acts.
        organisation_id: whose; None: everybody's.

    Yields:
        Organisation and sentence; none of an organisation whose acts cannot be believed.
    """
    kept: dict[str, dict[tuple[str, str], KeptRecord]] = {}
    for record in records.everything(audit.tx, organisation_id, audit.report):
        kept.setdefault(record.organisation_id, {})[record.table, record.key] = record
    for owner in sorted(audit.told.keys() | kept.keys()):
        said = audit.told.get(owner, Told())
        rows = kept.get(owner, {})
        if said.fault is None:
            complete = said.founded or ("organisations", owner) not in rows  # nothing belongs to what is not there
            for detail in differences(said.records, rows, complete=complete):
                yield owner, detail
