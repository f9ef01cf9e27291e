"""Domination of pairs, against their hockey-stick divergences."""

from collections.abc import Callable
from math import ceil, exp, log

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.accounting.curves import Floats
from app.accounting.events import MixtureOfGaussians, NeighboringRelation, RandomizedResponse
from app.accounting.pld.discrete_gaussian import DiscreteGaussianPair
from app.accounting.pld.discrete_laplace import DiscreteLaplacePair
from app.accounting.pld.domination import Mechanism, dominates, mechanisms
from app.accounting.pld.gaussian_mixture import CasesPair
from app.accounting.pld.pairs import BoundedRangePair, FinitePair, GaussianPair, LaplacePair, Pair, SampledPair

NOISES = st.floats(log(0.3), log(30)).map(exp)
EPSILONS = st.floats(log(0.01), log(5)).map(exp)


FAMILIES: tuple[tuple[Callable[[float], Pair], bool], ...] = (
    *((GaussianPair, True), (LaplacePair, True), (BoundedRangePair, False), (FinitePair.exchanged, False)),
    (lambda least: DiscreteGaussianPair(3.0, ceil(least)), False),
    (lambda least: DiscreteLaplacePair(0.3, ceil(least)), False),
    (lambda parameter: DiscreteLaplacePair(parameter, 2), False),
    (lambda epsilon: FinitePair.exchanged(epsilon, 0.4 / (1 + epsilon)), False),
    (lambda noise: CasesPair((0.7, 0.3), (LaplacePair(2 * noise), LaplacePair(noise))), True),
)
"""Pairs by a parameter, and whether it is noise; the first two discrete ones are noise of one size that moves."""


def on_sample(q: float, pair: Pair) -> Mechanism:
    return Mechanism(SampledPair(q, pair, removes=True), SampledPair(q, pair, removes=False))


@st.composite
def two_of_a_family(draw: st.DrawFn) -> tuple[Mechanism, Mechanism]:
    make, is_noise = draw(st.sampled_from(FAMILIES))
    is_sampled = draw(st.booleans())
    one, other = (make(draw(NOISES if is_noise else EPSILONS)) for _ in range(2))
    if not is_sampled:
        return Mechanism(one, one), Mechanism(other, other)
    return on_sample(draw(st.floats(0.01, 0.99)), one), on_sample(draw(st.floats(0.01, 0.99)), other)


def divergences(pair: Pair) -> Floats:
    """Hockey-stick divergences at losses on both sides of 0."""
    losses = np.concatenate([-np.geomspace(8, 1e-3, 30), [0.0], np.geomspace(1e-3, 8, 30)])
    tails = pair.tails(losses)
    found: Floats = tails.p_above - np.exp(losses) * tails.q_above
    return found


@given(drawn=two_of_a_family())
def test_dominating_mechanism_has_no_smaller_divergence(drawn: tuple[Mechanism, Mechanism]) -> None:
    stronger, weaker = drawn if dominates(*drawn) else drawn[::-1]
    assume(dominates(stronger, weaker))
    for one, other in zip(stronger, weaker, strict=True):
        assert (divergences(one) >= divergences(other) - 1e-12).all()


@pytest.mark.parametrize(("make", "is_noise"), FAMILIES)
def test_each_rule_holds_one_way_only(make: Callable[[float], Pair], is_noise: bool) -> None:  # noqa: FBT001
    more, less = (make(each) for each in ((1.0, 2.0) if is_noise else (2.0, 1.0)))
    assert dominates(Mechanism(more, more), Mechanism(less, less))
    assert not dominates(Mechanism(less, less), Mechanism(more, more))
    for q, less_data in ((0.2, 0.2), (0.2, 0.1)):
        assert dominates(on_sample(q, more), on_sample(less_data, less))
        assert not dominates(on_sample(less_data, less), on_sample(q, more))
    assert not dominates(on_sample(0.1, more), on_sample(0.2, more))
    assert not dominates(on_sample(0.2, less), on_sample(0.1, more))


def test_discrete_noise_that_moves_less_with_a_larger_parameter_is_not_compared() -> None:
    loud, quiet = (Mechanism(pair, pair) for pair in (DiscreteGaussianPair(3.0, 5), DiscreteGaussianPair(9.0, 1)))
    assert not dominates(loud, quiet)
    far, near = (Mechanism(pair, pair) for pair in (DiscreteLaplacePair(0.3, 2), DiscreteLaplacePair(1.0, 1)))
    assert not dominates(far, near)  # it loses at most 0.6, the other one 1
    assert not dominates(loud, Mechanism(GaussianPair(9.0), GaussianPair(9.0)))


def mixed(noise: float, shares: tuple[float, ...], relation: NeighboringRelation) -> Mechanism:
    [found] = mechanisms(MixtureOfGaussians(noise, tuple(range(len(shares))), shares), relation)
    return found


RELATIONS = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("shares", [(0.8, 0.2), (0.8, 0.1, 0.1)])
def test_a_mixture_is_dominated_by_less_noise_and_by_more_that_moves_far(
    shares: tuple[float, ...], relation: NeighboringRelation
) -> None:
    stronger = mixed(2.0, shares, relation)
    rarer = (0.9, *(share / 2 for share in shares[1:]))
    for weaker in (mixed(3.0, shares, relation), mixed(2.0, rarer, relation), mixed(3.0, rarer, relation)):
        assert dominates(stronger, weaker)
        assert not dominates(weaker, stronger)
    assert not dominates(mixed(3.0, shares, relation), mixed(2.0, rarer, relation))
    assert not dominates(mixed(2.0, (0.7, 0.25, 0.05), relation), mixed(2.0, (0.8, 0.1, 0.1), relation))
    assert not dominates(mixed(2.0, (0.8, 0.1, 0.1), relation), mixed(2.0, (0.7, 0.25, 0.05), relation))


SHARES = st.lists(st.integers(1, 50), min_size=3, max_size=3).map(lambda parts: tuple(p / sum(parts) for p in parts))


@given(st.tuples(NOISES, NOISES), st.tuples(SHARES, SHARES), st.sampled_from(RELATIONS))
def test_dominating_mixture_has_no_smaller_divergence(
    noises: tuple[float, float], shares: tuple[tuple[float, ...], ...], relation: NeighboringRelation
) -> None:
    one, other = (mixed(noise, each, relation) for noise, each in zip(sorted(noises), shares, strict=True))
    assume(dominates(one, other))
    for stronger, weaker in zip(one, other, strict=True):
        assert (divergences(stronger) >= divergences(weaker) - 1e-12).all()


def test_one_direction_alone_is_not_enough() -> None:
    removal, addition = on_sample(0.1, GaussianPair(1.0))
    assert not dominates(Mechanism(removal, removal), Mechanism(removal, addition))
    assert not dominates(Mechanism(addition, addition), Mechanism(removal, addition))


def test_an_event_that_shows_nothing_has_no_mechanisms() -> None:
    assert not mechanisms(RandomizedResponse(1.0, 3), NeighboringRelation.REPLACE_ONE)
