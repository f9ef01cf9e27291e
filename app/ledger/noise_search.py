"""Find the noise with which a refused charge would be admitted."""

from collections.abc import Sequence

import numpy as np

from app.accounting.calibration.solvers import smallest_noise_multiplier
from app.accounting.curves import orders
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import DpEvent, noise_multiplier, with_noise_multiplier
from app.accounting.rdp import curve_over
from app.accounting.work import curve_work, spend_curve
from app.ledger.accounts import Account, PricedStep, StepEvent

MOST_WORK_OF_A_TRIAL = 24_500
"""Microseconds; more expensive events are not searched: thirty trials must not take a second."""


def noise_that_fits(path: Sequence[Account], steps: Sequence[PricedStep]) -> float | None:
    """Find the smallest noise multiplier with which a refused charge would be admitted.

    The search prices about a dozen new curves. `path` is root to leaf, as at the refusal.

    Returns:
        Four digits, rounded up; None if no noise is enough, the charge has several events or one without a single noise
        multiplier, or one trial is too much work.
    """
    asked = steps[0].step
    if len(steps) > 1 or curve_work(asked.event, few=False) > MOST_WORK_OF_A_TRIAL:
        return None

    def fits(event: DpEvent) -> bool:
        quieter = path[0].price(StepEvent(event, asked.count))
        return all(account.prepared_for([quieter]).fits(quieter.cost) for account in path)

    try:
        near = _noise_at_the_weights(path, asked)
        return None if near is None else smallest_noise_multiplier(with_noise_multiplier(asked.event, near), fits)
    except (UnsupportedEventError, PlanTooExpensiveError):
        return None


def _noise_at_the_weights(path: Sequence[Account], asked: StepEvent) -> float | None:
    """Find the noise that fits at the orders of frozen weights.

    Without frozen weights it is the event's own; None if no noise is enough.
    """
    limited = [account for account in path if account.limit is not None]
    own = noise_multiplier(asked.event)
    if any(account.weights is None for account in limited):
        return own
    chosen = [account.weights.indices for account in limited if account.weights]
    places = np.unique(np.concatenate(chosen))
    left = [
        (np.searchsorted(places, at), account.headroom(account.bounds(0)))
        for at, account in zip(chosen, limited, strict=True)
    ]
    grid = orders(path[0].grid_version)

    def fits(event: DpEvent) -> bool:
        spend_curve(event, places.size)
        cost = curve_over(event, grid[places], path[0].relation).times(asked.count)
        return all(bool((cost.values[at] <= free).any()) for at, free in left)

    return smallest_noise_multiplier(asked.event, fits)
