"""The formulas against mpmath at 50 digits: an independent integral of (1 + u)^a and the exact binomial sum."""

from collections.abc import Iterator
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting.curves import EXHAUSTED, UNIT
from app.accounting.errors import UnknownGridVersionError, UnsupportedEventError
from app.accounting.events import DpEvent, Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.orders import orders
from app.accounting.rdp import event_curve, rdp
from app.accounting.sampled_gaussian import MIN_QUADRATURE_NOISE, sampled_gaussian_rdp

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL

# Ten times the measured error and a hundredth of the promised one.
TOLERANCE = 2e-13

PROBABILITIES = (1e-9, 1e-4, 256 / 60000, 0.3, 0.99)
FRACTIONAL_ORDERS = (1.0625, 1.5, 11.75, 60.5, 1000.5)
FRACTIONAL_POINTS = [
    *product(PROBABILITIES, (0.3, 1.1, 30.0, 1000.0), FRACTIONAL_ORDERS),
    (0.05, 0.5, 1023.75),
    (1e-9, 1.1, 48.5),  # just below the bend: the nodes far from the order carry the whole value
    (1e-9, 2.0, 150.5),
    (1e-9, 2.0, 165.5),  # in the bend: both parts count
]
INTEGER_POINTS = list(product(PROBABILITIES, (0.3, 0.5, 1.1, 5.0, 1000.0), (2, 8, 37, 1024)))


@pytest.fixture(autouse=True)
def _fifty_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def exact_at_integer(q: float, s: float, order: int) -> mpmath.mpf:
    q, s = mpmath.mpf(q), mpmath.mpf(s)
    total = mpmath.fsum(
        mpmath.binomial(order, k) * (1 - q) ** (order - k) * q**k * mpmath.exp(mpmath.mpf(k * k - k) / (2 * s * s))
        for k in range(order + 1)
    )
    return mpmath.log(total) / (order - 1)


def integral(q: float, s: float, order: float) -> mpmath.mpf:
    """Integrate piece by piece around the peaks; 17 standard deviations are worth 1e-63."""
    q, s, a = mpmath.mpf(q), mpmath.mpf(s), mpmath.mpf(order)

    def density(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp(-x * x / (2 * s * s)) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * s * s))) ** a

    crossover = s * s * mpmath.log((1 - q) / q)
    windows = sorted((peak - 17 * s, peak + 17 * s) for peak in (0, 2, a, min(crossover, a)))
    total, reached = mpmath.mpf(0), windows[0][0]
    for low, high in windows:
        begin = max(low, reached)
        if begin < high:
            pieces = int(mpmath.ceil((high - begin) / (2 * min(s, 3 * s * s))))
            total += mpmath.quad(
                density, mpmath.linspace(begin, high, pieces + 1), method="gauss-legendre", maxdegree=5
            )
            reached = high
    return mpmath.log(total / (s * mpmath.sqrt(2 * mpmath.pi))) / (a - 1)


def relative_error(computed: float, truth: mpmath.mpf) -> float:
    return float(abs((mpmath.mpf(computed) - truth) / truth))


def computed(q: float, s: float, order: float) -> float:
    return float(sampled_gaussian_rdp(q, s, np.array([order], dtype=np.float64))[0])


@pytest.mark.parametrize(("q", "s", "order"), [(1e-9, 0.3, 2), (0.01, 0.5, 5), (0.3, 1.1, 60), (0.99, 30.0, 300)])
def test_the_two_references_agree(q: float, s: float, order: int) -> None:
    truth = exact_at_integer(q, s, order)
    assert relative_error(integral(q, s, order), truth) < 1e-25


@pytest.mark.parametrize(("q", "s", "order"), FRACTIONAL_POINTS)
def test_fractional_orders_match_the_integral(q: float, s: float, order: float) -> None:
    assert relative_error(computed(q, s, order), integral(q, s, order)) < TOLERANCE


@pytest.mark.parametrize(("q", "s", "order"), INTEGER_POINTS)
def test_integer_orders_match_the_exact_sum(q: float, s: float, order: int) -> None:
    assert relative_error(computed(q, s, order), exact_at_integer(q, s, order)) < TOLERANCE


@pytest.mark.parametrize(("q", "s"), [(1e-9, 0.3), (1e-4, 0.5), (0.01, 1.0), (0.3, 3.0), (0.9, 100.0)])
def test_the_whole_grid_is_one_smooth_increasing_function(q: float, s: float) -> None:
    # Integer orders come from the sum, the others from the quadrature, near and far ones from different nodes:
    # (a - 1) R(a) is convex (Hölder), so an error of either would show as a dent against its neighbours.
    grid = orders(1)
    log_a = (grid - 1) * sampled_gaussian_rdp(q, s, grid)
    slopes = np.diff(log_a) / np.diff(grid)
    noise = 1e-13 * log_a[1:] / np.diff(grid)
    assert np.all(np.diff(slopes) >= -(noise[1:] + noise[:-1]))


