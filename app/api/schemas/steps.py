"""Schemas of step requests and authorizations."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator
from typing_extensions import TypeAliasType

from app.accounting.events import DpEvent
from app.api.schemas.common import (
    EXAMPLE_BUDGET_ID,
    EXAMPLE_EVENT,
    EXAMPLE_REQUEST_ID,
    EXAMPLE_RESERVATION_ID,
    EXAMPLE_RUN_ID,
    Body,
    Count,
    ExtendedNumber,
    Output,
    example,
)
from app.api.schemas.events import EventCounts, SentEvent, step_events_of
from app.ledger.decisions import Decision, DecisionOutcome
from app.service.charging.requests import Mode, OnExceed, StepRequest

ADMITTED_EXAMPLE: dict[str, Any] = {
    "decision": "admitted",
    "run": EXAMPLE_RUN_ID,
    "attempt": 1,
    "first_step": 419,
    "count": 1,
    "requested_count": 1,
    "next_step": 420,
    "epsilon": 1.6477,
    "delta": 1e-5,
    "epsilon_limit": 3.0,
    "steps_remaining": 2698,
    "binding_account": EXAMPLE_BUDGET_ID,
    "binding_account_path": "mimic/icu-team",
    "overdrawn": False,
    "reservation": EXAMPLE_RESERVATION_ID,
    "ended_plans": [],
    "dry_run": False,
}
REFUSED_EXAMPLE: dict[str, Any] = {
    "type": "urn:problem-type:epsilon-ledger:budget_exceeded",
    "title": "Budget exceeded",
    "status": 403,
    "detail": "mimic/icu-team has spent epsilon 2.9996 of 3 (delta 1e-05); with this request it would be 3.0001. "
    "None of the requested steps fits. With a noise multiplier of 1.182 the request would fit.",
    "code": "budget_exceeded",
    "request_id": EXAMPLE_REQUEST_ID,
    "decision": "refused",
    "run": EXAMPLE_RUN_ID,
    "attempt": 1,
    "first_step": 3118,
    "count": 1,
    "binding_account": EXAMPLE_BUDGET_ID,
    "binding_account_path": "mimic/icu-team",
    "epsilon": 2.9996,
    "epsilon_requested": 3.0001,
    "epsilon_limit": 3.0,
    "delta": 1e-5,
    "rdp": {"order": 7.0376, "spent": 1.5624, "held": 0.0, "requested": 0.0005, "limit": 1.5628},
    "delta_requested": 0.0,
    "delta_left": 1e-7,
    "plan": None,
    "max_count_that_fits": 0,
    "noise_multiplier_that_fits": 1.182,
    "limit_change": None,
    "dry_run": False,
}

Attempt = Annotated[
    int, Field(ge=1, le=2**31 - 1, description="Fencing token: only the run's current attempt may charge.")
]
StepMode = TypeAliasType("StepMode", Literal["authorize", "report"])


class AuthorizeSteps(Body):
    """A request for steps: either `count` of one event, or a list of `events`."""

    model_config = example(
        {"count": 1, "first_step": 419},
        {"events": [{"event": EXAMPLE_EVENT, "count": 10}, {"event": EXAMPLE_EVENT["event"], "count": 1}]},
    )

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
            items = tuple([(step.event, step.count) for step in step_events_of(self.events)])
        return StepRequest(
            run_id, items, self.first_step, idempotency_key, self.attempt, Mode(self.mode), self.on_exceed
        )


class EndedPlan(Output):
    """A plan that steps have ended."""

    account: str
    account_path: str
    steps_given_up: int = Field(description="Steps of the plan that were neither used nor reserved.")


class StepAuthorization(Output):
    """Charged steps, admitted or reported."""

    model_config = example(ADMITTED_EXAMPLE)

    decision: Literal["admitted", "reported"]
    run: str
    attempt: int
    first_step: int
    count: int
    requested_count: int = Field(description="More than `count` if the request was truncated.")
    next_step: int
    epsilon: ExtendedNumber = Field(description="Of the run afterwards.")
    delta: float = Field(description="Of the run's limit: its own, or else its budget's.")
    epsilon_limit: float = Field(description="Of the run's limit: its own, or else its budget's.")
    steps_remaining: int = Field(description="Number of further steps like the last one that every account admits.")
    binding_account: str = Field(description="The account with the least room.")
    binding_account_path: str
    overdrawn: bool = Field(description="Whether reported steps exceeded a limit, which freezes the run.")
    reservation: str | None = Field(default=None, description="The reservation that the steps were taken from.")
    ended_plans: list[EndedPlan] = Field(
        description="Plans that these steps end, because the plans do not cover them. From then on the Rényi orders "
        "alone decide. Ask with `dry_run` to know it before."
    )
    dry_run: bool


def admitted_members(decision: Decision, *, dry_run: bool) -> dict[str, Any]:
    """Build the members of StepAuthorization, to be written with infinity as a string."""
    return {
        "decision": "admitted" if decision.outcome is DecisionOutcome.ADMITTED else "reported",
        "run": decision.run_id,
        "attempt": decision.attempt,
        "first_step": decision.first_step,
        "count": decision.step_count,
        "requested_count": decision.requested_count,
        "next_step": decision.next_step,
        "epsilon": decision.reading.epsilon,
        "delta": decision.reading.delta,
        "epsilon_limit": decision.reading.epsilon_limit,
        "steps_remaining": decision.steps_remaining or 0,
        "binding_account": decision.binding_account_id,
        "binding_account_path": decision.binding_account_path,
        "overdrawn": decision.steps_remaining is None,
        "reservation": decision.reservation_id,
        "ended_plans": ended_plans_of(decision),
        "dry_run": dry_run,
    }


def ended_plans_of(decision: Decision) -> list[dict[str, Any]]:
    """List the plans that a decision's steps have ended, with the steps that are given up."""
    ended: list[dict[str, Any]] = [] if decision.ended_plans is None else json.loads(decision.ended_plans)
    return ended


