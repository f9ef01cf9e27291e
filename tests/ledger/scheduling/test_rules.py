"""The order of reservations that wait, on examples made by hand."""

from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from math import inf

import pytest

from app.accounting.events import EpsilonDelta, Gaussian
from app.ledger.accounts.account import with_usage
from app.ledger.scheduling.queue import WaitingReservation
from app.ledger.settings.allocation import SchedulingRule
from app.ledger.step_events import MAX_COUNT, StepEvent
from tests.ledger.conftest import make_account, plan_of, planning, priced
from tests.ledger.scheduling.blocks import (
    NOW,
    Units,
    block,
    flat,
    line_of,
    names,
    open_ledgers,
    run_pass,
    tried,
    unlocked,
    waiting,
    with_loss,
)

FIRST, SHARE, PACKED = SchedulingRule
LIMITS = {"b0": flat(100, 100), "b1": flat(200, 100), "b2": (100, 1000, -1, 0)}


def order(rule: SchedulingRule, plans: list[WaitingReservation], aging: timedelta | None = None) -> list[str]:
    ledgers = open_ledgers([block(name, limit) for name, limit in LIMITS.items()], plans)
    return tried(line_of(rule, plans, aging).order(plans, ledgers, NOW))


def test_first_come_is_by_arrival_and_then_by_id() -> None:
    plans = [waiting("x", ["b0"], flat(1), 3), waiting("z", ["b0"], flat(9), 2), waiting("y", ["b1"], flat(5), 2)]
    assert order(FIRST, plans) == ["y", "z", "x"]


Case = tuple[str, list[tuple[list[str], Units, float]]]

SHARES: list[Case] = [
    ("of the limit, not of the number", [(["b1"], flat(30), 1.0), (["b0"], flat(20), 1.0)]),
    ("the largest of the accounts decides", [(["b0", "b1"], (30, 30, 30, 0), 1.0), (["b0", "b1"], flat(31), 1.0)]),
    ("the least of the orders decides", [(["b0"], (40, 90, 90, 0), 1.0), (["b0"], (41, 42, 43, 0), 1.0)]),
    ("an order without room does not count", [(["b2"], (30, 301, 999, 0), 1.0), (["b2"], (31, 310, 0, 0), 1.0)]),
    ("own deltas count", [(["b0"], flat(40), 1.0), (["b0"], flat(1, 41), 1.0)]),
    ("own deltas without room are infinite", [(["b0"], flat(99), 1.0), (["b2"], (1, 1, 1, 1), 1.0)]),
    ("the weight divides", [(["b0"], flat(40), 2.0), (["b0"], flat(21), 1.0)]),
    ("the second share decides of equal ones", [(["b0", "b1"], flat(40), 1.0), (["b0", "b3"], flat(40), 1.0)]),
    ("the second is divided by the weight, too", [(["b0", "b1"], flat(40), 1.0), (["b0", "b3"], flat(80), 2.0)]),
    ("one account before two", [(["b0"], flat(40), 1.0), (["b0", "b1"], flat(40), 1.0)]),
]

PACKS: list[Case] = [
    ("the sum over the accounts counts", [(["b0"], flat(30), 1.0), (["b0", "b1"], flat(25), 1.0)]),
    ("of what is left", [(["b1"], flat(50), 1.0), (["b4"], flat(20), 1.0)]),
    ("of what is unlocked", [(["b1"], flat(50), 1.0), (["b5"], flat(20), 1.0)]),
    ("the weight divides", [(["b0"], flat(40), 2.0), (["b0"], flat(21), 1.0)]),
    ("what has no room is last", [(["b0"], flat(100), 1.0), (["b6"], flat(1), 1.0)]),
]


