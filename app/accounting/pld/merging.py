"""Fewer pairs that dominate many."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import fsum, log, sqrt
from typing import Final

from app.accounting.errors import UnsupportedEventError
from app.accounting.pld.pairs import GaussianPair, Pair, SampledPair

MAX_PAIRS: Final = 64
"""Different pairs of a plan, before many on samples are replaced by fewer."""


def merged(pairs: Mapping[Pair, int]) -> Mapping[Pair, int]:
    """Replace all Gaussians by the one that they are together, and many on samples by fewer with less noise."""
    squares = fsum(count / pair.noise_multiplier**2 for pair, count in pairs.items() if isinstance(pair, GaussianPair))
    merged = Counter[Pair]({GaussianPair(1 / sqrt(squares)): 1} if squares else {})
    others = {pair: count for pair, count in pairs.items() if not isinstance(pair, GaussianPair)}
    fewer = with_less_noise(others)
    for pair, count in others.items():
        merged[fewer.get(pair, pair)] += count
    return merged


def with_less_noise(pairs: Iterable[Pair]) -> dict[Pair, Pair]:
    """Choose, if there are many pairs, for each Gaussian on a sample the one with the least noise of its class.

    There are at most MAX_PAIRS classes of about equal noise. Adding noise is a post-processing: less noise dominates.
    """
    different = set(pairs)
    if len(different) < MAX_PAIRS:
        return {}
    sampled = {
        (pair, pair.pair.noise_multiplier)
        for pair in different
        if isinstance(pair, SampledPair) and isinstance(pair.pair, GaussianPair)
    }
    noises = [noise for _, noise in sampled]
    width = log(max(noises) / min(noises)) / MAX_PAIRS if noises else 0.0
    least = dict[tuple[float, bool, int], Pair]()
    found = dict[Pair, Pair]()
    for pair, noise in sorted(sampled, key=lambda each: each[1]):
        place = min(int(log(noise / min(noises)) / width), MAX_PAIRS - 1) if width else 0
        found[pair] = least.setdefault((pair.sampling_probability, pair.removes, place), pair)
    if len(different) - len(found) + len(least) > 2 * MAX_PAIRS:
        raise UnsupportedEventError(f"A plan cannot hold more than {MAX_PAIRS} different mechanisms.")
    return found
