"""From Rényi divergence to (epsilon, delta), and from a limit back to what each order may spend.

Source of the improved conversion: Canonne, Kamath, Steinke 2020 (arXiv 2004.00010), Proposition 12, and
Balle, Barthe, Gaboardi, Hsu, Sato 2020 (arXiv 1905.09982), Theorem 21.
Source of the classic one: Mironov 2017 (arXiv 1702.07476), Proposition 3.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import EXHAUSTED, UNIT

ROUNDING: Final = 2.0**-49
"""Relative error allowed to each term of a threshold: 16 roundings, where the formula has at most 10."""


@dataclass(frozen=True, slots=True)
class EpsilonAtOrder:
    """An epsilon and the order that gave it.

    Args:
        epsilon: nats, at least 0, infinite if every order is exhausted.
        order: the Rényi order at which the conversion was smallest.
    """

    epsilon: float
    order: float


def epsilon_at_orders(
    orders: NDArray[np.float64], rdp_nats: NDArray[np.float64], delta: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Convert each order's divergence to an epsilon by itself.

    Args:
        orders: (n_orders,) Rényi orders above 1.
        rdp_nats: (n_orders,) nats, infinity allowed.
        delta: in [0, 1), one for all orders or (n_orders,); an order with delta 0 gives infinity.

    Returns:
        (n_orders,) epsilons; they may be negative, which means that 0 is enough.
    """
    reward, price, _ = _terms(orders, delta)
    return rdp_nats - reward + price


def epsilon_from_rdp(
    orders: NDArray[np.float64],
    rdp_nats: NDArray[np.float64],
    delta: float,
    method: Literal["improved", "classic"] = "improved",
) -> EpsilonAtOrder:
    """Return the smallest epsilon that a curve proves at a delta.

    Args:
        orders: (n_orders,) Rényi orders above 1.
        rdp_nats: (n_orders,) nats, infinity allowed.
        delta: in (0, 1).
        method: "classic" adds ln(1/delta) / (order - 1) and is looser; some source systems report it.

    Returns:
        The epsilon and its order; epsilon is 0 if nothing was released.
    """
    if method == "classic":
        epsilons = rdp_nats - np.log(delta) / (orders - 1)
    else:
        epsilons = rdp_nats + _conversion_cost(orders.tobytes(), delta)
    best = int(np.argmin(epsilons))
    epsilon = max(0.0, float(epsilons[best])) if rdp_nats.any() else 0.0
    return EpsilonAtOrder(epsilon=epsilon, order=float(orders[best]))


def threshold_units(
    orders: NDArray[np.float64], epsilon: float, delta: float | NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return what each order may spend so that it alone proves (epsilon, delta).

    The threshold is epsilon - ln(1 - 1/a) + ln(delta a)/(a - 1), rounded down. Before rounding, 2^-49 of each
    term's size is taken off: more than the formula's own rounding errors, so the result is never above the
    exact threshold, and below it by at most one unit and 2^-48 of the terms' sizes.

    Args:
        orders: (n_orders,) Rényi orders above 1.
        epsilon: the limit, finite and at least 0.
        delta: in [0, 1), one for all orders or (n_orders,).

    Returns:
        (n_orders,) int64, units of 2^-44 nats, below EXHAUSTED; -1 at an order that cannot prove the limit.
    """
    reward, price, price_size = _terms(orders, delta)
    error = ROUNDING * (epsilon + reward + price_size)
    units = np.floor((epsilon + reward - price - error) / UNIT)
    below_exhausted = np.minimum(units, np.nextafter(float(EXHAUSTED), 0))
    return np.where(units >= 0, below_exhausted, -1).astype(np.int64)


@lru_cache(maxsize=256)
def _conversion_cost(orders: bytes, delta: float) -> NDArray[np.float64]:
    """Return what the conversion adds at each order; every reply needs it, and few limits exist."""
    grid = np.frombuffer(orders, dtype=np.float64)
    return epsilon_at_orders(grid, np.zeros_like(grid), delta)


def _terms(orders: NDArray[np.float64], delta: float | NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return -ln(1 - 1/a), -(ln delta + ln a)/(a - 1) and the size of what was added up for the latter."""
    log_delta = np.full(orders.shape, -np.inf)
    np.log(delta, out=log_delta, where=np.broadcast_to(np.asarray(delta) > 0, orders.shape))
    log_orders = np.log(orders)
    reward = np.log1p(1 / (orders - 1))
    return reward, -(log_delta + log_orders) / (orders - 1), (log_orders - log_delta) / (orders - 1)
