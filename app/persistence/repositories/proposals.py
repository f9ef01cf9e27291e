"""Proposals and their reviews by another person."""

from typing import Any

from sqlalchemy import Connection, Row, Select, insert, select, update

from app.ledger.pages import Page, PageRequest
from app.ledger.policies import ORGANISATION
from app.ledger.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus
from app.persistence.repositories.expressions import columns_of, read_page, values_of
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import proposals

_COLUMNS = columns_of(proposals, Proposal)


def add(tx: Connection, organisation_id: str, proposal: Proposal) -> None:
    """Add a proposal; an account has one open proposal per kind."""
    tx.execute(insert(proposals).values(organisation_id=organisation_id, **values_of(proposal)))


def decide(tx: Connection, organisation_id: str, proposal: Proposal) -> None:
    """Write the review of a proposal."""
    names = ("status", "decided_by", "decided_at", "decision_reason")
    here = (proposals.c.organisation_id == organisation_id) & (proposals.c.id == proposal.id)
    tx.execute(update(proposals).where(here).values(values_of(proposal, names)))


def find(tx: Connection, organisation_id: str, proposal_id: str) -> Proposal | None:
    """Find a proposal by id."""
    here = (proposals.c.organisation_id == organisation_id) & (proposals.c.id == proposal_id)
    row = tx.execute(select(*_COLUMNS).where(here)).one_or_none()
    return None if row is None else _proposal(row)


def page(tx: Connection, organisation_id: str, wanted: ProposalFilter, request: PageRequest) -> Page[Proposal]:
    """List proposals, newest first."""
    found = _within(organisation_id, wanted.within)
    if wanted.account_id == ORGANISATION:
        found = found.where(proposals.c.account_id.is_(None))
    elif wanted.account_id is not None:
        found = found.where(proposals.c.account_id == wanted.account_id)
    if wanted.kinds is not None:
        found = found.where(proposals.c.kind.in_(sorted(map(str, wanted.kinds))))
    if wanted.status is not None:
        found = found.where(proposals.c.status == str(wanted.status))
    return read_page(tx, found, proposals.c.id, request, _proposal)


def list_closed(tx: Connection, organisation_id: str, within: str | None, request: PageRequest) -> Page[Proposal]:
    """List closed proposals about an account or its descendants, newest first."""
    found = _within(organisation_id, within).where(proposals.c.status != str(ProposalStatus.OPEN))
    return read_page(tx, found, proposals.c.id, request, _proposal)


def _within(organisation_id: str, account_id: str | None) -> Select[Any]:
    found = select(*_COLUMNS).where(proposals.c.organisation_id == organisation_id)
    if account_id is None:
        return found
    return found.where(proposals.c.account_id.in_(descendant_ids(organisation_id, account_id)))


def _proposal(row: Row[Any]) -> Proposal:
    return Proposal(**row._asdict() | {"kind": ProposalKind(row.kind), "status": ProposalStatus(row.status)})
