"""Find the alternatives to a refused request, each tried by the full rule for all steps that the training needs."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import MAX_NOISE_MULTIPLIER, noise_multiplier, with_noise_multiplier
from app.accounting.pricing_effort import curve_work
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.admission.admission import first_that_fit
from app.ledger.admission.alternatives import (
    Alternatives,
    AlternativeType,
    RaisedLimit,
    RemainingTraining,
    UnavailableReason,
)
from app.ledger.errors import PolicyViolationError
from app.ledger.fitting.fitting_limits import raise_limits
from app.ledger.fitting.fitting_noise import MOST_WORK_OF_A_TRIAL, min_noise
from app.ledger.fitting.trial_admission import Trial
from app.ledger.governance.policy_checks import Size, require_run, sources_of
from app.ledger.step_events import PricedStep, StepEvent

LOUDER: Final = 10.0
"""Times the noise at which a budget is practically exhausted, if less than FEW of the steps fit."""

FEW: Final = 0.01


class _UnavailableError(Exception):
    """An alternative is not offered."""

    def __init__(self, reason: UnavailableReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def find_alternatives(
    path: Sequence[Account], steps: Sequence[PricedStep], training: RemainingTraining
) -> Alternatives:
    """Find the alternatives to a refused request.

    Args:
        path: root to leaf, as at the refusal.
        steps: the refused ones; a single event is repeated to the end of the training.
        training: what it still needs.
    """
    if len(steps) == 1:
        [asked] = steps
        steps = [asked._replace(step=replace(asked.step, count=max(training.steps, asked.step.count)))]
    trial = Trial.on(path, declared=training.declared)
    same = trial.longest(path, steps)
    noise: float | None = None
    limits: tuple[RaisedLimit, ...] = ()
    unavailable = []
    try:
        noise = _more_noise(trial, path, steps, same)
    except _UnavailableError as missing:
        unavailable.append((AlternativeType.MORE_NOISE, missing.reason))
    try:
        limits = _higher_limit(trial, path, steps, training.fixed_limits)
    except _UnavailableError as missing:
        unavailable.append((AlternativeType.HIGHER_LIMIT, missing.reason))
    return Alternatives(sum(priced.step.count for priced in steps), same, noise, limits, tuple(unavailable))


def _more_noise(trial: Trial, path: Sequence[Account], steps: Sequence[PricedStep], same: int) -> float:
    if len(steps) > 1:
        raise _UnavailableError(UnavailableReason.SEVERAL_EVENTS)
    asked = steps[0].step
    if curve_work(asked.event, few=False, relation=path[0].relation) > MOST_WORK_OF_A_TRIAL:
        raise _UnavailableError(UnavailableReason.TOO_EXPENSIVE)
    try:
        louder = min(LOUDER * noise_multiplier(asked.event), MAX_NOISE_MULTIPLIER)
        quiet = path[0].price(StepEvent(with_noise_multiplier(asked.event, louder), asked.count))
        if max(same, first_that_fit(path, [quiet])) < FEW * asked.count:
            raise _UnavailableError(UnavailableReason.EXHAUSTED)
        if trial.keeps_events:
            raise _UnavailableError(UnavailableReason.POLICY)
        found = min_noise(path, steps[0], trial.admits)
    except UnsupportedEventError:
        raise _UnavailableError(UnavailableReason.NO_NOISE_MULTIPLIER) from None
    except PlanTooExpensiveError:
        raise _UnavailableError(UnavailableReason.TOO_EXPENSIVE) from None
    if found is None:
        raise _UnavailableError(UnavailableReason.NONE_SUFFICES)
    return found


def _higher_limit(
    trial: Trial, path: Sequence[Account], steps: Sequence[PricedStep], fixed: Collection[str]
) -> tuple[RaisedLimit, ...]:
    """Find the limits with which all steps fit as they are; those of `fixed` accounts stay."""
    try:
        found = raise_limits(trial, path, steps)
    except PlanTooExpensiveError:
        raise _UnavailableError(UnavailableReason.TOO_EXPENSIVE) from None
    if not found:
        raise _UnavailableError(UnavailableReason.NONE_SUFFICES)
    if any(each.account_id in fixed for each in found):
        raise _UnavailableError(UnavailableReason.POLICY)
    own, last = path[-1], found[-1]
    if own.kind is AccountKind.RUN and last.account_id == own.id:
        try:
            require_run(sources_of(path), Size.of(last.limit), limited=True, planned=True)
        except PolicyViolationError:
            raise _UnavailableError(UnavailableReason.POLICY) from None
    return found
