"""Events made of others: composition in whole units, selection, and schedules as segments, on the safe side."""

from collections.abc import Callable
from itertools import pairwise, product
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.accounting import events as dp
from app.accounting.composed_releases import compose_releases
from app.accounting.curves import DELTA_UNIT, EXHAUSTED, GRID_VERSION, RdpCurve, orders
from app.accounting.errors import InvalidEventError, UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas import noise_schedules
from app.accounting.formulas.mechanisms import gaussian_rdp
from app.accounting.formulas.noise_schedules import EXACT_STEPS, DecayMode, scheduled_noise, segments
from app.accounting.formulas.repeat_and_select import repeat_and_select_rdp
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from app.accounting.pld.accountant import pld_delta, pld_epsilon
from app.accounting.rdp import curve_over, event_curve
from app.accounting.zcdp import total_zcdp_bound
from tests.each import for_each
from tests.soak import thinned

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
GRID = orders(GRID_VERSION)

SAMPLED = dp.PoissonSampled(0.01, dp.Gaussian(1.1))
PARTS = st.sampled_from([dp.Gaussian(3), dp.Laplace(5), dp.Zcdp(0.1, 0.01), dp.EpsilonDelta(0.1, 1e-9), SAMPLED])


@given(parts=st.lists(st.tuples(PARTS, st.integers(1, 5)), min_size=1, max_size=6), data=st.data())
def test_composition_is_the_same_sum_however_it_is_written(
    parts: list[tuple[DpEvent, int]], data: st.DataObject
) -> None:
    flat = [event for event, count in parts for _ in range(count)]
    expected = RdpCurve.zero(GRID.size)
    for event in flat:
        expected = expected + event_curve(event, ADD_OR_REMOVE)
    nested = dp.Composed(tuple(dp.SelfComposed(event, count) for event, count in parts))
    shuffled = dp.Composed(tuple(data.draw(st.permutations(flat))))
    for event in (nested, shuffled, dp.Composed((nested,)), dp.SelfComposed(nested, 1)):
        assert event_curve(event, ADD_OR_REMOVE) == expected


NOTHING = [
    *(dp.NoOp(), dp.PoissonSampled(0, dp.RandomizedResponse(0.5, 2)), dp.EpsilonDelta(0)),
    dp.TruncatedPoissonSampled(10, 0, 3, dp.Gaussian(1)),
]
AROUND: list[Callable[[DpEvent], DpEvent]] = [
    *(lambda event: event, lambda event: dp.PoissonSampled(0.5, event), lambda event: dp.SelfComposed(event, 10**9)),
    *(lambda event: dp.GroupPrivacy(9, event), lambda event: dp.RepeatAndSelect(event, 10, None)),
    *(lambda event: dp.SampledWithoutReplacement(9, 3, event), lambda event: dp.SampledWithReplacement(9, 3, event)),
    *(lambda event: dp.TruncatedPoissonSampled(9, 0.5, 3, event), lambda event: dp.Composed((event, dp.NoOp()))),
]


@for_each(product(NOTHING, AROUND, NeighboringRelation))
def test_event_that_releases_nothing_costs_nothing(
    case: tuple[DpEvent, Callable[[DpEvent], DpEvent], NeighboringRelation],
) -> None:
    nothing, around, relation = case
    event = around(nothing)
    assert event_curve(event, relation).is_zero
    assert pld_epsilon({event: 10**9}, relation, 1e-30) == 0
    assert pld_delta({event: 1}, relation, 0.0) == 0
    zcdp = total_zcdp_bound([(event, 3)], relation)
    assert zcdp is not None
    assert (zcdp.rho, zcdp.xi) == (0, 0)
    assert compose_releases(event, 3, 1e-5, relation) is None
    some = dp.Composed((event, dp.Gaussian(3), dp.SelfComposed(event, 2)))
    for whole, part in ((some, dp.Gaussian(3)), (dp.PoissonSampled(0.1, some), dp.PoissonSampled(0.1, dp.Gaussian(3)))):
        assert event_curve(whole, relation) == event_curve(part, relation)
        assert pld_epsilon({whole: 1}, relation, 1e-5) == pytest.approx(pld_epsilon({part: 1}, relation, 1e-5))


def test_sum_that_does_not_fit_is_exhausted() -> None:
    two = dp.Composed((dp.Gaussian(0.1), dp.Gaussian(0.2)))
    for event in (dp.SelfComposed(dp.SelfComposed(two, 10**9), 10**9), dp.Decay("time", 0.0, 10**7, dp.Gaussian(1e-3))):
        assert np.all(event_curve(event, ADD_OR_REMOVE).values == EXHAUSTED)


