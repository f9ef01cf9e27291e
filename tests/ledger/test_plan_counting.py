"""Charges of accounts with plans that are decided by counting are those of the rule, and thresholds are not missed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.events import DpEvent, Gaussian, Laplace, NeighboringRelation
from app.accounting.events import RandomizedResponse as Answer
from app.ledger import admission
from app.ledger.accounts import Account
from app.ledger.admission import Admission
from app.ledger.counting import CountedAccount, admit_by_counting
from app.ledger.filters import Limit
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent
from app.ledger.tuning import DEFAULT_SHARE
from tests.soak import few

from .conftest import chained, make_account, planning
from .plan_models import (
    COVERED_SOMEWHERE,
    EVENTS,
    cost_of,
    limited_to,
    limits,
    plans,
    priced,
    shares,
)
from .test_counting import NOW, charged_once, compare_with_the_rule, recorded
from .test_counting import thresholds as some_thresholds

several = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(1, 3) | st.integers(1, 10**4)), min_size=8, max_size=24
)


@st.composite
def paths(draw: st.DrawFn) -> tuple[Account, ...]:
    """A run under accounts with plans or without, with a plan of its own, only a limit, or none."""
    nodes = []
    for depth in range(draw(st.integers(1, 3))):
        node = make_account(*draw(limits), name=f"n{depth}")
        nodes.append(planning(node, *draw(plans), share=draw(shares)) if draw(st.sampled_from([1, 1, 0])) else node)
    kind = draw(st.sampled_from(["unlimited", "unlimited", "limited", "planned"]))
    run = make_account(*draw(limits), name="run", limited=kind != "unlimited")
    return chained(*nodes, planning(run, *draw(plans), share=DEFAULT_SHARE) if kind == "planned" else run)


@few(20)
@given(paths(), some_thresholds, st.sampled_from(COVERED_SOMEWHERE), several, st.data())
def test_counting_decides_as_the_rule(
    path: tuple[Account, ...],
    reached: tuple[float, ...],
    first: DpEvent,
    asked: list[tuple[DpEvent, int]],
    data: st.DataObject,
) -> None:
    planned = [account.planned[0].event for account in path if account.planned]
    first = data.draw(st.sampled_from([first, *planned * 3]))
    records = charged_once(path, priced(path[0], first), reached)
    if records is None:
        return
    if data.draw(st.booleans()):
        held = [each.account.with_hold(cost_of(each.account, [(Gaussian(90.0), 2)])) for each in records]
        records = [replace(each, account=account) for each, account in zip(records, held, strict=True)]
    asked += [(each, count) for each in planned for count in (1, 2, 3, 1)]
    order = data.draw(st.permutations(asked))
    compare_with_the_rule(records, [priced(path[0], event, count) for event, count in order], data)


@pytest.fixture
def path() -> tuple[Account, ...]:
    """A run without a limit, under a budget with a plan of its own, under a population with another."""
    population = planning(make_account(3.0, 1e-5, name="p"), StepEvent(Gaussian(30.0), MAX_COUNT))
    budget = planning(make_account(1.0, 1e-5, name="b"), StepEvent(Gaussian(40.0), MAX_COUNT))
    return chained(population, budget, make_account(name="run", limited=False))


def begun(path: tuple[Account, ...], step: PricedStep, shares: tuple[float, ...] = ()) -> list[CountedAccount]:
    records = charged_once(path, step, shares)
    assert records is not None
    return [CountedAccount(record) for record in records]


def test_run_counts_its_use_of_its_budgets_plan(path: tuple[Account, ...]) -> None:
    step = priced(path[0], Gaussian(40.0))
    population, budget, run = path
    assert set(run.spent.used) == {budget.id}
    assert set(budget.spent.used) == {budget.id, population.id}
    counted = begun(path, step)
    accounts: tuple[Account, ...] = tuple(each.record.account for each in counted)
    for _ in range(100):
        ruled, outcome = admission.admit(accounts, [step]), admit_by_counting(counted, step)
        assert isinstance(ruled, Admission)
        assert outcome is not None
        assert (outcome.reading, outcome.steps_remaining) == (ruled.reading, ruled.steps_remaining)
        accounts = ruled.accounts
        for each in counted:
            each.charge(1, NOW)
    assert outcome is not None
    settled = [each.settled().account for each in counted]
    assert settled == list(accounts)
    assert settled[2].spent.used == {budget.id: settled[1].spent.used[budget.id]}
    assert settled[1].plan is not None
    assert settled[1].plan.workload.steps_for(settled[2].spent.used[budget.id]) == 101
    by_plan = settled[1].plan.epsilon(settled[2].spent.used[budget.id])
    assert outcome.reading.epsilon == settled[1].epsilon(settled[2].spent) == by_plan <= 1.0
    assert by_plan < settled[1].bounds().epsilon(settled[2].spent)


def test_a_charge_that_leaves_a_plan_is_for_the_rule(path: tuple[Account, ...]) -> None:
    step, other = priced(path[0], Gaussian(40.0)), priced(path[0], Laplace(1000.0))
    counted = begun(path, step)
    assert isinstance(admission.admit([each.record.account for each in counted], [other]), Admission)
    assert admit_by_counting(counted, other) is None
    assert admit_by_counting(counted, step) is not None
    left = admission.admit([each.settled().account for each in counted], [other])
    assert isinstance(left, Admission)
    assert not any(account.is_planned() for account in left.accounts[:2])
    again = [CountedAccount(recorded(account)) for account in left.accounts]
    ruled, by_count = admission.admit(left.accounts, [other]), admit_by_counting(again, other)
    assert by_count is not None  # by the orders: nothing of a plan is left to lose
    assert isinstance(ruled, Admission)
    assert (by_count.reading, by_count.steps_remaining) == (ruled.reading, ruled.steps_remaining)


def test_step_that_uses_nothing_is_counted_without_end() -> None:
    free, answer = Answer(1.0, 2), Answer(0.9, 2)
    relation = NeighboringRelation.REPLACE_ONE
    account = planning(replace(make_account(), relation=relation), StepEvent(answer, MAX_COUNT))
    path = chained(account, replace(make_account(name="run", limited=False), relation=relation))
    counted = begun(path, priced(account, answer))
    for count in (1, 5, 10**9):
        step = priced(account, free, count)
        ruled = admission.admit([each.record.account for each in counted], [step])
        by_count = admit_by_counting(counted, step)
        assert by_count is not None
        assert isinstance(ruled, Admission)
        assert (by_count.reading, by_count.steps_remaining) == (ruled.reading, ruled.steps_remaining)


def test_a_changed_limit_changes_the_plan_that_runs_are_counted_by(path: tuple[Account, ...]) -> None:
    step = priced(path[0], Gaussian(40.0))
    counted = begun(path, step)
    first = admit_by_counting(counted, step)
    assert first is not None
    raised = limited_to(counted[1].settled().account, Limit(2.0, 1e-5))
    changed = [counted[0], CountedAccount(recorded(raised)), counted[2]]
    by_count = admit_by_counting(changed, step)
    ruled = admission.admit([each.record.account for each in changed], [step])
    assert by_count is not None
    assert isinstance(ruled, Admission)
    assert (by_count.reading, by_count.steps_remaining) == (ruled.reading, ruled.steps_remaining)
    assert by_count.steps_remaining > first.steps_remaining


def test_a_plan_watches_its_thresholds_and_no_charge_goes_past_one_uncounted(path: tuple[Account, ...]) -> None:
    step = priced(path[0], Gaussian(40.0))
    counted = begun(path, step, (0.5, 1.0))
    watermark = counted[1].record.watermark
    assert watermark is not None
    assert watermark.planned is not None
    assert watermark.planned[0] == "bud_b"
    while admit_by_counting(counted, step) is not None:
        for each in counted:
            each.charge(1, NOW)
    account = counted[1].settled().account
    assert watermark.holds(account.spent)
    after = account.charged(cost_of(account, [(Gaussian(40.0), 1)]))
    assert not watermark.holds(after.spent)
    assert account.limit is not None
    assert account.epsilon() < 0.5 * account.limit.epsilon <= after.epsilon()


def test_held_steps_of_a_plan_are_not_counted_again(path: tuple[Account, ...]) -> None:
    step = priced(path[0], Gaussian(40.0))
    held = admission.hold([each.record.account for each in begun(path, step)], [priced(path[0], Gaussian(40.0), 30)])
    assert isinstance(held, tuple)
    assert held[1].plan is not None
    left = held[1].plan.bound.steps - 31
    for number, remaining in ((1, left - 1), (left, 0), (left + 1, None)):
        outcome = admit_by_counting(
            [CountedAccount(recorded(each)) for each in held], step._replace(step=StepEvent(step.step.event, number))
        )
        assert (None if outcome is None else outcome.steps_remaining) == remaining
