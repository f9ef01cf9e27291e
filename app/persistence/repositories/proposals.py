"""Proposals and their reviews by another person."""

from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, ScalarSelect, Select, case, func, insert, select, update

from app.ledger.pages import Page, PageRequest
from app.ledger.policies import ORGANISATION
from app.ledger.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus, Unapproved
from app.ledger.runs import RunStatus
from app.persistence.repositories.expressions import columns_of, join_on, owned_by, read_page, values_of
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import accounts, decisions, proposals, run_budgets, runs

_COLUMNS = columns_of(proposals, Proposal)


def add(tx: Connection, organisation_id: str, proposal: Proposal) -> None:
    """Add a proposal; an account has one open proposal per kind."""
    tx.execute(insert(proposals).values(organisation_id=organisation_id, **values_of(proposal)))


def decide(tx: Connection, organisation_id: str, proposal: Proposal) -> None:
    """Write the review of a proposal."""
    names = ("status", "decided_by", "decided_at", "decision_reason")
    here = owned_by(proposals, organisation_id, id=proposal.id)
    tx.execute(update(proposals).where(here).values(values_of(proposal, names)))


def find(tx: Connection, organisation_id: str, proposal_id: str) -> Proposal | None:
    """Find a proposal by id."""
    here = owned_by(proposals, organisation_id, id=proposal_id)
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


_BUDGET: Final = accounts.alias("budget")


_LAST_READ: Final = case((runs.c.decision_count == 0, 0.0), else_=decisions.c.epsilon)


def find_unapproved(tx: Connection, organisation_id: str, account_id: str) -> list[Unapproved]:
    """Find the unapproved runs under an account.

    A run is approved with its registration, or with a raised limit.
    """
    approved = (
        select(proposals.c.id)
        .where(
            owned_by(proposals, organisation_id, account_id=accounts.c.id),
            proposals.c.kind.in_([str(ProposalKind.LIMIT), str(ProposalKind.RUN)]),
            proposals.c.status == str(ProposalStatus.APPROVED),
        )
        .exists()
    )
    found = (
        select(
            accounts.c.id,
            runs.c.status,
            func.coalesce(accounts.c.epsilon_limit, _of_budgets(organisation_id, func.max(_BUDGET.c.epsilon_limit))),
            func.coalesce(accounts.c.delta_limit, _of_budgets(organisation_id, func.min(_BUDGET.c.delta_limit))),
            case((accounts.c.epsilon_limit.is_not(None) & (accounts.c.limit_revision == 0), _LAST_READ)),
        )
        .join(runs, join_on(runs, accounts, account_id="id"))
        .outerjoin(
            decisions,
            join_on(decisions, runs, run_id="account_id") & (decisions.c.position == runs.c.decision_count - 1),
        )
        .where(
            accounts.c.organisation_id == organisation_id,
            accounts.c.id.in_(descendant_ids(organisation_id, account_id)),
            ~approved,
        )
        .order_by(accounts.c.id)
    )
    return [
        Unapproved(run_id, RunStatus(status), epsilon, delta, spent)
        for run_id, status, epsilon, delta, spent in tx.execute(found)
    ]


def _of_budgets(organisation_id: str, value: ColumnElement[float]) -> ScalarSelect[float]:
    """Build a subquery for a value of the budgets that a run charges."""
    return (
        select(value)
        .join(run_budgets, join_on(run_budgets, _BUDGET, budget_id="id"))
        .where(_BUDGET.c.organisation_id == organisation_id, run_budgets.c.run_id == accounts.c.id)
        .scalar_subquery()
    )
