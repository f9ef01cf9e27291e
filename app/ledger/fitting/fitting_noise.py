"""The noise with which refused steps would be admitted."""

from collections.abc import Callable, Sequence
from math import exp, log
from typing import Final

import numpy as np

from app.accounting.calibration.monotone_search import root
from app.accounting.calibration.solvers import smallest_noise_multiplier
from app.accounting.curves import orders
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import MAX_NOISE_MULTIPLIER, DpEvent, noise_multiplier, with_noise_multiplier
from app.accounting.exact_losses import quotient
from app.accounting.pricing_effort import curve_work, use_effort_of_curve
from app.accounting.rdp import curve_over
from app.ledger.accounts.account import Account
from app.ledger.errors import PolicyViolationError
from app.ledger.fitting.trial_admission import Trial
from app.ledger.governance.policy_checks import require_steps, sources_of
from app.ledger.step_events import PricedStep, StepEvent

CLOSE: Final = 1e-5
"""Relative tolerance of an estimate of noise; the last digit of an answer is 1e-4 to 1e-3."""

MOST_WORK_OF_A_TRIAL = 24_500
"""Microseconds; more expensive events are not searched: twenty trials must not take a second."""


def noise_that_fits(path: Sequence[Account], steps: Sequence[PricedStep]) -> float | None:
    """Find the smallest noise multiplier with which steps of one event are admitted.

    Returns:
        Four digits, rounded up; None if no noise is enough, there are several events or one without a single noise
        multiplier, or one trial is too much work.
    """
    if len(steps) > 1 or curve_work(steps[0].step.event, few=False, relation=path[0].relation) > MOST_WORK_OF_A_TRIAL:
        return None
    try:
        return min_noise(path, steps[0], Trial(keeps_plans=False, keeps_events=False).admits)
    except (UnsupportedEventError, PlanTooExpensiveError):
        return None


def min_noise(
    path: Sequence[Account], asked: PricedStep, admits: Callable[[Sequence[Account], Sequence[PricedStep]], bool]
) -> float | None:
    """Find the smallest noise multiplier with which repetitions of an event are admitted.

    The search computes about eight new curves.

    Raises:
        UnsupportedEventError: the event has no single noise multiplier, or no formula for another one.
    """
    sources = sources_of(path)

    def fits(event: DpEvent) -> bool:
        try:
            require_steps(sources, path[0].relation, [event])
        except PolicyViolationError:
            return False
        return admits(path, [path[0].price(StepEvent(event, asked.step.count))])

    return smallest_noise_multiplier(asked.step.event, fits, near=_estimated_noise(path, asked))


def _estimated_noise(path: Sequence[Account], priced: PricedStep) -> float:
    """Estimate the noise multiplier with which a refused charge just fits: a root of its filters."""
    asked = priced.step
    rooms = []
    for account in path:
        if account.limit is not None:
            gate = account.prepared_for([priced]).bounds()
            rooms.append((gate, account.headroom(gate), max(account.exact_left(gate), 1)))
    places = np.unique(np.concatenate([gate.places for gate, *_ in rooms]))
    free = [(np.searchsorted(places, gate.places), np.maximum(left, 0.5), gate, exact) for gate, left, exact in rooms]
    grid = orders(path[0].grid_version)[places]

    def excess(at: float) -> float:
        """Compute the logarithm of cost over room at the best order of the account with the least room."""
        event = with_noise_multiplier(asked.event, min(max(exp(at), own), MAX_NOISE_MULTIPLIER))
        use_effort_of_curve(event, places.size, path[0].relation)
        cost = curve_over(event, grid, path[0].relation).times(asked.count)
        shares = [
            min(float((cost.values[at] / left).min()), quotient(gate.exact_loss(cost), exact))
            for at, left, gate, exact in free
        ]
        return log(min(max(*shares, 1e-300), 1e300))

    own = noise_multiplier(asked.event)
    return exp(root(excess, log(own), (log(own), log(MAX_NOISE_MULTIPLIER)), CLOSE))
