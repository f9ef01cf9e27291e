"""Aging: no plan that could be granted waits for ever, and none that could not be holds others up."""

from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction

import pytest

from app.ledger.accounts import Account
from app.ledger.allocation import ALL, Allocation, SchedulingRule, Share
from app.ledger.parallel_exposure import without
from app.ledger.scheduling import Books, WaitingPlan
from app.ledger.withholding import Withholding

from .blocks import (
    NOTHING,
    NOW,
    block,
    curve_of,
    flat,
    line_of,
    names,
    open_books,
    run_pass,
    unlocked,
    waiting,
    with_loss,
)

FIRST, SHARE, PACKED = SchedulingRule
AGING = timedelta(minutes=10)
LONG = -60
"""The minute at which plans arrived that have aged by NOW."""


def busy(rule: SchedulingRule, aging: timedelta | None, large: int, priority: int = 0) -> dict[str, int]:
    """Minutes after which plans are granted, of an hour in which two small ones a minute return theirs after five."""
    plans = {"large": waiting("large", ["b0"], flat(large), 0)}
    small = [waiting(f"s{at:02}{each}", ["b0"], flat(10), at, priority) for at in range(60) for each in "ab"]
    books = open_books([block("b0", flat(100, 9))], [*plans.values(), *small])
    line = line_of(rule, [], aging)
    granted: dict[str, int] = {}
    for minute in range(60):
        for each, at in granted.items():
            if at == minute - 5 and each != "large":
                give_back(books, "b0", plans[each])
        for plan in [each for each in small if each.arrived_at == NOW + timedelta(minutes=minute)]:
            plans[plan.id] = plan
            line.add(plan)
        if minute == 3:
            line.add(plans["large"])
        for each in names(run_pass(line, books, NOW + timedelta(minutes=minute))):
            granted[each] = minute
    return granted


def give_back(books: Books, name: str, plan: WaitingPlan) -> None:
    account = books.accounts[name]
    books.accounts[name] = account.settle_hold(curve_of(NOTHING), without(account.held, plan.cost))


@pytest.mark.parametrize("rule", SchedulingRule)
@pytest.mark.parametrize("large", [60, 100])
def test_a_large_plan_is_granted_while_small_ones_keep_arriving(rule: SchedulingRule, large: int) -> None:
    granted = busy(rule, AGING, large)
    assert granted["large"] <= 16, "ten minutes of waiting, and five until all is returned"
    assert len(granted) > 20


@pytest.mark.parametrize("rule", SchedulingRule)
def test_without_aging_it_starves(rule: SchedulingRule) -> None:
    granted = busy(rule, None, 100)
    assert "large" not in granted
    assert len(granted) > 100


def test_a_higher_priority_overtakes_an_aged_plan() -> None:
    assert "large" not in busy(SHARE, AGING, 100, priority=1)


@pytest.mark.parametrize("rule", SchedulingRule)
def test_a_plan_that_can_never_fit_holds_nobody_up(rule: SchedulingRule) -> None:
    granted = busy(rule, AGING, 101)
    assert granted == busy(rule, None, 101)


Given = tuple[list[Account], dict[str, Withholding], WaitingPlan, WaitingPlan]


def hopeless_by_spending() -> Given:
    used = with_loss(block("b0", flat(100, 9)), flat(50), flat(0))
    return [used], {}, waiting("old", ["b0"], flat(51), LONG), waiting("new", ["b0"], flat(50))


def hopeless_by_its_maximum() -> Given:
    accounts = [block("b0", flat(100, 9)), block("a", None, "b0"), block("b", None, "b0")]
    kept = Withholding(Allocation(shares={"a": Share(maximum=0.5)}), Fraction(3, 4), Fraction(1, 4))
    return accounts, {"b0": kept}, waiting("old", ["b0", "a"], flat(51), LONG), waiting("new", ["b0", "b"], flat(60))


