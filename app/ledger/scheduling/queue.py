"""Scheduling: which of the reservations that wait gets the budget that is left (ADR 0041).

A reservation is granted as a whole, by the rule of admission, the moment that every account of its path admits it. A
scheduling rule only says in which order the waiting reservations are tried. It looks at declared plans, limits,
balances and times, never at data or outputs, so it costs no privacy.

A reservation that has waited for longer than an aging time is tried before all younger ones, and no other is granted
that takes what it lacks, unless its priority is higher. So no rule with an aging time starves a reservation that could
be granted without a higher limit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import RdpCurve
from app.ledger.accounts.account import Account, with_usage, zero_curve
from app.ledger.admission.admission import hold_if_fitting, prepared_path, short_accounts
from app.ledger.admission.composition import exposed
from app.ledger.scheduling.withholding import Withholding, lines_of
from app.ledger.step_events import PricedStep, total_cost


@dataclass(frozen=True, slots=True, eq=False)
class WaitingReservation:
    """A reservation that waits to be set aside.

    Args:
        path: ids of the run's account and all above it, by depth and id.
        steps: with their costs; at least one.
        arrived_at: when it began to wait.
        priority: reservations with a higher one are tried first; 0 unless the privacy office has set another.
        weight: of its budget, see `Share`.
    """

    id: str
    path: tuple[str, ...]
    steps: tuple[PricedStep, ...]
    arrived_at: datetime
    priority: int = 0
    weight: float = 1.0
    cost: RdpCurve = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Sum its cost."""
        object.__setattr__(self, "cost", total_cost(self.steps))


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a waiting reservation in the order of a rule.

    Args:
        aged: whether it has waited so long that no younger reservation may delay it.
        score: by the rule, the least first; empty by `first_come`.
    """

    reservation: WaitingReservation
    aged: bool
    score: tuple[float, ...]

    @property
    def key(self) -> tuple[int, bool, tuple[float, ...], datetime, str]:
        """Sort key: priority, age, score, arrival. The aged are sorted by arrival."""
        return (-self.reservation.priority, not self.aged, self.score, self.reservation.arrived_at, self.reservation.id)


@dataclass(frozen=True, slots=True)
class Grant:
    """A reservation that is granted.

    Args:
        held: the accounts of its path with its reservation.
        overtaken: the reservations tried before it that go on waiting.
    """

    standing: Standing
    held: tuple[Account, ...]
    overtaken: tuple[Standing, ...]


class Ledgers:
    """The accounts that waiting reservations would charge, as they are and as grants change them.

    Args:
        accounts: by id, with all children of parallel ones.
        withholdings: of the accounts with an allocation, by id.
        is_open: whether an account may be charged now.
    """

    def __init__(
        self,
        accounts: Mapping[str, Account],
        withholdings: Mapping[str, Withholding] | None = None,
        is_open: Callable[[Account], bool] = lambda _: True,
    ) -> None:
        self.accounts = dict(accounts)
        self.withholdings = dict(withholdings or {})
        self.is_open = is_open
        self._rooms: dict[str, tuple[Account, Withholding | None, NDArray[np.int64]]] = {}
        self._parts: dict[str, list[str]] = {
            each.id: [] for each in self.accounts.values() if each.partitions_per_unit is not None
        }
        for each in self.accounts.values() if self._parts else ():
            if each.parent_id in self._parts:
                self._parts[each.parent_id].append(each.id)

    def path(
        self, reservation: WaitingReservation, change: Callable[[Account], Account] | None = None
    ) -> tuple[Account, ...]:
        """Get the accounts of a reservation, maybe changed, with their exposure to it."""
        path = [self.accounts[each] for each in reservation.path]
        parts = [self.accounts[part] for each in path for part in self._parts.get(each.id, ())]
        if change is not None:
            path, parts = list(map(change, path)), list(map(change, parts))
        return exposed(path, parts) if parts else tuple(path)

    def views(self, accounts: Sequence[Account]) -> Iterator[Account]:
        """Add what the accounts of a path withhold from it, one after the other: the first refusal ends it."""
        return self._views(accounts, lambda withholding: withholding)

    def _views(self, accounts: Sequence[Account], change: Callable[[Withholding], Withholding]) -> Iterator[Account]:
        for account in accounts:
            withholding = self.withholdings.get(account.id)
            yield account if withholding is None else change(withholding).view(account, accounts)

    def room(self, account: Account) -> NDArray[np.int64]:
        """Compute what an account has left at the orders of its filter without its locked part; (n_places,)."""
        withholding = self.withholdings.get(account.id)
        known = self._rooms.get(account.id)
        if known is None or known[0] is not account or known[1] is not withholding:
            unlocked = account if withholding is None else withholding.unlocked_view(account)
            known = self._rooms[account.id] = account, withholding, unlocked.headroom(account.bounds())
        return known[2]

    def may_fit(self, reservation: WaitingReservation) -> bool:
        """Check in little time whether no account surely refuses a reservation."""
        if self.is_composed(reservation):
            return True
        for account in map(self.accounts.__getitem__, reservation.path):
            if has_only_orders(account):
                gate = account.bounds()
                by_orders = (reservation.cost.values[gate.places] <= self.room(account)).any()
                if not by_orders and gate.exact_loss(reservation.cost) > gate.most:
                    return False
        return True

    def is_composed(self, reservation: WaitingReservation) -> bool:
        """Check whether a reservation reaches a parallel account, so that accounts do not grow by its cost."""
        return not self._parts.keys().isdisjoint(reservation.path)

    def hold(self, reservation: WaitingReservation) -> tuple[Account, ...] | None:
        """Hold a reservation on all of its accounts, without storing it; None if one of them refuses."""
        if not self.may_fit(reservation):
            return None
        path = self.path(reservation)
        if not all(map(self.is_open, path)):
            return None
        return hold_if_fitting(path, reservation.steps, self.views)

    def seen_by(self, reservation: WaitingReservation) -> tuple[Sequence[Account], RdpCurve]:
        """Get the accounts of a reservation with what they withhold from it, and its cost."""
        accounts, cost = prepared_path(self.path(reservation), reservation.steps)
        return tuple(self.views(accounts)), cost

    def is_hopeless(self, reservation: WaitingReservation) -> bool:
        """Check whether a reservation would not fit even if all others were returned and the whole limits unlocked.

        So is a reservation with a closed account, until that opens.
        """
        path = self.path(reservation, unreserved)
        if not all(map(self.is_open, path)):
            return True
        return hold_if_fitting(path, reservation.steps, lambda each: self._views(each, Withholding.lasting)) is None

    def store(self, reservation: WaitingReservation, held: Iterable[Account]) -> None:
        """Store the accounts of a granted reservation."""
        path = [replace(account, exposure=None) for account in held]
        self.accounts.update((account.id, account) for account in path)
        for account in path:
            withholding = self.withholdings.get(account.id)
            if withholding is not None and withholding.allocation.shares:
                cost = total_cost(with_usage(path, reservation.steps))
                self.withholdings[account.id] = withholding.after(path, cost)


def has_only_orders(account: Account) -> bool:
    """Check whether an account admits by its frozen filter alone: by its orders and the pure loss, and own deltas."""
    return account.limit is not None and account.has_filter and account.plan is None


def never_fits(
    path: Sequence[Account], steps: Sequence[PricedStep], withholdings: Mapping[str, Withholding] | None = None
) -> bool:
    """Check whether a path could not hold a reservation even if nothing was charged, and all were unlocked."""
    lasting = {each: withholding.lasting() for each, withholding in (withholdings or {}).items()}
    return bool(short_accounts(list(map(_uncharged, path)), steps, Ledgers({}, lasting).views))


def _uncharged(account: Account) -> Account:
    bare = unreserved(account)
    used = {owner: (0,) * len(each) for owner, each in bare.spent.used.items()}
    return replace(bare, spent=zero_curve(bare.grid_version).using(used), exposure=None)


def unreserved(account: Account) -> Account:
    """Copy an account without its reservations."""
    zero = zero_curve(account.grid_version)
    return replace(account, held=zero.using({owner: (0,) * len(each) for owner, each in account.held.used.items()}))


def schedule(order: Sequence[Standing], aged: Sequence[Standing], ledgers: Ledgers) -> Iterator[Grant]:
    """Grant the reservations that fit, one after the other, in an order; the ledgers are changed.

    A single pass is enough: a grant never makes room for another reservation.

    Args:
        order: the reservations that may fit now, by `Standing.key`.
        aged: all reservations that no younger one may delay, in the same order; they need not be in the first.
        ledgers: the current accounts.
    """
    overtaken: list[Standing] = []
    granted: set[str] = set()
    for standing in order:
        held = ledgers.hold(standing.reservation)
        waiting = (each for each in aged if each.reservation.id not in granted)
        if held is None or _delays(standing, waiting, ledgers, held):
            overtaken.append(standing)
            continue
        ledgers.store(standing.reservation, held)
        granted.add(standing.reservation.id)
        yield Grant(standing, held, tuple(overtaken))


def _delays(standing: Standing, aged: Iterable[Standing], ledgers: Ledgers, held: Sequence[Account]) -> bool:
    """Check whether a grant would take what an aged reservation before it lacks, or would lack then."""
    after: Ledgers | None = None
    for other in aged:
        if other.key >= standing.key:
            return False
        shared = set(other.reservation.path) & set(standing.reservation.path)
        if not shared:
            continue
        if after is None:
            after = Ledgers(ledgers.accounts, ledgers.withholdings)
            after.store(standing.reservation, held)
        if _takes_from(other.reservation, shared, ledgers, after) and not ledgers.is_hopeless(other.reservation):
            return True
    return False


def _takes_from(reservation: WaitingReservation, shared: set[str], before: Ledgers, after: Ledgers) -> bool:
    """Check whether one of the shared accounts refuses a reservation after a grant, and has less for it than before.

    It has no less if the grant was promised, or is in a disjoint partition.
    """
    were = {each.id: each for each in before.seen_by(reservation)[0]}
    now, cost = after.seen_by(reservation)
    return any(each.id in shared and not each.fits(cost) and _has_less(each, were[each.id]) for each in now)


def _has_less(account: Account, before: Account) -> bool:
    """Check whether an account has less left than before at an order, or exactly, for own deltas or of its plan."""
    if account.weights != before.weights:
        return True
    gate = before.bounds()
    if account.delta_left(gate) < before.delta_left(gate):
        return True
    if account.limit is not None and account.limit.is_exact:
        return account.exact_left(gate) < before.exact_left(gate)
    if np.less(account.headroom(gate), before.headroom(gate)).any():
        return True
    used, were = (
        [line.used.get(account.id) for slope, line in lines_of(each).items() if slope] for each in (account, before)
    )
    return used != were
