"""Schemas of step requests and authorizations."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import TypeAliasType

from app.accounting.events import DpEvent
from app.api.schemas.common import Body, Count, ExtendedNumber, Output
from app.api.schemas.events import EventCounts, SentEvent, step_events_of
from app.api.schemas.refusals import differences_text
from app.ledger.repeated_events import map_once
from app.ledger.runs.decisions import Decision, DecisionOutcome
from app.ledger.step_events import MAX_COUNT
from app.ledger.wording import counted
from app.service.charging.requests import Mode, OnExceed, StepRequest

Attempt = Annotated[
    int, Field(ge=1, le=2**31 - 1, description="Fencing token: only the run's current attempt may charge.")
]
ExpectedSteps = Annotated[int, Field(ge=1, le=MAX_COUNT)]
StepMode = TypeAliasType("StepMode", Literal["authorize", "report"])


class AuthorizeSteps(Body):
    """A request for steps: either `count` of one event, or a list of `events`."""

    first_step: int | None = Field(
        default=None,
        ge=0,
        le=2**53,
        description="Number of the first step, which makes the request safe to repeat; by default the next step.",
    )
    count: Count | None = Field(default=None, description="Number of steps; 1 by default.")
    event: SentEvent | None = Field(default=None, description="Event of each step; by default the run's.")
    events: EventCounts | None = Field(default=None, min_length=1, description="At most 1,000, in order.")
    attempt: Attempt = 1
    mode: StepMode = Field(
        default="authorize",
        description="`authorize`: before the release of the steps. `report`: after their release; they are charged "
        "in any case, and a run over its limit is frozen as `overdrawn`.",
    )
    on_exceed: Annotated[OnExceed, Field(strict=False)] = Field(
        default=OnExceed.REFUSE,
        description="If not all steps fit: `refuse` charges none, `truncate` charges the first ones that fit.",
    )

    expected_steps: ExpectedSteps | None = Field(
        default=None,
        description="Number of all steps of the training, for the alternatives of a refusal; by default the run's. "
        "It is no part of what is charged: a repeated request may leave it out.",
    )

    @model_validator(mode="after")
    def _one_form(self) -> "AuthorizeSteps":
        if self.events is not None and (self.count is not None or self.event is not None):
            raise ValueError("send either `count` and `event`, or `events`, not both")
        if self.mode == "report" and self.on_exceed is OnExceed.TRUNCATE:
            raise ValueError("executed steps are charged in full; leave out `on_exceed` in mode `report`")
        return self

    def request(self, run_id: str, idempotency_key: str | None) -> StepRequest:
        """Convert to the domain.

        Raises:
            PlanTooExpensiveError: pricing the events exceeds the work limit of a request.
        """
        if self.events is None:
            event = None if self.event is None else self.event.domain
            items: tuple[tuple[DpEvent | None, int], ...] = ((event, self.count or 1),)
        else:
            items = tuple(map_once(lambda step: (step.event, step.count), step_events_of(self.events)))
        return StepRequest(
            run_id,
            items,
            self.first_step,
            idempotency_key,
            self.attempt,
            Mode(self.mode),
            self.on_exceed,
            self.expected_steps,
        )


class PlanDifference(Output):
    """A parameter of a step that differs from the most similar planned event, beyond the last place."""

    parameter: str = Field(description="Field of the event; `type` if the events are of different kinds.")
    planned: float | str | None
    sent: float | str | None


class EndedPlan(Output):
    """A plan that steps have ended."""

    account: str
    account_path: str
    steps_given_up: int = Field(description="Steps of the plan that were neither used nor reserved.")
    differences: list[PlanDifference] = Field(
        description="Why the plan does not cover the steps. None: they are planned, but more than are left."
    )


class StepAuthorization(Output):
    """Charged steps, admitted or reported."""

    decision: Literal["admitted", "reported"]
    run: str
    attempt: int
    first_step: int
    count: int
    requested_count: int = Field(description="More than `count` if the request was truncated.")
    next_step: int
    epsilon: ExtendedNumber = Field(
        description="Of the run afterwards, at `delta`: of all that it was charged, at most 0.5 % above what the "
        "tightest accountant for releases that were fixed in advance computes, and never below. By Rényi divergence "
        "alone, and looser, if the run has more than six different events, or if many steps wait for their epsilon."
    )
    delta: float = Field(description="Of the run's limit: its own, or else its budget's.")
    used: float = Field(description="Share of the capacity of `binding_account` that is spent.")
    steps_remaining: int = Field(description="Number of further steps like the last one that every account admits.")
    binding_account: str = Field(description="The account that leaves the fewest of them, and so decides.")
    binding_account_path: str
    overdrawn: bool = Field(description="Whether reported steps exceeded a limit, which freezes the run.")
    reservation: str | None = Field(default=None, description="The reservation that the steps were taken from.")
    ended_plans: list[EndedPlan] = Field(
        description="Plans that these steps end, because the plans do not cover them. From then on the Rényi orders "
        "alone decide. Ask with `dry_run` to know it before."
    )
    warnings: list[str] = Field(
        description="Of the first steps of a run with `expected_steps`: the accounts that lose more than a tenth of "
        "their runs' registered steps because their filters are not tuned to them, and what to do."
    )
    dry_run: bool


def admitted_members(decision: Decision, *, dry_run: bool) -> dict[str, Any]:
    """Build the members of StepAuthorization, to be written with infinity as a string."""
    epsilon, limit, used = decision.reading
    return {
        "decision": "admitted" if decision.outcome is DecisionOutcome.ADMITTED else "reported",
        "run": decision.run_id,
        "attempt": decision.attempt,
        "first_step": decision.first_step,
        "count": decision.step_count,
        "requested_count": decision.requested_count,
        "next_step": decision.next_step,
        "epsilon": epsilon,
        "delta": limit.shown_delta,
        "used": used,
        "steps_remaining": decision.steps_remaining or 0,
        "binding_account": decision.binding_account_id,
        "binding_account_path": decision.binding_account_path,
        "overdrawn": decision.steps_remaining is None,
        "reservation": decision.reservation_id,
        "ended_plans": ended_plans_of(decision),
        "warnings": [] if decision.warnings is None else warnings_of(decision),  # a call would be one of every step
        "dry_run": dry_run,
    }


def ended_plans_of(decision: Decision) -> list[dict[str, Any]]:
    """List the plans that a decision's steps have ended, with the steps that are given up."""
    ended: list[dict[str, Any]] = [] if decision.ended_plans is None else json.loads(decision.ended_plans)
    return ended


def ended_plan_text(ended: Mapping[str, Any]) -> str:
    """Describe what ended a plan: parameters as planned and as sent, or more steps than were left."""
    cause = differences_text(ended["differences"]) or "these are more steps than it had left"
    given_up = counted(ended["steps_given_up"], "step")
    return f"These steps ended the plan of {ended['account_path']}, which gives up {given_up}: {cause}."


def warnings_of(decision: Decision) -> list[str]:
    """List the warnings about accounts whose filters are not tuned to a decision's steps."""
    found: list[str] = [] if decision.warnings is None else json.loads(decision.warnings)
    return found