def hopeless_by_a_lasting_promise() -> Given:
    accounts = [block("b0", flat(100, 9)), block("a", None, "b0"), block("b", None, "b0")]
    kept = Withholding(Allocation(shares={"c": Share(0.5)}))
    return accounts, {"b0": kept}, waiting("old", ["b0", "a"], flat(51), LONG), waiting("new", ["b0", "b"], flat(50))


def takes_what_was_promised_to_it() -> Given:
    accounts = [block("b0", flat(100, 9)), block("a", None, "b0"), block("b", None, "b0")]
    kept = Withholding(Allocation(shares={"b": Share(0.5)}), Fraction(3, 4), Fraction(3, 4))
    return accounts, {"b0": kept}, waiting("old", ["b0", "a"], flat(80), LONG), waiting("new", ["b0", "b"], flat(37))


def in_another_partition() -> Given:
    losses = flat(0), flat(60)
    accounts = [with_loss(block("all", flat(100, 9), None, 1), *losses)]
    accounts += [with_loss(block("a", None, "all"), *losses), block("b", None, "all")]
    return accounts, {}, waiting("old", ["all", "a"], flat(50), LONG), waiting("new", ["all", "b"], flat(100))


def needs_another_account() -> Given:
    accounts = [with_loss(block("b0", flat(100, 9)), flat(0), flat(90)), block("b1", flat(100, 9))]
    return accounts, {}, waiting("old", ["b0", "b1"], flat(50), LONG), waiting("new", ["b1"], flat(50))


def has_no_cost() -> Given:
    used = with_loss(block("b0", flat(100, 9)), flat(0), flat(60))
    return [used], {}, waiting("old", ["b0"], flat(50), LONG), waiting("new", ["b0"], flat(0))


PASSING = [
    hopeless_by_spending,
    hopeless_by_its_maximum,
    hopeless_by_a_lasting_promise,
    takes_what_was_promised_to_it,
    in_another_partition,
    needs_another_account,
    has_no_cost,
]


@pytest.mark.parametrize("make", PASSING)
@pytest.mark.parametrize("rule", SchedulingRule)
def test_a_younger_plan_passes_that_takes_nothing_from_an_aged_one(
    make: Callable[[], Given], rule: SchedulingRule
) -> None:
    accounts, kept, old, new = make()
    books = open_books(accounts, [old, new], kept)
    grants = run_pass(line_of(rule, [old, new], AGING), books)
    assert names(grants) == ["new"]
    assert [each.plan.id for each in grants[0].overtaken] == ["old"]


def lacks_what_is_held() -> Given:
    used = with_loss(block("b0", flat(100, 9)), flat(0), flat(60))
    return [used], {}, waiting("old", ["b0"], flat(50), LONG), waiting("new", ["b0"], flat(1))


def lacks_what_is_locked() -> Given:
    kept = {"b0": unlocked(Fraction(1, 2))}
    return [block("b0", flat(100, 9))], kept, waiting("old", ["b0"], flat(51), LONG), waiting("new", ["b0"], flat(1))


def lacks_a_promise_that_will_end() -> Given:
    accounts = [block("b0", flat(100, 9)), block("a", None, "b0"), block("b", None, "b0")]
    kept = Withholding(Allocation(shares={"c": Share(0.5)}), Fraction(3, 4), Fraction(3, 4))
    return accounts, {"b0": kept}, waiting("old", ["b0", "a"], flat(51), LONG), waiting("new", ["b0", "b"], flat(1))


def takes_more_than_was_promised_to_it() -> Given:
    accounts, kept, old, new = takes_what_was_promised_to_it()
    return accounts, kept, old, waiting(new.id, new.path[:-1], flat(39))


def would_lack_it_then() -> Given:
    accounts = [with_loss(block("b0", flat(100, 9)), flat(0), flat(90)), block("b1", flat(100, 9))]
    return accounts, {}, waiting("old", ["b0", "b1"], flat(50), LONG), waiting("new", ["b1"], flat(51))


