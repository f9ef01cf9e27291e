"""The one rule: a charge is admitted by every account on its path, or by none.

Admit iff for every account with a limit some order j has spent_j + held_j + new_j <= B_j. There is no
tolerance: all three are integers rounded up and B_j is an integer rounded down.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.accounting.curves import DELTA_UNIT, UNIT, RdpCurve
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, curve_count, noise_multiplier, with_noise_multiplier
from app.accounting.orders import orders
from app.accounting.rdp import curve_over
from app.accounting.solving.calibration import smallest_noise_multiplier
from app.ledger.accounts import Account, PricedStep, StepEvent, total_cost, zero_curve

MOST_CURVES = 32
"""An event that takes more curves is not tried with other noise: a refusal must not take seconds."""

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
        delta_requested: what the request's mechanisms take of delta by a delta of their own.
        delta_left: what the binding account has left for that.
        max_count_that_fits: how many of the requested steps, from the first, would be admitted.
        noise_multiplier_that_fits: with which the whole request would be admitted; None where no noise
            is enough, or as `noise_that_fits` says.
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
    delta_requested: float
    delta_left: float
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
    accounts = [account.prepared_for(steps) for account in path]
    new = total_cost(steps)
    decided = all(account.limit is None or account.weights_frozen for account in accounts)
    assert decided or new.is_zero, "nothing is charged before the weights are fixed"
    remaining, binding = _fewest(accounts, (new,), steps[-1].curve)
    if remaining < 0:
        noise = (search or noise_that_fits)(path, steps)
        return _refusal(path, accounts, steps, new, noise)
    afterwards = tuple(account.charged(new) for account in accounts)
    return Admission(afterwards, reading_of(afterwards), remaining, afterwards[binding])


def repetitions_left(path: Sequence[Account], step: PricedStep) -> tuple[int, Account]:
    """How often an event could still be admitted, and by which account it is bound.

    Args:
        path: root to leaf.
        step: the event at its price; its count does not matter.

    Returns:
        The count, and the account that leaves the fewest.
    """
    accounts = [account.prepared_for([step]) for account in path]
    remaining, binding = _fewest(accounts, (), step.curve)
    return max(0, remaining), accounts[binding]


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
        The smallest noise multiplier, four digits, rounded up; None where no noise is enough, where the charge
        holds several events or one without a noise multiplier of its own, or where one trial takes many curves.
    """
    asked = steps[0].step
    if len(steps) > 1 or curve_count(asked.event) > MOST_CURVES:
        return None

    def fits(event: DpEvent) -> bool:
        quieter = path[0].price(StepEvent(event, asked.count))
        return all(_fits(account.prepared_for([quieter]), quieter.cost) for account in path)

    try:
        near = _noise_at_the_weights(path, asked)
        return None if near is None else smallest_noise_multiplier(with_noise_multiplier(asked.event, near), fits)
    except UnsupportedEventError:
        return None


def _fits(account: Account, *new: RdpCurve) -> bool:
    if account.limit is None:
        return True
    own_delta = _own_delta(account, new)
    gate = account.gate(own_delta)
    return own_delta <= gate.room and bool((gate.left(account.spent, account.held, *new) >= 0).any())


def _own_delta(account: Account, pending: Sequence[RdpCurve]) -> int:
    """What mechanisms took of delta by a delta of their own, with what is pending: units of 2^-62."""
    return account.spent.delta + account.held.delta + sum([cost.delta for cost in pending])


def _repetitions(account: Account, pending: Sequence[RdpCurve], curve: RdpCurve) -> int:
    """How often an account admits `curve` on top of what is spent, held and pending; below 0: that is too much."""
    if account.limit is None:
        return UNLIMITED
    own_delta = _own_delta(account, pending)
    gate = account.gate(own_delta)
    if own_delta > gate.room:
        return -1
    most = gate.repetitions(gate.left(account.spent, account.held, *pending), curve)
    if most <= 0 or not curve.delta:
        return most
    # By their own delta, repetitions narrow the gate of a declared filter for all of them: the largest count is sought.
    fitting, most = 0, min(most, (gate.room - own_delta) // curve.delta)
    while most > fitting:
        middle = (fitting + most + 1) // 2
        fitting, most = (middle, most) if _fits(account, *pending, curve.times(middle)) else (fitting, middle - 1)
    return fitting


def _fewest(accounts: Sequence[Account], pending: Sequence[RdpCurve], curve: RdpCurve) -> tuple[int, int]:
    """How many repetitions of `curve` every account admits, and the place of the one that binds."""
    counts = [_repetitions(account, pending, curve) for account in accounts]
    fewest = min(counts)
    return fewest, counts.index(fewest)


def _longest_prefix(accounts: Sequence[Account], steps: Sequence[PricedStep]) -> tuple[int, Account]:
    """How many of the steps fit, from the first, and which account binds."""
    pending = zero_curve(accounts[0].grid_version)
    fitting = 0
    for step in steps:
        count, binding = _fewest(accounts, (pending,), step.curve)
        if count < step.step.count:
            return fitting + max(0, count), accounts[binding]
        pending = pending + step.cost
        fitting += step.step.count
    raise AssertionError("the whole request fits, and yet it was refused")


def _noise_at_the_weights(path: Sequence[Account], asked: StepEvent) -> float | None:
    """Where to begin: the noise that fits at the few orders that frozen weights name, which is quick to compute.

    Returns:
        The event's own noise if other orders count as well; None if no noise is enough.
    """
    limited = [account for account in path if account.limit is not None]
    own = noise_multiplier(asked.event)
    if any(account.weights is None for account in limited):
        return own
    chosen = [account.weights.indices for account in limited if account.weights]
    places = np.unique(np.concatenate(chosen))
    left = [
        (np.searchsorted(places, at), account.gate(0).left(account.spent, account.held))
        for at, account in zip(chosen, limited, strict=True)
    ]
    grid = orders(path[0].grid_version)

    def fits(event: DpEvent) -> bool:
        cost = curve_over(event, grid[places], path[0].relation).times(asked.count)
        return all(bool((cost.values[at] <= free).any()) for at, free in left)

    return smallest_noise_multiplier(asked.event, fits)


def _refusal(
    path: Sequence[Account],
    accounts: Sequence[Account],
    steps: Sequence[PricedStep],
    new: RdpCurve,
    noise: float | None,
) -> Refusal:
    fitting, binding = _longest_prefix(accounts, steps)
    own_delta = binding.spent.delta + binding.held.delta
    gate = binding.gate(own_delta)
    share = gate.left(binding.spent, binding.held) / np.maximum(new.values[gate.places], 1)
    closest = int(np.argmax(np.where(gate.bounds >= 0, share, -np.inf)))
    grid = orders(binding.grid_version)
    at = np.arange(grid.size)[gate.places][[closest]]
    return Refusal(
        reading=reading_of(path),
        binding=binding,
        epsilon=binding.epsilon(),
        epsilon_requested=binding.epsilon(binding.spent + new),
        order=float(grid[at][0]),
        spent=float(binding.spent.at(at).nats()[0]),
        held=float(binding.held.at(at).nats()[0]),
        requested=float(new.at(at).nats()[0]),
        limit=float(gate.bounds[closest]) * UNIT,
        delta_requested=new.delta_value(),
        delta_left=max(0, gate.room - own_delta) * DELTA_UNIT,
        max_count_that_fits=fitting,
        noise_multiplier_that_fits=noise,
    )
