"""Secure values, ten million in `make soak`, against the exact distributions; a right one fails with a chance of 1e-9.

Each test's threshold is that of its statistic at 5e-11 or less, and none depends on time or on a seed.
"""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from epsilon_ledger.mechanisms.randomness import BLOCK, SecureRandomness, SeededRandomness
from tests.soak import thinned

Floats = NDArray[np.float64]

MANY = 300_000
RARE = 1e-11
KOLMOGOROV = 3.5  # P(sqrt(n) D > 3.5) is about 2 exp(-2 3.5^2) = 5e-11 (Massart 1990: at most that)
NORMAL = 7.0  # P(|N| > 7) = 2.6e-12


@pytest.fixture(scope="module", params=thinned([MANY, 10_000_000], 2))
def normals(request: pytest.FixtureRequest) -> Floats:
    return SecureRandomness().normals(request.param)


def distance(values: Floats, distribution: stats.rv_continuous) -> float:
    """The Kolmogorov-Smirnov statistic times sqrt(n)."""
    at = distribution.cdf(np.sort(values))
    n = values.size
    below, above = np.arange(n) / n, np.arange(1, n + 1) / n
    return float(max((at - below).max(), (above - at).max()) * np.sqrt(n))


def correlation(one: Floats, two: Floats) -> float:
    """The correlation of two rows with known means and variances, in standard deviations of its distribution."""
    return float(np.dot(one - one.mean(), two - two.mean()) / (one.std() * two.std() * np.sqrt(one.size)))


def test_secure_normals_are_normal_and_as_many_in_tails_as_expected(normals: Floats) -> None:
    assert distance(normals, stats.norm) < KOLMOGOROV
    for sigmas in (3, 4, 5):
        for beyond in (normals > sigmas, normals < -sigmas):
            count = int(np.count_nonzero(beyond))
            assert stats.binomtest(count, normals.size, float(stats.norm.sf(sigmas))).pvalue > RARE, (sigmas, count)


# A value's partner, from the same uniforms, is BLOCK further on in its block; the next block is 2 BLOCK away.
@pytest.mark.parametrize("lag", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_values_and_their_sizes_are_uncorrelated(normals: Floats, lag: int) -> None:
    half = normals.size // 2 - lag
    early, late = normals[:half], normals[lag : lag + half]
    assert abs(correlation(early, late)) < NORMAL
    assert abs(correlation(early**2, late**2)) < NORMAL
    assert abs(correlation(early, late**2)) < NORMAL


def test_two_values_of_same_uniforms_are_independent(normals: Floats) -> None:
    pairs = normals[: normals.size // (2 * BLOCK) * 2 * BLOCK].reshape(-1, 2, BLOCK)
    cosines, sines = pairs[:, 0].ravel(), pairs[:, 1].ravel()
    assert abs(correlation(cosines**2, sines**2)) < NORMAL
    assert abs(correlation(np.abs(cosines), np.abs(sines))) < NORMAL
    # Sum and difference of independent normals are independent; so are radius and angle.
    assert abs(correlation((cosines + sines) ** 2, (cosines - sines) ** 2)) < NORMAL
    table, _, _ = np.histogram2d(stats.norm.cdf(cosines), stats.norm.cdf(sines), bins=20, range=[[0, 1], [0, 1]])
    assert stats.chisquare(table.ravel()).pvalue > RARE


def test_secure_laplace_values_are_laplace() -> None:
    values = SecureRandomness().laplaces(MANY)
    assert distance(values, stats.laplace) < KOLMOGOROV
    for scales in (3, 8, 12):
        for beyond in (values > scales, values < -scales):
            chance = float(stats.laplace.sf(scales))
            assert stats.binomtest(int(np.count_nonzero(beyond)), values.size, chance).pvalue > RARE
    half = values.size // 2
    for lag in (1, BLOCK, 2 * BLOCK):
        assert abs(correlation(np.abs(values[:half]), np.abs(values[lag : lag + half]))) < NORMAL


def test_all_bits_of_secure_words_are_even() -> None:
    words = SecureRandomness().words(MANY)
    for bit in range(64):
        count = int(np.count_nonzero(words >> np.uint64(bit) & np.uint64(1)))
        assert abs(count - words.size / 2) < NORMAL * np.sqrt(words.size) / 2, bit


def test_seeded_values_have_same_distributions() -> None:
    source = SeededRandomness(20261121)
    assert distance(source.normals(MANY), stats.norm) < KOLMOGOROV
    assert distance(source.laplaces(MANY), stats.laplace) < KOLMOGOROV
