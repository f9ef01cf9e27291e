"""Rényi divergence of the basic mechanisms, each from a sum of positive terms: no lost digits, no overflow."""

from collections.abc import Sequence
from math import inf, log, log1p

import numpy as np
from numpy.typing import NDArray

from app.accounting.formulas.numerics import TINY, log_f, log_phi, log_psi, rdp_of_excess


def gaussian_rdp(noise_multiplier: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Rényi divergence of a sum with Gaussian noise, or with discrete Gaussian noise: a / (2 z^2).

    Args:
        noise_multiplier: standard deviation z of the noise over the L2 sensitivity of the sum, above 0.
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) nats; exact for continuous noise and for discrete noise at integer orders, else a bound.

    Source:
        Mironov 2017 (arXiv 1702.07476), Proposition 7; for integer-valued sums with discrete noise Canonne, Kamath,
        Steinke 2020 (arXiv 2004.00010), Proposition 5. Any relation under which the sensitivity was taken.
    """
    return orders / (2 * noise_multiplier**2)


def laplace_rdp(noise_multiplier: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Rényi divergence of a sum with Laplace noise in every coordinate.

    With b = a - 1 the moment is A = (a exp(b / z) + b exp(-a / z)) / (2 a - 1), which is 1 plus
    (a f(b / z) + b f(-a / z)) / (2 a - 1), f(t) = exp(t) - 1 - t. That is one coordinate moved by the whole
    sensitivity. It is the worst case: ln A is convex in the distance moved and 0 at distance 0, hence superadditive,
    and the divergences of independent coordinates add up.

    Args:
        noise_multiplier: scale z of the noise over the L1 sensitivity of the sum, above 0.
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) nats, positive, exact up to a relative error of 1e-13.

    Source:
        Mironov 2017 (arXiv 1702.07476), Proposition 6. Any relation under which the sensitivity was taken.
    """
    b = orders - 1
    rising = np.log(orders) + log_f(b / noise_multiplier)
    falling = np.log(b) + log_f(-orders / noise_multiplier)
    return rdp_of_excess(np.logaddexp(rising, falling) - np.log(2 * orders - 1), orders)


def pure_dp_rdp(epsilon: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest Rényi divergence of any mechanism that is epsilon-DP.

    The output of every such mechanism on two neighbours can be made from that of binary randomized response on
    them, whose moment is 1 + expm1(b epsilon) (1 - exp(-a epsilon)) / (1 + exp(-epsilon)), b = a - 1.

    Args:
        epsilon: nats, at least 0, finite.
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) nats, exact for randomized response up to a relative error of 1e-13; 0 for epsilon 0.

    Source:
        Kairouz, Oh, Viswanath 2015 (arXiv 1311.0776): the reduction. The same relation as the epsilon's.
    """
    if epsilon == 0:
        return np.zeros_like(orders)
    return rdp_of_excess(_log_two_point_excess(epsilon, orders) - np.logaddexp(0, -epsilon), orders)


def bounded_range_rdp(epsilon: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest Rényi divergence of a mechanism whose privacy loss has a range of epsilon.

    Such is the exponential mechanism with weights exp(epsilon score / (2 sensitivity)), and report noisy max with
    Gumbel noise: losses of any two outputs differ by at most epsilon. The moment is a convex function of the loss,
    so the worst loss takes the two ends t and t - epsilon only, with probabilities fixed by the mean of L = 1. With
    b = a - 1, A(t) = exp(b t) (1 - c (exp(t) - 1)), c = (1 - exp(-b epsilon)) / (exp(epsilon) - 1), is largest where
    exp(t) - 1 = (b f(epsilon) + f(-b epsilon)) / (a (1 - exp(-b epsilon))), f(t) = exp(t) - 1 - t.
    It is at most a epsilon^2 / 8 and at most what pure epsilon-DP costs.

    Args:
        epsilon: nats, at least 0, finite.
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) nats, tight, relative error at most 1e-13; 0 for epsilon 0.

    Source:
        Durfee, Rogers 2019 (arXiv 1905.04273): bounded range; Dong, Durfee, Rogers 2020 (arXiv 1909.13830): the
        two-point worst case; Cesar, Rogers 2021 (arXiv 2004.07223): the bound a epsilon^2 / 8. The same relation
        as the sensitivity's.
    """
    if epsilon == 0:
        return np.zeros_like(orders)
    b = orders - 1
    log_b_f = np.log(b) + log_f(np.full_like(b, epsilon))
    log_odds = np.logaddexp(log_b_f, log_f(-b * epsilon)) - np.log(orders) - _log_one_minus_exp(b * epsilon)
    high = np.minimum(np.logaddexp(0, log_odds), epsilon)
    low = high - epsilon
    # Probabilities under the second distribution: exp(-t) (1 - exp(t - eps)) and 1 - exp(-t), over 1 - exp(-eps).
    log_high = -high + _log_one_minus_exp(-low)
    log_low = _log_one_minus_exp(high)
    log_total = _log_one_minus_exp(np.full_like(b, epsilon))
    return rdp_of_excess(
        np.logaddexp(log_high + log_phi(b, high), log_low + log_phi(b, low)) - log_total,
        orders,
    )