def lacks_own_delta() -> Given:
    used = with_loss(block("b0", flat(100, 9)), flat(0), flat(0, 8))
    return [used], {}, waiting("old", ["b0"], flat(1, 2), LONG), waiting("new", ["b0"], flat(1, 1))


def would_lack_it_in_another_partition() -> Given:
    """Two of three partitions count."""
    losses = flat(0), flat(60)
    accounts = [with_loss(block("all", flat(100, 9), None, 2), *losses)]
    accounts += [with_loss(block("a", None, "all"), *losses), block("b", None, "all")]
    return accounts, {}, waiting("old", ["all", "a"], flat(50), LONG), waiting("new", ["all", "b"], flat(1))


DELAYING = [
    lacks_what_is_held,
    lacks_what_is_locked,
    lacks_a_promise_that_will_end,
    takes_more_than_was_promised_to_it,
    would_lack_it_then,
    lacks_own_delta,
    would_lack_it_in_another_partition,
]


@pytest.mark.parametrize("make", DELAYING)
@pytest.mark.parametrize("rule", SchedulingRule)
def test_a_younger_plan_waits_that_takes_what_an_aged_one_lacks(
    make: Callable[[], Given], rule: SchedulingRule
) -> None:
    accounts, kept, old, new = make()
    assert names(run_pass(line_of(rule, [new], AGING), open_books(accounts, [old, new], kept))) == ["new"]
    assert names(run_pass(line_of(rule, [old, new], AGING), open_books(accounts, [old, new], kept))) == []


def test_an_aged_plan_on_a_closed_account_holds_nobody_up() -> None:
    accounts, _, old, new = lacks_what_is_held()
    accounts.append(block("b1", flat(99)))
    old = waiting("old", ["b0", "b1"], flat(50), LONG)
    found = open_books(accounts, [old, new])
    books = Books(found.accounts, {}, lambda account: account.id != "b1")
    assert names(run_pass(line_of(FIRST, [old, new], AGING), books)) == ["new"]


def test_an_aged_plan_that_was_granted_holds_nobody_up() -> None:
    plans = [waiting("old", ["b0"], flat(60), LONG), waiting("new", ["b0"], flat(40))]
    books = open_books([block("b0", flat(100, 9))], plans)
    assert names(run_pass(line_of(SHARE, plans, AGING), books)) == ["old", "new"]


def test_what_an_aged_plan_held_up_is_a_candidate_when_that_becomes_hopeless() -> None:
    accounts = [with_loss(block("b0", flat(100, 9)), flat(0), flat(60)), block("b1", flat(100, 9))]
    plans = [waiting("old", ["b0", "b1"], flat(50), LONG), waiting("new", ["b0"], flat(1))]
    books, line = open_books(accounts, plans), line_of(SHARE, plans, AGING)
    assert names(run_pass(line, books)) == []
    books.accounts["b1"] = with_loss(books.accounts["b1"], flat(60))
    assert names(run_pass(line, books, changed=["b1"])) == ["new"]


@pytest.mark.parametrize(("part", "is_hopeless"), [(Fraction(1, 2), False), (ALL, True)])
def test_what_lasts_of_a_promise_is_that_of_the_last_window(part: Fraction, *, is_hopeless: bool) -> None:
    plan = waiting("x", ["b0"], flat(91))
    kept = Withholding(Allocation(shares={"c": Share(0.2)}), part, Fraction(1, 2))
    assert open_books([block("b0", flat(100))], [plan], {"b0": kept}).is_hopeless(plan) == is_hopeless


def test_candidates_need_no_run_of_an_aged_plan() -> None:
    """The books have the runs of those that are tried only."""
    old, new = waiting("old", ["b0", "b1"], flat(1), LONG), waiting("new", ["b1"], flat(1))
    line = line_of(FIRST, [old, new], AGING)
    books = open_books([block("b0", flat(9)), block("b1", flat(9))], [])
    assert {each.id for each in line.candidates(books, ["b0"], line.aged(NOW))} == {"old", "new"}
