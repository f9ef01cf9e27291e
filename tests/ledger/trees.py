"""Random trees of accounts over a handful of orders, and what the definition makes of their charges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import NeighboringRelation
from app.ledger.accounts import Account, AccountKind
from app.ledger.composition import check_several, exposed, require_charged_directly
from app.ledger.errors import InvalidInputError

ORDERS = 3
Cost = tuple[int, ...]
"""A curve over so many orders, and its own delta behind it."""


def curve_of(cost: Cost) -> RdpCurve:
    return RdpCurve(np.array(cost[:-1], dtype=np.int64), cost[-1])


def cost_of(curve: RdpCurve) -> Cost:
    return (*(int(value) for value in curve.values), curve.delta)


def summed(costs: Sequence[Cost]) -> Cost:
    """The sum by Python's own integers; what does not fit is exhausted."""
    return tuple(min(sum(column), EXHAUSTED) for column in zip((0,) * (ORDERS + 1), *costs, strict=True))


def most_of(costs: Sequence[Cost], most: int) -> Cost:
    """The sum of the largest at every coordinate."""
    columns = zip((0,) * (ORDERS + 1), *costs, strict=True)
    return tuple(min(sum(sorted(column, reverse=True)[:most]), EXHAUSTED) for column in columns)


@dataclass
class Tree:
    """Accounts as the rules keep them, and every charge and hold ever made."""

    accounts: dict[str, Account] = field(default_factory=dict)
    budgets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    charges: list[tuple[str, Cost]] = field(default_factory=list)
    holds: list[tuple[str, Cost]] = field(default_factory=list)

    def open(self, name: str, parent: str | None, partitions: int | None, relation: NeighboringRelation) -> None:
        above = self.accounts[parent] if parent else None
        zero = RdpCurve.zero(ORDERS)
        self.accounts[name] = Account(
            id=name,
            kind=AccountKind.BUDGET if parent else AccountKind.POPULATION,
            parent_id=parent,
            population_id=above.population_id if above else name,
            name=name,
            path=name,
            depth=above.depth + 1 if above else 0,
            relation=relation,
            limit=None,
            planned=(),
            weights=None,
            spent=zero,
            held=zero,
            partitions_per_unit=partitions,
        )

    def register(self, name: str, budgets: Sequence[str]) -> bool:
        """Register a run, if the rules let one charge these budgets."""
        try:
            for budget in budgets:
                require_charged_directly(self.accounts[budget], budget)
            check_several({budget: self.line(budget) for budget in budgets})
        except InvalidInputError:
            return False
        above = [account for budget in budgets for account in self.line(budget)]
        first = self.accounts[budgets[0]]
        depth = max(account.depth for account in above) + 1
        zero = RdpCurve.zero(ORDERS)
        self.accounts[name] = replace(
            first, id=name, kind=AccountKind.RUN, parent_id=first.id, depth=depth, spent=zero, held=zero
        )
        self.budgets[name] = tuple(budgets)
        return True

    def line(self, name: str) -> list[Account]:
        """An account under all above it."""
        found: list[Account] = []
        at: str | None = name
        while at is not None:
            found.append(self.accounts[at])
            at = found[-1].parent_id
        return found[::-1]

    def path(self, run: str) -> tuple[Account, ...]:
        """A run's path, each account with how it grows."""
        above = {account.id: account for budget in self.budgets[run] for account in self.line(budget)}
        order = sorted(above.values(), key=lambda account: (account.depth, account.id))
        parts = [account for account in self.accounts.values() if account.kind is not AccountKind.RUN]
        return exposed([*order, self.accounts[run]], parts)

    def put(self, path: Sequence[Account]) -> None:
        self.accounts |= {account.id: replace(account, exposure=None) for account in path}

    def charge(self, run: str, cost: Cost) -> None:
        self.put([account.charged(curve_of(cost)) for account in self.path(run)])
        self.charges.append((run, cost))

    def hold(self, run: str, cost: Cost) -> None:
        self.put([account.with_hold(curve_of(cost)) for account in self.path(run)])
        self.holds.append((run, cost))

    def value(self, name: str, charges: Sequence[tuple[str, Cost]]) -> Cost:
        """The definition: what an account has lost by these charges, recomputed from nothing."""
        account = self.accounts[name]
        if account.kind is AccountKind.RUN:
            return summed([cost for run, cost in charges if run == name])
        children = [each.id for each in self.accounts.values() if each.parent_id == name and self._is_budget(each)]
        if account.parts_that_count is not None:
            return most_of([self.value(child, charges) for child in children], account.parts_that_count)
        direct = [cost for run, cost in charges if self._adds(run, name)]
        return summed([*direct, *(self.value(part, charges) for part in self._topmost(name))])

    def _is_budget(self, account: Account) -> bool:
        return account.kind is AccountKind.BUDGET

    def _adds(self, run: str, name: str) -> bool:
        """Whether a run's charges reach an account without passing a parallel one."""
        for budget in self.budgets[run]:
            for account in reversed(self.line(budget)):
                if account.partitions_per_unit is not None:
                    break
                if account.id == name:
                    return True
        return False

    def _topmost(self, name: str) -> Iterator[str]:
        for account in list(self.accounts.values()):
            if account.parent_id == name and self._is_budget(account):
                if account.partitions_per_unit is not None:
                    yield account.id
                else:
                    yield from self._topmost(account.id)


amounts = st.one_of(st.integers(0, 9), st.integers(EXHAUSTED // 3, EXHAUSTED // 2), st.just(EXHAUSTED))
costs = st.tuples(*[amounts] * ORDERS, st.integers(0, 5))
small_costs = st.tuples(*[st.integers(0, 9)] * ORDERS, st.integers(0, 3))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Up to two populations with budgets, parallel or not, and runs that charge one budget or several."""
    tree = Tree()
    relation = draw(st.sampled_from(NeighboringRelation))
    partitions = st.sampled_from([None, None, 1, 2, 3])
    names = []
    for root in range(draw(st.integers(1, 2))):
        tree.open(f"p{root}", None, draw(partitions), relation)
        names.append(f"p{root}")
    for number in range(draw(st.integers(2, 9))):
        parent = draw(st.sampled_from(names))
        tree.open(f"b{number}", parent, draw(partitions), relation)
        names.append(f"b{number}")
    for name in [name for name in names if tree.accounts[name].partitions_per_unit is not None]:
        tree.open(f"{name}_part", name, None, relation)
        names.append(f"{name}_part")
    leaves = [name for name in names if tree.accounts[name].partitions_per_unit is None and tree.accounts[name].depth]
    for number in range(draw(st.integers(1, 5))):
        if leaves:
            wanted = draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=3, unique=True))
            if not tree.register(f"r{number}", wanted):
                tree.register(f"r{number}", wanted[:1])
    return tree
