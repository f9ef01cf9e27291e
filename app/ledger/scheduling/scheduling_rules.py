"""Scheduling rules: the order in which reservations that wait are tried.

- `first_come`: by arrival. - `smallest_share`: the least dominant share first, which is the largest part that a
reservation asks for of a limit, over its
  accounts and their own deltas; of equal ones, the next largest decides. Source: DPF of PrivateKube (Luo et al., OSDI
  2021). There an account's share is the largest over its orders. Here it is the least, that of the order at which the
  reservation fits most often: one order is enough to admit it, and others may have almost no part of delta.
- `most_packed`: the most efficient first, by its weight and the sum of the parts that it asks for of what its accounts
  have left, each at the order at which the most of the reservations that wait fit. Source: DPack (Tholoniat et al.,
  EuroSys 2025, arXiv 2212.13228).

The plan of an account is one more way to be admitted: its part is the largest of its coordinates. Scores are
double-precision quotients of integers, which are the same on every machine; of equal ones the first to arrive is tried
first.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, KeysView, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from app.accounting.exact_losses import quotient
from app.ledger.accounts.account import Account
from app.ledger.filter.filters import FilterBounds
from app.ledger.scheduling.queue import Ledgers, Standing, WaitingReservation, has_only_orders
from app.ledger.settings.allocation import SchedulingRule

Scores = dict[str, tuple[float, ...]]
"""Scores by reservation, the least first."""


class _Demands:
    """What the reservations of one account ask for at the orders of its filter.

    Args:
        bounds: of the account's filter, which is frozen.
        reservations: that wait, in any order.
        matrix: (n_reservations, n_places) int64, units of 2^-44 nats.
        bounded: (n_reservations,) whether the reservation's exact loss is within the limit.
    """

    def __init__(self, bounds: FilterBounds, reservations: Iterable[WaitingReservation]) -> None:
        self.bounds = bounds
        self.reservations = sorted(reservations, key=_arrival)
        self.matrix = np.array([reservation.cost.values[bounds.places] for reservation in self.reservations])
        self.bounded = np.array(
            [bounds.exact_loss(reservation.cost) <= bounds.most for reservation in self.reservations], dtype=bool
        )
        self.weights = np.array([reservation.weight for reservation in self.reservations])

    def add(self, reservation: WaitingReservation) -> None:
        """Add the row of a reservation."""
        row = bisect(self.reservations, _arrival(reservation), key=_arrival)
        self.reservations.insert(row, reservation)
        self.matrix = np.insert(self.matrix, row, reservation.cost.values[self.bounds.places], axis=0)
        self.bounded = np.insert(self.bounded, row, self.bounds.exact_loss(reservation.cost) <= self.bounds.most)
        self.weights = np.insert(self.weights, row, reservation.weight)

    def remove(self, reservation: WaitingReservation) -> None:
        """Remove the row of a reservation."""
        row = self.reservations.index(reservation)
        del self.reservations[row]
        self.matrix = np.delete(self.matrix, row, axis=0)
        self.bounded = np.delete(self.bounded, row)
        self.weights = np.delete(self.weights, row)

    def shares(self, reservations: Sequence[WaitingReservation]) -> NDArray[np.float64]:
        """Compute the part of the limit that reservations ask for, where it is least; (n_reservations,)."""
        usable = self.bounds.bounds > 0
        least = self._exact_shares(reservations)
        if usable.any():
            asked = np.array([reservation.cost.values[self.bounds.places[usable]] for reservation in reservations])
            least = np.minimum(least, (asked / self.bounds.bounds[usable]).min(axis=1))
        of_deltas = [quotient(reservation.cost.delta, self.bounds.room) for reservation in reservations]
        shares: NDArray[np.float64] = np.maximum(least, of_deltas)
        return shares

    def parts(self, reservations: Sequence[WaitingReservation], room: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the part that some ask for of the room at the account's best order; (n_reservations,)."""
        usable = np.flatnonzero(room > 0)
        if not usable.size:
            return self._exact_shares(reservations)
        best = usable[np.argmax(self._packed(usable, room[usable]))]
        place = self.bounds.places[best]
        return np.array([reservation.cost.values[place] for reservation in reservations]) / float(room[best])

    def _exact_shares(self, reservations: Sequence[WaitingReservation]) -> NDArray[np.float64]:
        """Compute the part of the limit that each asks for exactly; (n_reservations,)."""
        losses = [self.bounds.exact_loss(reservation.cost) for reservation in reservations]
        return np.array([self.bounds.exact_share(loss) for loss in losses])

    def _packed(self, places: NDArray[np.intp], room: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the weight of the reservations that fit into the room at some orders; (n_places,).

        Those with the least cost for their weight are first, and of equal ones the first to arrive.
        """
        asked = self.matrix[:, places].astype(np.float64)
        first = np.argsort(asked / self.weights[:, None], axis=0, kind="stable")
        fitting = np.cumsum(asked[first, np.arange(places.size)], axis=0) <= room
        packed: NDArray[np.float64] = np.where(fitting, self.weights[first], 0.0).sum(axis=0)
        return packed

    def may_fit(self, room: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Check which reservations fit into the room at some order, or may exactly; (n_reservations,)."""
        fitting: NDArray[np.bool_] = np.less_equal(self.matrix, room).any(axis=1) | self.bounded
        return fitting


class Line:
    """The reservations that wait under one rule.

    Args:
        rule: which of them is tried first.
        aging: time after which a reservation is tried before all younger ones; None: never.
    """

    def __init__(self, rule: SchedulingRule, aging: timedelta | None = None) -> None:
        self.rule = rule
        self.aging = aging
        self.reservations: dict[str, WaitingReservation] = {}
        self._through: dict[str, dict[str, WaitingReservation]] = {}
        self._demands: dict[str, _Demands] = {}

    def add(self, reservation: WaitingReservation) -> None:
        """Let a reservation wait."""
        assert reservation.id not in self.reservations, "a reservation waits once"
        self.reservations[reservation.id] = reservation
        for account_id in reservation.path:
            self._through.setdefault(account_id, {})[reservation.id] = reservation
            if account_id in self._demands:
                self._demands[account_id].add(reservation)

    def remove(self, reservation_id: str) -> None:
        """Remove a reservation that waits no longer."""
        reservation = self.reservations.pop(reservation_id)
        for account_id in reservation.path:
            others = self._through[account_id]
            del others[reservation_id]
            if not others:
                del self._through[account_id]
                self._demands.pop(account_id, None)
            elif account_id in self._demands:
                self._demands[account_id].remove(reservation)

    @property
    def accounts(self) -> KeysView[str]:
        """Ids of the accounts that its reservations would charge."""
        return self._through.keys()

    def through(self, account_ids: Iterable[str]) -> list[WaitingReservation]:
        """List the reservations that would charge some of the accounts."""
        found: dict[str, WaitingReservation] = {}
        for account_id in account_ids:
            found |= self._through.get(account_id, {})
        return list(found.values())

    def aged(self, now: datetime) -> list[Standing]:
        """List the reservations that no younger one may delay, in their order."""
        if self.aging is None:
            return []
        before = now - self.aging
        old = [
            Standing(reservation, aged=True, score=())
            for reservation in self.reservations.values()
            if reservation.arrived_at <= before
        ]
        return sorted(old, key=lambda each: each.key)

    def order(self, reservations: Sequence[WaitingReservation], ledgers: Ledgers, now: datetime) -> list[Standing]:
        """Sort reservations of this line in the order in which they are tried."""
        before = None if self.aging is None else now - self.aging
        scores = self.scores(reservations, ledgers)
        standings = []
        for reservation in reservations:
            aged = before is not None and reservation.arrived_at <= before
            standings.append(Standing(reservation, aged, () if aged else scores[reservation.id]))
        return sorted(standings, key=lambda each: each.key)

    def candidates(
        self, ledgers: Ledgers, account_ids: Iterable[str], aged: Sequence[Standing] = ()
    ) -> list[WaitingReservation]:
        """List the reservations through changed accounts, without those that surely do not fit into them.

        Args:
            ledgers: the current accounts.
            account_ids: of accounts that have changed, and of those of reservations that wait no longer.
            aged: as `aged` lists them. One through a changed account may be hopeless now, and delay nobody any more;
                so the reservations through its other accounts above its run are listed, too.
        """
        changed = set(account_ids)
        reached = changed.union(
            *(each.reservation.path[:-1] for each in aged if not changed.isdisjoint(each.reservation.path))
        )
        reservations = self.through(sorted(reached))
        excluded: set[str] = set()
        for account_id in reached & self._through.keys():
            account = ledgers.accounts[account_id]
            demands = self._demands_at(account)
            if demands is None or not has_only_orders(account):
                continue
            fitting = demands.may_fit(ledgers.room(account))
            excluded.update(demands.reservations[row].id for row in np.flatnonzero(~fitting))
        return [
            reservation
            for reservation in reservations
            if reservation.id not in excluded or ledgers.is_composed(reservation)
        ]

    def scores(self, reservations: Sequence[WaitingReservation], ledgers: Ledgers) -> Scores:
        """Compute the scores of reservations; all reservations of the line compete for their accounts."""
        if self.rule is SchedulingRule.FIRST_COME:
            return {reservation.id: () for reservation in reservations}
        if self.rule is SchedulingRule.SMALLEST_SHARE:
            shares = self._parts(reservations, ledgers, lambda _, demands, asking: demands.shares(asking))
            return {
                reservation.id: tuple(
                    sorted((each / reservation.weight for each in shares[reservation.id]), reverse=True)
                )
                for reservation in reservations
            }
        parts = self._parts(
            reservations, ledgers, lambda account, demands, asking: demands.parts(asking, ledgers.room(account))
        )
        return {reservation.id: (sum(parts[reservation.id]) / reservation.weight,) for reservation in reservations}

    def _parts(
        self,
        reservations: Sequence[WaitingReservation],
        ledgers: Ledgers,
        parts: Callable[[Account, _Demands, Sequence[WaitingReservation]], NDArray[np.float64]],
    ) -> dict[str, list[float]]:
        """Compute what reservations ask for of each account above their runs, sorted by the accounts' ids.

        `parts` computes it for some reservations of an account; a filter that is not frozen yet, or a plan of the
        account, makes it a matter of each single reservation.
        """
        asking: dict[str, list[WaitingReservation]] = {}
        for reservation in reservations:
            for account_id in reservation.path[:-1]:
                asking.setdefault(account_id, []).append(reservation)
        found: dict[str, list[float]] = {reservation.id: [] for reservation in reservations}
        for account_id in sorted(asking):
            account, some = ledgers.accounts[account_id], asking[account_id]
            demands = self._demands_at(account)
            if demands is None or account.plan is not None:
                asked = [_share(account, reservation) for reservation in some]
            else:
                asked = parts(account, demands, some).tolist()
            for reservation, part in zip(some, asked, strict=True):
                found[reservation.id].append(part)
        return found

    def _demands_at(self, account: Account) -> _Demands | None:
        """Get what the reservations of an account ask for at its orders; None while its filter is not frozen."""
        if account.limit is None or not account.has_filter:
            return None
        known, bounds = self._demands.get(account.id), account.bounds()
        if known is None or known.bounds is not bounds:
            known = self._demands[account.id] = _Demands(bounds, self._through[account.id].values())
        return known


def _arrival(reservation: WaitingReservation) -> tuple[datetime, str]:
    return reservation.arrived_at, reservation.id


def _share(account: Account, reservation: WaitingReservation) -> float:
    """Compute the part of an account's limit, or of its plan, that a reservation asks for, where it is least."""
    own = account.prepared_for(reservation.steps, held=True)
    if not own.has_filter:
        return 0.0
    share = float(_Demands(own.bounds(), [reservation]).shares([reservation])[0])
    if own.plan is None:
        return share
    return max(min(share, _usage(own, reservation)), quotient(reservation.cost.delta, own.bounds().room))


def _usage(account: Account, reservation: WaitingReservation) -> float:
    """Compute the largest part of the coordinates of an account's plan that a waiting reservation uses up."""
    own = account.plan
    assert own is not None, "it was looked for"
    cost = [0] * len(own.capacity)
    for priced in reservation.steps:
        for place, each in enumerate(own.workload.cost(priced.step.event)):
            cost[place] += each * priced.step.count
    return max(quotient(used, most) for used, most in zip(cost, own.capacity, strict=True))
