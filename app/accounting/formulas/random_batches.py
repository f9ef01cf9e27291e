"""Rényi divergence of Gaussian sums over truncated Poisson samples, and over batches drawn with replacement.

Truncated Poisson samples. Each of n records is taken with probability q; of more than B taken ones, B are kept, chosen
evenly. Let N be how many of the other records are taken, which does not depend on the record.

1. For N < B nothing is cut: the sum is that of a Poisson sample.
2. For N >= B, the record is in the batch with probability q B / (N + 1). There it takes the place of one of B others,
   which themselves are an even choice whatever N is. So given N >= B, the outputs are (1 - r) P0 + r P1, where r is the
   mean of q B / (N + 1): (B / n) P(Bin(n, q) > B) / P(N >= B) for n - 1 others. P0 has another record in its place: P0
   and P1 are mixtures of Gaussians at most one replace-one sensitivity apart.

Without the record the output is P0 in either case. So the moment is at most the mean of those of two sampled Gaussians,
by joint convexity. If another record is in its place, P0, P1 and P1' are three mixtures of Gaussians, any two of which
are at most one replace-one sensitivity apart, as for batches without replacement. A special record may take a place in
the batch or not: the three outputs cover both.

The neighbours of n records may have n - 1 or n others. With t(m) = P(Bin(m, q) >= B), which grows with m, and r, which
falls, both are at most: a share 1 - t(n) of case 1; t(n - 1) of case 2 with the r of n - 1 others; and for the rest a
sampled Gaussian with q at the replace-one sensitivity, which dominates both cases, since r < q.

Sources: Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha, Zhang 2024 (arXiv 2411.04205) and arXiv 2508.15089 on truncated
batches; the steps above are proven here.

Batches with replacement. Each of m places of a batch holds one of n records, chosen evenly. The record is in K places,
K ~ Bin(m, 1 / n), which does not depend on it. Given K = k > 0, the outputs with the record and with another one in its
stead, and that with neither, are mixtures of Gaussians of which any two are at most k replace-one sensitivities apart:
exchange the records of k places. So `mixed_batches_rdp` bounds the moment, with q = P(K > 0). The largest k would count
at all orders, however rare: instead, a K above a bound of tiny probability is a failure, a delta of the event.
"""

from math import exp, fsum, log, log1p
from typing import Final, NamedTuple

import numpy as np
import scipy

from app.accounting.curves import Floats
from app.accounting.formulas.mechanisms import gaussian_rdp
from app.accounting.formulas.numerics import TINY, mean_of_moments
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from app.accounting.formulas.without_replacement import mixed_batches_rdp, without_replacement_gaussian_rdp

FAILURE: Final = 1e-15
"""Largest probability of more occurrences in a batch than are accounted for."""


MAX_OCCURRENCES: Final = 64
"""From as many occurrences of a record on, batches with replacement are refused."""


class Truncation(NamedTuple):
    """Cases of a truncated Poisson sample with a number of other records.

    Args:
        cut: probability that the sample of the others is full.
        kept: probability that the record is in the batch, given that.
    """

    cut: float
    kept: float

    @classmethod
    def of(cls, others: int, q: float, most: int) -> "Truncation":
        """Compute the cases; a tiny probability is rounded up."""
        if others < most:
            return cls(0.0, 0.0)
        cut, bound = _at_least(most, others, q), q * most / (most + 1)
        kept = most / (others + 1) * _at_least(most + 1, others + 1, q) / cut
        return cls(cut, min(max(min(kept, bound) if cut > TINY else bound, TINY), q))


class Shares(NamedTuple):
    """Shares of the cases under add_or_remove_one.

    Args:
        plain: the sample is not cut.
        either: it is cut with n other records, not with n - 1.
        cut: it is cut with either.
        kept: probability that the record is then in the batch, at most.
    """

    plain: float
    either: float
    cut: float
    kept: float

    @classmethod
    def of(cls, size: int, q: float, most: int) -> "Shares":
        """Compute the shares for neighbours of `size` records, of which one may be added or removed."""
        fewer, more = Truncation.of(size - 1, q, most), Truncation.of(size, q, most)
        return cls(1 - more.cut, max(more.cut - fewer.cut, 0.0), fewer.cut, fewer.kept)


