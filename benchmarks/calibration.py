"""Time of finding noise, compared to dp_accounting: `python -m benchmarks.calibration` (about a minute).

Both find the noise multiplier of DP-SGD for an epsilon and a delta, interleaved in one process: dp_accounting by
`calibrate_dp_mechanism` with its defaults (tolerance 1e-6, its 155 orders), this service by the search of
`POST /v1/accounting/noise-multiplier` (six digits, rounded up, over its 1387 orders). No curve is cached between
searches. `epsilon` is the cost of each noise by our own accountant: at most the target.
"""

import logging
from collections.abc import Callable
from time import perf_counter

import numpy as np
from dp_accounting import calibrate_dp_mechanism, dp_event
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

from app.accounting.calibration.solvers import Target, min_noise_multiplier
from app.accounting.conversion import Rule, epsilon_of_curve
from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
PLANS = [
    ("MNIST, 60 epochs", 256 / 60_000, 14_040, 1.0, 1e-5),
    ("MNIST, 60 epochs", 256 / 60_000, 14_040, 8.0, 1e-5),
    ("q 1 %", 0.01, 10_000, 2.0, 1e-5),
    ("q 1 %, little noise", 0.01, 1000, 8.0, 1e-6),
    ("q 0.1 %, strict", 0.001, 100_000, 0.1, 1e-6),
    ("q 10 %", 0.1, 1000, 1.0, 1e-5),
    ("q 50 %", 0.5, 100, 3.0, 1e-5),
]
ROUNDS = 7
SEARCHES = {"ours": 5, "theirs": 1}
"""Searches in each round; short ones need more for a stable median."""


def target(steps: int, epsilon: float, delta: float) -> Target:
    """Return the calibration target of a training."""
    return Target(Rule(epsilon, delta), steps, RdpCurve.zero(orders(GRID_VERSION).size), RELATION)


def ours(q: float, steps: int, epsilon: float, delta: float) -> float:
    """Find the noise multiplier by this service."""
    found = min_noise_multiplier(PoissonSampled(q, Gaussian(1.0)), target(steps, epsilon, delta))
    assert found is not None
    return found


def theirs(q: float, steps: int, epsilon: float, delta: float) -> float:
    """Find the noise multiplier by dp_accounting."""

    def training(noise: float) -> dp_event.DpEvent:
        step = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(noise))
        return dp_event.SelfComposedDpEvent(step, steps)

    return float(calibrate_dp_mechanism(RdpAccountant, training, epsilon, delta))


def cost(noise: float, q: float, steps: int, epsilon: float, delta: float) -> float:
    """Compute the epsilon of a noise multiplier by this service."""
    total = target(steps, epsilon, delta).total(PoissonSampled(q, Gaussian(noise)))
    return epsilon_of_curve(orders(GRID_VERSION), total, delta).epsilon


def main() -> None:
    """Print the medians and their ratio for each plan."""
    logging.disable(logging.WARNING)  # dp_accounting warns of orders that it leaves out
    print(f"medians of {ROUNDS * SEARCHES['ours']} and {ROUNDS} searches, in turns; milliseconds")
    print(
        f"{'plan':<22}{'steps':>8}{'epsilon':>9}{'delta':>8}{'ours':>9}{'theirs':>9}{'ratio':>7}"
        f"{'noise':>11}{'epsilon':>10}{'their noise':>13}{'epsilon':>10}"
    )
    for name, *plan in PLANS:
        q, steps, epsilon, delta = float(plan[0]), int(plan[1]), float(plan[2]), float(plan[3])
        taken: dict[str, list[float]] = {"ours": [], "theirs": []}
        found = {}
        for _ in range(ROUNDS):
            for who, search in (("ours", ours), ("theirs", theirs)):
                for _ in range(SEARCHES[who]):
                    found[who] = _timed(search, (q, steps, epsilon, delta), taken[who])
        fast, slow = float(np.median(taken["ours"])), float(np.median(taken["theirs"]))
        costs = {who: cost(noise, q, steps, epsilon, delta) for who, noise in found.items()}
        print(
            f"{name:<22}{steps:>8}{epsilon:>9g}{delta:>8g}{fast * 1e3:>9.2f}{slow * 1e3:>9.1f}{slow / fast:>7.0f}"
            f"{found['ours']:>11g}{costs['ours']:>10.6f}{found['theirs']:>13.6f}{costs['theirs']:>10.6f}"
        )


def _timed(
    search: Callable[[float, int, float, float], float], plan: tuple[float, int, float, float], taken: list[float]
) -> float:
    start = perf_counter()
    found = search(*plan)
    taken.append(perf_counter() - start)
    return found


if __name__ == "__main__":
    main()
