"""Filter weights and thresholds; mechanisms' own deltas are taken from that of the account, and no part of it twice."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.conversion import declared_bounds, epsilon_of_curve
from app.accounting.curves import DELTA_UNIT, EXHAUSTED, GRID_VERSION, RdpCurve, finite_orders, orders
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled, RandomizedResponse
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import MOST_USED, Account
from app.ledger.admission import admission
from app.ledger.admission.admission import Admission, Refusal
from app.ledger.errors import DeltaTooLargeError, InvalidInputError, LimitTooSmallError
from app.ledger.filter.filters import (
    PLANNED_SHARE,
    SET_ASIDE,
    check_limit,
    filter_weights,
    smallest_useful_epsilon,
    spread_beside,
)
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import rescale_weights
from app.ledger.step_events import PricedStep, StepEvent
from tests.ledger.conftest import make_account, thresholds
from tests.soak import few

GRID = orders(GRID_VERSION)
limits = st.builds(Limit, st.floats(0.05, 100.0), st.floats(1e-12, 1e-3))
workloads = st.builds(
    lambda q, z: event_curve(PoissonSampled(q, Gaussian(z)), NeighboringRelation.ADD_OR_REMOVE_ONE),
    st.sampled_from([1e-4, 0.004, 0.01, 0.2, 1.0]),
    st.sampled_from([0.5, 1.0, 1.1, 4.0, 30.0]),
)


@given(limits, workloads)
def test_weights_never_sum_to_more_than_delta(limit: Limit, workload: RdpCurve) -> None:
    weights = filter_weights(limit, workload, GRID_VERSION)
    assert sum(map(Fraction, weights.deltas)) <= Fraction(limit.delta)
    assert max(weights.deltas) == PLANNED_SHARE * limit.delta
    assert len(weights.indices) <= 9


@given(limits, workloads, st.integers(1, 10**6))
def test_weights_do_not_depend_on_the_size_of_the_workload(limit: Limit, workload: RdpCurve, count: int) -> None:
    many = workload.times(count)
    if np.any(many.values == EXHAUSTED):
        return
    assert filter_weights(limit, many, GRID_VERSION) == filter_weights(limit, workload, GRID_VERSION)


@given(limits, st.none() | workloads)
def test_thresholds_lie_below_the_exact_ones_by_less_than_a_billionth(limit: Limit, workload: RdpCurve | None) -> None:
    """Those of a filter, and without a workload those for what is fixed in advance, which has every order."""
    weights = None if workload is None else filter_weights(limit, workload, GRID_VERSION)
    found = thresholds(limit, weights) if weights else declared_bounds(limit.epsilon, limit.delta, GRID_VERSION)
    counting = weights.indices if weights else range(len(GRID))
    deltas = dict(zip(weights.indices, weights.deltas, strict=True)) if weights else {}
    with mpmath.workdps(50):
        # What delta covers by itself, at epsilon 0 (Bretagnolle, Huber 1979).
        covered = int(mpmath.floor(-mpmath.log(1 - mpmath.mpf(limit.delta) ** 2) * 2**44 * (1 - mpmath.mpf(2) ** -49)))
        for index in list(counting)[:: max(1, len(counting) // 12)]:
            order, delta = mpmath.mpf(GRID[index]), mpmath.mpf(deltas.get(index, limit.delta))
            exact = limit.epsilon - mpmath.log(1 - 1 / order) + mpmath.log(delta * order) / (order - 1)
            units = exact * 2**44
            if weights is None and found[index] == covered:
                assert exact < (covered + 1) * mpmath.mpf(2) ** -44
            elif found[index] == -1:
                assert exact < 1e-9
            else:
                assert found[index] <= units
                assert found[index] >= units - 2**44 * mpmath.mpf("1e-9") * max(1, abs(exact))
    others = set(range(len(GRID))) - set(counting)
    assert all(found[index] == -1 for index in others)


@given(limits, workloads, st.booleans())
def test_fitting_curve_reads_as_at_most_the_limit(limit: Limit, workload: RdpCurve, in_advance: bool) -> None:  # noqa: FBT001
    weights = filter_weights(limit, workload, GRID_VERSION)
    bound = declared_bounds(limit.epsilon, limit.delta, GRID_VERSION) if in_advance else thresholds(limit, weights)
    count = int(np.max(np.maximum(bound, 0) // np.maximum(workload.values, 1)))

    def read(spent: RdpCurve) -> float:
        if in_advance:
            return epsilon_of_curve(GRID, spent, limit.delta).epsilon
        return replace(make_account(limit.epsilon, limit.delta), weights=weights).bounds().limit_needed(spent)

    if count:
        assert read(workload.times(count)) <= limit.epsilon
        assert read(workload.times(count + 1)) > limit.epsilon * (1 - 1e-9)


def test_nothing_spent_reads_as_zero_and_everything_lost_as_infinite() -> None:
    lost = RdpCurve.from_nats(np.full(GRID.shape, np.inf))
    opened = make_account()
    assert (opened.used(), opened.rdp_epsilon(1e-5)) == (0, 0)
    bankrupt = replace(opened, spent=lost)
    assert (bankrupt.used(), bankrupt.rdp_epsilon(1e-5)) == (MOST_USED, np.inf)


@pytest.mark.parametrize("delta", [1e-4, 1e-5, 1e-12])
def test_the_smallest_useful_epsilon_is_where_something_begins_to_fit(delta: float) -> None:
    smallest = smallest_useful_epsilon(delta, finite_orders(GRID_VERSION))
    # Faint, and yet more than what delta covers by itself.
    faint = event_curve(PoissonSampled(1e-9, Gaussian(1e6)), NeighboringRelation.ADD_OR_REMOVE_ONE).times(10**6)
    above, below = Limit(smallest * 1.001, delta), Limit(smallest * 0.999, delta)
    assert np.any(faint.values <= thresholds(above, filter_weights(above, faint, GRID_VERSION)))
    assert not np.any(faint.values <= thresholds(below, filter_weights(below, faint, GRID_VERSION)))


def test_a_limit_that_admits_nothing_is_refused() -> None:
    with pytest.raises(LimitTooSmallError, match="Choose a larger epsilon"):
        check_limit(Limit(1e-18, 1e-30), None)
    check_limit(Limit(0.001, 1e-5), None)  # mechanisms with a bounded loss fit


def test_delta_of_a_half_or_more_is_refused() -> None:
    check_limit(Limit(1.0, 1e-5), 99_999)
    with pytest.raises(DeltaTooLargeError, match="not below 1/100000"):
        check_limit(Limit(1.0, 1e-5), 100_000)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0, 1e-5), (-1, 1e-5), (float("nan"), 1e-5), (10_001, 1e-5), (1, -1e-9), (1, 0.5), (1, 1e-31)],
)
def test_a_limit_out_of_range_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidInputError, match="limit's"):
        Limit(epsilon, delta)


WORKLOAD = event_curve(Gaussian(20.0), NeighboringRelation.ADD_OR_REMOVE_ONE)
DELTAS = st.floats(1e-20, 1e-3)


@given(st.lists(DELTAS, min_size=2, max_size=30))
def test_no_part_of_delta_ever_gets_a_larger_share(deltas: list[float]) -> None:
    limits = [Limit(2.0, delta) for delta in deltas]
    first = filter_weights(limits[0], WORKLOAD, GRID_VERSION)
    weights = first
    for before, after in pairwise(limits):
        earlier, weights = weights, rescale_weights(weights, before, after)
        assert weights.within(after.delta)
        if after.delta >= before.delta:
            assert weights.reserve >= earlier.reserve
            assert all(a >= b for a, b in zip(weights.deltas, earlier.deltas, strict=True))
        for now, then in zip((*weights.deltas, weights.reserve), (*first.deltas, first.reserve), strict=True):
            share, shared = Fraction(now) / Fraction(after.delta), Fraction(then) / Fraction(limits[0].delta)
            assert shared * (1 - Fraction(1, 10**10)) <= share <= shared


@few(5)
@given(DELTAS, st.floats(0.01, 0.99))
def test_a_thousand_changes_move_nothing_into_the_reserve(delta: float, factor: float) -> None:
    high, low = Limit(2.0, delta), Limit(2.0, delta * factor)
    weights = filter_weights(high, WORKLOAD, GRID_VERSION)
    most = weights.set_aside()
    for _ in range(1000):
        weights = rescale_weights(rescale_weights(weights, high, low), low, high)
    assert weights.set_aside() <= most <= Fraction(delta) / 100 / Fraction(DELTA_UNIT) * (1 + Fraction(1, 10**9)) + 1


def own(delta: float, count: int = 1, noise: float = 20.0) -> PricedStep:
    """A charge of a mechanism with a delta of its own; only its price matters here."""
    curve = event_curve(Gaussian(noise), NeighboringRelation.ADD_OR_REMOVE_ONE)
    units = RdpCurve.from_nats(np.zeros(curve.values.shape), delta).delta
    return PricedStep(StepEvent(Gaussian(noise), count), replace(curve, delta=units))


def charge(account: Account, *steps: PricedStep) -> Account:
    outcome = admission.admit([account], steps)
    assert isinstance(outcome, Admission)
    return outcome.accounts[0]


@given(st.floats(1e-12, 1e-3), st.floats(0.3, 8))
def test_the_parts_of_delta_and_what_is_set_aside_sum_to_at_most_delta(delta: float, epsilon: float) -> None:
    weights = filter_weights(Limit(epsilon, delta), WORKLOAD, GRID_VERSION)
    aside = weights.set_aside()
    assert sum(map(Fraction, weights.deltas)) + aside * Fraction(DELTA_UNIT) <= Fraction(delta)
    assert aside * DELTA_UNIT == pytest.approx(0.01 * delta, rel=1e-6, abs=float(DELTA_UNIT))


@pytest.mark.parametrize("delta", [1e-15, 1e-5])
@pytest.mark.parametrize("units", [0, 1, 5])
def test_orders_and_plan_share_all_of_delta_that_own_deltas_leave(delta: float, units: int) -> None:
    shared = Fraction(spread_beside(Limit(1.0, delta), units)) * Fraction(1 - SET_ASIDE)
    left = Fraction(delta) - (units + 1) * Fraction(DELTA_UNIT)
    assert left * (1 - Fraction(1, 10**11)) <= shared <= left


def test_an_account_that_planned_none_admits_one_hundredth_of_its_delta() -> None:
    opened = charge(make_account(3.0), own(0.0))
    left, _ = admission.repetitions_left([opened], own(1e-8))
    assert left in {9, 10}  # 1e-7 was set aside, but for rounding
    refused = admission.admit([opened], [own(2e-7)])
    assert isinstance(refused, Refusal)
    assert refused.max_steps_that_fit == 0
    assert refused.used_requested == pytest.approx(2, rel=1e-3)
    assert refused.delta_requested == pytest.approx(2e-7)
    assert refused.delta_left == pytest.approx(1e-7)


def test_of_equally_refusing_accounts_the_one_without_own_delta_is_named() -> None:
    path = [
        charge(make_account(3.0, delta, name=name), own(0.0)) for delta, name in ((1e-5, "parent"), (1e-6, "child"))
    ]
    refused = admission.admit(path, [own(5e-8, noise=0.5)])  # its curve fits into neither, its delta into the parent's
    assert isinstance(refused, Refusal)
    assert refused.binding.name == "child"


def test_of_accounts_that_refuse_a_free_charge_the_one_over_its_own_delta_is_named() -> None:
    paid = charge(make_account(3.0), own(0.0))
    path = [
        replace(paid, name=name, spent=paid.spent + more.curve)
        for name, more in (("parent", own(0.0, noise=0.01)), ("child", own(1e-6)))
    ]
    refused = admission.admit(path, [FREE])
    assert isinstance(refused, Refusal)
    assert refused.binding.name == "child"


def test_planned_own_deltas_are_set_aside() -> None:
    planned = replace(make_account(3.0), weights=filter_weights(Limit(3.0, 1e-5), own(1e-8).curve, GRID_VERSION))
    gate = planned.bounds()
    by_delta = gate.room // own(1e-8).curve.delta
    by_curve = int((gate.left(planned.spent) // np.maximum(WORKLOAD.values[gate.places], 1)).max())
    assert by_delta == pytest.approx(by_curve, rel=0.05)
    assert admission.repetitions_left([planned], own(1e-8))[0] == min(by_delta, by_curve)


def test_the_odometer_counts_own_deltas() -> None:
    without, half = charge(make_account(3.0), own(0.0)), charge(make_account(3.0), own(5e-6))
    assert replace(half, weights=without.weights).used() > 1 > without.used()  # the reserve is smaller
    assert half.rdp_epsilon(1e-5) > without.rdp_epsilon(1e-5)
    assert half.rdp_epsilon(4e-6) == np.inf


COIN = RandomizedResponse(1.0, 2)  # the answer does not depend on the data
FREE = PricedStep(StepEvent(COIN, 5), event_curve(COIN, NeighboringRelation.REPLACE_ONE))


@pytest.mark.parametrize("planned", [(), (FREE.step,)], ids=["nothing planned", "what is free planned"])
def test_weights_are_frozen_with_the_first_charge_that_costs_anything(planned: tuple[StepEvent, ...]) -> None:
    opened = replace(make_account(), planned=planned)
    free = charge(opened, FREE)
    assert free.weights is None
    assert free.spent.is_zero
    charged = charge(free, FREE, own(0.0, 3), own(0.0, 2, noise=50.0))
    assert charged.weights == filter_weights(Limit(1.0, 1e-5), own(0.0).curve, GRID_VERSION)


def test_free_charge_does_not_change_how_much_fits() -> None:
    found = [
        [isinstance(admission.admit([make_account()], [*free, own(0.0, n)]), Admission) for n in range(1, 60)]
        for free in ((), (FREE,))
    ]
    assert found[0] == found[1]
    assert set(found[0]) == {True, False}
