"""The admission rule: every account on a charge's path admits it, or none.

Admit iff every account with a limit covers the charge by its plan, has some order j with spent_j + held_j + new_j
<= B_j, or an exact loss within its limit. There is no tolerance: all three are integers rounded up and B_j is an
integer rounded down.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf, nextafter
from typing import Final, NamedTuple

import numpy as np

from app.accounting.curves import DELTA_UNIT, RdpCurve
from app.accounting.exact_losses import quotient
from app.ledger.accounts.account import Account, with_usage, zero_curve
from app.ledger.admission.alternatives import Alternatives
from app.ledger.event_differences import PlanDifference
from app.ledger.filter.filters import UNLIMITED
from app.ledger.filter.limits import Limit
from app.ledger.plan.plan_causes import find_differences
from app.ledger.plan.plans import PlanStatus
from app.ledger.step_events import PricedStep, total_cost


class Admission(NamedTuple):
    """An admitted charge and the path root to leaf after it.

    Args:
        steps_remaining: further repetitions of the last event that would fit now.
        binding: the account with the fewest remaining, which decides.
        used: share of the capacity of that account that is spent.
        overdrawn: whether an account exceeds its limit; only reported steps do that.
        ended_plans: the plans that covered all charges before this one.
    """

    accounts: tuple[Account, ...]
    steps_remaining: int
    binding: Account
    used: float
    overdrawn: bool = False
    ended_plans: tuple["EndedPlan", ...] = ()


@dataclass(frozen=True, slots=True)
class EndedPlan:
    """A plan that a charge ended because it did not cover it.

    Args:
        steps_given_up: its steps that were neither used nor reserved.
        differences: of the charge from what was planned; none: more steps than are left of the plan.
    """

    account: Account
    steps_given_up: int
    differences: tuple[PlanDifference, ...]

    def facts(self) -> dict[str, object]:
        """Get the fields recorded with the decision."""
        name = {"account": self.account.id, "account_path": self.account.path}
        differences = [each.facts() for each in self.differences]
        return name | {"steps_given_up": self.steps_given_up, "differences": differences}


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A change of an account's limit; an increase is by its approver."""

    before: Limit
    after: Limit
    at: datetime
    actor: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused charge, in shares of the capacity of the binding account.

    Args:
        binding: the account that admits the fewest of the requested steps.
        used: share that is spent, `used_including_reserved` with what reservations hold, and `used_requested` with that
            and this charge, which is more than 1.
        delta_requested: growth of the mechanisms' own deltas.
        delta_left: of the binding account for own deltas.
        plan: of the binding account, which covers all that was charged to it, but not this.
        differences: of the charge from what was planned; none: it is planned, or there is no such plan.
        max_steps_that_fit: number of requested steps, from the first, that would be admitted.
        alternatives: what would be admitted instead; None if they were not looked for.
        limit_change: the latest change of the binding account's limit; None if it never changed or was not looked up.
    """

    binding: Account
    used: float
    used_including_reserved: float
    used_requested: float
    delta_requested: float
    delta_left: float
    plan: PlanStatus | None
    differences: tuple[PlanDifference, ...]
    max_steps_that_fit: int
    alternatives: Alternatives | None
    limit_change: LimitChange | None = None


MORE_THAN_ALL: Final = nextafter(1.0, 2.0)
"""Least share of a refused charge with all before it."""

AlternativesSearch = Callable[[Sequence[Account], Sequence[PricedStep], int], Alternatives]
"""Finds the alternatives to a refused request for steps, of which a number of the first ones fit."""

Views = Callable[[Sequence[Account]], Iterable[Account]]
"""Adds to the accounts of a path, with their filters, what they withhold (`scheduling.withholding`)."""


def admit(
    path: Sequence[Account], steps: Sequence[PricedStep], search: AlternativesSearch | None = None
) -> Admission | Refusal:
    """Decide on a charge of at least one priced step.

    `path` has the current accounts that it would touch, ancestors first, the run's own last; a refusal has its
    alternatives if there is a `search`.
    """
    charged = record(path, steps)
    return _refused(path, *_prepared(path, steps), search) if charged.overdrawn else charged


def _prepared(
    path: Sequence[Account], steps: Sequence[PricedStep], *, held: bool = False
) -> tuple[list[Account], Sequence[PricedStep]]:
    """Prepare the accounts of a path for steps, and the steps' costs for these accounts."""
    accounts = [account.prepared_for(steps, held=held) for account in path]
    return accounts, with_usage(accounts, steps)


