"""Fixed batches against an independent integral; truncated samples and batches with replacement against sums."""

from functools import cache
from itertools import pairwise, product
from math import comb

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.curves import finite_orders
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import NeighboringRelation
from app.accounting.formulas import random_batches
from app.accounting.formulas.mechanisms import gaussian_rdp
from app.accounting.formulas.random_batches import FAILURE, Shares, Truncation, failure_with_replacement
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from app.accounting.formulas.without_replacement import MIN_INTEGRATED_NOISE, without_replacement_gaussian_rdp
from app.accounting.rdp import event_curve
from tests.soak import thinned

ADD, REPLACE, SPECIAL = NeighboringRelation
GRID = finite_orders(1)
REPEATED = dp.SampledWithReplacement(100, 10, dp.Gaussian(2.0))
CUT = dp.TruncatedPoissonSampled(100, 0.1, 20, dp.Gaussian(2.0))


def binomial(count: int, of: int, q: mpmath.mpf) -> mpmath.mpf:
    return comb(of, count) * q**count * (1 - q) ** (of - count)


@pytest.mark.parametrize(
    ("others", "q", "most"), [(5, 0.3, 1), (5, 0.3, 5), (999, 0.05, 60), (999, 0.05, 140), (60, 1.0, 10), (40, 1e-9, 3)]
)
def test_a_cut_and_what_is_kept_of_it_are_sums_over_the_other_records(others: int, q: float, most: int) -> None:
    with mpmath.workdps(40):
        chance = mpmath.mpf(q)
        counts = range(most, others + 1)
        cut = mpmath.fsum(binomial(n, others, chance) for n in counts)
        kept = mpmath.fsum(binomial(n, others, chance) * chance * most / (n + 1) for n in counts) / cut
    assert Truncation.of(others, q, most) == pytest.approx((float(cut), float(kept)), rel=1e-11)


def test_more_records_are_cut_more_often_and_kept_more_seldom() -> None:
    found = [Truncation.of(others, 0.1, 12) for others in range(12, 400)]
    assert all(one.cut <= two.cut and one.kept >= two.kept for one, two in pairwise(found))
    assert max(each.kept for each in found) < 0.1
    shares = Shares.of(100, 0.1, 12)
    assert shares.plain + shares.either + shares.cut == pytest.approx(1, rel=1e-15)
    assert (shares.cut, shares.kept) == Truncation.of(99, 0.1, 12)
    assert shares.plain == 1 - Truncation.of(100, 0.1, 12).cut
    assert Shares.of(3, 0.5, 3) == (0.875, 0.125, 0.0, 0.0)  # only four records may be cut to three


def test_sample_that_is_never_truncated_is_a_poisson_sample() -> None:
    for relation, event in product((ADD, SPECIAL), (dp.Gaussian(2.0), dp.Gaussian(2.0, "microbatch"))):
        found = event_curve(dp.TruncatedPoissonSampled(100, 0.1, 101, event), relation)
        expected = event_curve(dp.PoissonSampled(0.1, event), relation)
        assert found.nats()[:-1] == pytest.approx(expected.nats()[:-1], rel=1e-12)
    found = event_curve(dp.TruncatedPoissonSampled(100, 0.1, 100, dp.Gaussian(2.0)), REPLACE)
    assert found.nats()[:-1] == pytest.approx(without_replacement_gaussian_rdp(0.1, 1.0, GRID), rel=1e-8)


@pytest.mark.parametrize(("size", "places"), [(60_000, 256), (3, 2), (100, 100), (10**9, 1), (1, 5), (50, 400)])
def test_occurrences_are_accounted_for_up_to_a_tiny_probability(size: int, places: int) -> None:
    most = random_batches.most_occurrences(size, places)
    failure = failure_with_replacement(size, places)
    assert failure <= FAILURE
    if size > 1 and most > 1:
        with mpmath.workdps(60):
            q = mpmath.mpf(1) / size
            beyond = [
                mpmath.fsum(binomial(k, places, q) for k in range(n + 1, min(places, n + 40) + 1))
                for n in (most, most - 1)
            ]
        assert failure == pytest.approx(float(beyond[0]), rel=1e-9)
        assert beyond[1] > FAILURE


def test_delta_of_a_batch_with_replacement_is_its_failure_probability() -> None:
    event = dp.SampledWithReplacement(60_000, 256, dp.Gaussian(20.0))
    curve = event_curve(event, REPLACE)
    assert curve.delta_value() == pytest.approx(failure_with_replacement(60_000, 256), abs=2**-61)
    assert curve.times(1000).delta == 1000 * curve.delta
    assert event_curve(dp.SampledWithReplacement(3, 2, dp.Gaussian(20.0)), REPLACE).delta == 0


@pytest.mark.parametrize(
    ("event", "relation", "words"),
    [
        *((REPEATED, ADD, "Declare replace_one"), (REPEATED, SPECIAL, "Declare replace_one")),
        (dp.SampledWithReplacement(10, 1000, dp.Gaussian(2.0)), REPLACE, "64 places and more"),
        (dp.SampledWithReplacement(100, 10, dp.Laplace(2.0)), REPLACE, "no bound for laplace"),
        (dp.TruncatedPoissonSampled(100, 0.1, 20, dp.Laplace(2.0)), ADD, "no bound for laplace"),
        *((dp.PoissonSampled(0.1, CUT), relation, "known number of records") for relation in (ADD, SPECIAL)),
        (dp.PoissonSampled(0.1, REPEATED), REPLACE, "known number of records"),
    ],
    ids=str,
)
def test_event_without_a_proof_is_refused_with_the_reason(
    event: dp.TruncatedPoissonSampled, relation: NeighboringRelation, words: str
) -> None:
    with pytest.raises(UnsupportedEventError, match=words):
        event_curve(event, relation)