def test_a_thousand_equal_parts_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Mock(wraps=RdpCurve.from_nats)
    monkeypatch.setattr(RdpCurve, "from_nats", watched)
    curve_over(dp.Composed((dp.Gaussian(7),) * 1000), GRID, ADD_OR_REMOVE)
    assert watched.call_count == 1


@pytest.mark.parametrize(("delta", "count"), [(1e-6, 1), (1e-6, 1000), (0.4, 3), (1e-300, 5)])
def test_deltas_add_up_beside_the_curve(delta: float, count: int) -> None:
    curve = event_curve(dp.SelfComposed(dp.EpsilonDelta(0.5, delta), count), ADD_OR_REMOVE)
    assert np.array_equal(curve.values, event_curve(dp.SelfComposed(dp.EpsilonDelta(0.5), count), ADD_OR_REMOVE).values)
    assert min(1.0, count * delta) <= curve.delta_value() <= count * (delta * (1 + 1.1e-9) + DELTA_UNIT)
    assert curve.delta_value() <= 1


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 3.0, None])
def test_selection_works_on_the_rounded_curve_of_a_run(shape: float | None) -> None:
    run = dp.SelfComposed(dp.PoissonSampled(0.01, dp.Gaussian(1.5)), 300)
    ours = event_curve(dp.RepeatAndSelect(run, 12, shape), ADD_OR_REMOVE)
    nats = event_curve(run, ADD_OR_REMOVE).nats()
    expected = repeat_and_select_rdp(nats, GRID, 12, np.inf if shape is None else shape)
    assert ours == RdpCurve.from_nats(expected)
    assert np.all((ours.values > event_curve(run, ADD_OR_REMOVE).values)[:-1])


def test_selection_is_refused_where_a_run_has_a_delta_of_its_own() -> None:
    stated = dp.EpsilonDelta(0.1, 1e-9)
    inside = dp.Composed((dp.Gaussian(9), dp.GroupPrivacy(2, dp.EpsilonDelta(0.1, 1e-300))))
    for event in (stated, dp.PoissonSampled(0.01, stated), inside):
        with pytest.raises(UnsupportedEventError, match="a delta of its own"):
            event_curve(dp.RepeatAndSelect(event, 10, 1), ADD_OR_REMOVE)


