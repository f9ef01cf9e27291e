"""What an account withholds from a reservation: the locked part of its limit, and what it has promised to others.

Withheld budget counts like a reservation while another one is admitted, and is never stored. So the rule of admission
stays one, and withholding can only refuse what it would have admitted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.exact_losses import NO_LOSSES, UNBOUNDED_LOSSES
from app.accounting.exact_losses import exact as as_written
from app.ledger.accounts.account import Account, zero_curve
from app.ledger.filter.filters import FilterBounds
from app.ledger.filter.parallel_exposure import Lines, held_of, value
from app.ledger.settings.allocation import ALL, Allocation


@dataclass(frozen=True, slots=True)
class Withholding:
    """What an account withholds now.

    Args:
        allocation: of the account.
        unlocked: usable part of its limit.
        window: part of its limit that the current window has unlocked.
        taken: loss of the reservations that each budget with a share has got in this window, by account id.
    """

    allocation: Allocation
    unlocked: Fraction = ALL
    window: Fraction = ALL
    taken: Mapping[str, RdpCurve] = field(default_factory=dict)

    def view(self, account: Account, path: Sequence[Account]) -> Account:
        """Copy an account with what it withholds from the reservation of a path among its reservations.

        The account has its filter, and the path all accounts that the reservation reaches.
        """
        if account.limit is None or not account.has_filter:
            return account
        bounds = account.bounds()
        under = [each for each in path if each.parent_id == account.id]
        withheld = self._locked(account, bounds) + self._promised(account, bounds, {each.id for each in under})
        lines = [line for each in under for line in self._maximum(account, bounds, each)]
        if not lines and withheld.is_zero and not any(map(any, withheld.used.values())):
            return account
        return _with_withheld(account, withheld, lines)

    def unlocked_view(self, account: Account) -> Account:
        """Copy an account with the locked part of its limit among its reservations."""
        if account.limit is None or not account.has_filter:
            return account
        return _with_withheld(account, self._locked(account, account.bounds()))

    def lasting(self) -> "Withholding":
        """Get what will still be withheld when the whole limit is unlocked: promises, if there is no later window."""
        return replace(self, unlocked=ALL, window=self.window if self.unlocked == ALL else Fraction(0))

    def after(self, path: Sequence[Account], cost: RdpCurve) -> "Withholding":
        """Copy what is withheld after a reservation of a path was granted."""
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
        """Sum what other budgets have not taken of their minimums in this window.

        Of disjoint partitions of which one counts, none takes anything from another.
        """
        total = zero_curve(account.grid_version)
        if account.parts_that_count == 1:
            return total
        for account_id, share in self.allocation.shares.items():
            if share.minimum and account_id not in own:
                promised = _part(account, bounds, as_written(share.minimum) * self.window)
                taken = self.taken.get(account_id)
                total = total + (promised if taken is None else _excess(promised, taken))
        return total

    def _maximum(self, account: Account, bounds: FilterBounds, under: Account) -> list[tuple[int, RdpCurve]]:
        """Compute the lines that keep a budget under the account within its maximum.

        The budget's own lines, moved up until its maximum lies at the account's limit.
        """
        share = self.allocation.share_of(under.id)
        if share.maximum >= 1:
            return []
        most = _part(account, bounds, as_written(share.maximum) * self.unlocked, up=False)
        beyond = _excess(_part(account, bounds, ALL), most)
        return [(slope, base + beyond) for slope, base in lines_of(under).items() if slope]


@dataclass(frozen=True, slots=True)
class LockedLimit:
    """A limit that unlocks.

    Args:
        withholding: of the account, without its shares' part.
        locked: share of its capacity that unlocking all of it would let the account take.
    """

    withholding: Withholding
    locked: float

    @property
    def part(self) -> float:
        """Unlocked part of the limit."""
        return float(self.withholding.unlocked)


def lines_of(account: Account) -> Lines:
    """Get the total loss of an account as a function of a charge, see `ParallelExposure`."""
    return {1: account.spent + account.held} if account.exposure is None else account.exposure.total


def _with_withheld(account: Account, withheld: RdpCurve, lines: Sequence[tuple[int, RdpCurve]] = ()) -> Account:
    """Copy an account whose reservations have besides what is withheld, and lines that it must keep to."""
    exposure = account.exposure
    if exposure is None and not lines:
        kept = _left_of(account, withheld, account.spent + account.held)
        return replace(account, held=account.held + kept)
    total = {slope: base + _left_of(account, withheld, base, slope) for slope, base in lines_of(account).items()}
    whole = _part(account, account.bounds(), ALL)
    most = replace(whole, values=np.full_like(whole.values, EXHAUSTED), exact=UNBOUNDED_LOSSES)
    for slope, line in lines:
        least = _smaller(line, most)
        total[slope] = _larger(total[slope], least) if slope in total else least
    held = held_of(account.spent, value(total))
    return replace(account, held=held, exposure=exposure and replace(exposure, total=total))


def _left_of(account: Account, withheld: RdpCurve, taken: RdpCurve, slope: int = 1) -> RdpCurve:
    """Limit what is withheld to what is left of own deltas and of each mechanism of the plan beside what is taken.

    All of these must hold, and a charge that needs none of one may not be refused for it; nor, at any order, if it adds
    nothing to a line. Any other order may be exceeded, as by charges.
    """
    bounds, plan, values, used, exact = account.bounds(), account.plan, withheld.values, withheld.used, withheld.exact
    if not slope:
        values = values.copy()
        values[bounds.places] = np.minimum(values[bounds.places], np.maximum(bounds.left(taken), 0))
        left = max(0, bounds.most - bounds.exact_loss(taken))
        exact = exact.with_loss(bounds.coordinate, min(bounds.exact_loss(withheld), left))
    if plan is not None:
        columns = zip(used[account.id], plan.capacity, plan.used_by(taken, account.id), strict=True)
        used = {account.id: tuple([min(each, max(0, most - got)) for each, most, got in columns])}
    return RdpCurve(values, min(withheld.delta, max(0, bounds.room - taken.delta)), used, exact)


def _part(account: Account, bounds: FilterBounds, part: Fraction, *, up: bool = True) -> RdpCurve:
    """Compute a part of a limit: at the filter's orders, of own deltas, the plan's coordinates, and the exact loss."""
    above, below, plan = part.numerator, part.denominator, account.plan
    rest = below - 1 if up else 0  # far faster than multiplying fractions
    values = np.zeros_like(account.spent.values)
    values[bounds.places] = [(max(0, most) * above + rest) // below for most in bounds.bounds.tolist()]
    used = {} if plan is None else {account.id: tuple([(most * above + rest) // below for most in plan.capacity])}
    delta, exact = ((most * above + rest) // below for most in (bounds.room, bounds.most))
    return RdpCurve(values, delta, used, NO_LOSSES.with_loss(bounds.coordinate, exact))


def _excess(one: RdpCurve, other: RdpCurve) -> RdpCurve:
    """Compute by how much one curve is above another, at least 0."""
    used = {owner: tuple(max(0, each - less) for each, less in pairs) for owner, pairs in _usage(one, other)}
    delta, exact = max(0, one.delta - other.delta), one.exact.join(other.exact, lambda each, less: max(0, each - less))
    return RdpCurve(np.maximum(one.values - other.values, 0), delta, used, exact)


def _larger(one: RdpCurve, other: RdpCurve) -> RdpCurve:
    """Take the larger of two curves at every order."""
    used = {owner: tuple(max(pair) for pair in pairs) for owner, pairs in _usage(one, other)}
    delta, exact = max(one.delta, other.delta), one.exact.join(other.exact, max)
    return RdpCurve(np.maximum(one.values, other.values), delta, used, exact)


def _smaller(one: RdpCurve, other: RdpCurve) -> RdpCurve:
    """Take the smaller of two curves at every order."""
    used = {owner: tuple(min(pair) for pair in pairs) for owner, pairs in _usage(one, other)}
    delta, exact = min(one.delta, other.delta), one.exact.join(other.exact, min)
    return RdpCurve(np.minimum(one.values, other.values), delta, used, exact)


def _usage(one: RdpCurve, other: RdpCurve) -> Iterator[tuple[str, Iterator[tuple[int, int]]]]:
    """Pair what two curves use up of plans; a curve without a plan's counts uses nothing of it."""
    for owner, counts in {**one.used, **other.used}.items():
        nothing = (0,) * len(counts)
        yield owner, zip(one.used.get(owner, nothing), other.used.get(owner, nothing), strict=True)
