"""Permute and flip, run by brute force over its permutations, against Laplace noise, which dominates it."""

from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from app.accounting.curves import finite_orders
from app.accounting.formulas.mechanisms import bounded_range_rdp, laplace_rdp, permute_and_flip_rdp, pure_dp_rdp
from app.accounting.pld.pairs import LaplacePair

GRID = finite_orders(1)


def chosen(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the probabilities of each candidate, by scores in units of 2 sensitivity / epsilon."""
    accepted = np.exp(scores - scores.max())
    found = np.zeros(scores.size)
    every = list(permutations(range(scores.size)))
    for order in every:
        going_on = 1.0
        for candidate in order:
            found[candidate] += going_on * accepted[candidate] / len(every)
            going_on *= 1 - accepted[candidate]
    return found


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_two_candidates_attain_every_point_of_the_divergence_of_laplace_noise(epsilon: float) -> None:
    # The difference of the scores moves by epsilon, from any start: each start is the best test of one false positive.
    tails = LaplacePair(1 / epsilon).tails(losses := np.linspace(-epsilon, epsilon, 21)[:-1])
    bound = tails.p_above - np.exp(losses) * tails.q_above
    starts = np.linspace(-epsilon, 0, 4001)
    p, q = (np.array([chosen(np.array([start + v, 0.0]))[0] for start in starts]) for v in (epsilon, 0.0))
    found = [(p - np.exp(loss) * q).max() for loss in losses]
    assert found == pytest.approx(bound, rel=1e-5)


def test_permute_and_flip_costs_between_exponential_and_pure_mechanisms() -> None:
    for epsilon in (1e-6, 0.1, 1.0, 10.0, 1e3):
        found = permute_and_flip_rdp(epsilon, GRID)
        assert found == pytest.approx(laplace_rdp(1 / epsilon, GRID), rel=1e-13)
        assert np.all(found >= bounded_range_rdp(epsilon, GRID))
        assert np.all(found <= pure_dp_rdp(epsilon, GRID) * (1 + 1e-13))
