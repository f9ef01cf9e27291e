"""Response schemas of account histories."""

from datetime import datetime

from pydantic import Field

from app.api.schemas.common import ExtendedNumber, Limit, Output
from app.api.schemas.examples import EXAMPLE_BUDGET_ID, EXAMPLE_POPULATION_ID, example
from app.ledger.accounts import AccountKind
from app.ledger.filters import Limit as DomainLimit
from app.service.json_values import json_finite
from app.service.queries.account_history import AccountHistory as DomainAccountHistory


class AccountHistoryPoint(Output):
    """Spending at a time."""

    created_at: datetime
    epsilon: ExtendedNumber = Field(description="By the account's filter as it is now, at its delta.")


class ChildShare(Output):
    """Share of a child of the account."""

    account: str | None = Field(description="Null: all other children.")
    path: str
    kind: AccountKind | None
    shares: list[float] = Field(
        description="For each point, the child's share of the account's threshold at `order`. At one order shares "
        "add up exactly, unlike epsilon; of disjoint parts the largest counts."
    )


class LimitChange(Output):
    """A change of the limit."""

    changed_at: datetime
    before: Limit
    after: Limit


class AccountHistory(Output):
    """An account's epsilon over time, evenly thinned out to `max_points`."""

    model_config = example(
        {
            "account": EXAMPLE_POPULATION_ID,
            "limit": {"epsilon": 8.0, "delta": 1e-5},
            "points": [
                {"created_at": "2026-11-21T09:00:00Z", "epsilon": 0.0},
                {"created_at": "2026-11-21T09:30:00Z", "epsilon": 2.0904},
            ],
            "order": 9.5,
            "children": [
                {
                    "account": EXAMPLE_BUDGET_ID,
                    "path": "mimic/icu-team",
                    "kind": "budget",
                    "shares": [0.0, 0.1312],
                }
            ],
            "limit_changes": [],
            "decisions": 420,
            "decisions_sampled": 420,
            "exact": True,
        }
    )

    account: str
    limit: Limit
    points: list[AccountHistoryPoint] = Field(
        description="Times of charges, after the creation of the account; empty without charges."
    )
    order: float | None = Field(description="The Rényi order that is exhausted last.")
    children: list[ChildShare] = Field(description="In descending order of their share.")
    limit_changes: list[LimitChange]
    decisions: int = Field(description="Number of decisions on all runs under the account.")
    decisions_sampled: int = Field(description="Number of decisions that the history is computed from.")
    exact: bool = Field(
        description="Whether the history covers all charges. Otherwise its end is exact, and it interpolates a "
        "run's charges between the read ones."
    )

    @classmethod
    def of(cls, history: DomainAccountHistory) -> "AccountHistory":
        """Convert from the domain."""
        limit = history.account.limit
        assert limit is not None, "populations and budgets have limits"
        return cls(
            account=history.account.id,
            limit=_limit(limit),
            points=[
                AccountHistoryPoint(created_at=at, **json_finite(epsilon=epsilon))
                for at, epsilon in zip(history.moments, history.epsilons, strict=True)
            ],
            order=history.order,
            children=[
                ChildShare(account=each.account_id, path=each.path, kind=each.kind, shares=list(each.shares))
                for each in history.children
            ],
            limit_changes=[
                LimitChange(changed_at=each.at, before=_limit(each.before), after=_limit(each.after))
                for each in history.changes
            ],
            decisions=history.decisions,
            decisions_sampled=history.read,
            exact=history.exact,
        )


def _limit(limit: DomainLimit) -> Limit:
    return Limit(epsilon=limit.epsilon, delta=limit.delta)
