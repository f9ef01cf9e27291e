"""Aging: no reservation that could be granted waits for ever, and none that could not be holds others up."""

from datetime import timedelta
from fractions import Fraction

import pytest

from app.ledger.accounts.account import Account
from app.ledger.filter.parallel_exposure import without
from app.ledger.scheduling.queue import Ledgers, WaitingReservation
from app.ledger.scheduling.withholding import Withholding
from app.ledger.settings.allocation import ALL, Allocation, SchedulingRule, Share
from tests.ledger.scheduling.blocks import (
    NOTHING,
    NOW,
    Units,
    block,
    flat,
    line_of,
    names,
    open_ledgers,
    run_pass,
    waiting,
    with_loss,
)

from . import blocks

FIRST, SHARE, PACKED = SchedulingRule
AGING = timedelta(minutes=10)
LONG = -60
"""The minute at which reservations arrived that have aged by NOW."""


def busy(rule: SchedulingRule, aging: timedelta | None, large: int, priority: int = 0) -> dict[str, int]:
    """Minutes of grants, in an hour in which two small reservations a minute return theirs after five."""
    plans = {"large": waiting("large", ["b0"], flat(large), 0)}
    small = [waiting(f"s{at:02}{each}", ["b0"], flat(10), at, priority) for at in range(60) for each in "ab"]
    ledgers = open_ledgers([block("b0", flat(100, 9))], [*plans.values(), *small])
    line = line_of(rule, [], aging)
    granted: dict[str, int] = {}
    for minute in range(60):
        for each, at in granted.items():
            if at == minute - 5 and each != "large":
                give_back(ledgers, "b0", plans[each])
        for plan in [each for each in small if each.arrived_at == NOW + timedelta(minutes=minute)]:
            plans[plan.id] = plan
            line.add(plan)
        if minute == 3:
            line.add(plans["large"])
        for each in names(run_pass(line, ledgers, NOW + timedelta(minutes=minute))):
            granted[each] = minute
    return granted


def give_back(ledgers: Ledgers, name: str, plan: WaitingReservation) -> None:
    account = ledgers.accounts[name]
    ledgers.accounts[name] = account.settle_hold(blocks.curve_of(NOTHING), without(account.held, plan.cost))


@pytest.mark.parametrize("rule", SchedulingRule)
def test_a_large_reservation_is_granted_while_small_ones_keep_arriving_and_starves_without_aging(
    rule: SchedulingRule,
) -> None:
    granted, without = busy(rule, AGING, 100), busy(rule, None, 100)
    assert granted["large"] <= 16, "ten minutes of waiting, and five until all is returned"
    assert len(granted) > 20
    assert "large" not in without
    assert len(without) > 100
    assert busy(rule, AGING, 101) == busy(rule, None, 101), "what can never fit delays no other"


def test_a_higher_priority_overtakes_an_aged_reservation() -> None:
    assert "large" not in busy(SHARE, AGING, 100, priority=1)


Given = tuple[list[Account], dict[str, Withholding], WaitingReservation, WaitingReservation]


def old(path: str, cost: Units) -> WaitingReservation:
    return waiting("old", path.split(), cost, LONG)


def new(path: str, cost: Units) -> WaitingReservation:
    return waiting("new", path.split(), cost)


def keeping(share: Share, team: str, part: Fraction = ALL, window: Fraction = ALL) -> dict[str, Withholding]:
    return {"b0": Withholding(Allocation(shares={team: share}), part, window)}


def partitions(counting: int) -> list[Account]:
    """A parallel account, one partition of which has used 60."""
    whole, used = block("all", flat(100, 9), None, counting), block("a", None, "all")
    return [*(with_loss(each, flat(0), flat(60)) for each in (whole, used)), block("b", None, "all")]


ROOT, OTHER = block("b0", flat(100, 9)), block("b1", flat(100, 9))
TEAMS = [ROOT, block("a", None, "b0"), block("b", None, "b0")]
QUARTER, PART = Fraction(1, 4), Fraction(3, 4)
HALF_SPENT, HELD_60, HELD_90 = (with_loss(ROOT, flat(50)), *(with_loss(ROOT, flat(0), flat(n)) for n in (60, 90)))
PROMISED = keeping(Share(0.5), "b", PART, PART)

