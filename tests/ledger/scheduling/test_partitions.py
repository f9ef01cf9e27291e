"""Passes over a tree with disjoint partitions and shares, against the definition of what each account has lost.

A population has a team with partitions, of which some count, and a team without. Both teams have shares of the
population, and a partition has one of its team.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from app.ledger.scheduling.queue import Ledgers, WaitingReservation
from app.ledger.scheduling.withholding import Withholding
from app.ledger.settings.allocation import ALL, Allocation, SchedulingRule, Share
from tests.ledger.scheduling.blocks import (
    NOTHING,
    NOW,
    ORDERS,
    Units,
    block,
    line_of,
    locked,
    part_of,
    plus,
    run_pass,
    total_of,
    units_of,
)
from tests.soak import few

from . import blocks

POPULATION, TEAM, OTHER = "population", "team", "other"
PARTITIONS = ("a", "b", "c")
PLACES = range(ORDERS + 1)

limits = st.tuples(*[st.sampled_from([0, 20, 30, 50])] * ORDERS, st.sampled_from([3, 20]))
costs = st.tuples(*[st.integers(0, 20)] * ORDERS, st.sampled_from([0, 0, 1, 3]))
fractions = st.sampled_from([ALL, ALL, Fraction(1, 2), Fraction(2, 3)])
shares = st.builds(Share, st.sampled_from([0.0, 0.2, 0.5]), st.sampled_from([1.0, 0.5, 0.9]))


def largest(losses: Sequence[Units], most: int) -> Units:
    return tuple(sum(sorted((each[place] for each in losses), reverse=True)[:most]) for place in PLACES)


@dataclass
class Tree:
    """A population and what was granted under it."""

    limits: dict[str, Units]
    counting: int
    kept: dict[str, Withholding]
    granted: list[WaitingReservation] = field(default_factory=list)

    def loss(self, leaf: str) -> Units:
        return plus(NOTHING, *(units_of(plan.cost) for plan in self.granted if leaf in plan.path))

    def lines(self, name: str, leaf: str) -> tuple[Units, Units]:
        """What an account has lost that a charge in a leaf leaves as it is, and what it is added to."""
        others = [self.loss(each) for each in PARTITIONS if each != leaf]
        if name == leaf:
            return NOTHING, self.loss(leaf)
        if leaf == OTHER:
            return NOTHING, plus(largest(others, self.counting), self.loss(OTHER))
        aside, with_it = largest(others, self.counting), plus(largest(others, self.counting - 1), self.loss(leaf))
        return (aside, with_it) if name == TEAM else (plus(aside, self.loss(OTHER)), plus(with_it, self.loss(OTHER)))

    def withheld(self, name: str, plan: WaitingReservation) -> Units:
        limit, kept = self.limits[name], self.kept.get(name)
        if kept is None:
            return NOTHING
        found = locked(kept.unlocked, limit)
        for under, share in kept.allocation.shares.items():
            if under not in plan.path and (name != TEAM or self.counting > 1):
                promised = part_of(Fraction(repr(share.minimum)) * kept.window, limit, ceil)
                pairs = zip(promised, self.loss(under), strict=True)
                found = plus(found, tuple(max(0, each - got) for each, got in pairs))
        return found

    def admits(self, name: str, plan: WaitingReservation) -> bool:
        """The definition: no line is past its limit, nor the budget under the account past its maximum."""
        cost, limit, leaf = units_of(plan.cost), self.limits[name], plan.path[-2]
        aside, base = self.lines(name, leaf)
        after, withheld = plus(base, cost), self.withheld(name, plan)
        most, own, kept = limit, after, self.kept.get(name)
        if kept is not None:
            under = plan.path[plan.path.index(name) + 1]
            maximum = kept.allocation.share_of(under).maximum
            if maximum < 1:
                most = part_of(Fraction(repr(maximum)) * kept.unlocked, limit)
                own = plus(self.lines(under, leaf)[1], cost)

        def fits(place: int) -> bool:
            within = after[place] + withheld[place] <= limit[place] and own[place] <= most[place]
            needs_none = place == ORDERS and not cost[place] and base[place] <= limit[place]
            return (within or needs_none) and aside[place] <= limit[place]

        return fits(ORDERS) and any(map(fits, range(ORDERS)))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Tree, list[WaitingReservation], SchedulingRule]:
    names = (POPULATION, TEAM, OTHER, *PARTITIONS)
    part, of_team = draw(fractions), draw(fractions)
    of_population = Allocation(shares={TEAM: draw(shares), OTHER: draw(shares)})
    kept = {POPULATION: Withholding(of_population, part, part * draw(fractions))}
    if draw(st.booleans()):
        kept[TEAM] = Withholding(Allocation(shares={"a": draw(shares)}), of_team, of_team)
    tree = Tree({name: draw(limits) for name in names}, draw(st.integers(1, 3)), kept)
    plans = []
    for number in range(draw(st.integers(1, 9))):
        leaf = draw(st.sampled_from([OTHER, *PARTITIONS]))
        path = [POPULATION, OTHER] if leaf == OTHER else [POPULATION, TEAM, leaf]
        plans.append(blocks.waiting(f"x{number}", path, draw(costs), -draw(st.integers(0, 20))))
    return tree, plans, draw(st.sampled_from(SchedulingRule))


def ledgers_of(tree: Tree, plans: Sequence[WaitingReservation]) -> Ledgers:
    accounts = [block(POPULATION, tree.limits[POPULATION]), block(OTHER, tree.limits[OTHER], POPULATION)]
    accounts.append(block(TEAM, tree.limits[TEAM], POPULATION, tree.counting))
    accounts += [block(name, tree.limits[name], TEAM) for name in PARTITIONS]
    return blocks.open_ledgers(accounts, plans, tree.kept)


@given(worlds())
def test_a_reservation_is_granted_iff_every_account_admits_it(
    world: tuple[Tree, list[WaitingReservation], SchedulingRule],
) -> None:
    tree, plans, rule = world
    ledgers, line = ledgers_of(tree, plans), line_of(rule, plans)
    order = line.order(plans, ledgers, NOW)
    granted = {each.standing.reservation.id for each in run_pass(line, ledgers, NOW)}
    for standing in order:
        plan = standing.reservation
        assert all(tree.admits(name, plan) for name in plan.path[:-1]) == (plan.id in granted)
        if plan.id in granted:
            tree.granted.append(plan)
    for leaf in (OTHER, *PARTITIONS):
        assert total_of(ledgers, leaf) == tree.loss(leaf)
    team = largest([tree.loss(each) for each in PARTITIONS], tree.counting)
    assert total_of(ledgers, TEAM) == team
    assert total_of(ledgers, POPULATION) == plus(team, tree.loss(OTHER))


@few(20)
@given(worlds(), st.sampled_from([POPULATION, TEAM, OTHER, *PARTITIONS]), fractions)
def test_a_pass_over_a_changed_account_grants_what_a_pass_over_all_does(
    world: tuple[Tree, list[WaitingReservation], SchedulingRule], changed: str, part: Fraction
) -> None:
    tree, plans, rule = world
    found = []
    for accounts in (None, [changed]):
        ledgers, line = ledgers_of(tree, plans), line_of(rule, plans, timedelta(minutes=10))
        run_pass(line, ledgers, NOW)
        ledgers.withholdings[changed] = Withholding(Allocation(), part)
        found.append([each.standing.reservation.id for each in run_pass(line, ledgers, NOW, accounts)])
    assert found[0] == found[1]
