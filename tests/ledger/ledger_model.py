"""One model of a ledger: what each account has lost by the definition, in Python's own integers.

Beside the accounts as `app.ledger` keeps them it has every charge and every hold ever made, and sums them from nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import le

import numpy as np

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.exact_losses import UNBOUNDED_LOSSES, Coordinate, ExactLosses
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.admission.composition import (
    check_several,
    counting_plans,
    exposed,
    recompose,
    require_charged_directly,
    topmost_parallel_under,
)
from app.ledger.errors import InvalidInputError
from app.ledger.filter.limits import Limit, Unit
from app.ledger.filter.parallel_exposure import without
from app.ledger.governance.filter_weights import DECLARED_SHARE, Tuning, weights_under
from app.ledger.governance.limit_changes import with_limit
from app.ledger.step_events import PricedStep, StepEvent

from .conftest import make_account, planning

_weights = cache(weights_under)

Entry = tuple[str, DpEvent, int]
"""Repetitions of an event that a run charges or holds."""

Vector = tuple[int, ...]
PLACES = (0, 130, 400, 900)
"""Orders at which balances of accounts without a limit are compared."""


def limited_to(account: Account, limit: Limit) -> Account:
    """Change an account's limit."""
    return with_limit(account, limit, _weights(Tuning.of(account), limit))


def summed(vectors: Sequence[Vector], size: int, highest: int, most: int | None = None) -> Vector:
    """Sum by coordinate, or only so many of the largest; what does not fit is the highest value."""
    columns = zip((0,) * size, *vectors, strict=True)
    return tuple(min(sum(sorted(column, reverse=True)[:most]), highest) for column in columns)


