"""The longest beginning of a plan that a limit allows."""

from collections import Counter
from dataclasses import replace
from itertools import product
from math import exp, inf, log, sqrt

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.accounting.pld.events import Directions
from app.accounting.pld.pairs import FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.pld.plans import FINEST, plan_delta, plan_log_delta
from app.accounting.pld.prefix_epsilons import PlanReadings
from app.accounting.pld.prefixes import MAX_COUNT, SPARE, Part, longest_prefix, prefix_delta, prefix_epsilon, pure_delta
from tests.soak import few, thinned

EPSILONS = st.floats(log(0.05), log(20)).map(exp)
DELTAS = st.floats(log(1e-10), log(1e-3)).map(exp)


def noisy(q: float, z: float, count: int = MAX_COUNT) -> Part:
    pair = GaussianPair(z)
    return Part(Directions({SampledPair(q, pair, removes=True): 1}, {SampledPair(q, pair, removes=False): 1}), count)


def exchanged(epsilon: float, count: int = MAX_COUNT) -> Part:
    return Part(Directions.both(FinitePair.exchanged(epsilon)), count, epsilon)


def is_longest(parts: list[Part], count: int, epsilon: float, delta: float) -> bool:
    fits = [
        log(max(prefix_delta(parts, each, epsilon, delta), 1e-300)) <= log(delta) - SPARE for each in (count, count + 1)
    ]
    return fits == [True, False]


# The most that dp_accounting 0.6.0 admits, pessimistic, with an interval of 2e-5 to 5e-5.
LARGEST = [
    *(((256 / 60000, 1.1), (3, 1e-5), 21_363), ((256 / 60000, 1.1), (1, 1e-5), 2_761)),
    *(((0.08, 4), (8, 1e-5), 6_681), ((0.001, 1), (0.5, 1e-6), 8_139)),
    *(((0.05, 2), (2, 1e-8), 163), ((0.01, 1), (2, 1e-8), 399)),
]


@pytest.mark.parametrize(("event", "limit", "known"), LARGEST)
def test_the_largest_number_is_found(event: tuple[float, float], limit: tuple[float, float], known: int) -> None:
    parts = [noisy(*event)]
    count = longest_prefix(parts, *limit)
    assert 0.9997 * known - 1 <= count <= known
    assert is_longest(parts, count, *limit)


@few(6)
@given(
    q=st.floats(log(1e-3), log(0.5)).map(exp),
    z=st.floats(0.6, 5),
    limits=st.lists(st.tuples(EPSILONS, DELTAS), min_size=2, max_size=2),
)
def test_a_larger_limit_admits_no_fewer(q: float, z: float, limits: list[tuple[float, float]]) -> None:
    parts = [noisy(q, z)]
    (small_epsilon, small_delta), larger = (tuple(map(choose, zip(*limits, strict=True))) for choose in (min, max))
    # Two lattices round differently: a share of 5e-4 of steps may lie between them.
    assert longest_prefix(parts, small_epsilon, small_delta) * (1 - 5e-4) <= longest_prefix(parts, *larger) + 1


def test_the_largest_number_among_few_is_exact() -> None:
    # delta(104) is 0.97344e-6 by dp_accounting with an interval of 1e-5: 104 of 105 steps need 0.975 of delta.
    parts = [noisy(0.01, 0.5)]
    assert [longest_prefix(parts, 8.0, share * 1e-6) for share in (0.97, 0.975, 1)] == [103, 104, 105]


@few(3)
@given(
    parts=st.lists(
        st.one_of(
            st.builds(noisy, st.floats(log(1e-2), log(0.5)).map(exp), st.floats(1, 5), st.integers(1, 500)),
            st.builds(exchanged, st.floats(0.01, 0.5), st.integers(1, 50)),
        ),
        min_size=1,
        max_size=4,
    ),
    endless=st.booleans(),
    epsilon=EPSILONS,
    delta=DELTAS,
)
def test_several_parts_are_taken_in_their_order(
    parts: list[Part], epsilon: float, delta: float, *, endless: bool
) -> None:
    if endless:
        parts[-1] = replace(parts[-1], count=MAX_COUNT)
    count = longest_prefix(parts, epsilon, delta)
    if count == sum(part.count for part in parts):
        assert prefix_delta(parts, count, epsilon, delta) <= delta * (1 - SPARE / 2)
    else:
        assert is_longest(parts, count, epsilon, delta)


@pytest.mark.parametrize(("pure", "count"), thinned(list(product([0.1, 0.3, 1.0], [1, 3, 10])), 4))
def test_pure_guarantees_add_up_to_the_whole_limit(pure: float, count: int) -> None:
    limit = count * pure * (1 + 1e-12)
    laplace = Part(Directions.both(LaplacePair(1 / pure)), MAX_COUNT, pure)
    for part in (exchanged(pure), laplace):
        assert longest_prefix([part], limit, 1e-9) >= count
    assert longest_prefix([exchanged(pure)], limit, 1e-30) == count


