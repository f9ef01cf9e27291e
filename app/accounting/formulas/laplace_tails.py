"""Convert between Laplace noise scale, tail bound and epsilon, for local differential privacy."""

from math import expm1, log1p


def scale_of_tail(bound: float, probability: float) -> float:
    """Compute the scale b for which P(|noise| < bound) = 1 - exp(-bound / b)."""
    return bound / -log1p(-probability)


def bound_of_tail(scale: float, probability: float) -> float:
    """Compute the bound that |noise| stays below with a probability in (0, 1)."""
    return scale * -log1p(-probability)


def probability_of_tail(scale: float, bound: float) -> float:
    """Compute the probability that |noise| stays below a bound."""
    return -expm1(-bound / scale)


def epsilon_of_laplace(scale: float, l1_sensitivity: float) -> float:
    """Compute the pure epsilon of one release with Laplace noise in every coordinate.

    `l1_sensitivity` is the maximum L1 distance between two inputs' outputs: 2, not 1, for two vectors of probabilities.
    Source: Dwork, McSherry, Nissim, Smith 2006, Proposition 1.
    """
    return l1_sensitivity / scale
