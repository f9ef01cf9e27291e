"""Mixtures of Gaussians against integrals of both directions, and the vectors that they stand for."""

import mpmath
import numpy as np
import pytest

from app.accounting.curves import finite_orders
from app.accounting.formulas.gaussian_mixture import MIN_SUMMED_NOISE, Mixture, is_summed
from app.accounting.formulas.gaussian_mixture import gaussian_mixture_rdp as mixed_rdp
from app.accounting.formulas.gaussian_mixture import replaced_mixture_rdp as replaced_rdp
from app.accounting.formulas.mechanisms import gaussian_rdp
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from app.accounting.formulas.without_replacement import without_replacement_gaussian_rdp
from tests.each import for_each
from tests.soak import thinned

DIGITS = 40
GRID = finite_orders(1)
ORDERS = np.array([1.0625, 1.5, 2.0, 5.5, 17.0])
MIXTURES = (
    *(Mixture.of(1.0, (0, 1, 2), (0.9, 0.09, 0.01)), Mixture.of(2.0, (0, 1, 2, 3), (0.97, 0.02, 0.0099, 0.0001))),
    *(Mixture.of(5.0, (1, 2), (0.5, 0.5)), Mixture.of(1.0, (0.3, 0.9, 1), (0.6, 0.39, 0.01))),
    Mixture.of(1.0, (0, 0.5, 1), (1 - 1e-6 - 1e-9, 1e-6, 1e-9)),
    Mixture.of(1.0, range(6), (0.5, 0.1, 0.1, 0.1, 0.1, 0.1)),
    Mixture.of(0.15, (1, 2, 3), (1 - 1e-6 - 1e-9, 1e-6, 1e-9)),
    Mixture.of(60.0, (0, 1, 2), (0.9, 0.09, 0.01)),
)


def integral(mixture: Mixture, order: float, *, removes: bool) -> mpmath.mpf:
    """Sum the definition by the trapezoid rule, whose error falls exponentially with its step."""
    s, a = mpmath.mpf(mixture.noise_multiplier), mpmath.mpf(order)
    total = mpmath.fsum(mixture.shares)
    terms = [(mpmath.mpf(p) / total, mpmath.mpf(c)) for p, c in zip(mixture.shares, mixture.sizes, strict=True)]
    power = a if removes else 1 - a
    step = min(s, s * s * (1 if removes else 1 / mpmath.sqrt(a))) / 5
    count = int((order + 28 * s + 1) / step)
    places = (-14 * s - (0 if removes else 1) + step * place for place in range(count))
    moment = mpmath.fsum(
        mpmath.exp(-x * x / (2 * s * s))
        * mpmath.fsum(p * mpmath.exp(c * (2 * x - c) / (2 * s * s)) for p, c in terms) ** power
        for x in places
    )
    return mpmath.log(moment * step / (s * mpmath.sqrt(2 * mpmath.pi))) / (a - 1)


@pytest.mark.parametrize("mixture", thinned(MIXTURES, 7), ids=str)
def test_mixture_costs_the_integral_of_the_larger_direction(mixture: Mixture) -> None:
    assert is_summed(mixture)
    for order, nats in zip(ORDERS[:3], mixed_rdp(mixture, ORDERS[:3]), strict=True):
        exact = integral(mixture, float(order), removes=True)
        assert abs(mpmath.mpf(float(nats)) - exact) <= 1e-11 * exact
        assert integral(mixture, float(order), removes=False) <= exact


def test_one_distance_is_a_sampled_gaussian_and_a_certain_one_a_gaussian() -> None:
    sampled = Mixture.of(3.0, (0, 2, 2), (0.9, 0.06, 0.04))
    assert (sampled.sizes, sampled.noise_multiplier) == ((0, 1), 1.5)
    assert mixed_rdp(sampled, GRID) == pytest.approx(sampled_gaussian_rdp(0.1, 1.5, GRID), rel=1e-12)
    assert np.array_equal(mixed_rdp(Mixture.of(3.0, (1, 2), (0, 1)), GRID), gaussian_rdp(1.5, GRID))
    taken = mixed_rdp(Mixture.of(3.0, (2,), (1,), taken=0.1), GRID)
    assert taken == pytest.approx(sampled_gaussian_rdp(0.1, 1.5, GRID), rel=1e-12)


