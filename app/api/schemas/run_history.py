"""Response schemas of run histories."""

from datetime import datetime

from pydantic import Field

from app.api.pagination import encode_cursor
from app.api.schemas.accounts import counted
from app.api.schemas.common import AnsweredEventCount, ExtendedNumber, Output
from app.api.schemas.examples import (
    EXAMPLE_BUDGET_ID,
    EXAMPLE_EVENT,
    EXAMPLE_KEY_ID,
    EXAMPLE_POPULATION_ID,
    EXAMPLE_RESERVATION_ID,
    EXAMPLE_RUN_ID,
    example,
)
from app.ledger.decisions import Decision, DecisionOutcome
from app.service.json_values import json_finite
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
    epsilon_limit: float
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

    model_config = example(
        {
            "run": EXAMPLE_RUN_ID,
            "decisions": 2,
            "next": "MQ",
            "points": [
                {
                    "position": 1,
                    "decision": "admitted",
                    "attempt": 1,
                    "first_step": 419,
                    "count": 1,
                    "next_step": 420,
                    "epsilon": 1.6477,
                    "delta": 1e-5,
                    "epsilon_limit": 3.0,
                    "events": [{"event": EXAMPLE_EVENT, "count": 1}],
                    "events_truncated": False,
                    "accounts": [EXAMPLE_POPULATION_ID, EXAMPLE_BUDGET_ID, EXAMPLE_RUN_ID],
                    "binding_account": EXAMPLE_BUDGET_ID,
                    "reservation": EXAMPLE_RESERVATION_ID,
                    "actor": EXAMPLE_KEY_ID,
                    "request_id": "req_6f1c2d3e4f506172",
                    "hash": "9f2c" * 16,
                    "created_at": "2026-11-21T09:00:01Z",
                }
            ],
        }
    )

    run: str
    points: list[RunHistoryPoint]
    decisions: int = Field(description="Total number.")
    next: str | None = Field(description="Send it as `after` to get later decisions; null before the first decision.")

    @classmethod
    def of(cls, history: History, after: str | None) -> "RunHistory":
        """Convert from the domain."""
        points = [_point(decision, list(history.accounts)) for decision in history.points]
        last = encode_cursor(str(points[-1].position)) if points else after
        return cls(run=history.run_id, points=points, decisions=history.decisions, next=last)


def _point(decision: Decision, accounts: list[str]) -> RunHistoryPoint:
    return RunHistoryPoint(
        position=decision.position,
        decision=decision.outcome,
        attempt=decision.attempt,
        first_step=decision.first_step,
        count=decision.step_count,
        next_step=decision.next_step,
        **json_finite(epsilon=decision.reading.epsilon),
        delta=decision.reading.delta,
        epsilon_limit=decision.reading.epsilon_limit,
        events=counted(decision.steps),
        events_truncated=sum(step.count for step in decision.steps) < decision.step_count,
        accounts=accounts,
        binding_account=decision.binding_account_id,
        reservation=decision.reservation_id,
        actor=decision.actor.id,
        request_id=decision.actor.request_id,
        hash=decision.entry_hash.hex(),
        created_at=decision.created_at,
    )
