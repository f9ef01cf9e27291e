"""Events made of others: composition in whole units, selection, schedules, deltas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.curves import DELTA_UNIT, EXHAUSTED, GRID_VERSION, RdpCurve, orders
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.noise_schedules import scheduled_noise, segments
from app.accounting.formulas.repeat_and_select import repeat_and_select_rdp
from app.accounting.rdp import curve_over, event_curve
from tests.soak import thinned

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
GRID = orders(GRID_VERSION)

PARTS = st.sampled_from(
    [
        dp.Gaussian(3),
        dp.Laplace(5),
        dp.Zcdp(0.1, 0.01),
        dp.EpsilonDelta(0.1, 1e-9),
        dp.PoissonSampled(0.01, dp.Gaussian(1.1)),
    ]
)


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


def test_sum_that_does_not_fit_is_exhausted() -> None:
    curve = event_curve(
        dp.SelfComposed(dp.SelfComposed(dp.Composed((dp.Gaussian(0.1), dp.Gaussian(0.2))), 10**9), 10**9), ADD_OR_REMOVE
    )
    assert np.all(curve.values == EXHAUSTED)


def test_a_thousand_equal_parts_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DpEvent] = []
    original = RdpCurve.from_nats

    def watched(nats: np.ndarray[tuple[int], np.dtype[np.float64]], delta: float = 0.0) -> RdpCurve:
        asked.append(dp.Gaussian(7))
        return original(nats, delta)

    monkeypatch.setattr(RdpCurve, "from_nats", watched)
    curve_over(dp.Composed((dp.Gaussian(7),) * 1000), GRID, ADD_OR_REMOVE)
    assert len(asked) == 1


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


@pytest.mark.parametrize(
    "event",
    [
        dp.EpsilonDelta(0.1, 1e-9),
        dp.PoissonSampled(0.01, dp.EpsilonDelta(0.1, 1e-9)),
        dp.Composed((dp.Gaussian(9), dp.GroupPrivacy(2, dp.EpsilonDelta(0.1, 1e-300)))),
    ],
    ids=str,
)
def test_selection_is_refused_where_a_run_has_a_delta_of_its_own(event: DpEvent) -> None:
    with pytest.raises(UnsupportedEventError, match="a delta of its own"):
        event_curve(dp.RepeatAndSelect(event, 10, 1), ADD_OR_REMOVE)


STEP = dp.PoissonSampled(0.02, dp.Gaussian(3))
SCHEDULES = [
    dp.Decay("time", 0.01, 60, STEP),
    dp.Decay("time", 0.01, 60, STEP, first_step=1000),
    dp.Decay("step", 0.01, 60, STEP, first_step=5),
    dp.Decay("exp", 0.01, 60, STEP),
    dp.Decay("exp", 0.0, 60, STEP, first_step=10**9),
    dp.Decay("exp", 0.01, 60, dp.Gaussian(3, "microbatch"), first_step=7),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_short_schedule_costs_exactly_the_sum_of_its_steps(schedule: dp.Decay) -> None:
    steps = np.arange(schedule.first_step, schedule.first_step + schedule.steps)
    noises = scheduled_noise(schedule.mode, 3.0, schedule.decay_rate, steps)
    expected = RdpCurve.zero(GRID.size)
    for z in noises:
        expected = expected + event_curve(dp.with_noise_multiplier(schedule.event, float(z)), ADD_OR_REMOVE)
    assert event_curve(schedule, ADD_OR_REMOVE) == expected


@pytest.mark.parametrize(("rate", "steps"), thinned([(2e-3, 1500), (6e-4, 5000)], 2))
def test_a_long_schedule_costs_at_least_its_steps_and_hardly_more(rate: float, steps: int) -> None:
    few = np.array([1.25, 2.0, 8.5, 64.0, 1024.0])
    schedule = dp.Decay("time", rate, steps, STEP)
    ours = curve_over(schedule, few, ADD_OR_REMOVE)
    exact = RdpCurve.zero(few.size)
    for z in scheduled_noise("time", 3.0, rate, np.arange(steps)):
        exact = exact + curve_over(dp.PoissonSampled(0.02, dp.Gaussian(float(z))), few, ADD_OR_REMOVE)
    assert np.all(ours.values >= exact.values)
    assert np.all(ours.nats() <= exact.nats() * 1.0001)


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


def test_an_exhausted_schedule_stays_exhausted() -> None:
    curve = event_curve(dp.Decay("time", 0.0, 10**7, dp.Gaussian(1e-3)), ADD_OR_REMOVE)
    assert np.all(curve.values == EXHAUSTED)
