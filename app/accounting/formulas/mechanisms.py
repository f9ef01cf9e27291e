"""Rényi divergence of the basic mechanisms, without cancellation or overflow, and the tails of Laplace noise."""

from collections.abc import Sequence
from math import inf, log, log1p

import numpy as np

from app.accounting.curves import Floats
from app.accounting.formulas.numerics import TINY, log_f, log_one_minus_exp, log_phi, log_psi, rdp_of_excess


def gaussian_rdp(noise_multiplier: float, orders: Floats) -> Floats:
    """Compute the Rényi divergence of (discrete) Gaussian noise: a / (2 z^2), z over the L2 sensitivity.

    It is exact for continuous noise, and for discrete noise at integer orders, else a bound. Source: Mironov 2017
    (arXiv 1702.07476), Proposition 7; for integer-valued sums with discrete noise Canonne, Kamath, Steinke 2020
    (arXiv 2004.00010), Proposition 5.
    """
    return orders / (2 * noise_multiplier**2)


def laplace_rdp(noise_multiplier: float, orders: Floats) -> Floats:
    """Compute the Rényi divergence of Laplace noise in every coordinate.

    With b = a - 1 the moment is A = (a exp(b / z) + b exp(-a / z)) / (2 a - 1), which is 1 plus
    (a f(b / z) + b f(-a / z)) / (2 a - 1), f(t) = exp(t) - 1 - t. That is one coordinate moved by the whole
    sensitivity, the worst case: ln A is convex in the distance moved and 0 at distance 0, so superadditive,
    and the divergences of independent coordinates add up. z is over the L1 sensitivity. The result is positive, with a
    relative error of at most 1e-13. Source: Mironov 2017 (arXiv 1702.07476), Proposition 6.
    """
    b = orders - 1
    rising = np.log(orders) + log_f(b / noise_multiplier)
    falling = np.log(b) + log_f(-orders / noise_multiplier)
    return rdp_of_excess(np.logaddexp(rising, falling) - np.log(2 * orders - 1), orders)


def pure_dp_rdp(epsilon: float, orders: Floats) -> Floats:
    """Compute the largest Rényi divergence of any epsilon-DP mechanism.

    The outputs of every such mechanism on two neighbours can be simulated from binary randomized response (Kairouz, Oh,
    Viswanath 2015, arXiv 1311.0776), whose moment is 1 + expm1(b epsilon) (1 - exp(-a epsilon)) / (1 + exp(-epsilon)),
    b = a - 1. The relative error is at most 1e-13.
    """
    if epsilon == 0:
        return np.zeros_like(orders)
    return rdp_of_excess(_log_two_point_excess(epsilon, orders) - np.logaddexp(0, -epsilon), orders)


def bounded_range_rdp(epsilon: float, orders: Floats) -> Floats:
    """Compute the largest Rényi divergence of a mechanism whose privacy loss has range epsilon.

    This covers the exponential mechanism with weights exp(epsilon score / (2 sensitivity)), and report noisy max with
    Gumbel noise: losses of any two outputs differ by at most epsilon. The moment is a convex function of the loss,
    so the worst loss takes the two ends t and t - epsilon only, with probabilities fixed by the mean of L = 1. With
    b = a - 1, A(t) = exp(b t) (1 - c (exp(t) - 1)), c = (1 - exp(-b epsilon)) / (exp(epsilon) - 1), is largest where
    exp(t) - 1 = (b f(epsilon) + f(-b epsilon)) / (a (1 - exp(-b epsilon))), f(t) = exp(t) - 1 - t. The bound is tight,
    with a relative error of at most 1e-13, and at most a epsilon^2 / 8.

    Source: Durfee, Rogers 2019 (arXiv 1905.04273): bounded range; Dong, Durfee, Rogers 2020 (arXiv 1909.13830): the
    two-point worst case; Cesar, Rogers 2021 (arXiv 2004.07223): the bound a epsilon^2 / 8.
    """
    if epsilon == 0:
        return np.zeros_like(orders)
    b = orders - 1
    log_b_f = np.log(b) + log_f(np.full_like(b, epsilon))
    log_odds = np.logaddexp(log_b_f, log_f(-b * epsilon)) - np.log(orders) - log_one_minus_exp(b * epsilon)
    high = np.minimum(np.logaddexp(0, log_odds), epsilon)
    low = high - epsilon
    # Probabilities under the second distribution: exp(-t) (1 - exp(t - eps)) and 1 - exp(-t), over 1 - exp(-eps).
    log_high = -high + log_one_minus_exp(-low)
    log_low = log_one_minus_exp(high)
    log_total = log_one_minus_exp(np.full_like(b, epsilon))
    log_excess = np.logaddexp(log_high + log_phi(b, high), log_low + log_phi(b, low)) - log_total
    return rdp_of_excess(log_excess, orders)


