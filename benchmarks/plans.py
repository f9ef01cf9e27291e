"""Epsilon by privacy loss distributions, beside dp_accounting: `python -m benchmarks.plans` (about two minutes).

Plans of DP-SGD at delta 1e-5 and 1e-8. Theirs is rounded up as well, on a grid of 1e-4 nats. The two take turns; times
are medians of processor time.
"""

from itertools import product
from statistics import median
from time import process_time

from dp_accounting.pld import privacy_loss_distribution as theirs

from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.pld.accountant import pld_epsilon

EVENTS = [
    (0.001, 1.0),
    (256 / 60000, 1.1),
    (0.01, 0.5),
    (0.01, 1.0),
    (0.01, 4.0),
    (0.05, 2.0),
    (0.08, 4.0),
    (0.1, 1.0),
    (0.1, 2.0),
    (0.5, 30.0),
]
COUNTS = [100, 1000]
DELTAS = [1e-5, 1e-8]
INTERVAL = 1e-4
ROUNDS = 3


def timed(q: float, z: float, count: int, delta: float) -> tuple[float, float, float, float]:
    """Compute the epsilons of a plan, ours and theirs, and their times in seconds."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        start = process_time()
        ours = pld_epsilon({PoissonSampled(q, Gaussian(z)): count}, NeighboringRelation.ADD_OR_REMOVE_ONE, delta)
        spent[0].append(process_time() - start)
        start = process_time()
        loss = theirs.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=INTERVAL)
        other = loss.self_compose(count).get_epsilon_for_delta(delta)
        spent[1].append(process_time() - start)
    return ours, float(other), median(spent[0]), median(spent[1])


def main() -> None:
    """Print epsilons and times."""
    print(f"{'q':<10}{'z':<6}{'steps':>6}{'delta':>8}{'ours':>11}{'theirs':>11}{'ratio':>10}{'ms':>8}{'theirs':>9}")
    ratios, faster = [], []
    for (q, z), count, delta in product(EVENTS, COUNTS, DELTAS):
        ours, other, own_time, other_time = timed(q, z, count, delta)
        ratios.append(ours / other)
        faster.append(other_time / own_time)
        numbers = f"{ours:>11.5f}{other:>11.5f}{ratios[-1]:>10.5f}{own_time * 1e3:>8.0f}{other_time * 1e3:>9.0f}"
        print(f"{q:<10.4g}{z:<6g}{count:>6}{delta:>8.0e}{numbers}")
    print(f"\n{len(ratios)} plans: ours / theirs median {median(ratios):.5f}, at most {max(ratios):.5f}")
    print(f"times as fast: median {median(faster):.1f}, at least {min(faster):.1f}")


if __name__ == "__main__":
    main()