@pytest.mark.parametrize(
    ("rule", "what", "asked"),
    [(rule, *case) for rule, cases in ((SHARE, SHARES), (PACKED, PACKS)) for case in cases],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_reservation_with_the_better_score_is_tried_first(
    rule: SchedulingRule, what: str, asked: list[tuple[list[str], Units, float]]
) -> None:
    """The second arrived first, so that a tie would put it first."""
    limits = LIMITS | {"b3": flat(160, 100), "b4": flat(200, 100), "b5": flat(200, 100), "b6": flat(100, 100)}
    accounts = {name: block(name, limit) for name, limit in limits.items()}
    accounts["b4"] = with_loss(accounts["b4"], flat(110), flat(30))
    accounts["b6"] = with_loss(accounts["b6"], flat(100))
    plans = [waiting(f"x{place}", path, cost, -place, 0, weight) for place, (path, cost, weight) in enumerate(asked)]
    ledgers = open_ledgers(accounts.values(), plans, {"b5": unlocked(Fraction(3, 10))})
    assert tried(line_of(rule, plans).order(plans, ledgers, NOW)) == ["x0", "x1"], what


def test_the_best_order_is_that_at_which_the_most_reservations_fit() -> None:
    """At the first order three of four fit, at the second all but two are too large: the first decides."""
    costs = [(30, 1, 0, 0), (31, 60, 0, 0), (32, 60, 0, 0), (90, 2, 0, 0)]
    plans = [waiting(f"x{place}", ["b0"], cost, -place) for place, cost in enumerate(costs)]
    ledgers = open_ledgers([block("b0", (100, 100, -1, 0))], plans)
    line = line_of(PACKED, plans)
    assert line.scores(plans, ledgers) == {"x0": (0.3,), "x1": (0.31,), "x2": (0.32,), "x3": (0.9,)}
    line.remove("x1")
    rest = [plan for plan in plans if plan.id != "x1"]
    assert line.scores(rest, ledgers) == {"x0": (0.01,), "x2": (0.6,), "x3": (0.02,)}, "two of three, and all three"
    heavy = replace(plans[0], id="x9", weight=9.0)
    line.add(heavy)
    assert line.scores([heavy], ledgers)["x9"] == (0.01 / 9,)


@pytest.mark.parametrize("backwards", [False, True])
def test_the_best_order_does_not_depend_on_the_order_of_insertion(*, backwards: bool) -> None:
    """Two reservations ask for as much by weight, and only one of them fits."""
    plans = [waiting("x", ["b0"], (2, 1, 0, 0), 0, 0, 2.0), waiting("y", ["b0"], (1, 2, 0, 0), 0, 0, 1.0)]
    ledgers = open_ledgers([block("b0", (2, 1, -1, 0))], plans)
    line = line_of(PACKED, plans[::-1] if backwards else plans)
    assert line.scores(plans, ledgers) == {"x": (0.5,), "y": (0.5,)}


@pytest.mark.parametrize("rule", SchedulingRule)
def test_priority_is_before_age_and_age_before_the_rule(rule: SchedulingRule) -> None:
    plans = [
        waiting("small", ["b0"], flat(1), -1),
        waiting("old", ["b0"], flat(90), -60),
        waiting("older", ["b0"], flat(95), -61),
        waiting("preferred", ["b0"], flat(99), 0, 1),
        waiting("deferred", ["b0"], flat(1), -99, -1),
    ]
    expected = ["preferred", "older", "old", "small", "deferred"]
    assert order(rule, plans, timedelta(hours=1)) == expected
    line = line_of(rule, plans, timedelta(hours=1))
    assert tried(line.aged(NOW)) == ["older", "old", "deferred"]
    assert tried(line.aged(NOW - timedelta(microseconds=1))) == ["older", "deferred"]
    assert line_of(rule, plans).aged(NOW) == []


@pytest.mark.parametrize("event", [Gaussian(40.0), Gaussian(80.0)])
def test_a_reservation_counts_with_its_part_of_the_accounts_own_plan_if_that_covers_it(event: Gaussian) -> None:
    account = planning(make_account(1.0, 1e-5), StepEvent(Gaussian(40.0), MAX_COUNT))
    step = priced(account, event, 3)
    used = with_usage([account], [step])[0].cost.used[account.id]
    plan = replace(waiting("x", [account.id], flat(0)), steps=(step,))
    ledgers = open_ledgers([account], [plan])
    columns = zip(used, plan_of(account).capacity, strict=True)
    share = max(each / most for each, most in columns if each)
    for rule in (SHARE, PACKED):
        assert line_of(rule, [plan]).scores([plan], ledgers) == {"x": (share,)}
    step = priced(account, EpsilonDelta(0.5, 0.0))
    other = replace(waiting("y", [account.id], flat(0)), steps=(step,))
    [score] = line_of(SHARE, [other]).scores([other], open_ledgers([account], [other]))["y"]
    bounds = account.bounds()
    asked = zip(map(int, step.curve.values[bounds.places]), map(int, bounds.bounds), strict=True)
    assert score == min(0.5, *(each / most for each, most in asked if most > 0))


def test_a_filter_that_is_not_tuned_is_tuned_for_each_reservation() -> None:
    account = make_account(1.0, 1e-5)
    plans = [
        replace(waiting(name, [account.id], flat(0)), steps=(priced(account, Gaussian(30.0), count),))
        for name, count in (("x", 2), ("y", 1))
    ]
    line, ledgers = line_of(SHARE, plans), open_ledgers([account], plans)
    assert tried(line.order(plans, ledgers, NOW)) == ["y", "x"]
    assert line.candidates(ledgers, [account.id]) == plans
    assert names(run_pass(line, ledgers, NOW, [account.id])) == ["y", "x"]
    assert ledgers.accounts[account.id].weights == account.prepared_for(plans[1].steps).weights


def test_an_account_without_orders_or_a_limit() -> None:
    plans = [waiting("x", ["b0"], flat(1)), waiting("y", ["b1"], flat(1)), waiting("z", ["b2"], flat(1, 1))]
    ledgers = open_ledgers([block("b0", (-1, 0, -1, 9)), block("b1", None), block("b2", flat(9))], plans)
    assert line_of(SHARE, plans).scores(plans, ledgers) == {"x": (inf,), "y": (0,), "z": (inf,)}
    assert line_of(PACKED, plans).scores(plans, ledgers) == {"x": (inf,), "y": (0,), "z": (1 / 9,)}


def test_reservations_leave_a_line() -> None:
    plans = [waiting("x", ["b0", "b1"], flat(1)), waiting("y", ["b1"], flat(1))]
    line = line_of(FIRST, plans)
    assert line.through(["b0", "b1"]) == plans
    line.remove("x")
    assert (line.through(["b0"]), line.through(["b1"])) == ([], [plans[1]])
    with pytest.raises(KeyError):
        line.remove("x")
