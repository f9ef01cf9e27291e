"""Thresholds: what a watch proves is what epsilon says, charge by charge."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.events import DpEvent, EpsilonDelta, Gaussian, Laplace, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve
from app.ledger.account_records import holds_on, reached, watermark_of
from app.ledger.accounts import Account, AccountKind, zero_curve
from app.ledger.alerts import DEFAULT_THRESHOLDS, check_thresholds
from app.ledger.errors import InvalidInputError
from app.ledger.filters import Limit
from app.ledger.step_events import PricedStep, StepEvent

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
EVENTS: list[DpEvent] = [
    Gaussian(90.0),
    Gaussian(20.0),
    Gaussian(3.0),
    Laplace(200.0),
    EpsilonDelta(0.001, 1e-9),
    PoissonSampled(0.01, Gaussian(1.1)),
]
PRICES = {event: event_curve(event, RELATION) for event in EVENTS}
charges = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 400)), min_size=1, max_size=40)
thresholds = st.lists(st.floats(0.01, 3.0), min_size=0, max_size=6, unique=True).map(sorted).map(tuple)


LIMIT = Limit(2.0, 1e-5)


def account(limit: Limit | None = LIMIT) -> Account:
    return Account(
        id="bud_1",
        kind=AccountKind.BUDGET,
        parent_id="pop_1",
        population_id="pop_1",
        name="b",
        path="p/b",
        depth=1,
        relation=RELATION,
        limit=limit,
        planned=(),
        weights=None,
        spent=zero_curve(),
        held=zero_curve(),
    )


def charged(before: Account, event: DpEvent, count: int) -> Account:
    step = PricedStep(StepEvent(event, count), PRICES[event])
    return before.prepared_for([step]).charged(step.cost)


@given(
    taken=charges,
    shares=thresholds,
    epsilon=st.floats(0.05, 20.0),
    every=st.integers(1, 3),
)
def test_each_threshold_is_crossed_once_and_when_epsilon_reaches_it(
    taken: list[tuple[DpEvent, int]], shares: tuple[float, ...], epsilon: float, every: int
) -> None:
    limit = Limit(epsilon, 1e-5)
    before = account(limit)
    watch = watermark_of(before, shares)
    answer: list[float] = []
    for number, (event, count) in enumerate(taken):
        after = charged(before, event, count)
        if not watch.holds(after.spent):
            later = watermark_of(after, shares)
            answer += shares[watch.passed : later.passed]
            watch = later
        fraction = after.epsilon() / limit.epsilon
        assert answer == [share for share in shares if after.epsilon() >= share * limit.epsilon], (number, fraction)
        before = after
        if number % every == 0:  # another process looks at it for the first time
            watch = watermark_of(before, shares)
    assert len(set(answer)) == len(answer)


@given(
    taken=charges,
    more=charges,
    shares=thresholds,
    epsilons=st.lists(st.floats(0.05, 20.0), min_size=1, max_size=2),
)
def test_what_a_watch_proves_of_a_later_state_is_what_epsilon_says(
    taken: list[tuple[DpEvent, int]],
    more: list[tuple[DpEvent, int]],
    shares: tuple[float, ...],
    epsilons: list[float],
) -> None:
    before = account(Limit(epsilons[0], 1e-5))
    for event, count in taken:
        before = charged(before, event, count)
    watch, now = watermark_of(before, shares), before
    for event, count in more:
        now = charged(now, event, count)
        if holds_on(watch, before, now):
            assert reached(now, shares) == watch.passed
    other = replace(now, limit=Limit(epsilons[-1], 1e-5))
    if holds_on(watch, before, other):
        assert reached(other, shares) == watch.passed


def test_a_watch_says_nothing_of_a_state_that_was_restored_from_a_backup() -> None:
    early = charged(account(), Gaussian(90.0), 1)
    late = charged(early, Gaussian(90.0), 400)
    watch = watermark_of(late, DEFAULT_THRESHOLDS)
    assert (reached(early, DEFAULT_THRESHOLDS), watch.passed) == (0, 1)
    assert watch.holds(early.spent)
    assert not holds_on(watch, late, early)
    assert holds_on(watch, late, late)


def test_a_watch_is_of_one_limit_and_of_one_filter() -> None:
    now = charged(account(), Gaussian(90.0), 10)
    watch = watermark_of(now, DEFAULT_THRESHOLDS)
    assert holds_on(watch, now, charged(now, Gaussian(90.0), 1))
    assert not holds_on(watch, now, replace(now, limit=Limit(0.1, 1e-5)))
    assert now.weights is not None
    other = replace(now.weights, deltas=tuple(each / 2 for each in now.weights.deltas))
    assert not holds_on(watch, now, replace(now, weights=other))


def test_a_steady_workload_is_looked_at_a_few_times_only() -> None:
    step = account()
    watch, looks = watermark_of(step, DEFAULT_THRESHOLDS), 0
    for _ in range(3000):
        step = charged(step, Gaussian(90.0), 1)
        if not watch.holds(step.spent):
            looks += 1
            watch = watermark_of(step, DEFAULT_THRESHOLDS)
    assert watch.passed > 0
    assert looks < 20


def test_a_watch_holds_for_what_it_was_made_of() -> None:
    step = charged(account(), Gaussian(90.0), 1)
    assert watermark_of(step, DEFAULT_THRESHOLDS).holds(step.spent)
    assert not watermark_of(account(), DEFAULT_THRESHOLDS).holds(zero_curve())  # its filter may not be fixed yet


def test_behind_the_last_threshold_nothing_is_watched() -> None:
    lost = charged(account(), Gaussian(3.0), 10_000)
    watch = watermark_of(lost, DEFAULT_THRESHOLDS)
    assert watch.passed == reached(lost, DEFAULT_THRESHOLDS) == len(DEFAULT_THRESHOLDS)
    assert watch.holds(charged(lost, EpsilonDelta(0.001, 1e-9), 10**9).spent)


def test_an_account_without_a_limit_reaches_nothing() -> None:
    run = charged(account(limit=None), Gaussian(3.0), 10_000)
    assert reached(run, DEFAULT_THRESHOLDS) == 0
    assert watermark_of(run, DEFAULT_THRESHOLDS).holds(run.spent)


@pytest.mark.parametrize("shares", [(), (0.5,), DEFAULT_THRESHOLDS, (0.001, 10.0), tuple(n / 10 for n in range(1, 11))])
def test_sensible_thresholds_are_taken(shares: tuple[float, ...]) -> None:
    check_thresholds(shares)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((0.5, 0.5), "increasing"),
        ((0.8, 0.5), "increasing"),
        ((0.0, 0.5), "in (0, 10]"),
        ((-0.5, 0.5), "in (0, 10]"),
        ((0.5, 10.1), "in (0, 10]"),
        ((float("nan"),), "in (0, 10]"),
        (tuple(n / 20 for n in range(1, 12)), "at most 10"),
    ],
)
def test_other_thresholds_are_refused(shares: tuple[float, ...], words: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_thresholds(shares)
    assert words in refused.value.detail


def test_epsilon_only_grows() -> None:
    """What all of it rests on: a threshold that was reached stays so."""
    path: list[Any] = [account()]
    for event in (*EVENTS, *EVENTS):
        path.append(charged(path[-1], event, 3))
    readings = [each.epsilon() for each in path]
    assert all(before <= after for before, after in pairwise(readings))
