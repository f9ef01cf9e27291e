"""Signed checkpoints of audit chains, and the anchors of runs' chains in them."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, delete, insert, or_, select

from app.ledger.audit import Checkpoint
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories.expressions import columns_of, join_on, owned_by, read_page, values_of
from app.persistence.tables import checkpoints, run_anchors, runs
from app.persistence.tolerant import Report, TolerantQuery, json_object, refuse

_COLUMNS = columns_of(checkpoints, Checkpoint)


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


def add(tx: Connection, checkpoint: Checkpoint) -> None:
    """Add a checkpoint."""
    tx.execute(insert(checkpoints).values(values_of(checkpoint)))


def page(tx: Connection, organisation_id: str, request: PageRequest) -> Page[Checkpoint]:
    """List checkpoints, newest first."""
    found = select(*_COLUMNS).where(checkpoints.c.organisation_id == organisation_id)
    return read_page(tx, found, checkpoints.c.audit_length, request, lambda row: Checkpoint(*tuple(row)))


def latest(tx: Connection, organisation_id: str) -> Checkpoint | None:
    """Get the newest checkpoint."""
    return next(iter(page(tx, organisation_id, PageRequest(1)).items), None)


def list_all(tx: Connection, organisation_id: str | None = None, report: Report = refuse) -> Iterator[Checkpoint]:
    """List the checkpoints of one or every organisation, reporting damage."""
    found = select(*_COLUMNS).where(owned_by(checkpoints, organisation_id)).order_by(*checkpoints.primary_key)
    query = TolerantQuery(found, {checkpoints.c.document: json_object})
    return query.objects(tx, lambda row: Checkpoint(**row._asdict()), report)