def first_that_fit(path: Sequence[Account], steps: Sequence[PricedStep], *, held: bool = False) -> int:
    """Count the steps of a charge or, if `held`, of a reservation, from the first, that would be admitted."""
    accounts, prepared = _prepared(path, steps, held=held)
    whole = total_cost(prepared)
    if all(account.fits(whole) for account in accounts):
        return sum(step.step.count for step in steps)
    fitting, _ = _longest_prefix(accounts, prepared)
    return fitting


def hold(
    path: Sequence[Account],
    steps: Sequence[PricedStep],
    search: AlternativesSearch | None = None,
    views: Views = tuple,
) -> tuple[Account, ...] | Refusal:
    """Hold a reservation's cost on every account, or refuse it as `admit` would."""
    held = hold_if_fitting(path, steps, views)
    if held is not None:
        return held
    accounts, priced = _prepared(path, steps, held=True)
    seen = tuple(views(accounts))
    return _refused(path if views is tuple else seen, seen, priced, search)


def hold_if_fitting(
    path: Sequence[Account], steps: Sequence[PricedStep], views: Views = tuple
) -> tuple[Account, ...] | None:
    """Hold a reservation's cost on every account; None if one of them refuses it, with what it withholds."""
    accounts, cost = prepared_path(path, steps)
    if not all(account.fits(cost) for account in views(accounts)):
        return None
    return tuple(account.with_hold(cost) for account in accounts)


def prepared_path(path: Sequence[Account], steps: Sequence[PricedStep]) -> tuple[list[Account], RdpCurve]:
    """Prepare the accounts of a path for a reservation, and compute its cost for them."""
    accounts, steps = _prepared(path, steps, held=True)
    return accounts, total_cost(steps)


def short_accounts(path: Sequence[Account], steps: Sequence[PricedStep], views: Views = tuple) -> list[str]:
    """List the accounts of a path that refuse to hold a reservation."""
    accounts, cost = prepared_path(path, steps)
    return [account.id for account in views(accounts) if not account.fits(cost)]


def record(path: Sequence[Account], steps: Sequence[PricedStep]) -> Admission:
    """Charge executed steps regardless of limits; `overdrawn` if `admit` would refuse."""
    accounts, steps = _prepared(path, steps)
    new = total_cost(steps)
    undecided = [each for each in accounts if not each.has_filter]
    assert all(each.limit is None for each in undecided) or new.is_zero, "weights are fixed before a charge"
    remaining, binding = min_repetitions(accounts, (new,), steps[-1].curve)
    afterwards = tuple(account.charged(new) for account in accounts)
    overdrawn, ended = remaining < 0, ended_plans(path, afterwards, steps)
    decides = afterwards[binding]
    return Admission(afterwards, max(0, remaining), decides, decides.used(), overdrawn, ended)


def ended_plans(
    before: Sequence[Account], after: Sequence[Account], steps: Sequence[PricedStep]
) -> tuple[EndedPlan, ...]:
    """Find the plans that a charge or a hold of steps ended."""
    ended = []
    for account, charged in zip(before, after, strict=True):
        if account.plan is None or charged.is_planned() or not account.is_planned():
            continue
        status = account.plan_status
        assert status is not None, "it has a plan"
        ended.append(EndedPlan(account, status.steps_remaining, _differences(account, steps)))
    return tuple(ended)


