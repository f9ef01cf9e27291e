"""The dominating pair of discrete Laplace noise on sums of integers."""

from dataclasses import dataclass

import numpy as np

from app.accounting.curves import Floats
from app.accounting.pld.pairs import LOSS_ERROR, Tails, exponential_errors


@dataclass(frozen=True, slots=True)
class DiscreteLaplacePair:
    """Discrete Laplace distributions of parameter c around the integers `shift` and 0; equal in both directions.

    Their probabilities at an integer x are proportional to exp(-c |x - centre|).

    It dominates a vector of integers with such noise in every coordinate, which moves by integers whose absolute values
    sum to at most `shift`. The proof is that of `DiscreteGaussianPair`: it needs only that the likelihood ratio of a
    shift never falls with x, so that best tests reject from a threshold on, as it does for log-concave noise.

    Args:
        noise_parameter: c, positive.
        shift: positive.
    """

    noise_parameter: float
    shift: int

    def tails(self, losses: Floats) -> Tails:
        """Compute the tails: the loss is c (2 x - shift) at x = 0 ... shift, and that of the nearer end beyond."""
        c, shift = self.noise_parameter, self.shift
        last = np.floor(losses / (2 * c) + shift / 2)
        none, every = last < 0, last >= shift
        x = np.clip(last, 0, shift)
        q_above = np.where(every, 0.0, np.where(none, 1.0, _at_least(x + 1, c)))
        q_below = np.where(every, 1.0, np.where(none, 0.0, 1 - _at_least(x + 1, c)))
        p_below = np.where(every, 1.0, np.where(none, 0.0, _at_least(shift - x, c)))
        p_above = np.where(every, 0.0, np.where(none, 1.0, 1 - _at_least(shift - x, c)))
        error = LOSS_ERROR * (float(np.abs(losses).max()) + c * shift)
        return Tails(p_below, p_above, q_below, q_above, exponential_errors(c * (shift + 1), losses.size), error)


def _at_least(x: Floats, c: float) -> Floats:
    """Compute the probabilities of at least (n,) integers x >= 0 around 0."""
    found: Floats = np.exp(-c * x) / (1 + np.exp(-c))
    return found
