"""Epsilons of many counts of the same events: `python -m benchmarks.counted_epsilons` (about a minute).

Medians of processor time, in milliseconds, of plans at delta 1e-5: of a first epsilon, which prepares an octave; of one
where it is prepared; of `pld_epsilon` at the same counts, in turn; and of 200 knots ahead, without octaves and with
prepared ones. Then by how much epsilons are above those of the finest lattice, at most.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from statistics import median
from time import process_time
from typing import TypeVar
from unittest.mock import patch

from app.accounting.epsilon_knots import knots_ahead
from app.accounting.events import DpEvent, Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.pld import accountant, counted_epsilons
from app.accounting.pld.accountant import pld_epsilon
from app.accounting.pld.counted_epsilons import CountedEpsilons, Octaves
from app.accounting.pld.plans import FINEST

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
DELTA = 1e-5
ROUNDS = 15
KNOTS = 200
COUNTS = (1, 16, 100, 1000, 10_000)


def step(q: float, z: float) -> DpEvent:
    """Build a step of DP-SGD."""
    return PoissonSampled(q, Gaussian(z))


TEN = [step(q, z) for q, z in product((0.001, 0.003, 0.01, 0.02, 0.05), (1.0, 1.5))]
WORKLOADS: dict[str, list[DpEvent]] = {
    "q .001, z 1": [step(0.001, 1.0)],
    "q .01, z 1.1": [step(0.01, 1.1)],
    "q .125, z 2": [step(0.125, 2.0)],
    "ten kinds": TEN,
}


T = TypeVar("T")


def timed(compute: Callable[[], T]) -> tuple[T, float]:
    """Compute once, and measure it, in milliseconds."""
    start = process_time()
    found = compute()
    return found, (process_time() - start) * 1e3


def finest(counts: Mapping[DpEvent, int]) -> float:
    """Compute an epsilon on the finest lattice."""
    with patch.object(accountant, "fineness_of", lambda _: FINEST):
        return pld_epsilon(counts, RELATION, DELTA)


def measure(events: list[DpEvent], count: int) -> list[float]:
    """Measure around one count of each event."""
    first, again, known, above, cold, warm = (list[float]() for _ in range(6))
    epsilons = CountedEpsilons(RELATION, DELTA)
    for turn in range(ROUNDS):
        counts = dict.fromkeys(events, count + turn * count // (2 * ROUNDS))
        with patch.object(counted_epsilons, "_octaves", Octaves()):
            _, taken = timed(partial(epsilons.epsilon, counts))
            first.append(taken)
            found, taken = timed(partial(epsilons.epsilon, counts))
            again.append(taken)
        _, taken = timed(partial(pld_epsilon, counts, RELATION, DELTA))
        known.append(taken)
        if not turn % 5:
            above.append(found / finest(counts) - 1)
            with patch.object(counted_epsilons, "_octaves", Octaves()):
                for times in (cold, warm):
                    _, taken = timed(partial(knots_ahead, epsilons.epsilon, counts, [events[0]], KNOTS))
                    times.append(taken)
    return [*map(median, (first, again, known, cold, warm)), max(above)]


def main() -> None:
    """Print the table."""
    titles = ("first", "again", "pld_epsilon", "knots", "prepared", "above")
    print(f"{'':<16}{'counts':>8}" + "".join(f"{title:>13}" for title in titles))
    for name, events in WORKLOADS.items():
        for count in COUNTS:
            *times, above = measure(events, count)
            print(f"{name:<16}{count:>8,}" + "".join(f"{time:>13.3f}" for time in times) + f"{above:>13.1e}")


if __name__ == "__main__":
    main()
