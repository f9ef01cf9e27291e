"""Tables of epsilons ahead."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.epsilon_knots import APART, Knot, knots_ahead
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pld.counted_epsilons import CountedEpsilons
from tests.soak import few

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
STEP = dp.PoissonSampled(0.01, dp.Gaussian(1.0))
PURE = dp.EpsilonDelta(0.1)
EVENTS = st.sampled_from([STEP, PURE, dp.PoissonSampled(0.2, dp.Gaussian(2.0)), dp.Laplace(30.0)])


def rises(knots: list[Knot]) -> list[tuple[dict[DpEvent, int], float]]:
    """Compute, from each knot to the next, by how much counts and epsilon rise."""
    return [
        (
            {event: after.counts[event] - before.counts.get(event, 0) for event in after.counts},
            after.epsilon / before.epsilon - 1,
        )
        for before, after in pairwise(knots)
    ]


@few(5)
@given(
    counts=st.dictionaries(EVENTS, st.integers(1, 5000), min_size=1, max_size=3),
    cycle=st.lists(EVENTS, min_size=1, max_size=4),
)
def test_knots_are_close_or_one_step_apart(counts: dict[DpEvent, int], cycle: list[DpEvent]) -> None:
    epsilons = CountedEpsilons(ADD, 1e-6)
    knots = knots_ahead(epsilons.epsilon, counts, cycle, 30)
    assert len(knots) == 30
    assert {event: count for event, count in knots[0].counts.items() if count} == counts
    assert all(cycle[0] in knot.counts for knot in knots)
    for counts_risen, epsilon_risen in rises(knots):
        assert 0 <= epsilon_risen <= APART or sum(counts_risen.values()) == 1
    for knot in knots[::7]:
        assert epsilons.epsilon(knot.counts) * (1 - 3e-4) <= knot.epsilon <= epsilons.epsilon(knot.counts)


def test_a_step_between_knots_costs_little_less_than_the_next_one() -> None:
    epsilons = CountedEpsilons(ADD, 1e-5)
    knots = knots_ahead(epsilons.epsilon, {STEP: 1000}, [STEP], 20)
    for before, after in pairwise(knots):
        for count in range(before.counts[STEP] + 1, after.counts[STEP] + 1):
            own = epsilons.epsilon({STEP: count})
            assert own * (1 - 1e-4) <= after.epsilon <= own * (1 + APART)


def test_epsilon_that_is_not_concave_is_never_below_the_truth() -> None:
    knots = knots_ahead(CountedEpsilons(ADD, 1e-5).epsilon, {PURE: 19}, [PURE], 3)
    assert [round(knot.epsilon, 4) for knot in knots] == pytest.approx([1.5888, 1.5980, 1.6798], rel=3e-4)


def test_steps_that_cost_nothing_yet_are_passed_in_large_steps() -> None:
    rare = dp.PoissonSampled(1e-7, dp.Gaussian(2.0))
    knots = knots_ahead(CountedEpsilons(ADD, 1e-3).epsilon, {rare: 0}, [rare], 6)
    assert knots[0].epsilon == knots[-1].epsilon == 0
    assert knots[-1].counts[rare] > 10_000


def test_knots_end_where_epsilon_is_infinite() -> None:
    failing = dp.EpsilonDelta(0.01, 3e-7)
    knots = knots_ahead(CountedEpsilons(ADD, 1e-6).epsilon, {failing: 1}, [failing], 100)
    assert [knot.counts[failing] for knot in knots] == [1, 2, 3, 4]
    assert knots[-1].epsilon == float("inf")
