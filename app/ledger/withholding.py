"""What an account withholds from a plan: the locked part of its limit, and what it has promised to others.

Withheld budget counts like a reservation while a plan is admitted, and is never stored. So the rule of admission stays
one, and withholding can only refuse what it would have admitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, floor

import numpy as np

from app.accounting.curves import RdpCurve
from app.ledger.accounts import Account, zero_curve
from app.ledger.allocation import ALL, Allocation, decimal
from app.ledger.filters import FilterBounds


@dataclass(frozen=True, slots=True)
class Withholding:
    """What an account withholds now.

    Args:
        allocation: of the account.
        unlocked: usable part of its limit.
        window: part of its limit that the current window has unlocked.
        taken: loss of the plans that each budget with a share has got in this window, by account id.
    """

    allocation: Allocation
    unlocked: Fraction = ALL
    window: Fraction = ALL
    taken: Mapping[str, RdpCurve] = field(default_factory=dict)

    def view(self, account: Account, path: Sequence[Account]) -> Account:
        """Copy an account with what it withholds from the plan of a path among its reservations.

        The account has its filter, and the path all accounts that the plan reaches.
        """
        if account.limit is None or account.weights is None:
            return account
        bounds = account.bounds()
        under = [each for each in path if each.parent_id == account.id]
        withheld = self._locked(account, bounds) + self._promised(account, bounds, {each.id for each in under})
        for each in under:
            withheld = _larger(withheld, self._beyond_maximum(account, bounds, each, withheld))
        return with_withheld(account, withheld)

    def unlocked_view(self, account: Account) -> Account:
        """Copy an account with the locked part of its limit among its reservations."""
        if account.limit is None or account.weights is None:
            return account
        return with_withheld(account, self._locked(account, account.bounds()))

    def unlocked_epsilon(self, account: Account) -> float:
        """Compute the epsilon that is reached when the usable part of the limit is used up."""
        assert account.limit is not None, "what has no limit unlocks nothing"
        if account.weights is None:
            return account.limit.epsilon * float(self.unlocked)
        bounds = account.bounds()
        return bounds.epsilon(_part(account, bounds, self.unlocked, up=False))

    def after(self, path: Sequence[Account], cost: RdpCurve) -> "Withholding":
        """Copy what is withheld after a plan of a path was granted."""
        taken = dict(self.taken)
        for each in path:
            if each.id in self.allocation.shares:
                before = taken.get(each.id)
                taken[each.id] = cost if before is None else before + cost
        return replace(self, taken=taken)

    def _locked(self, account: Account, bounds: FilterBounds) -> RdpCurve:
        """Compute the locked part of the limit, rounded up."""
        return _part(account, bounds, 1 - self.unlocked)

    def _promised(self, account: Account, bounds: FilterBounds, own: set[str]) -> RdpCurve:
        """Sum what other budgets have not taken of their minimums in this window."""
        total = zero_curve(account.grid_version)
        for account_id, share in self.allocation.shares.items():
            if share.minimum and account_id not in own:
                promised = _part(account, bounds, decimal(share.minimum) * self.window)
                taken = self.taken.get(account_id)
                total = total + (promised if taken is None else _excess(promised, taken))
        return total

    def _beyond_maximum(self, account: Account, bounds: FilterBounds, under: Account, withheld: RdpCurve) -> RdpCurve:
        """Compute what must be withheld for a budget under the account not to get more than its maximum."""
        share = self.allocation.share_of(under.id)
        if share.maximum >= 1:
            return withheld
        most = _part(account, bounds, decimal(share.maximum) * self.unlocked, up=False)
        left = _excess(most, under.spent + under.held)
        others = _excess(_part(account, bounds, ALL), account.spent + account.held)
        return _excess(others, left)


def with_withheld(account: Account, withheld: RdpCurve) -> Account:
    """Copy an account whose reservations have what is withheld besides."""
    if withheld.is_zero and not any(map(any, withheld.used.values())):
        return account
    exposure = account.exposure
    if exposure is not None:
        exposure = exposure.beside(zero_curve(account.grid_version), withheld)
    return replace(account, held=account.held + withheld, exposure=exposure)


def _part(account: Account, bounds: FilterBounds, part: Fraction, *, up: bool = True) -> RdpCurve:
    """Compute a part of a limit: at the orders of the filter, of the own deltas, and of the plan's steps."""
    whole = ceil if up else floor
    values = np.zeros_like(account.spent.values)
    values[bounds.places] = [whole(part * max(0, int(bound))) for bound in bounds.bounds]
    used = {}
    if account.plan is not None:
        rest = account.plan.workload.capacity(floor(account.plan.bound.steps * (1 - part)) if up else 0)
        most = account.plan.capacity if up else account.plan.workload.capacity(floor(account.plan.bound.steps * part))
        used = {account.id: tuple(each - less for each, less in zip(most, rest, strict=True))}
    return RdpCurve(values, whole(part * bounds.room), used)


def _excess(one: RdpCurve, other: RdpCurve) -> RdpCurve:
    """Compute by how much one curve is above another, at least 0."""
    used = {
        owner: tuple(max(0, each - less) for each, less in zip(counts, other.used.get(owner, counts), strict=True))
        for owner, counts in one.used.items()
    }
    return RdpCurve(np.maximum(one.values - other.values, 0), max(0, one.delta - other.delta), used)


def _larger(one: RdpCurve, other: RdpCurve) -> RdpCurve:
    """Take the larger of two curves at every order."""
    used = {
        owner: tuple(max(each, more) for each, more in zip(counts, other.used.get(owner, counts), strict=True))
        for owner, counts in one.used.items()
    }
    return RdpCurve(np.maximum(one.values, other.values), max(one.delta, other.delta), used)