@for_each([*MIXTURES, Mixture.of(0.019, (0, 0.5, 1), (0.9, 0.09, 0.01))])
def test_more_distance_or_less_noise_never_costs_less(mixture: Mixture) -> None:
    found = mixed_rdp(mixture, GRID)
    assert np.all(np.diff(found) >= -1e-12 * found[1:])
    assert np.all(found <= gaussian_rdp(mixture.noise_multiplier, GRID) * (1 + 1e-12))
    quieter = Mixture(mixture.noise_multiplier * 0.9, mixture.sizes, mixture.shares)
    assert np.all(found <= mixed_rdp(quieter, GRID))
    assert np.all(found <= replaced_rdp(mixture, GRID))


def test_mixture_with_little_noise_is_the_mean_of_its_parts() -> None:
    mixture = Mixture.of(MIN_SUMMED_NOISE / 2, (0, 0.5, 1), (0.9, 0.09, 0.01))
    assert not is_summed(mixture)
    z = mixture.noise_multiplier
    parts = [np.log(share) + ORDERS * (ORDERS - 1) * c * c / (2 * z * z) for c, share in ((0.5, 0.09), (1, 0.01))]
    bound = np.logaddexp.reduce([*parts, np.full_like(ORDERS, np.log(0.9))]) / (ORDERS - 1)
    assert mixed_rdp(mixture, ORDERS) == pytest.approx(bound, rel=1e-12)


def mirrored(mixture: Mixture, order: float) -> mpmath.mpf:
    """Sum the definition for a mixture and its mirror image."""
    s, a = mpmath.mpf(mixture.noise_multiplier), mpmath.mpf(order)
    total = mpmath.fsum(mixture.shares)
    terms = [(mpmath.mpf(p) / total, mpmath.mpf(c)) for p, c in zip(mixture.shares, mixture.sizes, strict=True)]
    step = min(s, s * s) / 8

    def ratio(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.fsum(p * mpmath.exp(c * (2 * x - c) / (2 * s * s)) for p, c in terms)

    count = int((2 * order + 14 * s + 1) / step)
    places = (step * place for place in range(-count, count))
    moment = mpmath.fsum(mpmath.exp(-x * x / (2 * s * s)) * ratio(x) ** a * ratio(-x) ** (1 - a) for x in places)
    return mpmath.log(moment * step / (s * mpmath.sqrt(2 * mpmath.pi))) / (a - 1)


@pytest.mark.parametrize("mixture", thinned([*MIXTURES[:6], Mixture.of(50.0, (0, 1), (0.9, 0.1))], 7), ids=str)
def test_a_replaced_record_costs_the_integral_of_mirrored_mixtures(mixture: Mixture) -> None:
    with mpmath.workdps(DIGITS):
        for order, nats in zip(ORDERS[:4], replaced_rdp(mixture, ORDERS[:4]), strict=True):
            exact = mirrored(mixture, float(order))
            assert abs(mpmath.mpf(float(nats)) - exact) <= 1e-10 * exact


def test_a_replaced_record_of_one_distance_is_one_of_a_fixed_batch_above_the_summed_orders() -> None:
    mixture, at = Mixture.of(3.0, (0, 2), (0.9, 0.1)), np.array([64.0, 65.0, 1000.0])
    batch, found = without_replacement_gaussian_rdp(0.1, 0.75, at), replaced_rdp(mixture, at)
    assert found[1:] == pytest.approx(batch[1:], rel=1e-12)
    assert found[0] < batch[0]
    assert np.all(np.diff(found) > 0)


def test_many_distances_of_a_replaced_record_become_fewer_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.accounting.formulas.gaussian_mixture.MAX_REPLACED_NODES", 0)
    exact = Mixture.of(9.0, range(17), [1 / 17] * 17)
    more = Mixture.of(9.0, range(33), [1 / 33] * 33)
    raised = Mixture.of(9.0, range(0, 33, 2), [1 / 33, *[2 / 33] * 16])
    assert replaced_rdp(more, ORDERS) == pytest.approx(replaced_rdp(raised, ORDERS), rel=1e-12)
    assert np.all(replaced_rdp(exact, ORDERS) > 0)