STEP = dp.PoissonSampled(0.02, dp.Gaussian(3))
SCHEDULES = [
    *(dp.Decay("time", 0.01, 40, STEP), dp.Decay("time", 0.01, 40, STEP, first_step=1000)),
    *(dp.Decay("step", 0.01, 40, STEP, first_step=5), dp.Decay("exp", 0.0, 40, STEP, first_step=10**9)),
    dp.Decay("exp", 0.01, 40, dp.Gaussian(3, "microbatch"), first_step=7),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_short_schedule_costs_exactly_the_sum_of_its_steps(schedule: dp.Decay) -> None:
    steps = np.arange(schedule.first_step, schedule.first_step + schedule.steps)
    noises = scheduled_noise(schedule.mode, 3.0, schedule.decay_rate, steps)
    expected = RdpCurve.zero(GRID.size)
    for z in noises:
        expected = expected + event_curve(dp.with_noise_multiplier(schedule.event, float(z)), ADD_OR_REMOVE)
    assert event_curve(schedule, ADD_OR_REMOVE) == expected


def test_halves_are_rounded_up() -> None:
    few = np.array([2.0, 9.0])
    long = dp.Decay("exp", 1e-6, 1001, dp.Gaussian(5))
    twice = RdpCurve.zero(few.size)
    halves = 0
    for z, count in segments("exp", 5.0, 1e-6, 0, 1001):
        twice = twice + curve_over(dp.Gaussian(z), few, ADD_OR_REMOVE).times(count)
        halves += count
    assert halves == 2002
    assert np.array_equal(curve_over(long, few, ADD_OR_REMOVE).values, -(-twice.values // 2))


DIGITS = 15
ORDERS = np.array([1.5, 3.0, 8.5, 16.0, 40.0, 300.0])


def rdp_of(q: float, z: float) -> NDArray[np.float64]:
    return sampled_gaussian_rdp(q, z, ORDERS) if q < 1 else gaussian_rdp(z, ORDERS)


def test_the_formulas_are_mindarmours() -> None:
    t = np.array([0, 1, 7, 10_000])
    assert scheduled_noise("time", 4.0, 6e-4, t) == pytest.approx(4.0 / (1 + 6e-4 * t), rel=1e-15)
    assert scheduled_noise("step", 4.0, 6e-4, t) == pytest.approx(4.0 * (1 - 6e-4) ** t, rel=1e-12)
    assert scheduled_noise("exp", 4.0, 6e-4, t) == pytest.approx(4.0 * np.exp(-6e-4 * t), rel=1e-14)


MODES: tuple[DecayMode, ...] = ("time", "step", "exp")


def test_few_steps_are_charged_each_by_itself_and_constant_noise_is_one_segment() -> None:
    for mode in MODES:
        plan = segments(mode, 4.0, 6e-4, 17, EXACT_STEPS)
        assert [z for z, _ in plan] == scheduled_noise(mode, 4.0, 6e-4, np.arange(17, 17 + EXACT_STEPS)).tolist()
        assert {halves for _, halves in plan} == {2}
    for mode, steps in product(MODES, (1, 1000, 1001, 10_000_000)):
        assert segments(mode, 1.5, 0.0, 10**9, steps) == [(1.5, 2 * steps)]
        assert noise_schedules.least_noise_segments(mode, 1.5, 0.0, 10**9, steps) == [(1.5, steps)]


@given(
    mode=st.sampled_from(MODES),
    rate=st.floats(-9, -5.5).map(lambda exponent: 10**exponent),
    first=st.integers(0, 10**6),
    steps=st.integers(1, 10**6),
)
def test_the_halves_add_up_and_the_noise_shrinks(mode: DecayMode, rate: float, first: int, steps: int) -> None:
    plan = segments(mode, 30.0, rate, first, steps)
    assert sum(halves for _, halves in plan) == 2 * steps
    assert min(halves for _, halves in plan) >= 1
    assert len(plan) <= max(EXACT_STEPS, noise_schedules.KNOTS)
    noise = [z for z, _ in plan]
    assert [noise[0], noise[-1]] == scheduled_noise(mode, 30.0, rate, np.array([first, first + steps - 1])).tolist()
    assert all(before > after for before, after in pairwise(noise))
    reached = first - 1
    for z, count in noise_schedules.least_noise_segments(mode, 30.0, rate, first, steps):
        reached += count
        assert scheduled_noise(mode, 30.0, rate, np.array([reached]))[0] == z
    assert reached == first + steps - 1


SEGMENTED: list[tuple[DecayMode, float, float, int, float]] = [
    ("time", 8.0, 1e-3, 0, 0.01),
    ("time", 8.0, 6e-4, 1000, 1.0),
    ("time", 1e5, 1.0, 0, 0.01),
    ("step", 5.0, 4e-4, 0, 0.01),
    ("exp", 2.0, 1e-4, 0, 0.001),
    ("exp", 1e3, 1.5e-3, 0, 0.01),
    ("exp", 1e5, 3.6e-3, 0, 1.0),
]


@pytest.mark.parametrize(("mode", "z0", "rate", "first", "q"), thinned(SEGMENTED, 4))
def test_many_steps_are_never_charged_too_little_and_hardly_too_much(
    mode: DecayMode, z0: float, rate: float, first: int, q: float
) -> None:
    steps = EXACT_STEPS + 1
    plan = segments(mode, z0, rate, first, steps)
    at_knots = np.array([rdp_of(q, z) for z, _ in plan])
    halves = np.array([count for _, count in plan])
    charged = halves @ at_knots / 2
    exact = np.sum(
        [rdp_of(q, float(z)) for z in scheduled_noise(mode, z0, rate, np.arange(first, first + steps))], axis=0
    )
    assert np.all(charged >= exact * (1 - 1e-12))
    assert np.all(charged <= exact * (1 + 5e-4))
    # The bound on the excess that holds without knowing the exact sum: the distances follow from the halves.
    distances = [halves[0] - 1]
    for count in halves[1:-1]:
        distances.append(count - distances[-1])
    assert sum(distances) == steps - 1
    assert np.all(charged - exact <= (np.array(distances) - 1) / 2 @ np.diff(at_knots, axis=0) + 1e-12 * exact)


@pytest.mark.parametrize(
    ("mode", "rate", "first", "steps", "below"),
    [("time", 1.0, 0, 2000, 1000), ("step", 0.5, 0, 12, 10), ("exp", 1.0, 3, 10_000, 7), ("exp", 1e6, 4, 5, 4)],
)
def test_a_schedule_that_runs_out_of_noise_is_refused_with_the_step(
    mode: DecayMode, rate: float, first: int, steps: int, below: int
) -> None:
    with pytest.raises(InvalidEventError, match=f"falls below 0.001 at step {below}, .* to step {first + steps - 1}:"):
        segments(mode, 1.0, rate, first, steps)
    if below > first:
        assert segments(mode, 1.0, rate, first, below - first)[-1][0] >= 1e-3
