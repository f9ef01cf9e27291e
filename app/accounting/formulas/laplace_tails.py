"""Laplace noise for local differential privacy: from what may be said about its size to its scale, and back."""

from math import expm1, log1p


def scale_of_tail(bound: float, probability: float) -> float:
    """Return the scale of Laplace noise that stays below a bound with a probability.

    Args:
        bound: of the noise's absolute value, positive, in the data's unit.
        probability: that the noise is smaller, in (0, 1).

    Returns:
        b = bound / ln(1 / (1 - probability)): P(|noise| < bound) = 1 - exp(-bound / b).
    """
    return bound / -log1p(-probability)


def bound_of_tail(scale: float, probability: float) -> float:
    """Return the bound below which Laplace noise stays with a probability.

    Args:
        scale: b of the noise, positive, in the data's unit.
        probability: that the noise is smaller, in (0, 1).

    Returns:
        b ln(1 / (1 - probability)).
    """
    return scale * -log1p(-probability)


def probability_of_tail(scale: float, bound: float) -> float:
    """Return the probability with which Laplace noise stays below a bound.

    Args:
        scale: b of the noise, positive, in the data's unit.
        bound: of the noise's absolute value, positive.

    Returns:
        1 - exp(-bound / b).
    """
    return -expm1(-bound / scale)


def epsilon_of_laplace(scale: float, l1_sensitivity: float) -> float:
    """Return the epsilon of one release with Laplace noise in every coordinate.

    Args:
        scale: b of the noise, positive, in the data's unit.
        l1_sensitivity: how far two inputs' outputs may lie apart, summed over the coordinates; 2 for two vectors of
            probabilities, not 1.

    Returns:
        Sensitivity over scale, nats: pure differential privacy, no delta.

    Source:
        Dwork, McSherry, Nissim, Smith 2006, Proposition 1.
    """
    return l1_sensitivity / scale
