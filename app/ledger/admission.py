"""The one rule: a charge is admitted by every account on its path, or by none.

Admit iff for every account with a limit some order j has spent_j + held_j + new_j <= B_j. There is no
tolerance: all three are integers rounded up and B_j is an integer rounded down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.accounting.calibration import smallest_noise_multiplier
from app.accounting.curves import EXHAUSTED, UNIT, RdpCurve
from app.accounting.events import DpEvent
from app.accounting.orders import orders
from app.ledger.accounts import Account, StepEvent, total_curve, zero_curve

UNLIMITED = 2**62
"""What an account without a limit leaves: more than any count."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The epsilon of a run, and the limit that governs it: its own, or else its nearest ancestor's."""

    epsilon: float
    delta: float
    epsilon_limit: float


@dataclass(frozen=True, slots=True)
class Admission:
    """The charge is admitted.

    Args:
        accounts: the path root to leaf, as it is afterwards.
        reading: of the run, afterwards.
        steps_remaining: further repetitions of the last event that would fit now.
        binding: the account that leaves the fewest of them.
    """

    accounts: tuple[Account, ...]
    reading: Reading
    steps_remaining: int
    binding: Account


@dataclass(frozen=True, slots=True)
class Refusal:
    """The charge does not fit; nothing changes.

    Args:
        reading: of the run, unchanged.
        binding: the account that leaves the fewest of the requested steps.
        epsilon: of the binding account, by its filter.
        epsilon_requested: what it would become.
        order: the order at which the binding account comes closest to admitting.
        spent: of the binding account at `order`, nats.
        held: as `spent`.
        requested: as `spent`.
        limit: the threshold at `order`, nats.
        max_count_that_fits: how many of the requested steps, from the first, would be admitted.
        noise_multiplier_that_fits: with which the whole request would be admitted; None where no noise
            is enough, or where the request holds several events.
    """

    reading: Reading
    binding: Account
    epsilon: float
    epsilon_requested: float
    order: float
    spent: float
    held: float
    requested: float
    limit: float
    max_count_that_fits: int
    noise_multiplier_that_fits: float | None


def admit(path: Sequence[Account], steps: Sequence[StepEvent]) -> Admission | Refusal:
    """Decide about a charge.

    Args:
        path: every account that the charge would touch, root to leaf, as it is now.
        steps: the charge, at least one.

    Returns:
        The accounts afterwards, or the reasons why not.

    Raises:
        UnsupportedEventError: an event has no sound bound under the population's relation.
    """
    accounts = _prepared(path, steps)
    new = total_curve(path[0], tuple(steps))
    if not all(_fits(account, new) for account in accounts):
        return _refusal(path, accounts, steps, new)
    afterwards = tuple(replace(account, spent=account.spent + new, version=account.version + 1) for account in accounts)
    remaining, binding = repetitions_left(afterwards, steps[-1].event)
    assert all(_fits(account, zero_curve(account.grid_version)) for account in afterwards)
    return Admission(afterwards, reading_of(afterwards), remaining, binding)


def repetitions_left(path: Sequence[Account], event: DpEvent) -> tuple[int, Account]:
    """How often an event could still be admitted, and by which account it is bound.

    Args:
        path: root to leaf.
        event: one repetition.

    Returns:
        The count, and the account that leaves the fewest.
    """
    accounts = [account.prepared_for(event) for account in path]
    curve = path[0].curve_of(event)
    nothing = zero_curve(path[0].grid_version)
    counts = [_repetitions(account, nothing, curve) for account in accounts]
    fewest = min(range(len(counts)), key=counts.__getitem__)
    return counts[fewest], accounts[fewest]


def reading_of(path: Sequence[Account]) -> Reading:
    """The epsilon of the last account on a path.

    Args:
        path: root to leaf; the root has a limit.

    Returns:
        Read by the filter of the nearest account with a limit: the leaf itself, or an ancestor.
    """
    governing = next(account for account in reversed(path) if account.limit is not None)
    assert governing.limit is not None
    return Reading(governing.epsilon(path[-1].spent), governing.limit.delta, governing.limit.epsilon)


def _prepared(path: Sequence[Account], steps: Sequence[StepEvent]) -> tuple[Account, ...]:
    return tuple(account.prepared_for(steps[0].event) for account in path)


def _free(account: Account, pending: RdpCurve) -> NDArray[np.int64]:
    """What is left at each order: (n_orders,) int64, negative where the order can admit nothing more."""
    threshold = account.thresholds()
    taken = account.spent + account.held + pending
    open_orders = (threshold >= 0) & (taken.values < EXHAUSTED)
    return np.where(open_orders, threshold - np.where(open_orders, taken.values, 0), -1)


def _fits(account: Account, new: RdpCurve) -> bool:
    return account.limit is None or bool(np.any(_free(account, new) >= 0))


def _repetitions(account: Account, pending: RdpCurve, curve: RdpCurve) -> int:
    """How many repetitions of `curve` an account admits on top of what is spent, held and pending."""
    if account.limit is None:
        return UNLIMITED
    return int(np.max(np.maximum(_free(account, pending), 0) // np.maximum(curve.values, 1)))


def _longest_prefix(accounts: Sequence[Account], steps: Sequence[StepEvent]) -> tuple[int, Account]:
    """How many of the steps fit, from the first, and which account binds."""
    pending = zero_curve(accounts[0].grid_version)
    fitting = 0
    for step in steps:
        curve = accounts[0].curve_of(step.event)
        counts = [_repetitions(account, pending, curve) for account in accounts]
        fewest = min(range(len(counts)), key=counts.__getitem__)
        if counts[fewest] < step.count:
            return fitting + counts[fewest], accounts[fewest]
        pending = pending + curve.times(step.count)
        fitting += step.count
    raise AssertionError("the whole request fits, and yet it was refused")


def _noise_that_fits(path: Sequence[Account], steps: Sequence[StepEvent]) -> float | None:
    if len(steps) > 1:
        return None

    def fits(event: DpEvent) -> bool:
        quieter = (StepEvent(event, steps[0].count),)
        new = total_curve(path[0], quieter)
        return all(_fits(account, new) for account in _prepared(path, quieter))

    return smallest_noise_multiplier(steps[0].event, fits)


def _refusal(
    path: Sequence[Account], accounts: Sequence[Account], steps: Sequence[StepEvent], new: RdpCurve
) -> Refusal:
    fitting, binding = _longest_prefix(accounts, steps)
    threshold = binding.thresholds()
    share = _free(binding, zero_curve(binding.grid_version)) / np.maximum(new.values, 1)
    closest = int(np.argmax(np.where(threshold >= 0, share, -np.inf)))
    return Refusal(
        reading=reading_of(path),
        binding=binding,
        epsilon=binding.epsilon(),
        epsilon_requested=binding.epsilon(binding.spent + new),
        order=float(orders(binding.grid_version)[closest]),
        spent=float(binding.spent.nats()[closest]),
        held=float(binding.held.nats()[closest]),
        requested=float(new.nats()[closest]),
        limit=float(threshold[closest]) * UNIT,
        max_count_that_fits=fitting,
        noise_multiplier_that_fits=_noise_that_fits(path, steps),
    )