def permute_and_flip_rdp(epsilon: float, orders: Floats) -> Floats:
    """Compute the largest Rényi divergence of permute and flip: that of Laplace noise of pure epsilon.

    It is report noisy max with exponential noise (Ding et al. 2021, arXiv 2105.07260). In units of the noise's mean, a
    record moves each score by at most epsilon / 2 up or down; adding a constant to all scores changes nothing, so it
    moves them by v in [0, epsilon]. Let R be a set of candidates, S the others, and F(t) the probability that the noisy
    maximum of R, raised by t, exceeds that of S.

    - F(0) is the probability that R is chosen before the move. After it the probability is at most F(epsilon): raising
      a score of R, or not raising one of S, makes R more likely.
    - An exponential variable has no memory. So the maximum M of several, each with a constant added, exceeds x + h with
      at least exp(-h) times the probability that it exceeds x: its hazard rate is at most 1. Given the maximum of S,
      this is F' <= F; given that of R, it is F' <= 1 - F.
    - So F rises from F(0) at most like exp(t) up to 1/2, and from there 1 - F falls at most like exp(-t). This is the
      power of the best test between two Laplace distributions of scale 1 at the distance epsilon, for false positives
      F(0). It is concave, so tests that draw R at random have no more.

    So the pair of Laplace distributions dominates, in both directions. Two candidates attain it: the difference of two
    exponential variables is Laplace noise.
    """
    return laplace_rdp(noise_of_pure_loss(epsilon), orders)


def noise_of_pure_loss(epsilon: float) -> float:
    """Compute the noise multiplier of Laplace noise of pure epsilon, finite for every epsilon."""
    return 1 / max(epsilon, TINY)


def randomized_response_rdp(noise_parameter: float, num_buckets: int, orders: Floats, *, special: bool) -> Floats:
    """Compute the Rényi divergence of randomized response over k values, drawn uniformly with probability p.

    Replacing a record exchanges the probabilities 1 - p + p / k and p / k of two values, whose log-ratio is e: the
    moment is 1 + (1 - p + p / k) expm1(b e) (1 - exp(-a e)), b = a - 1, in both directions. A special record answers
    uniformly, with probability 1 / k; then the larger of both directions counts. For k = 2: Warner 1965. The relative
    error is at most 1e-13; at p = 0 the result is infinite.

    `noise_parameter` is p, in [0, 1], `num_buckets` k, at least 1, and `special` whether the relation is
    replace_special, not replace_one.
    """
    p, k, b = noise_parameter, float(num_buckets), orders - 1
    if p == 1 or num_buckets == 1:
        return np.zeros_like(orders)
    if p == 0:
        return np.full_like(orders, inf)
    log_kept = log1p((k - 1) * (1 - p))  # of the kept value's probability times k; that of the others is ln p
    if not special:
        epsilon = log1p(k * (1 - p) / p) if p > TINY * k else log_kept - log(p)
        return rdp_of_excess(_log_two_point_excess(epsilon, orders) + log_kept - log(k), orders)
    kept, other = np.full_like(b, log_kept), np.full_like(b, log(p))
    log_weight_kept, log_weight_other = -log(k), log1p(-1 / k)
    towards_even = np.logaddexp(log_weight_kept + log_phi(b, kept), log_weight_other + log_phi(b, other))
    towards_kept = np.logaddexp(log_weight_kept + log_psi(b, kept), log_weight_other + log_psi(b, other))
    return rdp_of_excess(np.maximum(towards_even, towards_kept), orders)


def tree_aggregation_rdp(noise_multiplier: float, step_counts: Sequence[int], orders: Floats) -> Floats:
    """Compute the Rényi divergence of DP-FTRL with restarts under replace_special.

    Every record takes part in one step of one tree, and a tree over n steps adds that step to at most as many nodes as
    n has binary digits; each node is a Gaussian release. A special record contributes zero, so that other records keep
    their steps. The result is exact for the deepest tree. Source: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021
    (arXiv 2103.00039), appendix D.

    z is that of every node, over the L2 sensitivity of a step's sum. `step_counts` are the steps of at least one tree
    between two restarts, virtual ones included, each at least 0.
    """
    return most_nodes(step_counts) * gaussian_rdp(noise_multiplier, orders)


def most_nodes(step_counts: Sequence[int]) -> int:
    """Compute the number of nodes that a step is added to in the deepest tree."""
    return max(step_counts).bit_length()


def scale_of_tail(bound: float, probability: float) -> float:
    """Compute the scale b for which P(|noise| < bound) = 1 - exp(-bound / b)."""
    return bound / -log1p(-probability)


def bound_of_tail(scale: float, probability: float) -> float:
    """Compute the bound that |noise| stays below with a probability in (0, 1)."""
    return scale * -log1p(-probability)


def epsilon_of_laplace(scale: float, l1_sensitivity: float) -> float:
    """Compute the pure epsilon of one release with Laplace noise in every coordinate.

    `l1_sensitivity` is the maximum L1 distance between two inputs' outputs: 2, not 1, for two vectors of probabilities.
    Source: Dwork, McSherry, Nissim, Smith 2006, Proposition 1.
    """
    return l1_sensitivity / scale


def _log_two_point_excess(epsilon: float, orders: Floats) -> Floats:
    """Compute ln(expm1(b eps) (1 - exp(-a eps))), b = a - 1, of two exchanged probabilities."""
    b = orders - 1
    return b * epsilon + log_one_minus_exp(b * epsilon) + log_one_minus_exp(orders * epsilon)
