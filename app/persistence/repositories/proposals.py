"""Proposals and their reviews by another person."""

from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from app.ledger.policies import ORGANISATION
from app.ledger.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import proposals

_COLUMNS = [column for column in proposals.c if column is not proposals.c.organisation_id]


def add(tx: Connection, organisation_id: str, proposal: Proposal) -> None:
    """Add a proposal; an account has one open proposal per kind."""
    values = {column.name: getattr(proposal, column.name) for column in _COLUMNS}
    tx.execute(insert(proposals).values(organisation_id=organisation_id, **_written(values)))


def decide(tx: Connection, organisation_id: str, proposal: Proposal) -> None:
    """Write the review of a proposal."""
    names = ("status", "decided_by", "decided_at", "decision_reason")
    here = (proposals.c.organisation_id == organisation_id) & (proposals.c.id == proposal.id)
    tx.execute(update(proposals).where(here).values(_written({name: getattr(proposal, name) for name in names})))


def find(tx: Connection, organisation_id: str, proposal_id: str) -> Proposal | None:
    """Find a proposal by id."""
    here = (proposals.c.organisation_id == organisation_id) & (proposals.c.id == proposal_id)
    row = tx.execute(select(*_COLUMNS).where(here)).one_or_none()
    return None if row is None else _proposal(row)


def page(
    tx: Connection, organisation_id: str, wanted: ProposalFilter, *, after: str | None, limit: int
) -> list[Proposal]:
    """List proposals after an id, oldest first."""
    found = select(*_COLUMNS).where(proposals.c.organisation_id == organisation_id)
    if wanted.beneath is not None:
        found = found.where(proposals.c.account_id.in_(descendant_ids(organisation_id, wanted.beneath)))
    if wanted.account_id == ORGANISATION:
        found = found.where(proposals.c.account_id.is_(None))
    elif wanted.account_id is not None:
        found = found.where(proposals.c.account_id == wanted.account_id)
    if wanted.kinds is not None:
        found = found.where(proposals.c.kind.in_(sorted(map(str, wanted.kinds))))
    if wanted.status is not None:
        found = found.where(proposals.c.status == str(wanted.status))
    if after is not None:
        found = found.where(proposals.c.id > after)
    return [_proposal(row) for row in tx.execute(found.order_by(proposals.c.id).limit(limit))]


def list_closed(
    tx: Connection, organisation_id: str, *, beneath: str | None, before: str | None, limit: int
) -> list[Proposal]:
    """List closed proposals about an account or its descendants before an id, newest first."""
    found = select(*_COLUMNS).where(proposals.c.organisation_id == organisation_id)
    found = found.where(proposals.c.status != str(ProposalStatus.OPEN))
    if beneath is not None:
        found = found.where(proposals.c.account_id.in_(descendant_ids(organisation_id, beneath)))
    if before is not None:
        found = found.where(proposals.c.id < before)
    return [_proposal(row) for row in tx.execute(found.order_by(proposals.c.id.desc()).limit(limit))]


def _written(values: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}


def _proposal(row: Row[Any]) -> Proposal:
    facts = {column.name: getattr(row, column.name) for column in _COLUMNS}
    return Proposal(**facts | {"kind": ProposalKind(row.kind), "status": ProposalStatus(row.status)})
