"""Loss of epsilon by the grid of orders: `python -m benchmarks.orders_grid` (about 15 seconds).

For every DP-SGD setting (sampling probability, noise multiplier, delta, epsilon) the order is searched continuously;
the number of steps is the largest that the best order proves to be within epsilon. The excess of a grid is its epsilon
for these steps over the best. Steps are real numbers here, at least 1.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from numpy.typing import NDArray

from app.accounting.conversion import epsilon_at_orders, epsilon_from_rdp
from app.accounting.curves import GRID_VERSION, HIGHEST, orders
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import rdp

PROBABILITIES = [*np.geomspace(1e-4, 0.5, 13).tolist(), 1.0]
NOISE_MULTIPLIERS = [0.5, 0.61, 0.75, 0.9, 1.1, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 5.5, 7.5, 10.0]
DELTAS = [1e-5, 1e-6, 1e-7, 1e-8, 1e-10]
EPSILONS = np.geomspace(0.1, 20, 18).tolist()
DENSE = 1 + (np.arange(100, 10900) / 350) ** 2  # up to order 971; refined around each optimum
PROMISE = 1e-3

Floats = NDArray[np.float64]
Setting = tuple[float, float, float, float, float]


def divergence(q: float, z: float, at: Floats) -> Floats:
    """Compute the divergence of one step at (n_orders,) orders, in nats."""
    return rdp(PoissonSampled(q, Gaussian(z)), at, NeighboringRelation.ADD_OR_REMOVE_ONE)


def settings() -> Iterator[Setting]:
    """Yield probability, noise multiplier, delta, epsilon and steps of every setting with at least one step."""
    for q, z in product(PROBABILITIES, NOISE_MULTIPLIERS):
        dense = divergence(q, z, DENSE)
        for delta, epsilon in product(DELTAS, EPSILONS):
            best = int(np.argmax(_steps(DENSE, dense, delta, epsilon)))
            around = np.linspace(DENSE[max(best - 1, 0)], DENSE[min(best + 1, DENSE.size - 1)], 101)
            steps = float(_steps(around, divergence(q, z, around), delta, epsilon).max())
            if steps >= 1:
                yield q, z, delta, epsilon, steps


def excesses(grid: Floats, table: list[Setting]) -> Floats:
    """Compute the relative excess of a grid's epsilon for (n_settings,) settings."""
    curves = {pair: divergence(*pair, grid) for pair in {(q, z) for q, z, *_ in table}}
    return np.array(
        [
            epsilon_from_rdp(grid, steps * curves[q, z], delta).epsilon / epsilon - 1
            for q, z, delta, epsilon, steps in table
        ]
    )


def main() -> None:
    """Print the excess of this grid and of others."""
    table = list(settings())
    grids = {
        f"grid {GRID_VERSION}": orders(GRID_VERSION)[orders(GRID_VERSION) <= HIGHEST],
        "geometric, 128": 1 + np.geomspace(0.05, 1023, 128),
        "geometric, 512": 1 + np.geomspace(0.05, 1023, 512),
        "dp_accounting": np.array([order for order in RdpAccountant()._orders if order <= DENSE[-1]]),  # noqa: SLF001 - it has no public name
    }
    print(f"{len(table)} settings; excess of epsilon over the best order's, in percent")
    print(
        f"{'grid':<16}{'orders':>7}{'median':>9}{'99 %':>9}{'worst':>9}  within {PROMISE:.1%}   "
        "worst at q, z, delta, epsilon, steps"
    )
    for name, grid in grids.items():
        excess = excesses(grid, table)
        median, most, worst = np.quantile(excess, [0.5, 0.99, 1]) * 100
        where = ", ".join(f"{value:.4g}" for value in table[int(np.argmax(excess))])
        share = (excess <= PROMISE).mean() * 100
        print(f"{name:<16}{grid.size:>7}{median:>9.4f}{most:>9.4f}{worst:>9.4f}{share:>12.2f} %   {where}")


def _steps(at: Floats, one_step: Floats, delta: float, epsilon: float) -> Floats:
    return (epsilon - epsilon_at_orders(at, np.zeros_like(at), delta)) / one_step


if __name__ == "__main__":
    main()
