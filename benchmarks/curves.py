"""Time of a sampled Gaussian's curve, compared to other accountants: `python -m benchmarks.curves` (about 10 s).

Ours is over the service's whole grid and rounded to units; the others' are over their own default orders. Opacus is
included if it is installed.
"""

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from time import perf_counter

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from app.accounting.curves import GRID_VERSION, orders
from app.accounting.events import Decay, Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import curve_over, event_curve

SETTINGS = [(256 / 60000, 1.1), (0.01, 0.5), (0.1, 0.3), (0.5, 30.0)]
ROUNDS = 15
AT_LEAST = 0.01  # seconds of calls in a round
CALLS = 10_000
STEPS = 1000
SCHEDULE = np.geomspace(4, 0.5, STEPS).tolist()
RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE

Contender = Callable[[float, float], object]


def ours(q: float, z: float) -> object:
    """Compute a curve over the grid, uncached."""
    return curve_over(PoissonSampled(q, Gaussian(z)), orders(GRID_VERSION), RELATION)


def dp_accounting(q: float, z: float) -> object:
    """Charge one step to a new accountant of dp_accounting."""
    return RdpAccountant().compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)))


def contenders() -> dict[str, Contender]:
    """Return the benchmarks by name."""
    found: dict[str, Contender] = {"ours": ours, "dp_accounting": dp_accounting}
    if find_spec("opacus"):
        analysis = import_module("opacus.accountants.analysis.rdp")
        alphas = import_module("opacus.accountants").RDPAccountant.DEFAULT_ALPHAS
        found["Opacus"] = lambda q, z: analysis.compute_rdp(q=q, noise_multiplier=z, steps=1, orders=alphas)
    return found


def fresh() -> None:
    """Print interleaved medians of an uncached curve, and ratios of the others."""
    timed = contenders()
    print(f"a fresh curve, median of {ROUNDS}, in ms, and as a multiple of ours")
    print(f"{'q':<10}{'z':<6}" + "".join(f"{name:>22}" for name in timed))
    for q, z in SETTINGS:
        taken: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(ROUNDS):
            for name, compute in timed.items():
                calls, start = 0, perf_counter()
                while perf_counter() < start + AT_LEAST:
                    compute(q, z)
                    calls += 1
                taken[name].append((perf_counter() - start) / calls)
        own = median(taken["ours"])
        print(f"{q:<10.4g}{z:<6g}" + "".join(f"{_times(median(seconds), own):>22}" for seconds in taken.values()))


def cached() -> float:
    """Return the median seconds of a cached curve."""
    q, z = SETTINGS[0]
    event = PoissonSampled(q, Gaussian(z))
    event_curve(event, RELATION)
    taken = []
    for _ in range(ROUNDS):
        start = perf_counter()
        for _ in range(CALLS):
            event_curve(event, RELATION)
        taken.append((perf_counter() - start) / CALLS)
    return median(taken)


def schedules() -> tuple[float, float]:
    """Return the seconds of 1,000 noise multipliers from 4 to 0.5 at q 0.01: by curves, and by one decay event."""
    rate = float(np.log(8) / (STEPS - 1))
    decay = Decay("exp", rate, STEPS, PoissonSampled(0.01, Gaussian(4.0)))
    each, one = [], []
    for _ in range(3):
        start = perf_counter()
        for z in SCHEDULE:
            ours(0.01, z)
        each.append(perf_counter() - start)
        start = perf_counter()
        curve_over(decay, orders(GRID_VERSION), RELATION)
        one.append(perf_counter() - start)
    return median(each), median(one)


def main() -> None:
    """Print the figures."""
    logging.disable(logging.WARNING)  # dp_accounting says at which orders its series did not converge
    fresh()
    print(f"\na cached curve: {cached() * 1e6:.2f} us")
    each, one = schedules()
    print(f"{STEPS:,} noise multipliers from 4 to 0.5 at q 0.01: {each:.2f} s, as one decay event {one:.2f} s")


def _times(seconds: float, own: float) -> str:
    return f"{seconds * 1e3:.2f} ms ({seconds / own:.0f} x)"


if __name__ == "__main__":
    main()