def most_that(fit: Callable[[int], bool]) -> int:
    """Bisect for the largest number that fits, at most 2^62; -1 if 0 does not."""
    low, high = -1, 1
    while high < 2**62 and fit(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


Terms = tuple[float, float] | tuple[float, float, Unit]
"""Value, delta and maybe unit of a limit."""


@dataclass
class LedgerModel:
    """Accounts as the rules keep them, and every charge and hold ever made."""

    relation: NeighboringRelation
    curves: dict[DpEvent, RdpCurve] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    budgets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    charges: list[Entry] = field(default_factory=list)
    holds: list[Entry] = field(default_factory=list)
    _costs: dict[bytes, Callable[[DpEvent], Vector]] = field(default_factory=dict)

    def open(
        self,
        name: str,
        parent: str | None = None,
        limit: Terms | None = None,
        plan: Sequence[StepEvent] = (),
        partitions: int | None = None,
        share: float = DECLARED_SHARE,
    ) -> None:
        """Open a population, or a budget under an account."""
        account = make_account(*(limit or (1.0, 1e-5)), name=name, limited=limit is not None)
        kind = AccountKind.BUDGET if parent else AccountKind.POPULATION
        account = replace(account, id=name, kind=kind, parent_id=parent, relation=self.relation)
        self._add(replace(account, partitions_per_unit=partitions), self.line(parent), plan, share)

    def register(self, run: str, *budgets: str) -> bool:
        """Register a run, if the rules let one charge these budgets."""
        try:
            for budget in budgets:
                require_charged_directly(self.accounts[budget], budget)
            check_several({budget: self.line(budget) for budget in budgets})
        except InvalidInputError:
            return False
        self.budgets[run] = budgets
        account = replace(make_account(name=run, limited=False), id=run, parent_id=budgets[0], relation=self.relation)
        self._add(account, self._above(run))
        return True

    def _add(
        self, account: Account, above: Sequence[Account], plan: Sequence[StepEvent] = (), share: float = DECLARED_SHARE
    ) -> None:
        account = replace(account, depth=max((each.depth for each in above), default=-1) + 1)
        tuned = account.limit is not None and not account.limit.is_exact
        account = planning(account, *plan, share=share) if plan and tuned else account
        self.accounts[account.id] = counting_plans(account, above)

    def copy(self) -> "LedgerModel":
        """Copy it, to go on from here in another way."""
        return replace(self, accounts=dict(self.accounts), charges=[*self.charges], holds=[*self.holds])

    def line(self, name: str | None) -> list[Account]:
        """List an account under all above it."""
        found: list[Account] = []
        while name is not None:
            found.append(self.accounts[name])
            name = found[-1].parent_id
        return found[::-1]

    def _above(self, run: str) -> list[Account]:
        above = {account.id: account for budget in self.budgets[run] for account in self.line(budget)}
        return sorted(above.values(), key=lambda account: (account.depth, account.id))

    def path(self, run: str) -> tuple[Account, ...]:
        """Get a run's path, each account with how it grows."""
        parts = [account for account in self.accounts.values() if account.kind is not AccountKind.RUN]
        return exposed([*self._above(run), self.accounts[run]], parts)

    def put(self, path: Sequence[Account]) -> None:
        """Store accounts after a charge."""
        self.accounts |= {account.id: replace(account, exposure=None) for account in path}

    def step(self, event: DpEvent, count: int = 1) -> PricedStep:
        """Price an event."""
        return PricedStep(StepEvent(event, count), self.curves[event])

    def settle(self, entry: Entry, executed: int) -> None:
        """End a hold, of which so many repetitions are charged, as `charging.close` does."""
        run, event, _ = entry
        self.holds.remove(entry)
        self.charges += [(run, event, executed)] if executed else []
        path, after = self.path(run), dict[str, Account]()
        for account in reversed(path):
            inner = topmost_parallel_under(path, account)
            if account.partitions_per_unit is not None:
                after[account.id] = recompose(account, [after.get(each.id, each) for each in self._under(account.id)])
                continue
            kept = [(what, count) for other, what, count in self.holds if self._adds(other, account.id)]
            held = sum((self._cost(*each) for each in kept), zero_curve())
            moved = self._cost(event, executed) if executed else zero_curve()
            if inner is not None:
                held = held + after[inner.id].held
                moved = without(after[inner.id].spent, inner.spent)
            after[account.id] = account.settle_hold(moved, held)
        self.put(list(after.values()))

    def _under(self, name: str) -> list[Account]:
        return [account for account in self.accounts.values() if account.parent_id == name]

    def _cost(self, event: DpEvent, count: int) -> RdpCurve:
        planned = {each.id: each.plan.workload.cost(event) for each in self.accounts.values() if each.plan is not None}
        return self.curves[event].using(planned).times(count)

    def value(
        self, name: str, entries: Sequence[Entry], cost: Callable[[DpEvent], Vector], highest: int = EXHAUSTED
    ) -> Vector:
        """Sum from nothing what an account has lost by these entries, at some coordinates of each event's cost."""
        counting, size = self.accounts[name].parts_that_count, len(cost(next(iter(self.curves))))
        if counting is not None:
            parts = [self.value(each.id, entries, cost, highest) for each in self._under(name)]
            return summed(parts, size, highest, counting)
        direct = [(event, count) for run, event, count in entries if self._adds(run, name)]
        own = [tuple(count * each for each in cost(event)) for event, count in direct]
        parallel = (self.value(each, entries, cost, highest) for each in self._topmost(name))
        return summed([*own, *parallel], size, highest)

    def exact(self, name: str, entries: Sequence[Entry]) -> ExactLosses:
        """Sum from nothing the losses of an account that are kept exactly."""
        return ExactLosses(*(self._exact(name, entries, at) for at in Coordinate))

    def _exact(self, name: str, entries: Sequence[Entry], at: Coordinate) -> int:
        [loss] = self.value(name, entries, lambda event: (self.curves[event].exact[at],), UNBOUNDED_LOSSES[at])
        return loss

    def _adds(self, run: str, name: str) -> bool:
        """Whether a run's charges reach an account without passing a parallel one."""
        if run == name:
            return True
        for budget in self.budgets[run]:
            for account in reversed(self.line(budget)):
                if account.partitions_per_unit is not None:
                    break
                if account.id == name:
                    return True
        return False

    def _topmost(self, name: str) -> Iterator[str]:
        for account in self._under(name):
            if account.partitions_per_unit is not None:
                yield account.id
            else:
                yield from self._topmost(account.id)

    def admits(self, account: Account, entries: Sequence[Entry]) -> bool:
        """Apply the rule to all that was charged, is held or is new, under an account's filter and plan."""
        if account.limit is None:
            return True
        gate, plan = account.bounds(), account.plan
        *losses, own = self.value(account.id, entries, self.at(gate.places))
        if own > gate.room:
            return False
        if any(loss <= bound for loss, bound in zip(losses, gate.bounds.tolist(), strict=True)):
            return True
        if self._exact(account.id, entries, gate.coordinate) <= gate.most:
            return True
        return plan is not None and all(map(le, self.value(account.id, entries, plan.workload.cost), plan.capacity))

    def at(self, places: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Callable[[DpEvent], Vector]:
        """Get an event's cost at some orders, and its own delta."""
        key = np.asarray(places).tobytes()
        if key not in self._costs:
            chosen = np.asarray(places)
            costs = {event: (*map(int, each.values[chosen]), each.delta) for event, each in self.curves.items()}
            self._costs[key] = costs.__getitem__
        return self._costs[key]

    def require_balances(self) -> None:
        """Require of every account what the definition says of it: spent, held, and used up of each plan."""
        made = self.charges + self.holds
        for name, account in self.accounts.items():
            places = PLACES if account.limit is None or account.weights is None else account.bounds().places
            total = account.spent + account.held
            for curve, entries in ((account.spent, self.charges), (total, made)):
                found = (*map(int, curve.values[np.asarray(places)]), curve.delta)
                assert found == self.value(name, entries, self.at(places)), name
                assert curve.exact == self.exact(name, entries), name
            for owner, used in account.spent.used.items():
                plan = self.accounts[owner].plan
                if plan is not None:
                    assert used == self.value(name, self.charges, plan.workload.cost), (name, owner)
                    assert total.used[owner] == self.value(name, made, plan.workload.cost), (name, owner)
            if account.partitions_per_unit is not None:
                anew = recompose(account, self._under(name))
                assert (anew.spent, anew.held) == (account.spent, account.held), name
