"""The risk of a guarantee is that of the best attack: never below it, and attained where the mechanism is known."""

from math import exp, inf, log
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import laplace as laplace_distribution
from scipy.stats import norm

from app.accounting.curves import GRID_VERSION, RdpCurve
from app.accounting.events import DpEvent, Gaussian, GroupPrivacy, Laplace, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve
from app.accounting.risk import AttackRisk, Guarantee, attack_risk, privacy_profile

RELATION: Final = NeighboringRelation.ADD_OR_REMOVE_ONE


def curve_of(event: DpEvent, count: int) -> RdpCurve:
    return event_curve(event, RELATION, GRID_VERSION).times(count)


@given(st.floats(0, 12), st.floats(0, 0.3), st.floats(0, 1))
def test_bounds_are_attained_by_randomized_response_that_may_fail(epsilon: float, delta: float, share: float) -> None:
    """With probability delta it says the truth, else it answers by randomized response: four outputs."""
    yes = np.array([delta, 0.0, (1 - delta) * exp(epsilon) / (1 + exp(epsilon)), (1 - delta) / (1 + exp(epsilon))])
    no = yes[[1, 0, 3, 2]]
    found = attack_risk([Guarantee(epsilon, delta)])
    best = np.maximum(yes - no, 0).sum()
    assert best - 1e-14 <= found.advantage <= best + 1e-9
    for rate in (0.01, share * 0.01):  # a randomized test takes outputs by their likelihood ratio
        order, spent, reached = (0, 2, 3, 1), 0.0, 0.0
        for output in order:
            taken = 1.0 if no[output] == 0 else min(1.0, (rate - spent) / no[output])
            spent, reached = spent + taken * no[output], reached + taken * yes[output]
        assert reached <= found.true_positive_rate + 1e-12
        if rate == 0.01:
            assert found.true_positive_rate <= reached + 1e-9


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0, 20.0])
def test_profile_of_a_gaussian_is_close_to_its_own_risk(noise: float) -> None:
    event, cost = Gaussian(noise), 8 / noise
    found = attack_risk(privacy_profile(curve_of(event, 1), {event: 1}, RELATION, cost))
    advantage = 2 * norm.cdf(1 / (2 * noise)) - 1
    rate = norm.sf(norm.isf(0.01) - 1 / noise)
    assert advantage <= found.advantage <= advantage * (1 + 1e-4)
    assert rate <= found.true_positive_rate <= rate * 1.05
    looser = attack_risk(privacy_profile(curve_of(event, 1), None, RELATION, cost))
    assert looser.advantage > found.advantage
    assert looser.true_positive_rate > found.true_positive_rate


def test_profile_of_laplace_is_no_less_than_its_own_risk() -> None:
    event = Laplace(1.0)
    found = attack_risk(privacy_profile(curve_of(event, 1), {event: 1}, RELATION, 1.0))
    advantage = 2 * laplace_distribution.cdf(0.5) - 1
    assert advantage <= found.advantage <= advantage * 1.001
    assert found.true_positive_rate == pytest.approx(0.01 * exp(1), rel=1e-3)


def test_event_without_a_pair_has_the_risk_of_its_curve() -> None:
    event = GroupPrivacy(3, PoissonSampled(0.01, Gaussian(2.0)))
    curve = curve_of(event, 100)
    counts: dict[DpEvent, int] = {event: 100}
    by_curve, by_both = (privacy_profile(curve, events, RELATION, 3.0) for events in (None, counts))
    assert attack_risk(by_both).advantage <= attack_risk(by_curve).advantage < 1


@pytest.mark.parametrize(
    ("bound", "advantage", "singled_out"),
    [
        (Guarantee(0.0, 0.0), 0.0, 10),  # guessing
        (Guarantee(log(2), 0.0), 1 / 3, 20),
        (Guarantee(1.0, 1e-5), 0.46212, 28),
        (Guarantee(0.0, 1.0), 1.0, 1000),
        (Guarantee(10_000.0, 0.0), 1.0, 1000),
        (Guarantee(inf, 0.0), 1.0, 1000),
    ],
)
def test_known_guarantees(bound: Guarantee, advantage: float, singled_out: int) -> None:
    found = attack_risk([bound])
    assert found.advantage == pytest.approx(advantage, abs=1e-5)
    assert found.advantage >= advantage - 1e-5
    assert found.singled_out == singled_out


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1)).map(lambda each: Guarantee(*each)), max_size=6))
def test_further_guarantees_never_raise_the_risk(bounds: list[Guarantee]) -> None:
    whole = attack_risk(bounds)
    assert 0 <= whole.advantage <= 1
    assert all(whole.advantage <= attack_risk([each]).advantage for each in bounds)
    assert all(whole.true_positive_rate <= attack_risk([each]).true_positive_rate for each in bounds)
    assert bounds or whole == AttackRisk(1.0, 1.0)
