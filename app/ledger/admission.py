"""The one rule: a charge is admitted by every account on its path, or by none.

Admit iff for every account with a limit some order j has spent_j + held_j + new_j <= B_j. There is no
tolerance: all three are integers rounded up and B_j is an integer rounded down.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.accounting.curves import DELTA_UNIT, EXHAUSTED, UNIT, RdpCurve
from app.accounting.orders import orders
from app.ledger.accounts import Account, PricedStep, total_cost, zero_curve
from app.ledger.headroom import fits, min_repetitions
from app.ledger.limit_changes import LimitChange
from app.ledger.noise_search import noise_that_fits


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
        overdrawn: whether some account is over its limit now; only what has happened already is recorded so.
    """

    accounts: tuple[Account, ...]
    reading: Reading
    steps_remaining: int
    binding: Account
    overdrawn: bool = False


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
        requested: as `spent`: by how much the request would move it.
        limit: the threshold at `order`, nats.
        delta_requested: what the request's mechanisms take of delta by a delta of their own.
        delta_left: what the binding account has left for that.
        max_count_that_fits: how many of the requested steps, from the first, would be admitted.
        noise_multiplier_that_fits: with which the whole request would be admitted; None where no noise
            is enough, or as `noise_that_fits` says.
        limit_change: how the limit of the binding account came into force; None: it has always been this one, or
            nobody has looked.
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
    limit_change: LimitChange | None = None


NoiseSearch = Callable[[Sequence[Account], Sequence[PricedStep]], float | None]


def admit(
    path: Sequence[Account], steps: Sequence[PricedStep], search: NoiseSearch | None = None
) -> Admission | Refusal:
    """Decide about a charge.

    Args:
        path: every account that the charge would touch, the run's own last, none above one that lies beneath it, as
            they are now.
        steps: the charge, at least one, each at its price.
        search: finds the noise that fits, for a refusal; None: `noise_that_fits`.

    Returns:
        The accounts afterwards, or the reasons why not.
    """
    charged = record(path, steps)
    if charged.overdrawn:
        accounts = [account.prepared_for(steps) for account in path]
        noise = (search or noise_that_fits)(path, steps)
        return _refusal(path, accounts, steps, total_cost(steps), noise)
    return charged


def first_that_fit(path: Sequence[Account], steps: Sequence[PricedStep]) -> int:
    """How many steps of a charge would be admitted, from the first.

    Args:
        path: as for `admit`.
        steps: as for `admit`.

    Returns:
        0 if not even one; all of them if the whole charge would be admitted.
    """
    whole = record(path, steps)
    if not whole.overdrawn:
        return sum(step.step.count for step in steps)
    fitting, _ = _longest_prefix([account.prepared_for(steps) for account in path], steps)
    return fitting


def hold(
    path: Sequence[Account], steps: Sequence[PricedStep], search: NoiseSearch | None = None
) -> tuple[Account, ...] | Refusal:
    """Set a plan's cost aside on every account, or on none.

    Args:
        path: as for `admit`.
        steps: the plan, each step event at its price.
        search: as for `admit`.

    Returns:
        The accounts with the plan held, or the reasons why not: those for which it would not be admitted.
    """
    outcome = admit(path, steps, search)
    if isinstance(outcome, Refusal):
        return outcome
    cost = total_cost(steps)
    return tuple(account.prepared_for(steps).with_hold(cost) for account in path)


def record(path: Sequence[Account], steps: Sequence[PricedStep]) -> Admission:
    """Charge steps that have happened, whatever the limits say.

    Args:
        path: as for `admit`.
        steps: as for `admit`.

    Returns:
        The accounts afterwards; `overdrawn` if `admit` would have refused.
    """
    accounts = [account.prepared_for(steps) for account in path]
    new = total_cost(steps)
    decided = all(account.limit is None or account.weights_frozen for account in accounts)
    assert decided or new.is_zero, "nothing is charged before the weights are fixed"
    remaining, binding = min_repetitions(accounts, (new,), steps[-1].curve)
    afterwards = tuple(account.charged(new) for account in accounts)
    return Admission(
        afterwards, reading_of(afterwards), max(0, remaining), afterwards[binding], overdrawn=remaining < 0
    )


def repetitions_left(path: Sequence[Account], step: PricedStep) -> tuple[int, Account]:
    """How often an event could still be admitted, and by which account it is bound.

    Args:
        path: root to leaf.
        step: the event at its price; its count does not matter.

    Returns:
        The count, and the account that leaves the fewest.
    """
    accounts = [account.prepared_for([step]) for account in path]
    remaining, binding = min_repetitions(accounts, (), step.curve)
    return max(0, remaining), accounts[binding]


def reading_of(path: Sequence[Account]) -> Reading:
    """The epsilon of the last account on a path.

    Args:
        path: root to leaf; the root has a limit.

    Returns:
        Read by the filter of the nearest account with a limit: the leaf itself, or an ancestor.
    """
    governing = governing_of(path)
    assert governing.limit is not None
    return Reading(governing.epsilon(path[-1].spent), governing.limit.delta, governing.limit.epsilon)


def governing_of(path: Sequence[Account]) -> Account:
    """The nearest account with a limit: the leaf, or one above it; of several budgets, above the first."""
    wanted: str | None = path[-1].id
    for account in reversed(path):
        if account.id == wanted:
            if account.limit is not None:
                return account
            wanted = account.parent_id
    raise AssertionError("the root has a limit")


def _longest_prefix(accounts: Sequence[Account], steps: Sequence[PricedStep]) -> tuple[int, Account]:
    """How many of the steps fit, from the first, and which account binds."""
    pending = zero_curve(accounts[0].grid_version)
    fitting = 0
    for step in steps:
        cost = step.cost
        if not all(fits(account, pending, cost) for account in accounts):  # to count what fits takes far longer
            count, binding = min_repetitions(accounts, (pending,), step.curve)
            return fitting + max(0, count), accounts[binding]
        pending = pending + cost
        fitting += step.step.count
    raise AssertionError("the whole request fits, and yet it was refused")


def _refusal(
    path: Sequence[Account],
    accounts: Sequence[Account],
    steps: Sequence[PricedStep],
    new: RdpCurve,
    noise: float | None,
) -> Refusal:
    fitting, binding = _longest_prefix(accounts, steps)
    own_delta = binding.own_delta()
    gate = binding.bounds(own_delta)
    growth = binding.grown_by(new)
    spent, asked = binding.spent.values[gate.places], growth.values[gate.places]
    share = gate.left(binding.spent, binding.held) / np.maximum(asked, 1)
    telling = (gate.bounds >= 0) & (spent < EXHAUSTED) & (asked < EXHAUSTED)
    shown = telling if telling.any() else gate.bounds >= 0
    closest = int(np.argmax(np.where(shown, share, -np.inf)))
    grid = orders(binding.grid_version)
    at = np.arange(grid.size)[gate.places][[closest]]
    return Refusal(
        reading=reading_of(path),
        binding=binding,
        epsilon=binding.epsilon(),
        epsilon_requested=binding.epsilon(binding.charged(new).spent),
        order=float(grid[at][0]),
        spent=float(binding.spent.at(at).nats()[0]),
        held=float(binding.held.at(at).nats()[0]),
        requested=float(growth.at(at).nats()[0]),
        limit=float(gate.bounds[closest]) * UNIT,
        delta_requested=growth.delta_value(),
        delta_left=max(0, gate.room - own_delta) * DELTA_UNIT,
        max_count_that_fits=fitting,
        noise_multiplier_that_fits=noise,
    )