def truncated_poisson_rdp(shares: Shares, q: float, noises: tuple[float, float], orders: Floats) -> Floats:
    """Bound the Rényi divergence of a Gaussian sum over a truncated Poisson sample under add_or_remove_one.

    `noises` are its noise multipliers over the sensitivity if a record is added, and if one is replaced.
    """
    added, replaced = noises
    cases = ((shares.plain, q, added), (shares.either, q, replaced), (shares.cut, shares.kept, replaced))
    parts = [(share, _sampled(taken, z, orders)) for share, taken, z in cases if share]
    return np.minimum(mean_of_moments(parts, orders), gaussian_rdp(replaced, orders))


def truncated_poisson_replaced_rdp(
    truncation: Truncation, q: float, noises: tuple[float, float], orders: Floats, *, special: bool
) -> Floats:
    """Bound the same if a record is replaced.

    `noises` are over the sensitivity under the relation, and if one record is replaced by another. `special` is whether
    the relation is replace_special: to a sample that is not cut, a special record is one that was not taken.
    """
    own, replaced = noises
    plain = (_sampled if special else without_replacement_gaussian_rdp)(q, own, orders)
    parts = [(1 - truncation.cut, plain)]
    if truncation.cut:
        parts.append((truncation.cut, without_replacement_gaussian_rdp(truncation.kept, replaced, orders)))
    return mean_of_moments(parts, orders)


def with_replacement_rdp(size: int, places: int, noise_multiplier: float, orders: Floats) -> Floats:
    """Bound the Rényi divergence of a Gaussian sum over a batch with replacement under replace_one.

    It holds but for the probability `failure_with_replacement`. z is over the replace-one sensitivity of one place.
    """
    if size == 1:
        return gaussian_rdp(noise_multiplier / places, orders)
    counts = range(1, most_occurrences(size, places) + 1)
    shares = [_exactly(count, places, 1 / size) for count in counts]
    taken = fsum(shares)
    q = taken / (exp(places * log1p(-1 / size)) + taken)
    return mixed_batches_rdp(q, [noise_multiplier / k for k in counts], [share / taken for share in shares], orders)


def most_occurrences(size: int, places: int, most: int | None = None) -> int:
    """Find the least number that a record's occurrences in a batch exceed with a probability of at most FAILURE.

    The search stops at `most`, if given.
    """
    if size == 1:
        return places
    found = 1
    while _more_than(found, size, places) > FAILURE and found != most:
        found += 1
    return found


def failure_with_replacement(size: int, places: int) -> float:
    """Compute the probability of more occurrences than are accounted for; 0 if there can be none."""
    return 0.0 if size == 1 else _more_than(most_occurrences(size, places), size, places)


def _more_than(count: int, size: int, places: int) -> float:
    return _at_least(count + 1, places, 1 / size)


def _sampled(q: float, noise_multiplier: float, orders: Floats) -> Floats:
    return gaussian_rdp(noise_multiplier, orders) if q == 1 else sampled_gaussian_rdp(q, noise_multiplier, orders)


def _at_least(least: int, of: int, q: float) -> float:
    """Compute P(Bin(of, q) >= least) for least >= 1, rounded up to TINY; 0 if it is impossible."""
    return max(float(scipy.special.betainc(least, of - least + 1, q)), TINY) if least <= of else 0.0


def _exactly(count: int, of: int, q: float) -> float:
    """Compute P(Bin(of, q) = count), rounded up to TINY."""
    log_ways = fsum(log((of - place) / (place + 1)) for place in range(count))
    return max(exp(log_ways + count * log(q) + (of - count) * log1p(-q)), TINY)