PASSING: dict[str, Given] = {
    "hopeless by spending": ([HALF_SPENT], {}, old("b0", flat(51)), new("b0", flat(50))),
    "hopeless by its maximum": (
        *(TEAMS, keeping(Share(maximum=0.5), "a", PART, QUARTER)),
        *(old("b0 a", flat(51)), new("b0 b", flat(60))),
    ),
    "hopeless by a lasting promise": (
        *(TEAMS, keeping(Share(0.5), "c")),
        *(old("b0 a", flat(51)), new("b0 b", flat(50))),
    ),
    "takes what was promised to it": (TEAMS, PROMISED, old("b0 a", flat(80)), new("b0 b", flat(37))),
    "in another partition": (partitions(1), {}, old("all a", flat(50)), new("all b", flat(100))),
    "needs another account": ([HELD_90, OTHER], {}, old("b0 b1", flat(50)), new("b1", flat(50))),
    "has no cost": ([HELD_60], {}, old("b0", flat(50)), new("b0", flat(0))),
}
DELAYING: dict[str, Given] = {
    "lacks what is held": ([HELD_60], {}, old("b0", flat(50)), new("b0", flat(1))),
    "lacks what is locked": ([ROOT], {"b0": blocks.unlocked(Fraction(1, 2))}, old("b0", flat(51)), new("b0", flat(1))),
    "lacks a promise that will end": (
        *(TEAMS, keeping(Share(0.5), "c", PART, PART)),
        *(old("b0 a", flat(51)), new("b0 b", flat(1))),
    ),
    "takes more than was promised to it": (TEAMS, PROMISED, old("b0 a", flat(80)), new("b0 b", flat(39))),
    "would lack it then": ([HELD_90, OTHER], {}, old("b0 b1", flat(50)), new("b1", flat(51))),
    "lacks own delta": ([with_loss(ROOT, flat(0), flat(0, 8))], {}, old("b0", flat(1, 2)), new("b0", flat(1, 1))),
    "would lack it in another partition": (partitions(2), {}, old("all a", flat(50)), new("all b", flat(1))),
}


@pytest.mark.parametrize("given", PASSING.values(), ids=PASSING)
@pytest.mark.parametrize("rule", SchedulingRule)
def test_younger_reservation_that_takes_nothing_from_an_aged_one_passes(given: Given, rule: SchedulingRule) -> None:
    accounts, kept, older, younger = given
    ledgers = open_ledgers(accounts, [older, younger], dict(kept))
    grants = run_pass(line_of(rule, [older, younger], AGING), ledgers)
    assert names(grants) == ["new"]
    assert [each.reservation.id for each in grants[0].overtaken] == ["old"]


@pytest.mark.parametrize("given", DELAYING.values(), ids=DELAYING)
@pytest.mark.parametrize("rule", SchedulingRule)
def test_younger_reservation_that_takes_budget_an_aged_one_lacks_waits(given: Given, rule: SchedulingRule) -> None:
    accounts, kept, older, younger = given
    for waits, expected in (([younger], ["new"]), ([older, younger], [])):
        ledgers = open_ledgers(accounts, [older, younger], dict(kept))
        assert names(run_pass(line_of(rule, waits, AGING), ledgers)) == expected


def test_aged_reservation_that_is_granted_or_on_a_closed_account_delays_no_other() -> None:
    plans = [old("b0 b1", flat(50)), new("b0", flat(1))]
    closed = Ledgers(open_ledgers([HELD_60, OTHER], plans).accounts, {}, lambda account: account.id != "b1")
    assert names(run_pass(line_of(FIRST, plans, AGING), closed)) == ["new"]
    plans = [old("b0", flat(60)), new("b0", flat(40))]
    assert names(run_pass(line_of(SHARE, plans, AGING), open_ledgers([ROOT], plans))) == ["old", "new"]


def test_younger_reservation_passes_several_aged_ones_that_need_another_account() -> None:
    plans = [old("b0 b1", flat(50)), waiting("older", ["b0", "b1"], flat(50), LONG - 1), new("b1", flat(50))]
    assert names(run_pass(line_of(FIRST, plans, AGING), open_ledgers([HELD_90, OTHER], plans))) == ["new"]


def test_delayed_reservation_is_a_candidate_once_the_aged_one_is_hopeless() -> None:
    plans = [old("b0 b1", flat(50)), new("b0", flat(1))]
    ledgers, line = open_ledgers([HELD_60, OTHER], plans), line_of(SHARE, plans, AGING)
    assert names(run_pass(line, ledgers)) == []
    ledgers.accounts["b1"] = with_loss(ledgers.accounts["b1"], flat(60))
    assert names(run_pass(line, ledgers, changed=["b1"])) == ["new"]


@pytest.mark.parametrize(("part", "is_hopeless"), [(Fraction(1, 2), False), (ALL, True)])
def test_lasting_promise_is_that_of_the_last_window(part: Fraction, *, is_hopeless: bool) -> None:
    plan = waiting("x", ["b0"], flat(91))
    kept = Withholding(Allocation(shares={"c": Share(0.2)}), part, Fraction(1, 2))
    assert open_ledgers([block("b0", flat(100))], [plan], {"b0": kept}).is_hopeless(plan) == is_hopeless


def test_candidates_need_no_run_of_an_aged_reservation() -> None:
    """The ledgers have the runs of those that are tried only."""
    line, ledgers = line_of(FIRST, [old("b0 b1", flat(1)), new("b1", flat(1))], AGING), open_ledgers([ROOT, OTHER], [])
    assert {each.id for each in line.candidates(ledgers, ["b0"], line.aged(NOW))} == {"old", "new"}
