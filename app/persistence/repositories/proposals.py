"""Proposals and their reviews by another person."""

from collections.abc import Sequence

from sqlalchemy import Connection, Select, case, func, or_, select

from app.ledger.audit import canonical
from app.ledger.filter.limits import Limit
from app.ledger.governance.proposals import Proposal, ProposalFilter, ProposalKind, ProposalStatus, Unapproved
from app.ledger.pages import Page, PageRequest
from app.ledger.runs.run import RunStatus
from app.ledger.settings.policies import ORGANISATION
from app.persistence.repositories.account_values import LIMIT_COLUMNS, read_limit
from app.persistence.repositories.expressions import (
    OPEN,
    RecordTable,
    join_on,
    matches,
    of_last_decision,
    owned_by,
    values_of,
)
from app.persistence.repositories.locks import descendant_ids, within
from app.persistence.tables import account_ancestors, accounts, decisions, proposals, run_budgets, runs

_PROPOSALS = RecordTable(proposals, Proposal, kind=ProposalKind, status=ProposalStatus)

add = _PROPOSALS.add  # an account has one open proposal per kind
find = _PROPOSALS.find


def decide(tx: Connection, organisation_id: str, proposal: Proposal) -> None:
    """Write the review of a proposal."""
    names = ("status", "decided_by", "decided_at", "decision_reason")
    tx.execute(_PROPOSALS.update(organisation_id, proposal.id).values(values_of(proposal, names)))


def page(tx: Connection, organisation_id: str, wanted: ProposalFilter, request: PageRequest) -> Page[Proposal]:
    """List proposals, newest first."""
    conditions = [within(proposals.c.account_id, organisation_id, wanted.within)]
    if wanted.account_id == ORGANISATION:
        conditions.append(proposals.c.account_id.is_(None))
    else:
        conditions += matches(proposals, account_id=wanted.account_id)
    if wanted.kinds is not None:
        conditions.append(proposals.c.kind.in_(sorted(map(str, wanted.kinds))))
    return _PROPOSALS.page(tx, organisation_id, request, *conditions, *matches(proposals, status=wanted.status))


def list_closed(tx: Connection, organisation_id: str, scope: str | None, request: PageRequest) -> Page[Proposal]:
    """List closed proposals about an account or its descendants, newest first; None: all."""
    closed = proposals.c.status != str(ProposalStatus.OPEN)
    about = within(proposals.c.account_id, organisation_id, scope)
    return _PROPOSALS.page(tx, organisation_id, request, about, closed)


def newest_limits_for(
    tx: Connection, organisation_id: str, run_id: str, seen_by: tuple[str, str | None], limit: int
) -> list[Proposal]:
    """List proposals of a run's own limit, and those of limits above it that were requested for it, newest first.

    `seen_by` is an actor and its scope: its own, and those about accounts in the scope, None: all.
    """
    actor, scope = seen_by
    named = canonical({"run": run_id})[1:-1]  # as in the canonical JSON of a payload
    found = _PROPOSALS.page(
        tx,
        organisation_id,
        PageRequest(limit),
        proposals.c.account_id.in_(_along(organisation_id, run_id)),
        proposals.c.kind == str(ProposalKind.LIMIT),
        or_(proposals.c.account_id == run_id, proposals.c.payload.contains(named, autoescape=True)),
        or_(proposals.c.proposed_by == actor, within(proposals.c.account_id, organisation_id, scope)),
    )
    return list(found.items)


def open_limits_along(tx: Connection, organisation_id: str, account_id: str) -> set[str]:
    """List the accounts among an account and its ancestors whose limit somebody has proposed to change."""
    found = select(proposals.c.account_id).where(
        owned_by(proposals, organisation_id),
        proposals.c.account_id.in_(_along(organisation_id, account_id)),
        proposals.c.kind == str(ProposalKind.LIMIT),
        OPEN,
    )
    return set(tx.execute(found).scalars())


def path_change_token(tx: Connection, organisation_id: str, account_id: str) -> tuple[int, int]:
    """Get a token that changes with the proposals about an account and its ancestors."""
    found = select(func.count(), func.count(proposals.c.decided_at)).where(
        owned_by(proposals, organisation_id), proposals.c.account_id.in_(_along(organisation_id, account_id))
    )
    number, decided = tx.execute(found).one()
    return number, decided


def _along(organisation_id: str, account_id: str) -> Select[tuple[str]]:
    """Select the ids of an account and its ancestors."""
    return select(account_ancestors.c.ancestor_id).where(
        owned_by(account_ancestors, organisation_id, account_id=account_id)
    )


def open_subjects(
    tx: Connection, organisation_id: str, scope: str | None, *, not_by: str, limit: int
) -> list[tuple[str | None, str]]:
    """List account, if any, and proposer of open proposals about an account or its descendants, None: all.

    Those of the actor `not_by` are left out, and the organisation's where there is a scope.
    """
    found = select(proposals.c.account_id, proposals.c.proposed_by).where(
        owned_by(proposals, organisation_id),
        OPEN,
        proposals.c.proposed_by != not_by,
        within(proposals.c.account_id, organisation_id, scope),
    )
    return [(account_id, proposed_by) for account_id, proposed_by in tx.execute(found.limit(limit))]


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
    last_read = of_last_decision(decisions.c.epsilon, owned_by(decisions, organisation_id))
    spent = case((runs.c.decision_count == 0, 0.0), else_=last_read)
    known = accounts.c.limit_value.is_not(None) & (accounts.c.limit_revision == 0)
    found = (
        select(accounts.c.id, runs.c.status, *(accounts.c[name] for name in LIMIT_COLUMNS), case((known, spent)))
        .join(runs, join_on(runs, accounts, account_id="id"))
        .where(
            accounts.c.organisation_id == organisation_id,
            accounts.c.id.in_(descendant_ids(organisation_id, account_id)),
            ~approved,
        )
        .order_by(accounts.c.id)
    )
    rows = [(row, read_limit(row)) for row in tx.execute(found)]
    of_budgets = _limits_of_budgets(tx, organisation_id, [row.id for row, limit in rows if limit is None])
    return [
        Unapproved.of(row.id, RunStatus(row.status), [limit] if limit else of_budgets[row.id], row[-1])
        for row, limit in rows
    ]


def _limits_of_budgets(tx: Connection, organisation_id: str, run_ids: Sequence[str]) -> dict[str, list[Limit]]:
    """Get the limits of the budgets that runs charge."""
    limits: dict[str, list[Limit]] = {run_id: [] for run_id in run_ids}
    if not limits:
        return limits
    found = (
        select(run_budgets.c.run_id, *(accounts.c[name] for name in LIMIT_COLUMNS))
        .join(run_budgets, join_on(run_budgets, accounts, budget_id="id"))
        .where(accounts.c.organisation_id == organisation_id, run_budgets.c.run_id.in_(run_ids))
    )
    for row in tx.execute(found):
        limit = read_limit(row)
        assert limit is not None, "a budget has a limit"
        limits[row.run_id].append(limit)
    return limits
