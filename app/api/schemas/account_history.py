"""The history of an account on the wire."""

from datetime import datetime

from pydantic import ConfigDict, Field

from app.api.schemas.common import ExtendedNumber, Limit, Output
from app.api.schemas.examples import EXAMPLE_BUDGET_ID, EXAMPLE_POPULATION_ID
from app.ledger.accounts import AccountKind
from app.ledger.filters import Limit as DomainLimit
from app.service.json_numbers import json_finite
from app.service.queries.account_history import AccountHistory as DomainAccountHistory


class AccountHistoryPoint(Output):
    """What was spent at a moment."""

    created_at: datetime
    epsilon: ExtendedNumber = Field(description="By the account's filter as it is now, at its delta.")


class ChildShare(Output):
    """What went through a child of the account."""

    account: str | None = Field(description="Null: all children that are not told apart.")
    path: str
    kind: AccountKind | None
    shares: list[float] = Field(
        description="At each point: the part of the account's threshold at `order` that went through it. At one order "
        "what children take adds up exactly, as epsilon does not; of disjoint parts the largest counts instead."
    )


class LimitChange(Output):
    """Another limit."""

    changed_at: datetime
    before: Limit
    after: Limit


class AccountHistory(Output):
    """An account's epsilon over time, evenly thinned out to `max_points`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
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
            ]
        }
    )

    account: str
    limit: Limit
    points: list[AccountHistoryPoint] = Field(
        description="When something was charged; the opening of the account comes first. Empty: nothing was."
    )
    order: float | None = Field(description="The Rényi order at which the account's filter admits longest.")
    children: list[ChildShare] = Field(description="Those that have taken most first.")
    limit_changes: list[LimitChange]
    decisions: int = Field(description="How many there are of all runs beneath the account.")
    decisions_sampled: int = Field(description="How many of them the history was made from.")
    exact: bool = Field(
        description="Whether the history follows from all charges. Otherwise its end is exact, and between those that "
        "were read a run's charges are taken to be evenly spread."
    )

    @classmethod
    def of(cls, history: DomainAccountHistory) -> "AccountHistory":
        """A history as it is answered."""
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