@pytest.mark.parametrize("s", [0.07, 0.1, 0.199])
@pytest.mark.parametrize("q", [1e-9, 0.01, 0.7])
def test_below_the_quadrature_fractional_orders_get_an_upper_bound(q: float, s: float) -> None:
    assert s < MIN_QUADRATURE_NOISE
    for order in (1.25, 2.5, 7.75):
        truth = integral(q, s, order)
        assert truth * (1 - mpmath.mpf(TOLERANCE)) <= computed(q, s, order) <= computed(q, s, float(np.ceil(order)))
    assert relative_error(computed(q, s, 8), exact_at_integer(q, s, 8)) < TOLERANCE


@pytest.mark.parametrize(("q", "s"), [(1e-9, 0.3), (256 / 60000, 1.1), (0.3, 30.0), (0.01, 1000.0)])
def test_a_curve_is_never_below_the_truth_and_at_most_a_billionth_above(q: float, s: float) -> None:
    curve = event_curve(PoissonSampled(q, Gaussian(s)), ADD_OR_REMOVE)
    grid = orders(1)
    for index in (0, 40, 53, 700, len(grid) - 60, len(grid) - 1):
        order = float(grid[index])
        truth = exact_at_integer(q, s, int(order)) if order.is_integer() else integral(q, s, order)
        rounded = mpmath.mpf(int(curve.values[index])) * UNIT
        assert truth <= rounded <= truth * (1 + mpmath.mpf(1.001e-9)) + UNIT


@pytest.mark.parametrize("z", [1e-3, 0.0199, 0.1999999, 0.2, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("q", [5e-324, 1e-300, 1e-160, 1e-9, 0.5, 1 - 2**-53, 1.0])
def test_every_admissible_event_has_a_positive_curve(q: float, z: float) -> None:
    event = PoissonSampled(q, Gaussian(z))
    with np.errstate(all="raise", under="ignore"):
        nats = rdp(event, orders(1), ADD_OR_REMOVE)
        curve = event_curve(event, ADD_OR_REMOVE)
    assert np.all(np.isfinite(nats) & (nats > 0))
    assert np.all(nats <= orders(1) / (2 * z * z) * (1 + 1e-12))  # sampling never costs more than not sampling
    assert curve.values.min() >= 1


def test_no_noise_to_speak_of_exhausts_the_high_orders() -> None:
    curve = event_curve(Gaussian(1e-3), ADD_OR_REMOVE)
    assert curve.values[-1] == EXHAUSTED
    assert np.isinf(curve.nats()[-1])


def test_taking_every_record_is_not_sampling() -> None:
    assert event_curve(PoissonSampled(1, Gaussian(1.1)), REPLACE_ONE) == event_curve(Gaussian(1.1), REPLACE_ONE)


@pytest.mark.parametrize(("relation", "factor"), [(ADD_OR_REMOVE, 1), (REPLACE_SPECIAL, 1), (REPLACE_ONE, 4)])
def test_replacing_a_record_doubles_the_sensitivity(relation: NeighboringRelation, factor: int) -> None:
    grid = np.array([1.5, 2.0, 64.0])
    assert rdp(Gaussian(2.0), grid, relation) == pytest.approx(factor * grid / 8, rel=1e-15)


def test_replacing_with_a_special_record_costs_what_removing_costs() -> None:
    event = PoissonSampled(0.01, Gaussian(1.1))
    assert event_curve(event, REPLACE_SPECIAL) == event_curve(event, ADD_OR_REMOVE)


@pytest.mark.parametrize(
    ("event", "relation", "words"),
    [
        (PoissonSampled(0.01, Gaussian(1.1)), REPLACE_ONE, "add_or_remove_one or replace_special"),
        (PoissonSampled(0.5, PoissonSampled(0.5, Gaussian(1.1))), ADD_OR_REMOVE, "may hold a gaussian"),
    ],
)
def test_what_is_not_proven_is_refused(event: DpEvent, relation: NeighboringRelation, words: str) -> None:
    with pytest.raises(UnsupportedEventError, match=words):
        event_curve(event, relation)


def test_an_unknown_grid_is_refused() -> None:
    with pytest.raises(UnknownGridVersionError, match="known is 1"):
        event_curve(Gaussian(1.0), ADD_OR_REMOVE, 2)


PROBABILITY = st.floats(-9, -1e-6).map(lambda exponent: 10**exponent)
NOISE = st.floats(-1.2, 3).map(lambda exponent: 10**exponent)
STEP = st.floats(-6, 0).map(lambda exponent: 1 + 10**exponent)


@settings(deadline=None, max_examples=60)
@given(q=PROBABILITY, z=NOISE, step=STEP)
def test_less_noise_never_costs_less(q: float, z: float, step: float) -> None:
    more = event_curve(PoissonSampled(q, Gaussian(z)), ADD_OR_REMOVE)
    less = event_curve(PoissonSampled(q, Gaussian(z * step)), ADD_OR_REMOVE)
    assert np.all(more.values >= less.values)


@settings(deadline=None, max_examples=60)
@given(q=PROBABILITY, z=NOISE, step=STEP)
def test_more_sampling_never_costs_less(q: float, z: float, step: float) -> None:
    more = event_curve(PoissonSampled(min(1.0, q * step), Gaussian(z)), ADD_OR_REMOVE)
    less = event_curve(PoissonSampled(q, Gaussian(z)), ADD_OR_REMOVE)
    assert np.all(more.values >= less.values)
