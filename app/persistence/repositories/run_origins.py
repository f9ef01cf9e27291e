"""The runs that runs start from, to find those that start from a run."""

from sqlalchemy import Connection, func, insert, select

from app.ledger.runs.origins import origin_runs
from app.ledger.runs.run import Run
from app.persistence.repositories.expressions import owned_by
from app.persistence.repositories.locks import within
from app.persistence.tables import run_origins


def add(tx: Connection, organisation_id: str, run: Run) -> None:
    """Add the runs that a new run starts from."""
    found = origin_runs(run.declaration.starts_from)
    if found:
        rows = [{"organisation_id": organisation_id, "run_id": run.account_id, "origin_id": each} for each in found]
        tx.execute(insert(run_origins), rows)


def ancestors(tx: Connection, organisation_id: str, run_id: str, most: int) -> list[str]:
    """List the ids of up to `most` runs that a run starts from, directly or by others, in any order."""
    direct = select(run_origins.c.origin_id).where(owned_by(run_origins, organisation_id, run_id=run_id))
    found = direct.cte("lineage", recursive=True)
    further = (
        select(run_origins.c.origin_id)
        .join(found, run_origins.c.run_id == found.c.origin_id)
        .where(owned_by(run_origins, organisation_id))
    )
    found = found.union(further)
    return list(tx.execute(select(found.c.origin_id).limit(most)).scalars())


def successors(
    tx: Connection, organisation_id: str, run_id: str, scope: str | None, most: int
) -> tuple[list[str], int]:
    """List the newest `most` runs within a scope, None: all, that start from a run directly; and count them all."""
    here = owned_by(run_origins, organisation_id, origin_id=run_id) & within(
        run_origins.c.run_id, organisation_id, scope
    )
    found = select(run_origins.c.run_id).where(here).order_by(run_origins.c.run_id.desc()).limit(most)
    listed = list(tx.execute(found).scalars())
    count = tx.execute(select(func.count()).select_from(run_origins).where(here)).scalar_one()
    return listed, count
