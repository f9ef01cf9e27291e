"""Truncated Poisson samples and batches with replacement: their probabilities, limits and worst sums."""

from itertools import pairwise, product
from math import comb

import mpmath
import pytest

from app.accounting import events as dp
from app.accounting.curves import finite_orders
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import NeighboringRelation
from app.accounting.formulas.random_batches import (
    FAILURE,
    Shares,
    Truncation,
    failure_with_replacement,
    most_occurrences,
)
from app.accounting.formulas.without_replacement import without_replacement_gaussian_rdp
from app.accounting.rdp import event_curve

ADD, REPLACE, SPECIAL = NeighboringRelation
GRID = finite_orders(1)


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
    found = Truncation.of(others, q, most)
    assert found.cut == pytest.approx(float(cut), rel=1e-11)
    assert found.kept == pytest.approx(float(kept), rel=1e-11)


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
    most = most_occurrences(size, places)
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
        (dp.SampledWithReplacement(100, 10, dp.Gaussian(2.0)), ADD, "Declare replace_one"),
        (dp.SampledWithReplacement(100, 10, dp.Gaussian(2.0)), SPECIAL, "Declare replace_one"),
        (dp.SampledWithReplacement(10, 1000, dp.Gaussian(2.0)), REPLACE, "64 places and more"),
        (dp.SampledWithReplacement(100, 10, dp.Laplace(2.0)), REPLACE, "no bound for laplace"),
        (dp.TruncatedPoissonSampled(100, 0.1, 20, dp.Laplace(2.0)), ADD, "no bound for laplace"),
        (
            dp.PoissonSampled(0.1, dp.TruncatedPoissonSampled(100, 0.1, 20, dp.Gaussian(2.0))),
            ADD,
            "known number of records",
        ),
        (
            dp.PoissonSampled(0.1, dp.TruncatedPoissonSampled(100, 0.1, 20, dp.Gaussian(2.0))),
            SPECIAL,
            "known number of records",
        ),
        (
            dp.PoissonSampled(0.1, dp.SampledWithReplacement(100, 10, dp.Gaussian(2.0))),
            REPLACE,
            "known number of records",
        ),
    ],
    ids=str,
)
def test_event_without_a_proof_is_refused_with_the_reason(
    event: dp.TruncatedPoissonSampled, relation: NeighboringRelation, words: str
) -> None:
    with pytest.raises(UnsupportedEventError, match=words):
        event_curve(event, relation)
