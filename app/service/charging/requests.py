"""Requests for steps, their commands in the commit queue, the results, and the numbers of a refusal."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import Admission, LimitChange, Refusal
from app.ledger.admission.alternatives import Alternatives, AlternativeType
from app.ledger.event_differences import PlanDifference
from app.ledger.plan.plans import PlanStatus
from app.ledger.runs.decisions import Decision, DecisionOutcome, Reading
from app.ledger.runs.reservations import Reservation
from app.ledger.runs.run import Run
from app.ledger.step_events import StepEvent
from app.service.auth.request_context import RequestContext


class Mode(StrEnum):
    """Whether steps are to be authorised or were already executed."""

    AUTHORIZE = "authorize"
    REPORT = "report"


class OnExceed(StrEnum):
    """Treatment of a request of which only the first steps fit."""

    REFUSE = "refuse"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A request to charge steps of a run.

    Args:
        items: (event, count) in order; None: the run's default event.
        first_step: number of the first step; None: the run's next step.
        attempt: fencing token; only the current attempt may authorise steps.
        expected_steps: number of all steps of the training, for the alternatives of a refusal; it is no part of what is
            decided. None: as the run declared.
    """

    run_id: str
    items: tuple[tuple[DpEvent | None, int], ...]
    first_step: int | None
    idempotency_key: str | None
    attempt: int = 1
    mode: Mode = Mode.AUTHORIZE
    on_exceed: OnExceed = OnExceed.REFUSE
    expected_steps: int | None = None


@dataclass(slots=True)
class StepCommand:
    """A request in the commit queue, repeated until its prerequisites are met.

    Args:
        ends_reservation: whether to close a reservation whose next steps were cancelled, so that its rest is released.
        charges_sweep: whether it is the single charge of a sweep.
    """

    context: RequestContext
    request: StepRequest
    ends_reservation: bool = False
    charges_sweep: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """A decision, and whether it is a replay."""

    decision: Decision
    replayed: bool


class ReservationRevokedError(Exception):
    """A reservation with cancelled next steps must be closed first."""

    def __init__(self, reservation_id: str) -> None:
        super().__init__("a reservation must be closed first")
        self.reservation_id = reservation_id


class NotLoadedError(Exception):
    """A decision needs rows that few decisions need.

    Args:
        account: whose last change of its limit is needed, if nothing else is.
        reservation: of which all costs are.
        kinds: fingerprints of events that were charged to the account.
        untuned: ids of accounts above the account, a run, whose other registered runs are needed.
    """

    def __init__(
        self,
        account: Account,
        reservation: Reservation | None = None,
        kinds: frozenset[str] = frozenset(),
        untuned: tuple[str, ...] = (),
    ) -> None:
        super().__init__("rows must be loaded first")
        self.account = account
        self.reservation = reservation
        self.kinds = kinds
        self.untuned = untuned


class Decided(NamedTuple):
    """An outcome of the rule, the numbers of the run after it, and what is to be warned of."""

    outcome: Admission | Refusal
    reading: Reading
    warnings: Sequence[str] = ()


def new_decision(
    command: StepCommand,
    run: Run,
    steps: tuple[StepEvent, ...],
    fingerprint: str,
    decided: Decided,
    population_version: int,
    *,
    reservation_id: str | None = None,
) -> Decision:
    """Build the decision; appending it to the chain adds the hash."""
    request, (outcome, reading, warnings) = command.request, decided
    details, remaining = None, None
    kind = DecisionOutcome.REPORTED if request.mode is Mode.REPORT else DecisionOutcome.ADMITTED
    if isinstance(outcome, Refusal):
        kind, details = DecisionOutcome.REFUSED, json.dumps(refusal_details(outcome))
    elif not outcome.overdrawn:
        remaining = outcome.steps_remaining
    ended = () if isinstance(outcome, Refusal) else outcome.ended_plans
    return Decision(  # by position: names take ten times as long
        run.account_id,
        run.decisions,
        run.attempt,
        kind,
        steps,
        run.next_step,
        sum([step.count for step in steps]),
        sum([count for _, count in request.items]),
        reading,
        remaining,
        outcome.binding.id,
        outcome.binding.path,
        details,
        json.dumps([each.facts() for each in ended]) if ended else None,
        json.dumps(warnings) if warnings else None,
        fingerprint,
        request.idempotency_key,
        reservation_id,
        population_version,
        command.context.now,
        command.context.actor,
    )


def refusal_payload(refusal: Refusal, steps: Sequence[StepEvent]) -> dict[str, Any]:
    """Build the audit payload of a refused reservation."""
    count = sum(step.count for step in steps)
    return {"count": count, "binding_account": refusal.binding.id, **refusal_details(refusal)}


def refusal_details(refusal: Refusal) -> dict[str, Any]:
    """Build the stored and returned numbers of a refusal."""
    limit = refusal.binding.limit
    assert limit is not None, "only a limit refuses"
    return {
        "used": refusal.used,
        "used_including_reserved": refusal.used_including_reserved,
        "used_requested": refusal.used_requested,
        "limit": limit.facts(),
        "delta_requested": refusal.delta_requested,
        "delta_left": refusal.delta_left,
        "plan": None if refusal.plan is None else _plan_facts(refusal.plan, refusal.differences),
        "max_steps_that_fit": refusal.max_steps_that_fit,
        **({} if refusal.alternatives is None else _alternatives_facts(refusal.alternatives)),
        "limit_change": None if refusal.limit_change is None else _change_facts(refusal.limit_change),
    }


def _alternatives_facts(found: Alternatives) -> dict[str, Any]:
    """Describe the alternatives; each states the number of steps for which it holds."""
    offered: list[dict[str, Any]] = []
    if found.same_noise:
        offered.append({"type": AlternativeType.SAME_NOISE, "steps": found.same_noise})
    if found.more_noise is not None:
        more = {"type": AlternativeType.MORE_NOISE, "steps": found.steps, "noise_multiplier": found.more_noise}
        offered.append(more)
    if found.higher_limit:
        limits = [
            {"account": each.account_id, "account_path": each.account_path, **each.limit.facts()}
            for each in found.higher_limit
        ]
        offered.append({"type": AlternativeType.HIGHER_LIMIT, "steps": found.steps, "limits": limits})
    return {
        "steps_needed": found.steps,
        "exhausted": found.exhausted,
        "alternatives": offered,
        "unavailable_alternatives": [{"type": each, "reason": reason} for each, reason in found.unavailable],
    }


def _plan_facts(plan: PlanStatus, differences: Sequence[PlanDifference]) -> dict[str, Any]:
    counts = {"steps": plan.steps, "steps_used": plan.steps_used, "steps_remaining": plan.steps_remaining}
    return counts | {"differences": [each.facts() for each in differences]}


def _change_facts(change: LimitChange) -> dict[str, Any]:
    return {
        "before": change.before.facts(),
        "changed_at": change.at.isoformat(),
        "actor": change.actor,
    }
