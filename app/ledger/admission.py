"""The one rule: a charge is admitted by every account on its path, or by none.

Admit iff for every account with a limit some order j has spent_j + held_j + new_j <= B_j. There is no
tolerance: all three are integers rounded up and B_j is an integer rounded down.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.accounting.calibration import smallest_noise_multiplier
from app.accounting.curves import EXHAUSTED, UNIT, RdpCurve
from app.accounting.events import DpEvent, noise_multiplier, with_noise_multiplier
from app.accounting.orders import orders
from app.accounting.rdp import rdp
from app.ledger.accounts import Account, PricedStep, StepEvent, total_cost, zero_curve

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


NoiseSearch = Callable[[Sequence[Account], Sequence[PricedStep]], float | None]


def admit(
    path: Sequence[Account], steps: Sequence[PricedStep], search: NoiseSearch | None = None
) -> Admission | Refusal:
    """Decide about a charge.

    Args:
        path: every account that the charge would touch, root to leaf, as it is now.
        steps: the charge, at least one, each at its price.
        search: finds the noise that fits, for a refusal; None: `noise_that_fits`.

    Returns:
        The accounts afterwards, or the reasons why not.
    """
    accounts = [account.prepared_for(steps[0]) for account in path]
    new = total_cost(steps)
    if not all(_fits(account, new) for account in accounts):
        noise = (search or noise_that_fits)(path, steps)
        return _refusal(path, accounts, steps, new, noise)
    afterwards = tuple(replace(account, spent=account.spent + new, version=account.version + 1) for account in accounts)
    remaining, binding = repetitions_left(afterwards, steps[-1])
    assert all(_fits(account, zero_curve(account.grid_version)) for account in afterwards)
    return Admission(afterwards, reading_of(afterwards), remaining, binding)


def repetitions_left(path: Sequence[Account], step: PricedStep) -> tuple[int, Account]:
    """How often an event could still be admitted, and by which account it is bound.

    Args:
        path: root to leaf.
        step: the event at its price; its count does not matter.

    Returns:
        The count, and the account that leaves the fewest.
    """
    accounts = [account.prepared_for(step) for account in path]
    nothing = zero_curve(path[0].grid_version)
    counts = [_repetitions(account, nothing, step.curve) for account in accounts]
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


def noise_that_fits(path: Sequence[Account], steps: Sequence[PricedStep]) -> float | None:
    """With how much noise a refused charge would be admitted; it takes a dozen fresh curves to find out.

    Args:
        path: root to leaf, as it was when the charge was refused.
        steps: the charge.

    Returns:
        The smallest noise multiplier, four digits, rounded up; None where no noise is enough, or where the
        charge holds several events.
    """
    if len(steps) > 1:
        return None
    asked = steps[0].step

    def fits(event: DpEvent) -> bool:
        quieter = path[0].price(StepEvent(event, asked.count))
        return all(_fits(account.prepared_for(quieter), quieter.cost) for account in path)

    near = _noise_at_the_weights(path, asked)
    if near is None:
        return None
    return smallest_noise_multiplier(with_noise_multiplier(asked.event, near), fits)


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


def _longest_prefix(accounts: Sequence[Account], steps: Sequence[PricedStep]) -> tuple[int, Account]:
    """How many of the steps fit, from the first, and which account binds."""
    pending = zero_curve(accounts[0].grid_version)
    fitting = 0
    for step in steps:
        counts = [_repetitions(account, pending, step.curve) for account in accounts]
        fewest = min(range(len(counts)), key=counts.__getitem__)
        if counts[fewest] < step.step.count:
            return fitting + counts[fewest], accounts[fewest]
        pending = pending + step.cost
        fitting += step.step.count
    raise AssertionError("the whole request fits, and yet it was refused")


def _noise_at_the_weights(path: Sequence[Account], asked: StepEvent) -> float | None:
    """Where to begin: the noise that fits at the few orders that frozen weights name, which is quick to compute.

    Returns:
        The event's own noise if other orders count as well; None if no noise is enough.
    """
    limited = [account for account in path if account.limit is not None]
    if any(account.weights is None for account in limited):
        return noise_multiplier(asked.event)
    places = sorted({index for account in limited if account.weights for index in account.weights.indices})
    free = [_free(account, zero_curve(account.grid_version))[places] for account in limited]
    grid = orders(path[0].grid_version)[places]

    def fits(event: DpEvent) -> bool:
        cost = RdpCurve.from_nats(rdp(event, grid, path[0].relation)).times(asked.count)
        return all(bool(np.any(cost.values <= left)) for left in free)

    return smallest_noise_multiplier(asked.event, fits)


def _refusal(
    path: Sequence[Account],
    accounts: Sequence[Account],
    steps: Sequence[PricedStep],
    new: RdpCurve,
    noise: float | None,
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
        noise_multiplier_that_fits=noise,
    )