def test_a_part_that_shows_nothing_has_no_end() -> None:
    assert longest_prefix([noisy(0.5, 0.3)], 1.0, 1e-6) == 0  # and nothing fits where one step is too much
    nothing = Part(Directions({}, {}), MAX_COUNT, 0.0)
    assert longest_prefix([nothing], 1.0, 1e-6) == MAX_COUNT
    assert prefix_epsilon([nothing], 10, 1e-6) == PlanReadings([nothing]).epsilon(10, 1e-6) == 0
    assert PlanReadings([noisy(0.01, 1.0, 1000)]).epsilon(0, 1e-6) == 0


@few(8)
@given(q=st.floats(1e-3, 0.5), z=st.floats(0.7, 4), count=st.integers(1, 2000), delta=DELTAS)
def test_epsilon_of_a_beginning_is_the_larger_of_both_directions(q: float, z: float, count: int, delta: float) -> None:
    part = noisy(q, z)
    found = prefix_epsilon([part], count, delta)
    assert found < inf
    for pairs in part.directions:
        assert plan_delta(dict.fromkeys(pairs, count), found * 1.02) < 1.02 * delta


def test_a_loud_event_may_come_after_many_quiet_ones() -> None:
    loud = Part(Directions.both(GaussianPair(0.1)), MAX_COUNT, inf)
    assert longest_prefix([noisy(0.05, 2.0, 150), loud], 2.0, 1e-6) == 150


@pytest.mark.soak
def test_hopeless_plans_take_little_memory_and_show_everything() -> None:
    q, z, count = 0.0023, 0.00676, 23_262_836
    assert longest_prefix([noisy(q, z, count)], 2.32, 1e-14) == 0
    assert prefix_delta([noisy(q, z, count)], count, 2.32, 1e-14) == 1.0


def on_all(z: float, count: int) -> Part:
    return Part(Directions.both(GaussianPair(z)), count)


def laplace(b: float, count: int) -> Part:
    return Part(Directions.both(LaplacePair(b)), count, 1 / b)


PARTS = st.lists(
    st.one_of(
        st.builds(noisy, st.floats(log(1e-3), log(0.5)).map(exp), st.floats(0.6, 5), st.integers(1, 2000)),
        st.builds(on_all, st.floats(10, 100), st.integers(1, 50)),
        st.builds(laplace, st.floats(10, 100), st.integers(1, 50)),
    ),
    min_size=1,
    max_size=4,
)


@few(8)
@example(parts=[laplace(24.0, 3)], delta=exp(-12.0), shares=[0.0, 0.0, 1.0])
@given(parts=PARTS, delta=DELTAS, shares=st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_readings_are_those_of_each_beginning_and_have_the_delta_asked_for(
    parts: list[Part], delta: float, shares: list[float]
) -> None:
    most = sum(part.count for part in parts)
    readings = PlanReadings(parts)
    for count in (max(1, int(share * most)) for share in shares):
        known, found = prefix_epsilon(parts, count, delta), readings.epsilon(count, delta)
        assert known * 0.995 - 1e-6 <= found <= known * 1.003 + 1e-6 < inf
        left, worst, plan = count, 0.0, Counter[Pair]()
        for part in parts:
            number = min(left, part.count)
            plan.update({pair: number for pair in part.directions.removal if number})
            worst, left = worst + (number * part.worst_loss if number else 0), left - number
        # Delta is computed on another lattice, as fine as there is: close to the largest loss it falls steeply.
        assert min(exp(plan_log_delta(plan, found, delta, FINEST)), pure_delta(worst, found)) <= delta * 1.01


def test_a_loud_end_does_not_spoil_the_readings_before() -> None:
    parts = [noisy(exp(-5), 2.0, 2), on_all(10.0, 1)]
    assert PlanReadings(parts).epsilon(2, exp(-10)) <= prefix_epsilon(parts, 2, exp(-10)) * 1.003


def test_gaussian_noise_has_its_closed_form() -> None:
    readings = PlanReadings([on_all(20.0, 100), on_all(40.0, 100), noisy(0.1, 2.0, 100)])
    for count, mu in ((1, 1 / 20), (100, 10 / 20), (150, sqrt(100 / 400 + 50 / 1600))):
        assert readings.epsilon(count, 1e-6) == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-12)
        assert readings.epsilon(count, 1e-6) >= gaussian_epsilon(mu, 1e-6)


def test_pure_guarantees_bound_the_first_readings() -> None:
    pure = Part(Directions.both(FinitePair.exchanged(0.5)), 100, 0.5)
    readings = PlanReadings([pure, noisy(0.1, 2.0, 100)])
    assert [readings.epsilon(count, 1e-9) for count in (1, 2, 3)] == pytest.approx([0.5, 1, 1.5], rel=1e-7)
