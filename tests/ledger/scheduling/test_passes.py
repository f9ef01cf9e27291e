"""Passes over waiting reservations: nothing past a limit, nothing left that fits, whatever the order of insertion."""

from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.accounts.account import Account
from app.ledger.scheduling.queue import Ledgers, WaitingReservation, schedule
from app.ledger.scheduling.scheduling_rules import Line
from app.ledger.scheduling.withholding import Withholding
from app.ledger.settings.allocation import ALL, SchedulingRule
from tests.ledger.scheduling.blocks import (
    NOW,
    ORDERS,
    block,
    fits,
    flat,
    line_of,
    open_ledgers,
    run_pass,
    tried,
    units_of,
    waiting,
    with_loss,
)
from tests.soak import few

from . import blocks

BLOCKS = ("b0", "b1", "b2", "b3")
AGING = timedelta(minutes=10)

limits = st.tuples(*[st.sampled_from([-1, 0, 9, 20, 31])] * ORDERS, st.sampled_from([3, 20]))
costs = st.tuples(*[st.integers(0, 12)] * ORDERS, st.sampled_from([0, 0, 1, 3]))
losses = st.tuples(*[st.integers(0, 12)] * ORDERS, st.just(0))
parts = st.sampled_from([ALL, ALL, Fraction(1, 2), Fraction(2, 3)])


@dataclass(frozen=True)
class World:
    """Blocks, and reservations that wait for some of them."""

    rule: SchedulingRule
    aging: timedelta | None
    limits: dict[str, blocks.Units]
    accounts: tuple[Account, ...]
    withholdings: dict[str, Withholding]
    plans: tuple[WaitingReservation, ...]

    def ledgers(self) -> Ledgers:
        return open_ledgers(self.accounts, self.plans, self.withholdings)

    def line(self) -> Line:
        return line_of(self.rule, self.plans, self.aging)

    def left(self, ledgers: Ledgers, name: str) -> blocks.Units:
        held = ledgers.withholdings.get(name)
        return blocks.room(self.limits[name], blocks.total_of(ledgers, name), ALL if held is None else held.unlocked)

    def fits(self, ledgers: Ledgers, plan: WaitingReservation) -> bool:
        return all(fits(self.left(ledgers, name), units_of(plan.cost)) for name in plan.path[:-1])

    def is_hopeless(self, ledgers: Ledgers, plan: WaitingReservation) -> bool:
        spent = {name: units_of(ledgers.accounts[name].spent) for name in plan.path[:-1]}
        return not all(fits(blocks.room(self.limits[name], each), units_of(plan.cost)) for name, each in spent.items())


@st.composite
def worlds(draw: st.DrawFn, aging: st.SearchStrategy[timedelta | None] = st.just(None)) -> World:  # noqa: B008 - a strategy
    most = {name: draw(limits) for name in BLOCKS}
    accounts = tuple(with_loss(block(name, most[name]), draw(losses), draw(losses)) for name in BLOCKS)
    withheld = {name: blocks.unlocked(part) for name in BLOCKS if (part := draw(parts)) != ALL}
    plans = []
    for number in range(draw(st.integers(1, 9))):
        path = sorted(draw(st.sets(st.sampled_from(BLOCKS), min_size=1, max_size=3)))
        minute, priority = -draw(st.integers(0, 20)), draw(st.sampled_from([0, 0, 0, 1]))
        plans.append(waiting(f"x{number}", path, draw(costs), minute, priority, draw(st.sampled_from([1.0, 2.0]))))
    return World(draw(st.sampled_from(SchedulingRule)), draw(aging), most, accounts, withheld, tuple(plans))


agings = st.sampled_from([None, AGING, timedelta(0)])


@few(40)
@given(worlds(agings), st.randoms(use_true_random=False))
def test_pass_tries_reservations_in_order_and_grants_what_takes_nothing_from_an_older_one(
    world: World, random: Random
) -> None:
    line, ledgers = world.line(), world.ledgers()
    order = line.order(list(line.reservations.values()), ledgers, NOW)
    assert [each.key for each in order] == sorted(each.key for each in order)
    aged = line.aged(NOW)
    grants = run_pass(line, ledgers, NOW)
    waits = [
        each
        for each in aged
        if each.reservation.id in line.reservations and not world.is_hopeless(ledgers, each.reservation)
    ]
    for grant in grants:
        own = grant.standing
        assert set(tried(grant.overtaken)) <= set(tried(order[: order.index(own)]))
        for each in waits:
            if each.key < own.key and own.reservation.cost.values[:ORDERS].all():
                shared = {*each.reservation.path} & {*own.reservation.path}
                assert all(fits(world.left(ledgers, name), units_of(each.reservation.cost)) for name in shared)
    for plan in line.reservations.values():
        if world.fits(ledgers, plan):
            [own] = line.order([plan], ledgers, NOW)
            assert any(each.key < own.key and {*each.reservation.path} & {*plan.path} for each in waits), (
                f"{plan.id} fits"
            )
    assert not run_pass(line, ledgers, NOW)
    other = replace(world, plans=tuple(random.sample(world.plans, len(world.plans))))
    again = run_pass(other.line(), other.ledgers(), NOW)
    assert [(each.standing.key, tried(each.overtaken)) for each in grants] == [
        (each.standing.key, tried(each.overtaken)) for each in again
    ]