def _differences(account: Account, steps: Sequence[PricedStep]) -> tuple[PlanDifference, ...]:
    assert account.plan is not None, "it has a plan"
    return find_differences(account.plan, account.planned, [priced.step for priced in steps])


def min_repetitions(accounts: Sequence[Account], pending: Sequence[RdpCurve], curve: RdpCurve) -> tuple[int, int]:
    """Count the repetitions of a curve that every account admits after `pending` charges.

    The count is negative if these do not fit; the index is that of the binding account.
    """
    counts = _repetitions(accounts, pending, curve)
    least = min(counts)
    return least, counts.index(least)


def _repetitions(accounts: Sequence[Account], pending: Sequence[RdpCurve], curve: RdpCurve) -> list[int]:
    return [UNLIMITED if account.limit is None else account.repetitions(pending, curve) for account in accounts]


def repetitions_left(path: Sequence[Account], step: PricedStep) -> tuple[int, Account]:
    """Count the further repetitions of an event that fit, and find the binding account."""
    accounts, [step] = _prepared(path, [step])
    remaining, binding = min_repetitions(accounts, (), step.curve)
    return max(0, remaining), accounts[binding]


def governing_of(path: Sequence[Account]) -> Account:
    """Find the nearest account with a limit, from the leaf up its first budget."""
    wanted: str | None = path[-1].id
    for account in reversed(path):
        if account.id == wanted:
            if account.limit is not None:
                return account
            wanted = account.parent_id
    raise AssertionError("the root has a limit")


def _longest_prefix(accounts: Sequence[Account], steps: Sequence[PricedStep]) -> tuple[int, Account]:
    """Count the steps that fit, from the first, and find the binding account.

    Of accounts that admit equally few steps, the one with the least room for the first refused step binds.
    """
    pending = zero_curve(accounts[0].grid_version)
    fitting = 0
    for step in steps:
        cost = step.cost
        if not all(account.fits(pending, cost) for account in accounts):  # far faster than counting
            counts = _repetitions(accounts, (pending,), step.curve)
            least = min(counts)
            refused = step.curve.times(max(0, least) + 1)
            tied = [account for account, count in zip(accounts, counts, strict=True) if count == least]
            return fitting + max(0, least), min(tied, key=lambda account: _relative_room(account, pending, refused))
        pending = pending + cost
        fitting += step.step.count
    raise AssertionError("the whole request fits, and yet it was refused")


def _relative_room(account: Account, pending: RdpCurve, refused: RdpCurve) -> float:
    """Compute the largest share of a refused charge that fits at an order or exactly; -inf if own deltas refuse it."""
    gate = account.bounds()
    if account.own_delta(pending, refused) > gate.room:
        return -inf
    by_orders = float((account.headroom(gate, pending) / np.maximum(refused.values[gate.places], 1)).max())
    loss = gate.exact_loss(refused)
    return by_orders if loss == gate.unbounded else max(by_orders, quotient(account.exact_left(gate, pending), loss))


def _refused(
    path: Sequence[Account],
    accounts: Sequence[Account],
    steps: Sequence[PricedStep],
    search: AlternativesSearch | None,
) -> Refusal:
    """Explain a refusal; `accounts` are those of the path, prepared for the steps."""
    fitting, binding = _longest_prefix(accounts, steps)
    growth, both = binding.grown_by(total_cost(steps)), binding.spent + binding.held
    gate = binding.bounds()
    return Refusal(
        binding=binding,
        used=binding.used(),
        used_including_reserved=binding.used(both),
        used_requested=max(binding.used(both + growth), MORE_THAN_ALL),
        delta_requested=growth.delta_value(),
        delta_left=float(max(0, gate.room - binding.own_delta()) * DELTA_UNIT),
        plan=binding.plan_status if binding.is_planned() else None,
        differences=_differences(binding, steps) if binding.is_planned() else (),
        max_steps_that_fit=fitting,
        alternatives=search and search(path, steps, fitting),
    )
