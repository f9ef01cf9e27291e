"""Draw the number of runs that `repeat_and_select` accounts for."""

from math import exp, expm1, log1p

from app.accounting.errors import InvalidEventError
from app.accounting.formulas import scipy_functions as sp
from app.accounting.formulas.repeat_and_select import log_inverse_gamma

LEAST_SHAPE = 1e-6
"""Shapes nearer to 0 are drawn as 1e-9: cancellation would cost more digits than that does."""


MAX_MEAN = 1e6
MIN_SHAPE = -0.5
MAX_SHAPE = 1e6
_NEAR_HALF = 0.5


def number_of_runs(mean: float, shape: float | None, uniform: float) -> int:
    """Draw the number K of runs: the smallest k with P(K > k) <= `uniform`.

    With a finite shape h and g = gamma of the mean, K is truncated negative binomial, P(K = k) proportional to
    (1 - g)^k (k + h - 1 choose k) for k = 1, 2, ...; with shape None it is Poisson, and may be 0.

    Args:
        mean: expected number of runs, in [1, 1e6].
        shape: in [-0.5, 1e6] or None for Poisson; nearer to -1, K may be larger than anyone can train.
        uniform: in (0, 1), drawn uniformly and independently of the data.

    Returns:
        K, which must not be released, nor any output except the best run's (Papernot, Steinke 2022, arXiv 2110.03620,
        Definition 1).

    Raises:
        InvalidEventError: a number is out of bounds.
    """
    if not 1 <= mean <= MAX_MEAN or not (shape is None or MIN_SHAPE <= shape <= MAX_SHAPE):
        raise InvalidEventError(
            f"A number of runs is drawn for a mean in [1, {MAX_MEAN:g}] and a shape in [{MIN_SHAPE}, {MAX_SHAPE:g}] or "
            f"null; these are {mean:g} and {shape}."
        )
    assert 0 < uniform < 1, "both ends are excluded"
    if mean == 1 and shape is not None:
        return 1
    log_inverse = 0.0 if shape is None else log_inverse_gamma(mean, shape)

    def tail(runs: int) -> float:
        return float(sp.gammainc(runs + 1, mean)) if shape is None else _tail(runs, shape, log_inverse)

    least = 0 if shape is None else 1
    if tail(least) <= uniform:
        return least
    below, above = least, 2 * max(least, 1)
    while tail(above) > uniform:
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if tail(middle) > uniform else (below, middle)
    return above


def _tail(runs: int, shape: float, log_inverse_gamma: float) -> float:
    """Compute P(K > runs) of the truncated negative binomial distribution.

    Without the truncation it is I(1 - g; runs + 1, h), the regularised incomplete beta function. For h < 0 that is
    continued by I(x; a, h) = I(x; a, h + 1) - x^a (1 - x)^h Gamma(a + h) / (Gamma(a) Gamma(h + 1)) (DLMF 8.17.4,
    8.17.21).
    """
    a, gamma = runs + 1, exp(-log_inverse_gamma)
    h = shape if abs(shape) >= LEAST_SHAPE else 1e-9
    kept = -expm1(-h * log_inverse_gamma)
    if h > 0:
        beyond = sp.betaincc(h, a, gamma) if h >= _NEAR_HALF else sp.betainc(a, h, 1 - gamma)
        return float(beyond) / kept
    log_step = a * log1p(-gamma) - h * log_inverse_gamma + sp.gammaln(a + h) - sp.gammaln(a) - sp.gammaln(h + 1)
    return float(sp.betaincc(h + 1, a, gamma) - exp(log_step)) / kept
