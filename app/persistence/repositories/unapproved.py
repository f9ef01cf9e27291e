"""Runs without a second person's approval, and their loss."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, ScalarSelect, case, func, select

from app.ledger.proposals import ProposalKind, ProposalStatus
from app.ledger.runs import RunStatus
from app.persistence.repositories.expressions import join_on
from app.persistence.repositories.locks import descendant_ids
from app.persistence.tables import accounts, decisions, proposals, run_budgets, runs

_GOING: Final = frozenset({RunStatus.ACTIVE, RunStatus.PAUSED})


@dataclass(frozen=True, slots=True)
class Unapproved:
    """A run without a second person's approval.

    Epsilon and delta are of its own limit, or the largest and smallest of its budgets. `spent` is the epsilon of its
    last decision, possibly infinite, if it has its own unchanged limit; None: computable from the balance only.
    """

    id: str
    status: RunStatus
    epsilon: float
    delta: float
    spent: float | None

    @property
    def going(self) -> bool:
        """Whether it may still spend."""
        return self.status in _GOING

    def counted(self, spent: float) -> float:
        """Compute the epsilon that it counts for: at least a live run's limit."""
        return max(spent, self.epsilon) if self.going else spent


def find_unapproved(tx: Connection, organisation_id: str, account_id: str) -> list[Unapproved]:
    """Find the unapproved runs under an account.

    A run is approved with its registration, or with a raised limit.
    """
    approved = (
        select(proposals.c.id)
        .where(
            proposals.c.organisation_id == organisation_id,
            proposals.c.account_id == accounts.c.id,
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


_BUDGET: Final = accounts.alias("budget")
_LAST_READ: Final = case((runs.c.decision_count == 0, 0.0), else_=decisions.c.epsilon)


def _of_budgets(organisation_id: str, value: ColumnElement[float]) -> ScalarSelect[float]:
    """Build a subquery for a value of the budgets that a run charges."""
    return (
        select(value)
        .join(run_budgets, join_on(run_budgets, _BUDGET, budget_id="id"))
        .where(_BUDGET.c.organisation_id == organisation_id, run_budgets.c.run_id == accounts.c.id)
        .scalar_subquery()
    )