DIGITS = 18
TOLERANCE = 1e-11


def hockey_stick(q: mpmath.mpf, z: mpmath.mpf, y: mpmath.mpf) -> mpmath.mpf:
    """Return G at t = 1 + q (exp(y) - 1): q times that of two Gaussians at exp(y)."""
    return q * (mpmath.ncdf(1 / (2 * z) - z * y) - mpmath.exp(y) * mpmath.ncdf(-1 / (2 * z) - z * y))


@cache
def integral(q: float, z: float, power: mpmath.mpf, until: mpmath.mpf) -> mpmath.mpf:
    """Integrate t^power g(t) from t = 1 to where y is as said; kept, as a search asks for the same part again."""
    q, z = mpmath.mpf(q), mpmath.mpf(z)
    return mpmath.quad(
        lambda y: (1 + q * mpmath.expm1(y)) ** power * hockey_stick(q, z, y) * q * mpmath.exp(y),
        mpmath.linspace(0, until, 9),
    )


def moment_excess(q: float, z: float, order: float, end: mpmath.mpf) -> mpmath.mpf:
    """Return a b times the integral of t^(a - 2) g(t) from 1 / T on; T is at y = end."""
    a = mpmath.mpf(order)
    reach = (a + 14 * mpmath.mpf(z) + 1) / mpmath.mpf(z) ** 2
    return a * (a - 1) * (integral(q, z, a - 2, reach) + integral(q, z, -a - 1, min(end, reach)))


def second_moment(q: float, z: float) -> mpmath.mpf:
    q, d = mpmath.mpf(q), 1 / mpmath.mpf(z) ** 2
    return q * q * ((1 - q) * 2 * (mpmath.exp(d) - mpmath.exp(d / 2)) + q * mpmath.expm1(d))


@pytest.mark.parametrize(("q", "z"), thinned([(0.01, 1.0), (0.5, 3.0), (1e-6, 0.6), (0.2, 0.4), (0.9, 8.0)], 5))
def test_the_bound_is_the_largest_moment_that_its_constraints_allow(q: float, z: float) -> None:
    known = second_moment(q, z)
    end = mpmath.inf
    if moment_excess(q, z, 2, end) > known:
        end = mpmath.findroot(
            lambda y: moment_excess(q, z, 2, y) / known - 1,
            (mpmath.mpf("1e-3") / z, 3 / mpmath.mpf(z)),
            solver="anderson",
            tol=1e-18,
        )
    some = np.array([2.0, 7.5])
    for order, nats in zip(some, without_replacement_gaussian_rdp(q, z, some), strict=True):
        truth = mpmath.log1p(moment_excess(q, z, order, end)) / (order - 1)
        assert abs(mpmath.mpf(float(nats)) - truth) <= TOLERANCE * truth
    low = np.array([1.25])
    for order, nats in zip(low, without_replacement_gaussian_rdp(q, z, low), strict=True):
        b = mpmath.mpf(order) - 1
        uncut = mpmath.log1p(moment_excess(q, z, order, mpmath.inf)) / b
        truth = min(uncut, mpmath.log1p((b + 1) * b * known / 2) / b, mpmath.log1p(known))
        assert abs(mpmath.mpf(float(nats)) - truth) <= TOLERANCE * truth


SETTINGS = [
    *((256 / 60000, 0.55), (0.01, 1.0), (0.1, 2.0), (0.5, 3.0), (0.001, 5.0), (0.3, 30.0), (0.9, 0.7), (0.01, 0.15)),
    *((1e-9, 0.25), (1e-9, 1e6), (0.5, 1e-3), (0.99, 1e3)),
]


@pytest.mark.parametrize(("q", "z"), SETTINGS)
def test_the_bound_lies_between_poisson_sampling_and_no_sampling(q: float, z: float) -> None:
    bound, poisson = without_replacement_gaussian_rdp(q, z, GRID), sampled_gaussian_rdp(q, z, GRID)
    assert np.all(bound >= poisson * (1 - 1e-12))
    assert np.all(bound <= np.minimum(2 * poisson, gaussian_rdp(z, GRID) * (1 + 1e-12)))
    assert np.all(np.diff(bound) >= -1e-12 * bound[1:])


def test_a_batch_of_everything_is_not_sampled() -> None:
    assert np.array_equal(without_replacement_gaussian_rdp(1.0, 2.0, GRID), gaussian_rdp(2.0, GRID))
    almost = without_replacement_gaussian_rdp(1 - 1e-12, 2.0, GRID)
    assert almost == pytest.approx(gaussian_rdp(2.0, GRID), rel=1e-10)


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.7])
def test_less_is_known_without_the_integrals(q: float) -> None:
    z = MIN_INTEGRATED_NOISE
    known = without_replacement_gaussian_rdp(q, z, GRID[GRID >= 2])
    less_known = without_replacement_gaussian_rdp(q, np.nextafter(z, 0), GRID[GRID >= 2])
    assert np.all(known <= less_known * (1 + 1e-12))
    assert np.all(less_known <= known * 1.02)


@given(
    q=st.floats(-9, -1e-3).map(lambda exponent: 10**exponent),
    z=st.floats(-1.2, 3).map(lambda exponent: 10**exponent),
    step=st.floats(-6, 0).map(lambda exponent: 1 + 10**exponent),
)
def test_larger_batches_or_less_noise_never_cost_less(q: float, z: float, step: float) -> None:
    grid = GRID[::20]
    here = without_replacement_gaussian_rdp(q, z, grid) * (1 - 1e-11)
    assert np.all(without_replacement_gaussian_rdp(min(1.0, q * step), z, grid) >= here)
    assert np.all(without_replacement_gaussian_rdp(q, z / step, grid) >= here)