def randomized_response_rdp(
    noise_parameter: float, num_buckets: int, orders: NDArray[np.float64], *, special: bool
) -> NDArray[np.float64]:
    """Return the Rényi divergence of randomized response: the value itself, or one of k values drawn evenly.

    Replacing a record exchanges the probabilities 1 - p + p / k and p / k of two values, whose log-ratio is e: the
    moment is 1 + (1 - p + p / k) expm1(b e) (1 - exp(-a e)), b = a - 1, in both directions. A special record answers
    evenly, with 1 / k for every value; then the larger of both directions counts.

    Args:
        noise_parameter: probability p of the even draw, in [0, 1].
        num_buckets: number k of values, at least 1.
        orders: (n_orders,) Rényi orders above 1.
        special: whether a neighbour has a special record instead of another one.

    Returns:
        (n_orders,) nats, exact up to a relative error of 1e-13; 0 if nothing depends on the data, infinite for p = 0.

    Source:
        Warner 1965 for two values; by summing over the k values. Relations: replace_one, or replace_special.
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


def tree_aggregation_rdp(
    noise_multiplier: float, step_counts: Sequence[int], orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the Rényi divergence of DP-FTRL: prefix sums from binary trees of noisy partial sums, with restarts.

    Every record takes part in one step of one tree, and a tree over n steps adds that step into at most as many nodes
    as n has binary digits; each of them is a Gaussian release. A special record contributes zero, so that the steps
    of all others stay where they are.

    Args:
        noise_multiplier: standard deviation of every node's noise over the L2 sensitivity of a step's sum, above 0.
        step_counts: steps of each tree, between two restarts, virtual ones included; at least one tree, counts at
            least 0.
        orders: (n_orders,) Rényi orders above 1.

    Returns:
        (n_orders,) nats, exact for the deepest tree.

    Source:
        Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021 (arXiv 2103.00039), appendix D. Relation:
        replace_special.
    """
    depth = max(step_counts).bit_length()
    return depth * gaussian_rdp(noise_multiplier, orders)


def _log_two_point_excess(epsilon: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(expm1(b eps) (1 - exp(-a eps))), b = a - 1: two values whose probabilities the neighbours exchange."""
    b = orders - 1
    return b * epsilon + _log_one_minus_exp(b * epsilon) + _log_one_minus_exp(orders * epsilon)


def _log_one_minus_exp(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(1 - exp(-t)) for t >= 0; at 0 the logarithm of the smallest float stands for minus infinity."""
    return np.log(np.maximum(-np.expm1(-t), TINY))
