"""Registered steps that an account does not admit because its filter is not tuned to them (ADR 0053)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import numpy as np

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent
from app.accounting.exact_losses import quotient
from app.ledger.accounts.account import Account
from app.ledger.filter.filters import FilterBounds, filter_bounds
from app.ledger.governance.registered_steps import weights_after
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent

NOTICEABLE: Final = 0.1
"""Share of the registered steps whose loss is worth a warning."""


class RegisteredGroup(NamedTuple):
    """Runs under an account that declared the same steps.

    Args:
        steps: of each run; empty: it declared no event.
        expected: number of steps that all of them declared.
        taken: those that they have taken.
    """

    account_id: str
    steps: tuple[StepEvent, ...]
    expected: int
    taken: int


class PricedGroup(NamedTuple):
    """A group of registered runs, and the steps that they still expect, with their prices."""

    account_id: str
    expected: int
    remaining: tuple[PricedStep, ...]


@dataclass(frozen=True, slots=True)
class StepsLost:
    """How many of the steps that the runs of an account still expect fit, and would with a filter tuned to them."""

    account_path: str
    remaining: int
    fitting: int
    tuned: int

    @property
    def warning(self) -> str:
        """Say what is lost, and what to do."""
        return (
            f"The filter of {self.account_path} is not tuned to the steps of its runs, since it was fixed by a charge "
            f"before these were known: {self.fitting:,} of the {self.remaining:,} steps that they still expect fit, "
            f"instead of {self.tuned:,}. Register these runs under another budget, or raise the limit. Next time "
            "register all runs of an account, with their events and `expected_steps`, before the first charge."
        )


def may_lose_steps(account: Account) -> bool:
    """Check whether registered runs tell how many steps an account's filter loses: it has no plan and no parts."""
    return (
        account.limit is not None
        and account.weights is not None
        and not account.planned
        and account.partitions_per_unit is None
        and account.exposure is None
    )


def priced_groups(found: Iterable[RegisteredGroup], curves: Mapping[DpEvent, RdpCurve]) -> list[PricedGroup]:
    """Price what groups of runs still expect; an event without a price was never registered, and is left out."""
    groups = []
    for group in found:
        remaining = [PricedStep(step, curves[step.event]) for step in _remaining_steps(group) if step.event in curves]
        groups.append(PricedGroup(group.account_id, group.expected, tuple(remaining)))
    return groups


def _remaining_steps(group: RegisteredGroup) -> list[StepEvent]:
    """Divide the steps that a group still expects among its events as they were declared."""
    left, declared = group.expected - group.taken, sum(step.count for step in group.steps)
    counts = [(step.event, left * step.count // declared) for step in group.steps]
    return [StepEvent(event, min(count, MAX_COUNT - 1)) for event, count in counts if count > 0]


def find_steps_lost(account: Account, groups: Iterable[PricedGroup]) -> StepsLost | None:
    """Find the registered steps that an account loses; None: no more than a tenth of all that were registered."""
    assert account.limit is not None, "the caller leaves out accounts without a limit"
    own = [group for group in groups if group.account_id == account.id]
    steps = [step for group in own for step in group.remaining]
    registered, remaining = sum(group.expected for group in own), sum(step.step.count for step in steps)
    share = _fitting_share(account.bounds(), account.spent, steps)
    if remaining * (1 - share) <= NOTICEABLE * registered:
        return None
    weights = weights_after(account, steps)
    if weights is None:
        return None
    gate = filter_bounds(account.limit, weights, account.grid_version)
    fitting, tuned = [int(remaining * each) for each in (share, _fitting_share(gate, account.spent, steps))]
    lost = tuned - fitting > NOTICEABLE * registered
    return StepsLost(account.path, remaining, fitting, tuned) if lost else None


def _fitting_share(gate: FilterBounds, spent: RdpCurve, steps: Sequence[PricedStep]) -> float:
    """Compute the share of steps that fits, at most 1: at some order or exactly, and by own deltas."""
    losses, exact, delta = np.zeros(gate.places.shape), 0, 0
    for step in steps:
        values, count = step.curve.values[gate.places], step.step.count
        losses = losses + np.where(values < EXHAUSTED, values * float(count), inf)
        exact, delta = exact + gate.exact_loss(step.curve) * count, delta + step.curve.delta * count
    left = np.maximum(gate.left(spent), 0)
    by_orders = float(np.max(left / np.maximum(losses, 1.0)))
    fitting = max(by_orders, quotient(max(gate.most - gate.exact_loss(spent), 0), exact) if exact else 1.0)
    own = quotient(max(gate.room - spent.delta, 0), delta) if delta else 1.0
    return min(fitting, own, 1.0)
