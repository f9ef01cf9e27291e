"""Passes over waiting plans: nothing past a limit, nothing left that fits, the same whatever the order of insertion."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.events import Gaussian, NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.accounts import Account
from app.ledger.allocation import ALL, Allocation, SchedulingRule, UnlockByPlans
from app.ledger.filters import filter_weights
from app.ledger.scheduling import Books, WaitingPlan, schedule
from app.ledger.scheduling_rules import Line
from app.ledger.step_events import PricedStep, StepEvent
from app.ledger.withholding import Withholding
from tests.ledger.conftest import make_account
from tests.soak import few

from .blocks import (
    NOW,
    ORDERS,
    Units,
    block,
    curve_of,
    fits,
    flat,
    line_of,
    names,
    open_books,
    room,
    run_pass,
    total_of,
    tried,
    units_of,
    unlocked,
    waiting,
    with_loss,
)

BLOCKS = ("b0", "b1", "b2", "b3")
AGING = timedelta(minutes=10)

limits = st.tuples(*[st.sampled_from([-1, 0, 9, 20, 31])] * ORDERS, st.sampled_from([3, 20]))
costs = st.tuples(*[st.integers(0, 12)] * ORDERS, st.sampled_from([0, 0, 1, 3]))
losses = st.tuples(*[st.integers(0, 12)] * ORDERS, st.just(0))
parts = st.sampled_from([ALL, ALL, Fraction(1, 2), Fraction(2, 3)])


@dataclass(frozen=True)
class World:
    """Blocks, and plans that wait for some of them."""

    rule: SchedulingRule
    aging: timedelta | None
    limits: dict[str, Units]
    blocks: tuple[Account, ...]
    withholdings: dict[str, Withholding]
    plans: tuple[WaitingPlan, ...]

    def books(self) -> Books:
        return open_books(self.blocks, self.plans, self.withholdings)

    def line(self) -> Line:
        return line_of(self.rule, self.plans, self.aging)

    def left(self, books: Books, name: str) -> Units:
        held = books.withholdings.get(name)
        return room(self.limits[name], total_of(books.accounts, name), ALL if held is None else held.unlocked)

    def fits(self, books: Books, plan: WaitingPlan) -> bool:
        return all(fits(self.left(books, name), units_of(plan.cost)) for name in plan.path[:-1])

    def is_hopeless(self, books: Books, plan: WaitingPlan) -> bool:
        spent = {name: units_of(books.accounts[name].spent) for name in plan.path[:-1]}
        return not all(fits(room(self.limits[name], each), units_of(plan.cost)) for name, each in spent.items())


@st.composite
def worlds(draw: st.DrawFn, aging: st.SearchStrategy[timedelta | None] = st.just(None)) -> World:  # noqa: B008 - a strategy
    most = {name: draw(limits) for name in BLOCKS}
    blocks = tuple(with_loss(block(name, most[name]), draw(losses), draw(losses)) for name in BLOCKS)
    withheld = {name: unlocked(part) for name in BLOCKS if (part := draw(parts)) != ALL}
    plans = []
    for number in range(draw(st.integers(1, 9))):
        path = sorted(draw(st.sets(st.sampled_from(BLOCKS), min_size=1, max_size=3)))
        minute, priority = -draw(st.integers(0, 20)), draw(st.sampled_from([0, 0, 0, 1]))
        plans.append(waiting(f"x{number}", path, draw(costs), minute, priority, draw(st.sampled_from([1.0, 2.0]))))
    return World(draw(st.sampled_from(SchedulingRule)), draw(aging), most, blocks, withheld, tuple(plans))


agings = st.sampled_from([None, AGING, timedelta(0)])


@few(25)
@given(worlds(agings))
def test_after_a_pass_nothing_fits_that_no_older_plan_waits_for(world: World) -> None:
    line, books = world.line(), world.books()
    run_pass(line, books, NOW)
    aged = [each for each in line.aged(NOW) if not world.is_hopeless(books, each.plan)]
    for plan in line.plans.values():
        if world.fits(books, plan):
            [own] = line.order([plan], books, NOW)
            before = [each for each in aged if each.key < own.key and {*each.plan.path} & {*plan.path}]
            assert before, f"{plan.id} fits"
    assert not run_pass(line, books, NOW)


@few(25)
@given(worlds(agings))
def test_no_grant_takes_what_an_aged_plan_lacks(world: World) -> None:
    line, books = world.line(), world.books()
    aged = line.aged(NOW)
    grants = run_pass(line, books, NOW)
    granted = set(names(grants))
    waits = [each for each in aged if each.plan.id not in granted and not world.is_hopeless(books, each.plan)]
    for grant in grants:
        for each in waits:
            if each.key < grant.standing.key and grant.standing.plan.cost.values[:ORDERS].all():
                shared = {*each.plan.path} & {*grant.standing.plan.path}
                assert all(fits(world.left(books, name), units_of(each.plan.cost)) for name in shared)


@few(25)
@given(worlds(agings))
def test_plans_are_tried_in_the_order_of_their_keys(world: World) -> None:
    line, books = world.line(), world.books()
    order = line.order(list(line.plans.values()), books, NOW)
    keys = [each.key for each in order]
    assert keys == sorted(keys)
    for grant in run_pass(line, books, NOW):
        place = order.index(grant.standing)
        assert set(tried(grant.overtaken)) <= set(tried(order[:place]))


@few(25)
@given(worlds(agings), st.randoms(use_true_random=False))
def test_grants_do_not_depend_on_the_order_of_insertion(world: World, random: Random) -> None:
    other = replace(world, plans=tuple(random.sample(world.plans, len(world.plans))))
    first = run_pass(world.line(), world.books(), NOW)
    again = run_pass(other.line(), other.books(), NOW)
    assert [(each.standing.key, tried(each.overtaken)) for each in first] == [
        (each.standing.key, tried(each.overtaken)) for each in again
    ]


@pytest.mark.parametrize("place", range(3))
def test_different_accounts_may_admit_at_different_orders(place: int) -> None:
    limit = [0, 0, 0, 0]
    limit[place] = 5
    accounts = [block("b0", tuple(limit)), block("b1", (5, 0, 0, 0))]
    plans = [waiting("x", ["b0", "b1"], flat(5)), waiting("y", ["b0", "b1"], flat(1))]
    books = open_books(accounts, plans)
    assert names(run_pass(line_of(SchedulingRule.FIRST_COME, plans), books)) == ["x"]


def test_a_closed_account_admits_nothing() -> None:
    plans = [waiting("x", ["b0"], flat(1)), waiting("y", ["b1"], flat(1))]
    open_ = open_books([block("b0", flat(9)), block("b1", flat(9))], plans)
    books = Books(open_.accounts, {}, lambda account: account.id != "b0")
    assert names(run_pass(line_of(SchedulingRule.FIRST_COME, plans), books)) == ["y"]


@pytest.mark.parametrize("above", [None, "root"])
def test_a_plan_in_a_partition_without_loss_is_a_candidate(above: str | None) -> None:
    """Neither the parallel account nor those above it grow by its cost."""
    used = flat(80)
    accounts = [with_loss(block("all", flat(100, 9), above, 1), used), with_loss(block("b0", flat(90, 9), "all"), used)]
    accounts += [block("b1", flat(90, 9), "all")]
    if above is not None:
        accounts += [with_loss(block(above, flat(100, 9)), used)]
    path = [each for each in (above, "all", "b1") if each is not None]
    plan = waiting("x", path, flat(50))
    books, line = open_books(accounts, [plan]), line_of(SchedulingRule.MOST_PACKED, [plan])
    assert line.candidates(books, path[:-1]) == [plan]
    assert names(run_pass(line, books, NOW, path[:-1])) == ["x"]


def test_candidates_leave_out_what_surely_does_not_fit() -> None:
    plans = [waiting("x", ["b0"], (5, 9, 9, 0)), waiting("y", ["b0"], (6, 9, 9, 0)), waiting("z", ["b1"], flat(1))]
    accounts = [block("b0", (10, 10, 10, 0)), block("b1", flat(9))]
    books = open_books(accounts, plans, {"b0": unlocked(Fraction(1, 2))})
    line = line_of(SchedulingRule.FIRST_COME, plans)
    assert [each.id for each in line.candidates(books, ["b0", "nowhere"])] == ["x"]
    line.remove("x")
    assert line.candidates(books, ["b0"]) == []
    books.accounts["b1"] = replace(books.accounts["b1"], spent=curve_of(flat(9)))
    assert line.candidates(books, ["b1"]) == []


NOISES = (5.0, 8.0, 20.0, 60.0)


def price(noise: float, count: int) -> PricedStep:
    event = Gaussian(noise)
    return PricedStep(StepEvent(event, count), event_curve(event, NeighboringRelation.ADD_OR_REMOVE_ONE))


def populations(number: int) -> list[Account]:
    accounts = [make_account(1.0, 1e-6, name=f"p{index}") for index in range(number)]
    return [
        replace(each, weights=filter_weights(each.limit, price(20.0, 1).curve, 1)) for each in accounts if each.limit
    ]


def draw_plans(random: Random, accounts: list[Account], number: int) -> Iterator[tuple[WaitingPlan, Account]]:
    for index in range(number):
        path = sorted(random.sample(accounts, random.randint(1, 3)), key=lambda each: each.id)
        run = replace(make_account(name=f"run{index:03}", limited=False), parent_id=path[0].id)
        steps = (price(random.choice(NOISES), random.randint(1, 9)),)
        names = (*(each.id for each in path), run.id)
        arrived = NOW + timedelta(seconds=index)
        yield WaitingPlan(f"res_{index:03}", names, steps, arrived, weight=random.choice((1.0, 0.1, 3.0))), run


@pytest.mark.parametrize("rule", SchedulingRule)
@pytest.mark.parametrize("seed", range(4))
def test_a_line_that_has_changed_decides_as_a_new_one(rule: SchedulingRule, seed: int) -> None:
    random = Random(seed)  # noqa: S311 - plans, not noise
    accounts = populations(4)
    drawn = list(draw_plans(random, accounts, 60))
    unlock = UnlockByPlans(NOW, 2)
    half = {each.id: Withholding(Allocation(unlock=unlock), unlock.fraction(1)) for each in accounts[:2]}
    books = Books({each.id: each for each in (*accounts, *(run for _, run in drawn))}, half)
    line, granted = Line(rule), 0
    for index, (plan, _) in enumerate(drawn):
        line.add(plan)
        if index % 5 == 4:
            line.remove(random.choice(sorted(line.plans)))
        fresh = Line(rule)
        waiting = list(line.plans.values())
        random.shuffle(waiting)
        for each in waiting:
            fresh.add(each)
        changed = [each.id for each in accounts]
        orders = [
            [standing.key for standing in some.order(some.candidates(books, changed), books, NOW)]
            for some in (line, fresh)
        ]
        assert orders[0] == orders[1]
        found = list(schedule(line.order(line.candidates(books, changed), books, NOW), (), books))
        granted += len(found)
        for grant in found:
            line.remove(grant.standing.plan.id)
    assert granted > 3
    assert line.plans


class _TryingAll(Books):
    def may_fit(self, plan: WaitingPlan) -> bool:  # noqa: ARG002 - it does not look
        return True


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_that_is_not_tried_would_have_been_refused(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - plans, not noise
    accounts = populations(3)
    drawn = list(draw_plans(random, accounts, 40))
    books = Books({each.id: each for each in (*accounts, *(run for _, run in drawn))})
    everything = _TryingAll(books.accounts)
    refused = 0
    for plan, _ in drawn:
        held = everything.hold(plan)
        if not books.may_fit(plan):
            assert held is None
            refused += 1
        if held is not None:
            books.store(plan, held)
            everything.store(plan, held)
    assert refused
