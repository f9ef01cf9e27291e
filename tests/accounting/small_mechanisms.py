"""Small mechanisms that are run by brute force: every sample and every output, without any formula of the service.

A data set is a tuple with one entry for each unit: a number, or SPECIAL, or ABSENT. A mechanism gives the probabilities
of its outputs on a data set. Noise is binned, which is post-processing: a divergence found here is never above the true
one. What the output shows of who was taken is its label.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import combinations, product
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Entry = float | str
Data = tuple[Entry, ...]
Output = dict[Hashable, NDArray[np.float64]]
Mechanism = Callable[[Data], Output]

SPECIAL = "special"
ABSENT = "absent"
BINS = 24
FEW = 10
ROUNDED = 6
REACH = 4.0
ALL = 2**31
"""More records than any sample has."""


def number(entry: Entry) -> float:
    """Get what an entry contributes to a sum."""
    return 0.0 if isinstance(entry, str) else entry


def binned(
    cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]], centre: float, scale: float, bins: int = BINS
) -> NDArray[np.float64]:
    """Get the probabilities of the bins of a symmetric noise around a centre."""
    edges = np.linspace(-REACH * scale, REACH * scale, bins - 1) - centre
    below, above = cdf(edges / scale), cdf(-edges / scale)
    low = np.diff(np.concatenate([[0.0], below, [1.0]]))
    high = np.diff(np.concatenate([[1.0], above, [0.0]])) * -1
    return np.where(np.concatenate([edges, [np.inf]]) < 0, low, high)  # each from its own tail: no digits are lost


def gaussian(centre: float, scale: float, bins: int = BINS) -> NDArray[np.float64]:
    """Get the binned normal distribution."""
    return binned(ndtr, centre, scale, bins)


def laplace(centre: float, scale: float) -> NDArray[np.float64]:
    """Get the binned Laplace distribution."""
    return binned(lambda t: np.where(t < 0, np.exp(np.minimum(t, 0)) / 2, 1 - np.exp(-np.abs(t)) / 2), centre, scale)


def integers(centre: float, scale: float) -> NDArray[np.float64]:
    """Get the discrete Gaussian distribution around an integer, outputs far out put together."""
    x = np.arange(-40, 41)
    weights = np.exp(-((x - centre) ** 2) / (2 * scale * scale))
    far = int(REACH * scale)
    return np.bincount(np.clip(x, -far, far) + far, weights / weights.sum()).astype(np.float64)


def geometric_integers(centre: int, parameter: float) -> NDArray[np.float64]:
    """Get the discrete Laplace distribution around an integer, outputs far out put together."""
    x = np.arange(-14, 15)
    outward: NDArray[np.float64] = np.exp(-parameter * np.abs(x - centre)) * np.tanh(parameter / 2)
    outward[[0, -1]] = np.exp(-parameter * np.abs(x[[0, -1]] - centre)) / (1 + np.exp(-parameter))
    return outward


def truncated_geometric(count: int, most: int, epsilon: float) -> NDArray[np.float64]:
    """Get a count in 0 ... most with two-sided geometric noise, cut at the ends; for most = 1 randomized response."""
    alpha = np.exp(-epsilon)
    x = np.arange(most + 1)
    probabilities: NDArray[np.float64] = (1 - alpha) / (1 + alpha) * alpha ** np.abs(x - count)
    probabilities[[0, -1]] = alpha ** np.array([count, most - count]) / (1 + alpha)
    return probabilities


def joint(outputs: Iterable[Output]) -> Output:
    """Get the output of independent mechanisms together."""
    total: Output = {(): np.ones(1)}
    for output in outputs:
        total = {
            (*label, other): np.multiply.outer(a, b).ravel()  # type: ignore[misc]
            for label, a in total.items()
            for other, b in output.items()
        }
    return total


def mixture(parts: Iterable[tuple[float, Output]]) -> Output:
    """Get the output of a mechanism that is drawn."""
    total: Output = {}
    for weight, output in parts:
        for label, probabilities in output.items():
            total[label] = total.get(label, 0) + weight * probabilities
    return total


def together(mechanisms: Sequence[Mechanism]) -> Mechanism:
    """Run several mechanisms on the same data."""
    return lambda data: joint(mechanism(data) for mechanism in mechanisms)


def kept(data: Data, places: Collection[int]) -> Data:
    """Let only the entries of some places be there."""
    return tuple(entry if place in places else ABSENT for place, entry in enumerate(data))


def fixed_batch(size: int, mechanism: Mechanism) -> Mechanism:
    """Run a mechanism on a batch of a fixed number of records."""
    return lambda data: mixture(
        (1 / comb(len(data), size), mechanism(kept(data, batch))) for batch in combinations(range(len(data)), size)
    )


def poisson(q: float, mechanism: Mechanism, most: int = ALL) -> Mechanism:
    """Run a mechanism on a Poisson sample, of which an even choice is kept if it is too large."""

    def run(data: Data) -> Output:
        present = [place for place, entry in enumerate(data) if entry != ABSENT]
        parts = []
        for count in range(len(present) + 1):
            batches = list(combinations(present, min(count, most)))
            # Each choice of the kept ones out of the taken ones is equally likely, however many were taken.
            chance = comb(len(present), count) * q**count * (1 - q) ** (len(present) - count) / len(batches)
            parts += [(chance, mechanism(kept(data, batch))) for batch in batches]
        return mixture(parts)

    return run


def with_replacement(size: int, mechanism: Mechanism) -> Mechanism:
    """Run a mechanism on a batch, each place of which holds any of the records."""
    return lambda data: mixture((len(data) ** -size, mechanism(batch)) for batch in product(data, repeat=size))


def grouped(size: int, mechanism: Mechanism) -> Mechanism:
    """Run a mechanism on the records of units, of which each has several alike."""
    return lambda data: mechanism(tuple(entry for entry in data for _ in range(size)))


def best_of(mechanism: Mechanism, pgf: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Mechanism:
    """Run a mechanism a random number of times, with a generating function, and release the largest output.

    Outputs are put together so that few are left and none is far out: differences of sums of them keep their digits.
    """

    def run(data: Data) -> Output:
        output = {
            label: np.array([part.sum() for part in np.array_split(each, min(ROUNDED, each.size))])
            for label, each in mechanism(data).items()
        }
        labels = sorted(output, key=repr)
        reached = np.cumsum(np.concatenate([[0.0], *(output[label] for label in labels)]))
        best = np.diff(pgf(np.minimum(reached, 1.0)))
        cuts = np.cumsum([output[label].size for label in labels])[:-1]
        return dict(zip(labels, np.split(best, cuts), strict=True)) | {"no run": pgf(np.zeros(1))}

    return run


def aligned(first: Output, second: Output) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Get the probabilities of the same outputs on two data sets."""
    sizes = {label: output[label].size for output in (first, second) for label in output}
    both = [
        np.concatenate([output.get(label, np.zeros(sizes[label])) for label in sizes]) for output in (first, second)
    ]
    assert all(abs(each.sum() - 1) < 1e-9 for each in both)
    return both[0], both[1]


def renyi(p: NDArray[np.float64], q: NDArray[np.float64], orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Get the Rényi divergence of p from q; at orders above 1024 the largest loss."""
    if np.any((q == 0) & (p > 0)):
        return np.full_like(orders, np.inf)
    p, q = p[p > 0], q[p > 0]
    loss = np.log(p) - np.log(q)
    finite = orders[orders <= 1024]
    moments = [np.logaddexp.reduce(np.log(p) + (a - 1) * loss) / (a - 1) for a in finite]
    return np.array([*moments, *[loss.max()] * (orders.size - finite.size)])


def hockey_stick(p: NDArray[np.float64], q: NDArray[np.float64], epsilon: float) -> float:
    """Get the smallest delta with which p is within epsilon of q."""
    return float(np.maximum(p - np.exp(epsilon) * q, 0).sum())
