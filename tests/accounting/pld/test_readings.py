"""Epsilons of the beginnings of one plan, against those computed alone and closed forms."""

from collections import Counter
from math import exp, inf, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.accounting.pld.events import Directions
from app.accounting.pld.pairs import FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.pld.plans import plan_delta
from app.accounting.pld.prefixes import Part, prefix_epsilon, pure_delta
from app.accounting.pld.readings import PlanReadings
from tests.soak import few

DELTAS = st.floats(log(1e-9), log(1e-4)).map(exp)


def noisy(q: float, z: float, count: int) -> Part:
    pair = GaussianPair(z)
    return Part(Directions({SampledPair(q, pair, removes=True): 1}, {SampledPair(q, pair, removes=False): 1}), count)


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
@given(parts=PARTS, delta=DELTAS, shares=st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_readings_are_those_of_each_beginning(parts: list[Part], delta: float, shares: list[float]) -> None:
    most = sum(part.count for part in parts)
    readings = PlanReadings(parts)
    for share in shares:
        count = max(1, int(share * most))
        known = prefix_epsilon(parts, count, delta)
        assert known * 0.995 - 1e-6 <= readings.epsilon(count, delta) <= known * 1.003 + 1e-6


def test_a_loud_end_does_not_spoil_the_readings_before() -> None:
    parts = [noisy(exp(-5), 2.0, 2), on_all(10.0, 1)]
    assert PlanReadings(parts).epsilon(2, exp(-10)) <= prefix_epsilon(parts, 2, exp(-10)) * 1.003


@few(6)
@given(parts=PARTS, delta=DELTAS, shares=st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_delta_at_a_reading_is_at_most_the_one_asked_for(parts: list[Part], delta: float, shares: list[float]) -> None:
    most = sum(part.count for part in parts)
    readings = PlanReadings(parts)
    for count in (max(1, int(share * most)) for share in shares):
        found, left, worst = readings.epsilon(count, delta), count, 0.0
        plan = Counter[Pair]()
        for part in parts:
            number = min(left, part.count)
            plan.update({pair: number for pair in part.directions.removal if number})
            worst, left = worst + (number * part.worst_loss if number else 0), left - number
        assert found < inf
        # Delta is computed on another lattice.
        assert min(plan_delta(plan, found), pure_delta(worst, found)) <= delta * 1.01


def test_gaussian_noise_has_its_closed_form() -> None:
    readings = PlanReadings([on_all(20.0, 100), on_all(40.0, 100), noisy(0.1, 2.0, 100)])
    for count, mu in ((1, 1 / 20), (100, 10 / 20), (150, sqrt(100 / 400 + 50 / 1600))):
        assert readings.epsilon(count, 1e-6) == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-12)
        assert readings.epsilon(count, 1e-6) >= gaussian_epsilon(mu, 1e-6)


def test_pure_guarantees_bound_the_first_readings() -> None:
    pure = Part(Directions.both(FinitePair.exchanged(0.5)), 100, 0.5)
    readings = PlanReadings([pure, noisy(0.1, 2.0, 100)])
    assert [readings.epsilon(count, 1e-9) for count in (1, 2, 3)] == pytest.approx([0.5, 1, 1.5], rel=1e-7)


def test_nothing_costs_nothing() -> None:
    assert PlanReadings([noisy(0.01, 1.0, 1000)]).epsilon(0, 1e-6) == 0
    assert PlanReadings([Part(Directions({}, {}), 10, 0.0)]).epsilon(10, 1e-6) == 0
