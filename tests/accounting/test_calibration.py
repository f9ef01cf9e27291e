"""The smallest noise multiplier that fits: exact to its digits, tested by the rule itself, found in few trials."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.calibration import smallest_noise_multiplier
from app.accounting.conversion import epsilon_from_rdp
from app.accounting.events import DpEvent, Gaussian, NeighboringRelation, PoissonSampled, noise_multiplier
from app.accounting.orders import orders
from app.accounting.rdp import event_curve


class AtLeast:
    """A rule that fits from some noise multiplier on, and remembers what it was asked."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.asked: list[float] = []

    def __call__(self, event: DpEvent) -> bool:
        self.asked.append(noise_multiplier(event))
        return noise_multiplier(event) >= self.least


@given(
    own=st.floats(-3, 6).map(lambda exponent: min(1e6, 10**exponent)),
    least=st.floats(-3, 6).map(lambda exponent: min(1e6, 10**exponent)),
    digits=st.integers(1, 6),
)
def test_the_answer_is_the_least_number_with_these_digits(own: float, least: float, digits: int) -> None:
    rule = AtLeast(least)
    found = smallest_noise_multiplier(Gaussian(own), rule, digits)
    assert found is not None
    assert found in rule.asked
    if own >= least:
        assert found == own
    else:
        answer = Decimal(repr(found))
        spacing = Decimal(1).scaleb(answer.adjusted() - digits + 1)
        assert answer % spacing == 0
        assert found >= least
        assert float(answer - spacing) < least or own >= float(answer - spacing)
    assert len(rule.asked) <= 40


def test_four_digits_take_few_trials() -> None:
    for least in (1.1001, 1.2, 3.0, 70.0, 999_999.0):
        rule = AtLeast(least)
        smallest_noise_multiplier(PoissonSampled(0.01, Gaussian(1.1)), rule)
        assert len(rule.asked) <= 25


def test_the_noise_of_a_training_with_a_limit_is_found() -> None:
    def fits(event: DpEvent) -> bool:
        spent = event_curve(event, NeighboringRelation.ADD_OR_REMOVE_ONE).times(10_000).nats()
        return epsilon_from_rdp(orders(1), spent, 1e-5).epsilon <= 2.0

    found = smallest_noise_multiplier(PoissonSampled(0.01, Gaussian(0.6)), fits)
    assert found is not None
    assert fits(PoissonSampled(0.01, Gaussian(found)))
    assert not fits(PoissonSampled(0.01, Gaussian(round(found - 0.001, 3))))


@pytest.mark.parametrize("own", [1e-3, 1.1, 999_999.0, 1e6])
def test_there_is_none_if_even_the_largest_does_not_fit(own: float) -> None:
    rule = AtLeast(float("inf"))
    assert smallest_noise_multiplier(Gaussian(own), rule) is None
    assert rule.asked[-1] == 1e6


@pytest.mark.parametrize("own", [1.1, 999_999.0])
def test_the_largest_is_tried(own: float) -> None:
    assert smallest_noise_multiplier(Gaussian(own), AtLeast(1e6)) == 1e6