@pytest.mark.parametrize("place", range(3))
def test_different_accounts_may_admit_at_different_orders(place: int) -> None:
    limit = [0, 0, 0, 0]
    limit[place] = 5
    accounts = [block("b0", tuple(limit)), block("b1", (5, 0, 0, 0))]
    plans = [waiting("x", ["b0", "b1"], flat(5)), waiting("y", ["b0", "b1"], flat(1))]
    ledgers = open_ledgers(accounts, plans)
    assert blocks.names(run_pass(line_of(SchedulingRule.FIRST_COME, plans), ledgers)) == ["x"]


def test_a_closed_account_admits_nothing() -> None:
    plans = [waiting("x", ["b0"], flat(1)), waiting("y", ["b1"], flat(1))]
    open_ = open_ledgers([block("b0", flat(9)), block("b1", flat(9))], plans)
    ledgers = Ledgers(open_.accounts, {}, lambda account: account.id != "b0")
    assert blocks.names(run_pass(line_of(SchedulingRule.FIRST_COME, plans), ledgers)) == ["y"]


@pytest.mark.parametrize("above", [None, "root"])
def test_a_reservation_in_a_partition_without_loss_is_a_candidate(above: str | None) -> None:
    """Neither the parallel account nor those above it grow by its cost."""
    used = flat(80)
    accounts = [with_loss(block("all", flat(100, 9), above, 1), used), with_loss(block("b0", flat(90, 9), "all"), used)]
    accounts += [block("b1", flat(90, 9), "all")]
    if above is not None:
        accounts += [with_loss(block(above, flat(100, 9)), used)]
    path = [each for each in (above, "all", "b1") if each is not None]
    plan = waiting("x", path, flat(50))
    ledgers, line = open_ledgers(accounts, [plan]), line_of(SchedulingRule.MOST_PACKED, [plan])
    assert line.candidates(ledgers, path[:-1]) == [plan]
    assert blocks.names(run_pass(line, ledgers, NOW, path[:-1])) == ["x"]


def test_candidates_leave_out_what_surely_does_not_fit() -> None:
    plans = [waiting("x", ["b0"], (5, 9, 9, 0)), waiting("y", ["b0"], (6, 9, 9, 0)), waiting("z", ["b1"], flat(1))]
    accounts = [block("b0", (10, 10, 10, 0)), block("b1", flat(9))]
    ledgers = open_ledgers(accounts, plans, {"b0": blocks.unlocked(Fraction(1, 2))})
    line = line_of(SchedulingRule.FIRST_COME, plans)
    assert [each.id for each in line.candidates(ledgers, ["b0", "nowhere"])] == ["x"]
    line.remove("x")
    assert line.candidates(ledgers, ["b0"]) == []
    ledgers.accounts["b1"] = replace(ledgers.accounts["b1"], spent=blocks.curve_of(flat(9)))
    assert line.candidates(ledgers, ["b1"]) == []


@few(25)
@given(worlds(), st.data())
def test_line_that_has_changed_decides_as_a_new_one(world: World, data: st.DataObject) -> None:
    line, ledgers = line_of(world.rule, []), world.ledgers()
    for plan in world.plans:
        line.add(plan)
        if data.draw(st.sampled_from([False, False, True])):
            line.remove(data.draw(st.sampled_from(sorted(line.reservations))))
        fresh = line_of(world.rule, data.draw(st.permutations(list(line.reservations.values()))))
        order, again = (each.order(each.candidates(ledgers, BLOCKS), ledgers, NOW) for each in (line, fresh))
        assert [standing.key for standing in order] == [standing.key for standing in again]
        for grant in list(schedule(order, (), ledgers)):
            line.remove(grant.standing.reservation.id)


class _TryingAll(Ledgers):
    def may_fit(self, plan: WaitingReservation) -> bool:  # noqa: ARG002 - it does not snapshot
        return True


@few(25)
@given(worlds())
def test_reservation_that_is_not_tried_would_have_been_refused(world: World) -> None:
    ledgers = world.ledgers()
    everything = _TryingAll(dict(ledgers.accounts), dict(ledgers.withholdings))
    for plan in world.plans:
        held = everything.hold(plan)
        assert held is None or ledgers.may_fit(plan)
        if held is not None:
            ledgers.store(plan, held)
            everything.store(plan, held)
