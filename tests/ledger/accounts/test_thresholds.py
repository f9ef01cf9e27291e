"""Thresholds: what a watch proves is what the used share says, charge by charge."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.events import DpEvent, EpsilonDelta, Gaussian, Laplace, PoissonSampled
from app.ledger.accounts.account import MOST_USED, Account
from app.ledger.accounts.account_records import holds_on, reached, watermark_of
from app.ledger.accounts.alerts import (
    DEFAULT_THRESHOLDS,
    Forecast,
    check_thresholds,
    forecast,
)
from app.ledger.errors import InvalidInputError
from app.ledger.filter.limits import Limit
from tests.ledger.conftest import admitted, make_account, priced
from tests.ledger.ledger_model import limited_to
from tests.ledger.plan.plan_models import EVENTS as PLANNED
from tests.ledger.plan.plan_models import Taken, cost_of, limits, planned_accounts
from tests.soak import few

EVENTS: list[DpEvent] = [
    *(Gaussian(90.0), Gaussian(20.0), Gaussian(3.0), Laplace(200.0), EpsilonDelta(0.001, 1e-9)),
    PoissonSampled(0.01, Gaussian(1.1)),
]
STEP = Gaussian(90.0)
FRESH = make_account(2.0)


def charged(before: Account, event: DpEvent, count: int) -> Account:
    ready = before.prepared_for([priced(before, event, count)])
    return ready.charged(cost_of(ready, [(event, count)]))


accounts = st.builds(make_account, st.floats(0.05, 20.0)) | planned_accounts
taken = st.lists(st.tuples(st.sampled_from([*EVENTS, *PLANNED]), st.integers(1, 400)), min_size=1, max_size=20)
fractions = st.lists(st.floats(0.01, 3.0), max_size=6, unique=True).map(sorted).map(tuple)


@few(15)
@given(accounts, taken, fractions, st.integers(1, 3))
def test_threshold_is_crossed_once_and_when_the_used_share_reaches_it(
    before: Account, steps: Taken, shares: tuple[float, ...], every: int
) -> None:
    assert before.limit is not None
    watch, answer = watermark_of(before, shares), list[float]()
    begun = [(each.event, 1) for each in before.planned[:1]]
    for number, (event, count) in enumerate([*begun, *steps]):
        after = charged(before, event, count)
        assert after.used() >= before.used()
        if not watch.holds(after.spent):
            later = watermark_of(after, shares)
            answer += shares[watch.passed : later.passed]
            watch = later
        assert answer == [share for share in shares if after.used() >= share]
        before = after
        if number % every == 0:  # another process looks at it for the first time
            watch = watermark_of(before, shares)


@few(15)
@given(accounts, taken, taken, fractions, limits)
def test_watch_proves_of_a_later_state_what_the_used_share_says(
    before: Account, steps: Taken, more: Taken, shares: tuple[float, ...], other: tuple[float, float]
) -> None:
    for event, count in steps:
        before = charged(before, event, count)
    watch, now = watermark_of(before, shares), before
    assert watch.planned is None or before.is_planned()
    for event, count in more:
        now = charged(now, event, count)
        if holds_on(watch, before, now):
            assert reached(now, shares) == watch.passed
    changed = limited_to(now, Limit(*other))
    assert not holds_on(watch, before, changed) or reached(changed, shares) == watch.passed


def test_a_watch_says_nothing_of_a_state_that_was_restored_from_a_backup() -> None:
    early = charged(FRESH, STEP, 1)
    late = charged(early, STEP, (admitted([early], STEP).steps_remaining * 2) // 3)
    watch = watermark_of(late, DEFAULT_THRESHOLDS)
    assert (reached(early, DEFAULT_THRESHOLDS), watch.passed) == (0, 1)
    assert watch.holds(early.spent)
    assert not holds_on(watch, late, early)
    assert holds_on(watch, late, late)


def test_a_watch_is_of_one_limit_and_of_one_filter() -> None:
    now = charged(FRESH, STEP, 10)
    watch = watermark_of(now, DEFAULT_THRESHOLDS)
    assert holds_on(watch, now, charged(now, STEP, 1))
    assert not holds_on(watch, now, replace(now, limit=Limit(0.1, 1e-5)))
    assert now.weights is not None
    other = replace(now.weights, deltas=tuple(each / 2 for each in now.weights.deltas))
    assert not holds_on(watch, now, replace(now, weights=other))


def test_a_steady_workload_is_looked_at_a_few_times_only() -> None:
    now, looks = FRESH, 0
    watch = watermark_of(now, DEFAULT_THRESHOLDS)
    for _ in range(600):
        now = charged(now, STEP, 5)
        if not watch.holds(now.spent):
            looks += 1
            watch = watermark_of(now, DEFAULT_THRESHOLDS)
    assert watch.passed > 0
    assert looks < 20


def test_behind_the_last_threshold_and_without_a_limit_nothing_is_watched() -> None:
    lost = charged(FRESH, Gaussian(3.0), 10_000)
    watch = watermark_of(lost, DEFAULT_THRESHOLDS)
    assert watch.passed == reached(lost, DEFAULT_THRESHOLDS) == len(DEFAULT_THRESHOLDS)
    assert watch.holds(charged(lost, EpsilonDelta(0.001, 1e-9), 10**9).spent)
    run = charged(make_account(limited=False), Gaussian(3.0), 10_000)
    assert reached(run, DEFAULT_THRESHOLDS) == 0
    assert watermark_of(run, DEFAULT_THRESHOLDS).holds(run.spent)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        *(((0.5, 0.5), "increasing"), ((0.8, 0.5), "increasing")),
        *(((0.0, 0.5), "in (0, 10]"), ((0.5, 10.1), "in (0, 10]"), ((float("nan"),), "in (0, 10]")),
        (tuple(n / 20 for n in range(1, 12)), "at most 10"),
    ],
)
def test_other_thresholds_are_refused(shares: tuple[float, ...], words: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_thresholds(shares)
    assert words in refused.value.detail


def test_a_share_grows_evenly_and_is_1_where_nothing_is_admitted() -> None:
    most = admitted([FRESH], STEP).steps_remaining + 1
    shares = [charged(FRESH, STEP, most * part // 4).used() for part in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0], rel=0.02)
    assert all(share <= part / 4 for share, part in zip(shares, (1, 2, 3, 4), strict=True))
    assert charged(FRESH, STEP, most + 1).used() > 1
    assert FRESH.used() == 0.0
    assert charged(FRESH, Gaussian(3.0), 10**9).used() == MOST_USED


def test_a_delta_that_is_used_up_counts_as_well() -> None:
    rich = charged(make_account(1000.0), STEP, 1)
    assert rich.used() < 0.01
    assert charged(rich, EpsilonDelta(0.001, 1e-9), 50).used() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("share", "before", "days", "expected"),
    [
        (0.5, 0.25, 5.0, Forecast(0.5, 0.05, 10.0)),
        (0.5, 0.5, 5.0, Forecast(0.5, 0.0, None)),
        (0.4, 0.5, 5.0, Forecast(0.4, 0.0, None)),
        (1.0, 0.5, 5.0, Forecast(1.0, 0.1, None)),
        (2.0, 0.5, 5.0, Forecast(2.0, 0.3, None)),
        (0.5, 0.25, 0.0, Forecast(0.5, None, None)),
        (0.5, 0.5 - 2.0**-30, 4.0, Forecast(0.5, 2.0**-32, None)),
    ],
)
def test_a_forecast_is_a_straight_line(share: float, before: float, days: float, expected: Forecast) -> None:
    assert forecast(share, before, days) == expected