def refusal_members(decision: Decision, *, dry_run: bool) -> tuple[str, dict[str, Any]]:
    """Build the detail and the members of a refusal."""
    facts = refusal_facts(decision)
    members = {
        "decision": "refused",
        "run": decision.run_id,
        "attempt": decision.attempt,
        "first_step": decision.first_step,
        "count": decision.step_count,
        "binding_account": decision.binding_account_id,
        "binding_account_path": decision.binding_account_path,
        **facts,
        "dry_run": dry_run,
    }
    return refusal_text(facts, decision.binding_account_path, decision.step_count), members


def refusal_facts(decision: Decision) -> dict[str, Any]:
    """Build the numbers of a refusal."""
    assert decision.refusal_details is not None, "a refusal has its numbers"
    facts: dict[str, Any] = json.loads(decision.refusal_details)
    return facts


_EPSILONS: Final = ("epsilon", "epsilon_limit", "epsilon_requested")


def _epsilon_texts(spent: float, limit: float, requested: float) -> tuple[str, str, str]:
    """Format the epsilons of a refusal with enough decimals that rounding changes no comparison."""
    texts = (repr(spent), repr(requested))
    for decimals in range(4, 11):
        if _comparisons(round(spent, decimals), limit, round(requested, decimals)) == _comparisons(
            spent, limit, requested
        ):
            texts = (f"{spent:.{decimals}f}", f"{requested:.{decimals}f}")
            break
    is_now, became = ("infinite" if text == "inf" else text for text in texts)
    return is_now, repr(limit).removesuffix(".0"), became


def _comparisons(*numbers: float) -> list[bool]:
    return [one < other for one in numbers for other in numbers]


def refusal_text(facts: Mapping[str, Any], binding_path: str, count: int) -> str:
    """Describe a refusal of steps or of a plan."""
    is_now, limit, became = _epsilon_texts(*(float(facts[name]) for name in _EPSILONS))
    fitting, noise = facts["max_count_that_fits"], facts["noise_multiplier_that_fits"]
    spent = f"{binding_path} has spent epsilon {is_now} of {limit} (delta {facts['delta']:g})"
    plan = facts["plan"]
    if plan is None:
        spent += f"; with this request it would be {became}."
    else:
        spent += f", and {plan['steps_left']:,} of the {plan['steps']:,} steps of its plan are left."
    if facts["rdp"]["held"]:
        spent += " Reservations hold a part of the rest."
    if facts["delta_requested"] > facts["delta_left"]:
        spent += (
            f" Its mechanisms take {facts['delta_requested']:.3g} of delta for themselves, and "
            f"{facts['delta_left']:.3g} is left for that: an account sets aside what its `planned` events take."
        )
    fits = f"The first {fitting} of the {count} requested steps would fit."
    sentences = [spent, fits if fitting else "None of the requested steps fits."]
    change = facts["limit_change"]
    if change is not None:
        at = datetime.fromisoformat(change["changed_at"])
        sentences.append(
            f"Its limit was changed from epsilon {change['epsilon_before']:g} (delta {change['delta_before']:g}) at "
            f"{at:%Y-%m-%d %H:%M:%S} UTC by {change['actor']}."
        )
    if noise is not None:
        sentences.append(f"With a noise multiplier of {noise:g} the request would fit.")
    return " ".join(sentences)
