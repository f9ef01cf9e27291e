"""Response schemas of the histories of accounts and runs."""

from datetime import datetime
from typing import Self

from pydantic import Field

from app.api.pagination import encode_cursor
from app.api.schemas.audit import decision_members
from app.api.schemas.common import AnsweredEventCount, ExtendedNumber, Limit, Output
from app.ledger.accounts.account import AccountKind
from app.ledger.runs.decisions import DecisionOutcome
from app.service.queries.account_history import AccountHistory as DomainAccountHistory
from app.service.queries.runs import History


class RunHistoryPoint(Output):
    """One decision on a run."""

    position: int = Field(description="Position among the run's decisions, from 0.")
    decision: DecisionOutcome
    attempt: int
    first_step: int
    count: int
    next_step: int
    epsilon: ExtendedNumber = Field(description="Of the run afterwards.")
    delta: float
    used: float = Field(description="Share of the capacity of `binding_account` that was spent.")
    events: list[AnsweredEventCount] = Field(
        description="In order. A response has room for 4 MiB of events, each counted as its JSON and 400 bytes, "
        "shared equally by the points: a point with more has the first ones. Request fewer points to get all."
    )
    events_truncated: bool = Field(description="Whether `events` is incomplete.")
    accounts: list[str] = Field(description="Accounts of the charge, or of the refused charge, root first.")
    binding_account: str
    reservation: str | None = Field(default=None, description="The reservation that the steps were taken from.")
    actor: str = Field(description="Actor of the request.")
    request_id: str | None
    hash: str = Field(description="sha256 (hex) of the decision and of the hash before it: the run's chain.")
    created_at: datetime


class RunHistory(Output):
    """A run's decisions, evenly thinned out to `max_points`."""

    run: str
    points: list[RunHistoryPoint]
    decisions: int = Field(description="Total number.")
    next: str | None = Field(description="Send it as `after` to get later decisions; null before the first decision.")

    @classmethod
    def of(cls, history: History, after: str | None = None) -> Self:
        """Convert from the domain; `after` is the cursor that was sent."""
        points = [
            RunHistoryPoint(
                **decision_members(decision),
                events=decision.steps,
                events_truncated=sum(step.count for step in decision.steps) < decision.step_count,
                accounts=history.accounts,
            )
            for decision in history.points
        ]
        last = encode_cursor(str(points[-1].position)) if points else after
        return cls(run=history.run_id, points=points, decisions=history.decisions, next=last)


class AccountHistoryPoint(Output):
    """What was charged up to a time."""

    created_at: datetime
    epsilon: ExtendedNumber = Field(description="Of all that was charged, at the account's present delta.")
    used: float = Field(description="Share of the account's present capacity.")


class ChildShare(Output):
    """Share of a child of the account."""

    account: str | None = Field(validation_alias="account_id", description="Null: all other children.")
    path: str = Field(description="With ` #2` and so on for the further runs at one path.")
    kind: AccountKind | None
    shares: list[float] = Field(
        description="For each point, the child's part of `used`. Parts add up, unlike epsilon; of disjoint parts the "
        "largest counts."
    )


class LimitChange(Output):
    """A change of the limit."""

    changed_at: datetime = Field(validation_alias="at")
    before: Limit
    after: Limit


class AccountHistory(Output):
    """What was charged to an account over time, evenly thinned out to `max_points`."""

    account: str
    limit: Limit
    points: list[AccountHistoryPoint] = Field(
        description="Times of charges, after the creation of the account; empty without charges."
    )
    children: list[ChildShare] = Field(description="In descending order of their share.")
    limit_changes: list[LimitChange]
    decisions: int = Field(description="Number of decisions on all runs under the account.")
    decisions_sampled: int = Field(description="Number of decisions that the history is computed from.")
    exact: bool = Field(
        description="Whether the history covers all charges. Otherwise its end is exact, and it interpolates a "
        "run's charges between the read ones."
    )

    @classmethod
    def of(cls, history: DomainAccountHistory) -> Self:
        """Convert from the domain."""
        return cls(
            account=history.account.id,
            limit=history.account.limit,
            points=[
                AccountHistoryPoint(created_at=at, epsilon=epsilon, used=used)
                for at, epsilon, used in zip(history.moments, history.epsilons, history.used, strict=True)
            ],
            children=history.children,
            limit_changes=history.changes,
            decisions=history.decisions,
            decisions_sampled=history.read,
            exact=history.exact,
        )
