"""The plans of a line, and which of them are tried."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from app.accounting.events import Gaussian, NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.accounts import Account
from app.ledger.allocation import Allocation, SchedulingRule, UnlockByPlans
from app.ledger.filters import filter_weights
from app.ledger.scheduling import Books, WaitingPlan, schedule
from app.ledger.scheduling_rules import Line
from app.ledger.step_events import PricedStep, StepEvent
from app.ledger.withholding import Withholding
from tests.ledger.conftest import make_account

NOW = datetime(2026, 11, 27, tzinfo=UTC)
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
