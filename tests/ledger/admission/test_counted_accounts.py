"""Accounts that are counted: which charges are left to the rule, on examples."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import EpsilonDelta, Gaussian, Laplace, NeighboringRelation, fingerprint
from app.accounting.events import RandomizedResponse as Answer
from app.ledger.accounts.account import Account, zero_curve
from app.ledger.accounts.account_records import MOST_EVENTS, AccountRecord
from app.ledger.admission import admission
from app.ledger.admission.admission import Admission
from app.ledger.admission.counted_accounts import CountedAccount, admit_by_counting
from app.ledger.admission.epsilons_ahead import EpsilonsAhead
from app.ledger.filter.limits import Limit
from app.ledger.settings.policy_rules import Policy
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent
from tests.ledger.admission.test_counting import NOW, charged_once, recorded
from tests.ledger.conftest import chained, make_account, plan_of, planning, priced
from tests.ledger.ledger_model import limited_to
from tests.ledger.plan.plan_models import cost_of


def begun(path: Sequence[Account], step: PricedStep, reached: tuple[float, ...] = ()) -> list[CountedAccount]:
    records = charged_once(path, step, reached)
    assert records is not None
    return [CountedAccount(record) for record in records]


def both(counted: list[CountedAccount], step: PricedStep) -> tuple[Admission, Admission]:
    """Decide by counting and by the rule, which find the same numbers."""
    by_count = admit_by_counting(counted, step)
    ruled = admission.admit([each.copy().settled().account for each in counted], [step])
    assert by_count is not None
    assert isinstance(ruled, Admission)
    assert by_count.steps_remaining == ruled.steps_remaining
    assert by_count.used == ruled.used
    return by_count, ruled


STEP = priced(make_account(), Gaussian(40.0))


@pytest.fixture
def counted() -> CountedAccount:
    """An account of epsilon 8 that was charged once."""
    return begun([make_account(8.0)], STEP, (0.5, 1.0))[0]


@pytest.fixture
def path() -> tuple[Account, ...]:
    """A run without a limit, under a budget with a plan of its own, under a population with another."""
    population = planning(make_account(3.0, 1e-5, name="p"), StepEvent(Gaussian(30.0), MAX_COUNT))
    budget = planning(make_account(1.0, 1e-5, name="b"), StepEvent(Gaussian(40.0), MAX_COUNT))
    return chained(population, budget, make_account(name="run", limited=False))


def test_no_charge_goes_past_a_threshold_uncounted(counted: CountedAccount, path: tuple[Account, ...]) -> None:
    for accounts, place in (([counted], 0), (begun(path, STEP, (0.5, 1.0)), 1)):
        watermark = accounts[place].record.watermark
        assert watermark is not None
        assert (watermark.planned and watermark.planned[0]) == (None if place == 0 else "bud_b")
        while admit_by_counting(accounts, STEP) is not None:
            for each in accounts:
                each.charge(1, NOW)
        account = accounts[place].settled().account
        assert watermark.holds(account.spent)
        after = account.charged(cost_of(account, [(Gaussian(40.0), 1)]))
        assert not watermark.holds(after.spent)
    assert account.used() < 0.5 <= after.used()


def of_account(**changes: object) -> Callable[[AccountRecord], AccountRecord]:
    return lambda record: replace(record, account=replace(record.account, **changes))  # type: ignore[arg-type]


def with_loss(units: int, delta: int) -> RdpCurve:
    return RdpCurve(np.full_like(zero_curve().values, units), delta)


UNUSUAL: dict[str, Callable[[AccountRecord], AccountRecord]] = {
    "in quarantine": lambda record: replace(record, quarantine="its balance is unproven"),
    "its curves are to be written": lambda record: replace(record, must_compact=True),
    "too many different events": lambda record: replace(
        record, uncompacted={f"event {number}": (1, 0) for number in range(MOST_EVENTS)}
    ),
    "no watermark": lambda record: replace(record, watermark=None),
    "a policy": of_account(policy=Policy()),
    "the organisation's policy": of_account(organisation_policy=Policy()),
    "parallel": of_account(partitions_per_unit=2),
    "no weights yet": of_account(weights=None),
    "no delta left": of_account(spent=with_loss(1, EXHAUSTED)),
}


@pytest.mark.parametrize("changed", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_account_is_left_to_the_rule(
    counted: CountedAccount, changed: Callable[[AccountRecord], AccountRecord]
) -> None:
    assert admit_by_counting([counted.copy()], STEP) is not None
    assert admit_by_counting([CountedAccount(changed(counted.record))], STEP) is None


def test_events_with_a_delta_are_for_the_rule(counted: CountedAccount) -> None:
    assert admit_by_counting([counted], priced(make_account(), EpsilonDelta(0.001, 1e-12))) is None


def test_free_step_is_counted(counted: CountedAccount) -> None:
    free = PricedStep(StepEvent(Gaussian(40.0), 5), zero_curve())
    both([counted], free)
    unspent = replace(counted.record, account=replace(counted.record.account, spent=zero_curve()))
    assert both([CountedAccount(unspent)], free)[0].used == 0


def test_run_counts_its_use_of_its_budgets_plan(path: tuple[Account, ...]) -> None:
    population, budget, run = path
    assert set(run.spent.used) == {budget.id}
    assert set(budget.spent.used) == {budget.id, population.id}
    counted = begun(path, STEP)
    for _ in range(100):
        outcome, ruled = both(counted, STEP)
        for each in counted:
            each.charge(1, NOW)
    settled = [each.settled().account for each in counted]
    assert settled == list(ruled.accounts)
    used, plan = settled[2].spent.used, plan_of(settled[1])
    assert used == {budget.id: settled[1].spent.used[budget.id]}
    assert plan.workload.steps_for(used[budget.id]) == 101
    by_plan = plan.share(used[budget.id])
    assert outcome.binding.id == budget.id
    assert outcome.used == settled[1].used() == by_plan < settled[1].bounds().used(settled[1].spent)


def test_counted_events_of_a_watched_plan_may_change(path: tuple[Account, ...]) -> None:
    counted = begun(path, STEP, (0.5, 1.0))
    for number in range(6):
        both(counted, priced(path[0], Gaussian(40.0 + 20 * (number % 2))))
        for each in counted:
            each.charge(1, NOW)


def test_a_charge_that_leaves_a_plan_is_for_the_rule(path: tuple[Account, ...]) -> None:
    other = priced(path[0], Laplace(1000.0))
    counted = begun(path, STEP)
    assert admit_by_counting(counted, other) is None
    assert admit_by_counting(counted, STEP) is not None
    left = admission.admit([each.settled().account for each in counted], [other])
    assert isinstance(left, Admission)
    assert not any(account.is_planned() for account in left.accounts[:2])
    both([CountedAccount(recorded(account)) for account in left.accounts], other)  # by the orders: the plan is over


def test_step_that_uses_nothing_is_counted_without_end() -> None:
    free, answer = Answer(1.0, 2), Answer(0.9, 2)
    relation = NeighboringRelation.REPLACE_ONE
    account = planning(replace(make_account(), relation=relation), StepEvent(answer, MAX_COUNT))
    path = chained(account, replace(make_account(name="run", limited=False), relation=relation))
    for count in (1, 5, 10**9):
        both(begun(path, priced(account, answer)), priced(account, free, count))


def test_a_changed_limit_changes_the_plan_that_runs_are_counted_by(path: tuple[Account, ...]) -> None:
    counted = begun(path, STEP)
    first, _ = both(counted, STEP)
    raised = CountedAccount(recorded(limited_to(counted[1].settled().account, Limit(2.0, 1e-5))))
    by_count, _ = both([counted[0], raised, counted[2]], STEP)
    assert by_count.steps_remaining > first.steps_remaining


def test_held_steps_of_a_plan_are_not_counted_again(path: tuple[Account, ...]) -> None:
    held = admission.hold([each.record.account for each in begun(path, STEP)], [priced(path[0], Gaussian(40.0), 30)])
    assert isinstance(held, tuple)
    left = plan_of(held[1]).bound.steps - 31
    for number, remaining in ((1, left - 1), (left, 0), (left + 1, None)):
        asked = STEP._replace(step=StepEvent(STEP.step.event, number))
        outcome = admit_by_counting([CountedAccount(recorded(each)) for each in held], asked)
        assert (None if outcome is None else outcome.steps_remaining) == remaining


def test_epsilon_that_is_known_ahead_ends_with_another_event(counted: CountedAccount) -> None:
    """It is of the charges that were counted on, whatever told the epsilon of the others."""
    other, event = priced(make_account(), Gaussian(30.0)), fingerprint(STEP.step.event)
    both([counted], STEP)
    assert counted.counts_after(1) == {event: 2}
    counted.look_ahead(EpsilonsAhead({event: [5, 50]}, [0.1, 0.2]))
    counted.charge(1, NOW)
    assert counted.copy().epsilon(49) is None
    assert [counted.copy().epsilon(number) for number in (1, 3, 4, 48)] == [0.1, 0.1, 0.2, 0.2]
    both([counted], other)
    assert counted.epsilon(1) is None
    counted.choose_order(1, 1e-5)
    counted.charge(1, NOW)
    both([counted], STEP)
    assert counted.epsilon(1) is None, "the loss has grown by more than an eighth"
    counted.choose_order(1, 1e-5)
    proven = counted.copy().settled().account.charged(STEP.curve).rdp_epsilon(1e-5)
    known = counted.epsilon(1)
    assert known is not None
    assert proven <= known <= proven * 1.002
