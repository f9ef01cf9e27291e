"""Privacy loss distributions beside dp_accounting: `python -m benchmarks.plans` (about five minutes).

First epsilons of plans of DP-SGD at delta 1e-5 and 1e-8. Theirs is rounded up as well, on a grid of 1e-4 nats. The two
take turns; times are medians of processor time.

Then the number of steps that limits admit: by today's adaptive filter, by a plan that has PLAN_SHARE of delta, and by
dp_accounting at the full delta, which holds for what was fixed in advance only.
"""

from itertools import product
from math import inf
from statistics import median
from time import process_time

from dp_accounting.pld import privacy_loss_distribution as theirs

from app.accounting.calibration.monotone_search import smallest_fitting
from app.accounting.curves import GRID_VERSION
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.pld.accountant import pld_epsilon
from app.accounting.pld.prefixes import MAX_COUNT
from app.accounting.rdp import event_curve
from app.ledger.filters import Limit, adaptive_filter_bounds, adaptive_weights
from app.ledger.plan_filter import Workload
from app.ledger.step_events import StepEvent

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
PUBLISHED = [
    ((256 / 60000, 1.1), (3, 1e-5)),
    ((256 / 60000, 1.1), (1, 1e-5)),
    ((0.08, 4), (8, 1e-5)),
    ((0.08, 4), (3, 1e-5)),
    ((0.001, 1), (0.5, 1e-6)),
    ((0.01, 1), (3, 1e-6)),
    ((0.01, 0.5), (8, 1e-6)),
    ((0.05, 2), (2, 1e-8)),
    ((0.01, 1), (2, 1e-8)),
    ((0.1, 2), (4, 1e-6)),
    ((0.1, 1), (8, 1e-5)),
    ((1, 20), (2, 1e-6)),
]
"""Sampling probability, noise, epsilon and delta of trainings and of federated learning."""

LIMITS = [(1.0, 1e-6), (3.0, 1e-8), (8.0, 1e-5)]
PLAN_SHARE = 0.96
"""Share of delta for the plan, of an account that declares one."""

MANY = 100
"""Steps from which one of them is less than a percent."""

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


def steps_by_orders(q: float, z: float, limit: Limit) -> int:
    """Count the steps that an adaptive filter admits."""
    curve = event_curve(PoissonSampled(q, Gaussian(z)), NeighboringRelation.ADD_OR_REMOVE_ONE, GRID_VERSION)
    weights = adaptive_weights(limit, curve, GRID_VERSION)
    bounds = adaptive_filter_bounds(limit, weights, GRID_VERSION)
    return max(0, int((bounds.bounds // curve.values[bounds.places]).max()))


def steps_by_theirs(q: float, z: float, limit: Limit, near: int) -> int:
    """Count the steps whose delta is below the limit's by dp_accounting, which takes a while for each number."""
    loss = theirs.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=INTERVAL)

    def is_too_many(count: int) -> bool:
        return bool(loss.self_compose(count).get_delta_for_epsilon(limit.epsilon) > limit.delta)

    found = smallest_fitting(is_too_many, near + 1, 1, MAX_COUNT)
    assert found is not None, "some number is too many"
    return found - 1


def print_steps() -> None:
    """Print the numbers of steps."""
    print(
        f"\n{'q':<10}{'z':<6}{'epsilon':>8}{'delta':>8}{'adaptive':>10}{'plan':>8}{'theirs':>8}{'plan/theirs':>12}{'gain':>7}{'ms':>6}"
    )
    shares, gains, times = [], [], []
    for (q, z), (epsilon, delta) in [*PUBLISHED, *product(EVENTS, LIMITS)]:
        start = process_time()
        workload = Workload.of(
            [StepEvent(PoissonSampled(q, Gaussian(z)), MAX_COUNT)], NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        planned = workload.longest(epsilon, PLAN_SHARE * delta)
        times.append((process_time() - start) * 1e3)
        limit = Limit(epsilon, delta)
        by_orders, ideal = steps_by_orders(q, z, limit), steps_by_theirs(q, z, limit, int(planned * 1.005))
        share, gain = planned / max(ideal, 1), planned / by_orders if by_orders else inf
        if ideal >= MANY:
            shares.append(share)
        gains.append(gain)
        numbers = f"{by_orders:>10}{planned:>8}{ideal:>8}{share:>12.4f}{gain:>7.2f}{times[-1]:>6.0f}"
        print(f"{q:<10.4g}{z:<6g}{epsilon:>8g}{delta:>8.0e}{numbers}")
    print(f"\n{len(gains)} settings, {len(shares)} of at least {MANY} steps")
    print(f"plan / theirs: median {median(shares):.4f}, at least {min(shares):.4f}")
    print(f"plan / adaptive: median {median(gains):.2f}, at least {min(gains):.2f}; {median(times):.0f} ms each")


def main() -> None:
    """Print epsilons and times, then numbers of steps."""
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
    print_steps()


if __name__ == "__main__":
    main()
