"""Scheduling rules: the order in which plans that wait are tried.

- `first_come`: by arrival.
- `smallest_share`: the least dominant share first, which is the largest part that a plan asks for of a limit, over its
  accounts and their own deltas; of equal ones, the next largest decides. Source: DPF of PrivateKube (Luo et al., OSDI
  2021). There an account's share is the largest over its orders. Here it is the least, that of the order at which the
  plan fits most often: one order is enough to admit it, and others may have almost no part of delta.
- `most_packed`: the most efficient first, by its weight and the sum of the parts that it asks for of what its accounts
  have left, each at the order at which the most of the plans that wait fit. Source: DPack (Tholoniat et al., EuroSys
  2025, arXiv 2212.13228).

The plan of an account is one more way to be admitted: its part is the largest of its coordinates. Scores are
double-precision quotients of integers, which are the same on every machine; of equal ones the first to arrive is tried
first.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, KeysView, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import quotient
from app.ledger.accounts.account import Account
from app.ledger.filter.filters import FilterBounds
from app.ledger.scheduling.queue import Books, Standing, WaitingReservation, has_only_orders
from app.ledger.settings.allocation import SchedulingRule

Scores = dict[str, tuple[float, ...]]
"""Scores by plan, the least first."""


class _Demands:
    """What the plans of one account ask for at the orders of its filter.

    Args:
        bounds: of the account's filter, which is frozen.
        plans: that wait, in any order.
        matrix: (n_plans, n_places) int64, units of 2^-44 nats.
        bounded: (n_plans,) whether the plan's pure loss is within the limit.
    """

    def __init__(self, bounds: FilterBounds, plans: Iterable[WaitingReservation]) -> None:
        self.bounds = bounds
        self.plans = sorted(plans, key=_arrival)
        self.matrix = np.array([plan.cost.values[bounds.places] for plan in self.plans])
        self.bounded = np.array([plan.cost.pure <= bounds.pure for plan in self.plans], dtype=bool)
        self.weights = np.array([plan.weight for plan in self.plans])

    def add(self, plan: WaitingReservation) -> None:
        """Add the row of a plan."""
        row = bisect(self.plans, _arrival(plan), key=_arrival)
        self.plans.insert(row, plan)
        self.matrix = np.insert(self.matrix, row, plan.cost.values[self.bounds.places], axis=0)
        self.bounded = np.insert(self.bounded, row, plan.cost.pure <= self.bounds.pure)
        self.weights = np.insert(self.weights, row, plan.weight)

    def remove(self, plan: WaitingReservation) -> None:
        """Remove the row of a plan."""
        row = self.plans.index(plan)
        del self.plans[row]
        self.matrix = np.delete(self.matrix, row, axis=0)
        self.bounded = np.delete(self.bounded, row)
        self.weights = np.delete(self.weights, row)

    def shares(self, plans: Sequence[WaitingReservation]) -> NDArray[np.float64]:
        """Compute the part of the limit that plans ask for, in the way in which it is least; (n_plans,)."""
        usable = self.bounds.bounds > 0
        least = np.array([self.bounds.pure_share(plan.cost.pure) for plan in plans])
        if usable.any():
            asked = np.array([plan.cost.values[self.bounds.places[usable]] for plan in plans])
            least = np.minimum(least, (asked / self.bounds.bounds[usable]).min(axis=1))
        of_deltas = [quotient(plan.cost.delta, self.bounds.room) for plan in plans]
        shares: NDArray[np.float64] = np.maximum(least, of_deltas)
        return shares

    def parts(self, plans: Sequence[WaitingReservation], room: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the part that some plans ask for of the room at the account's best order; (n_plans,)."""
        usable = np.flatnonzero(room > 0)
        if not usable.size:
            return np.full(len(plans), np.inf)
        best = usable[np.argmax(self._packed(usable, room[usable]))]
        place = self.bounds.places[best]
        return np.array([plan.cost.values[place] for plan in plans]) / float(room[best])

    def _packed(self, places: NDArray[np.intp], room: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the weight of the plans that fit into the room at some orders; (n_places,).

        Those with the least cost for their weight are first, and of equal ones the first to arrive.
        """
        asked = self.matrix[:, places].astype(np.float64)
        first = np.argsort(asked / self.weights[:, None], axis=0, kind="stable")
        fitting = np.cumsum(asked[first, np.arange(places.size)], axis=0) <= room
        packed: NDArray[np.float64] = np.where(fitting, self.weights[first], 0.0).sum(axis=0)
        return packed

    def may_fit(self, room: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Check which plans fit into the room at some order, or may purely; (n_plans,)."""
        fitting: NDArray[np.bool_] = np.less_equal(self.matrix, room).any(axis=1) | self.bounded
        return fitting


class Line:
    """The plans that wait under one rule.

    Args:
        rule: which of them is tried first.
        aging: time after which a plan is tried before all younger ones; None: never.
    """

    def __init__(self, rule: SchedulingRule, aging: timedelta | None = None) -> None:
        self.rule = rule
        self.aging = aging
        self.plans: dict[str, WaitingReservation] = {}
        self._through: dict[str, dict[str, WaitingReservation]] = {}
        self._demands: dict[str, _Demands] = {}

    def add(self, plan: WaitingReservation) -> None:
        """Let a plan wait."""
        assert plan.id not in self.plans, "a plan waits once"
        self.plans[plan.id] = plan
        for account_id in plan.path:
            self._through.setdefault(account_id, {})[plan.id] = plan
            if account_id in self._demands:
                self._demands[account_id].add(plan)

    def remove(self, plan_id: str) -> None:
        """Remove a plan that waits no longer."""
        plan = self.plans.pop(plan_id)
        for account_id in plan.path:
            others = self._through[account_id]
            del others[plan_id]
            if not others:
                del self._through[account_id]
                self._demands.pop(account_id, None)
            elif account_id in self._demands:
                self._demands[account_id].remove(plan)

    @property
    def accounts(self) -> KeysView[str]:
        """Ids of the accounts that its plans would charge."""
        return self._through.keys()

    def through(self, account_ids: Iterable[str]) -> list[WaitingReservation]:
        """List the plans that would charge some of the accounts."""
        found: dict[str, WaitingReservation] = {}
        for account_id in account_ids:
            found |= self._through.get(account_id, {})
        return list(found.values())

    def aged(self, now: datetime) -> list[Standing]:
        """List the plans that no younger one may delay, in their order."""
        if self.aging is None:
            return []
        before = now - self.aging
        old = [Standing(plan, True, ()) for plan in self.plans.values() if plan.arrived_at <= before]  # noqa: FBT003
        return sorted(old, key=lambda each: each.key)

    def order(self, plans: Sequence[WaitingReservation], books: Books, now: datetime) -> list[Standing]:
        """Sort plans of this line in the order in which they are tried."""
        before = None if self.aging is None else now - self.aging
        scores = self.scores(plans, books)
        standings = []
        for plan in plans:
            aged = before is not None and plan.arrived_at <= before
            standings.append(Standing(plan, aged, () if aged else scores[plan.id]))
        return sorted(standings, key=lambda each: each.key)

    def candidates(
        self, books: Books, account_ids: Iterable[str], aged: Sequence[Standing] = ()
    ) -> list[WaitingReservation]:
        """List the plans through changed accounts, without those that surely do not fit into what these have left.

        Args:
            books: the current accounts.
            account_ids: of accounts that have changed, and of those of plans that wait no longer.
            aged: as `aged` lists them. One through a changed account may be hopeless now, and delay nobody any more;
                so the plans through its other accounts above its run are listed, too.
        """
        changed = set(account_ids)
        reached = changed.union(*(each.plan.path[:-1] for each in aged if not changed.isdisjoint(each.plan.path)))
        plans = self.through(sorted(reached))
        excluded: set[str] = set()
        for account_id in reached & self._through.keys():
            account = books.accounts[account_id]
            demands = self._demands_at(account)
            if demands is None or not has_only_orders(account):
                continue
            fitting = demands.may_fit(books.room(account))
            excluded.update(demands.plans[row].id for row in np.flatnonzero(~fitting))
        return [plan for plan in plans if plan.id not in excluded or books.is_composed(plan)]

    def scores(self, plans: Sequence[WaitingReservation], books: Books) -> Scores:
        """Compute the scores of plans; all plans of the line compete for their accounts."""
        if self.rule is SchedulingRule.FIRST_COME:
            return {plan.id: () for plan in plans}
        if self.rule is SchedulingRule.SMALLEST_SHARE:
            shares = self._parts(plans, books, lambda _, demands, asking: demands.shares(asking))
            return {
                plan.id: tuple(sorted((each / plan.weight for each in shares[plan.id]), reverse=True)) for plan in plans
            }
        parts = self._parts(plans, books, lambda account, demands, asking: demands.parts(asking, books.room(account)))
        return {plan.id: (sum(parts[plan.id]) / plan.weight,) for plan in plans}

    def _parts(
        self,
        plans: Sequence[WaitingReservation],
        books: Books,
        parts: Callable[[Account, _Demands, Sequence[WaitingReservation]], NDArray[np.float64]],
    ) -> dict[str, list[float]]:
        """Compute what plans ask for of each account above their runs, sorted by the accounts' ids.

        `parts` computes it for some plans of an account; a filter that is not frozen yet, or a plan of the account,
        makes it a matter of each single plan.
        """
        asking: dict[str, list[WaitingReservation]] = {}
        for plan in plans:
            for account_id in plan.path[:-1]:
                asking.setdefault(account_id, []).append(plan)
        found: dict[str, list[float]] = {plan.id: [] for plan in plans}
        for account_id in sorted(asking):
            account, some = books.accounts[account_id], asking[account_id]
            demands = self._demands_at(account)
            if demands is None or account.plan is not None:
                asked = [_share(account, plan) for plan in some]
            else:
                asked = parts(account, demands, some).tolist()
            for plan, part in zip(some, asked, strict=True):
                found[plan.id].append(part)
        return found

    def _demands_at(self, account: Account) -> _Demands | None:
        """Get what the plans of an account ask for at its orders; None while its filter is not frozen."""
        if account.limit is None or account.weights is None:
            return None
        known, bounds = self._demands.get(account.id), account.bounds()
        if known is None or known.bounds is not bounds:
            known = self._demands[account.id] = _Demands(bounds, self._through[account.id].values())
        return known


def _arrival(plan: WaitingReservation) -> tuple[datetime, str]:
    return plan.arrived_at, plan.id


def _share(account: Account, plan: WaitingReservation) -> float:
    """Compute the part of an account's limit, or of its plan, that a plan asks for in the way in which it is least."""
    own = account.prepared_for(plan.steps, held=True)
    if own.weights is None:
        return 0.0
    share = float(_Demands(own.bounds(), [plan]).shares([plan])[0])
    if own.plan is None:
        return share
    return max(min(share, _usage(own, plan)), quotient(plan.cost.delta, own.bounds().room))


def _usage(account: Account, plan: WaitingReservation) -> float:
    """Compute the largest part of the coordinates of an account's plan that a waiting plan uses up."""
    own = account.plan
    assert own is not None, "it was looked for"
    cost = [0] * len(own.capacity)
    for priced in plan.steps:
        for place, each in enumerate(own.workload.cost(priced.step.event)):
            cost[place] += each * priced.step.count
    return max(quotient(used, most) for used, most in zip(cost, own.capacity, strict=True))
