"""Filters that are tuned to what runs declared, on random workloads."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.conversion import threshold_units
from app.accounting.curves import EXHAUSTED, GRID_VERSION, orders
from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account
from app.ledger.filter.filters import PLANNED_SHARE, filter_weights
from app.ledger.governance.registered_steps import is_tunable, registered_steps, tuned_weights, weights_after
from app.ledger.governance.steps_lost import PricedGroup, find_steps_lost
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent, total_cost
from tests.ledger.conftest import make_account, priced

RELEASE, TRAINING = dp.Laplace(10.0), dp.PoissonSampled(0.001, dp.Gaussian(0.7))
EVENTS: list[DpEvent] = [
    *(RELEASE, TRAINING, dp.Gaussian(8.0), dp.Gaussian(300.0), dp.PoissonSampled(0.02, dp.Gaussian(1.1))),
    *(dp.PermuteAndFlip(0.05), dp.Zcdp(0.001, 1e-9), dp.Exponential(0.1)),
]
KINDS = st.tuples(st.sampled_from(EVENTS), st.integers(1, 50_000) | st.just(MAX_COUNT))
LIMITS = st.tuples(st.sampled_from([0.3, 1.0, 3.0, 8.0]), st.sampled_from([1e-5, 1e-8]))


def tuned(account: Account, *parts: Sequence[PricedStep]) -> Account:
    return replace(account, weights=tuned_weights(account, parts))


def share_that_fits(account: Account, steps: Sequence[PricedStep]) -> float:
    """How much of steps fits by the orders of a filter."""
    gate = account.bounds()
    losses = sum(step.curve.values[gate.places].astype(float) * step.step.count for step in steps)
    return float(np.max(gate.bounds / losses))


def best_share(account: Account, steps: Sequence[PricedStep]) -> float:
    """How much of steps fits by the best order with the share of delta that a tuned order has."""
    assert account.limit is not None
    bounds = threshold_units(orders(GRID_VERSION), account.limit.epsilon, PLANNED_SHARE * account.limit.delta)
    losses = sum(
        np.where(step.curve.values < EXHAUSTED, step.curve.values * float(step.step.count), np.inf) for step in steps
    )
    return float(np.max(bounds / losses))


@given(LIMITS, st.lists(KINDS.filter(lambda each: each[1] < MAX_COUNT), min_size=1, max_size=5))
def test_known_steps_fit_as_often_as_by_the_best_order(
    limit: tuple[float, float], kinds: list[tuple[DpEvent, int]]
) -> None:
    account = make_account(*limit)
    steps = [priced(account, event, count) for event, count in kinds]
    ready = tuned(account, steps)
    assert ready.weights is not None
    assert ready.weights.within(limit[1])
    if not any(step.curve.delta for step in steps):  # which take a part of delta
        assert share_that_fits(ready, steps) >= 0.999 * best_share(account, steps)


@given(LIMITS, st.lists(KINDS, min_size=1, max_size=6), st.randoms())
def test_order_of_runs_hardly_matters(
    limit: tuple[float, float], kinds: list[tuple[DpEvent, int]], random: object
) -> None:
    account = make_account(*limit)
    steps = [priced(account, event, count) for event, count in kinds]
    moved = list(steps)
    random.shuffle(moved)  # type: ignore[attr-defined]
    one, other = (tuned(account, each) for each in (steps, moved))
    counted = [replace_count(step) for step in steps]
    assert share_that_fits(one, counted) == pytest.approx(share_that_fits(other, counted), rel=2e-3)


def replace_count(step: PricedStep) -> PricedStep:
    return step._replace(step=StepEvent(step.step.event, min(step.step.count, 1000)))


@given(LIMITS, st.sampled_from(EVENTS), st.integers(1, MAX_COUNT), st.integers(1, 4))
def test_one_kind_is_tuned_to_as_by_its_first_charge(
    limit: tuple[float, float], event: DpEvent, count: int, runs: int
) -> None:
    account = make_account(*limit)
    step = priced(account, event, count)
    assert account.limit is not None
    assert tuned_weights(account, [[step] * runs]) == filter_weights(account.limit, step.curve, GRID_VERSION)


def test_a_release_costs_a_training_one_percent_of_its_steps() -> None:
    account = make_account(3.0, 1e-5)
    release, training = priced(account, RELEASE), priced(account, TRAINING, 40_000)
    endless = priced(account, TRAINING, MAX_COUNT)
    for parts in ([[release, training]], [[training, release]], [[release, endless]]):
        assert tuned(account, *parts).repetitions([release.curve], training.curve) == 47_477  # of 47,870 by Rényi
    assert tuned(account, [release]).repetitions([release.curve], training.curve) == 1_849


def test_runs_of_unknown_length_share_the_account() -> None:
    """A dear event with as many repetitions as a cheap one would leave that one nothing."""
    account = make_account(3.0, 1e-5)
    release, training = priced(account, RELEASE, MAX_COUNT), priced(account, TRAINING, MAX_COUNT)
    ready = tuned(account, [release, training])
    for step in (release, training):
        alone = tuned(account, [step]).repetitions([], step.curve)
        assert ready.repetitions([], step.curve) > 0.8 * alone


def test_of_disjoint_parts_the_largest_counts() -> None:
    account = replace(make_account(3.0, 1e-5), partitions_per_unit=1)
    release, training = priced(account, RELEASE), priced(account, TRAINING, 40_000)
    many = [[release]] * 63
    assert tuned(account, *many, [training]).weights == tuned(account, [release], [training]).weights
    summed = tuned(replace(account, partitions_per_unit=None), [*(release for _ in range(63)), training])
    apart = tuned(account, *many, [training])
    assert share_that_fits(apart, [training]) > share_that_fits(summed, [training])


def test_event_that_cannot_be_tuned_to_is_left_out() -> None:
    account = make_account()
    nothing, training = priced(account, dp.Gaussian(0.001), 5), priced(account, TRAINING, 10)
    assert nothing.curve.is_exhausted
    assert tuned_weights(account, []) is None
    assert tuned_weights(account, [[nothing]]) is None
    assert tuned_weights(account, [[nothing, training]]) == tuned_weights(account, [[training]])


def test_only_untouched_accounts_without_plan_are_tuned() -> None:
    account, cost = make_account(), priced(make_account(), TRAINING).curve
    assert is_tunable(account)
    assert not is_tunable(make_account(limited=False))
    assert not is_tunable(replace(account, planned=(StepEvent(TRAINING, 5),)))
    assert not is_tunable(tuned(account, [priced(account, TRAINING)]).charged(cost))
    assert not is_tunable(tuned(account, [priced(account, TRAINING)]).with_hold(cost))


@pytest.mark.parametrize(
    ("planned", "event", "expected", "steps"),
    [
        ((), None, None, ()),
        ((), None, 5, ()),
        ((), TRAINING, None, ((TRAINING, MAX_COUNT),)),
        ((), TRAINING, 7, ((TRAINING, 7),)),
        ((), dp.RepeatAndSelect(TRAINING, 5.0, 1.0), None, None),
        (((RELEASE, 2),), TRAINING, 7, ((RELEASE, 2),)),
        (((RELEASE, 2), (TRAINING, MAX_COUNT)), None, 7, ((RELEASE, 2), (TRAINING, 5))),
        (((RELEASE, 2), (TRAINING, MAX_COUNT)), None, None, ((RELEASE, 2), (TRAINING, MAX_COUNT))),
        (((RELEASE, 7), (TRAINING, MAX_COUNT)), None, 7, ((RELEASE, 7),)),
    ],
)
def test_registered_steps_are_the_plan_or_the_default_event(
    planned: tuple[tuple[DpEvent, int], ...],
    event: DpEvent | None,
    expected: int | None,
    steps: tuple[tuple[DpEvent, int], ...] | None,
) -> None:
    found = registered_steps([StepEvent(*each) for each in planned], event, expected)
    wanted = ((event, 1),) if steps is None else steps
    assert [(step.event, step.count) for step in found] == list(wanted)


def lost_after(spent: DpEvent, count: int, expected: DpEvent, number: int) -> int:
    """How many of the expected steps are lost after an account was tuned to others."""
    account = make_account(3.0, 1e-5)
    first, then = priced(account, spent, count), priced(account, expected, number)
    charged = tuned(account, [first]).charged(total_cost([first]))
    lost = find_steps_lost(charged, [PricedGroup(account.id, number, (then,))])
    return 0 if lost is None else lost.tuned - lost.fitting


def test_more_than_a_tenth_is_warned_of() -> None:
    assert lost_after(RELEASE, 1, TRAINING, 40_000) == 40_000 - 1_849
    assert lost_after(RELEASE, 1, TRAINING, 2_060) == 2_060 - 1_849
    assert lost_after(RELEASE, 1, TRAINING, 2_000) == 0
    assert lost_after(TRAINING, 1, TRAINING, 10**6) == 0  # which does not fit, but would in no other way


@given(LIMITS, KINDS, KINDS)
def test_steps_that_a_warning_names_are_lost(
    limit: tuple[float, float], spent: tuple[DpEvent, int], expected: tuple[DpEvent, int]
) -> None:
    account = make_account(*limit)
    number = min(expected[1], 50_000)
    first, then = priced(account, spent[0]), priced(account, expected[0], number)
    charged = tuned(account, [first]).charged(first.curve)
    lost = find_steps_lost(charged, [PricedGroup(account.id, number, (then,))])
    fitting = max(charged.repetitions([], then.curve), 0)
    weights = weights_after(charged, [then])
    if lost is None:
        if weights is not None and fitting < number:
            most = replace(charged, weights=weights).repetitions([], then.curve)
            assert min(most, number) - fitting <= 0.1 * number + 1
        return
    assert lost.remaining == number
    assert lost.fitting == pytest.approx(min(fitting, number), abs=1)
    assert lost.tuned - lost.fitting > 0.1 * number
    assert "is not tuned" in lost.warning
