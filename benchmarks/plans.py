"""Privacy loss distributions beside dp_accounting: `python -m benchmarks.plans [SECTION ...]` (about ten minutes).

Sections, all of them unless some are named. Times are of a processor; where two take turns, medians.

- epsilons: of plans of DP-SGD at delta 1e-5 and 1e-8. Theirs is rounded up as well, on a grid of 1e-4 nats.
- steps: the numbers that limits admit, by the Renyi orders alone, by a plan that has a share of delta, and by
  dp_accounting at the full delta, which holds for what was fixed in advance only.
- shares: what a run keeps that stays with a plan of a share of delta, and one that leaves it after the first step.
- schedules: the steps of declared schedules, beside the number at the full delta with each step's own noise.
- search: the time for the number of steps, over random limits.
- readings: the time for the epsilons of a plan's beginnings, and how much larger they are than computed alone.
- noise: the least noise of a plan, beside dp_accounting's calibration.
"""

import sys
from collections.abc import Callable, Mapping
from itertools import product
from math import exp, inf, log
from random import Random
from statistics import median, quantiles
from time import process_time
from types import MappingProxyType
from unittest.mock import patch

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as theirs

from app.accounting.calibration.monotone_search import smallest_fitting
from app.accounting.curves import GRID_VERSION
from app.accounting.events import Decay, Gaussian, NeighboringRelation, PoissonSampled, noise_multiplier
from app.accounting.formulas.noise_schedules import DecayMode
from app.accounting.pld.accountant import pld_epsilon
from app.accounting.pld.prefix_epsilons import PlanReadings
from app.accounting.pld.prefixes import MAX_COUNT, prefix_epsilon
from app.accounting.rdp import event_curve
from app.ledger.filter.filters import PlanBound, filter_bounds, filter_weights
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import DECLARED_SHARE, DEFAULT_SHARE, planned_weights
from app.ledger.plan.plan_filter import Workload
from app.ledger.step_events import StepEvent
from app.planning.plan_search import DeclaredTarget, min_planned_noise

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
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
SHARES = (0.96, 0.97, DECLARED_SHARE, 0.98)
"""Shares of delta for the plan, of an account that declares one; the table has the first."""

UNDECLARED = (0.4, 0.5, DEFAULT_SHARE, 0.6, 0.75, 0.9, DECLARED_SHARE)
"""Shares of delta for the plan of a run that declares none."""

FALLS: list[tuple[DecayMode, float]] = [("exp", 0.7), ("exp", 1.5), ("time", 1.0), ("step", 0.7)]
SCHEDULES = [
    Decay(mode, rate / steps, steps, PoissonSampled(q, Gaussian(z)))
    for mode, rate in FALLS
    for q, z, steps in ((256 / 60000, 1.5, 20_000), (0.01, 1.2, 3_000), (0.05, 3.0, 1_000))
]
"""Noise that falls by a half to three quarters, in three ways."""

FINE = 1024
"""Different noises of an ideal schedule."""

MANY = 100
"""Steps from which one of them is less than a percent."""

INTERVAL = 1e-4
ROUNDS = 3

SEED, SEARCHES = 1, 300

READ = [
    ((0.01, 1.0), 2_061, 1e-6),
    ((0.01, 0.5), 104, 1e-6),
    ((256 / 60000, 1.1), 21_363, 1e-5),
    ((0.001, 1.0), 8_139, 1e-6),
    ((0.0001, 0.7), 150_000, 1e-5),
    ((0.05, 2.0), 163, 1e-8),
    ((0.0003, 4.0), 78_000_000, 1e-6),
]
"""Sampling probability and noise, number of steps, and delta."""

CALIBRATED = [
    (0.01, 1_000, 1.0, 1e-5),
    (0.01, 2_000, 3.0, 1e-6),
    (0.01, 100, 8.0, 1e-6),
    (256 / 60000, 20_000, 3.0, 1e-5),
    (0.001, 8_000, 0.5, 1e-6),
    (0.001, 100_000, 1.0, 1e-7),
    (0.05, 200, 2.0, 1e-8),
    (0.08, 6_000, 8.0, 1e-5),
    (0.1, 200, 4.0, 1e-6),
    (0.5, 100, 2.0, 1e-6),
]
"""Sampling probability, steps, epsilon and delta."""

KNOTS = 32
"""Numbers of steps at which the epsilon of a beginning is asked for."""

NOISES = dp_accounting.ExplicitBracketInterval(0.3, 30.0)


def timed(q: float, z: float, count: int, delta: float) -> tuple[float, float, float, float]:
    """Compute the epsilons of a plan, ours and theirs, and their times in seconds."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        start = process_time()
        ours = pld_epsilon({PoissonSampled(q, Gaussian(z)): count}, RELATION, delta)
        spent[0].append(process_time() - start)
        start = process_time()
        loss = theirs.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=INTERVAL)
        other = loss.self_compose(count).get_epsilon_for_delta(delta)
        spent[1].append(process_time() - start)
    return ours, float(other), median(spent[0]), median(spent[1])


def steps_by_orders(q: float, z: float, limit: Limit, plan: PlanBound | None = None) -> int:
    """Count the steps that the orders of a filter admit, beside a plan that has its share of delta."""
    curve = event_curve(PoissonSampled(q, Gaussian(z)), RELATION, GRID_VERSION)
    bounds = filter_bounds(limit, filter_weights(limit, curve, GRID_VERSION, plan), GRID_VERSION)
    return max(0, int((bounds.bounds // curve.values[bounds.places]).max()))


def steps_by_theirs(q: float, z: float, limit: Limit, near: int) -> int:
    """Count the steps whose delta is below the limit's by dp_accounting, which takes a while for each number."""
    loss = theirs.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=INTERVAL)

    def is_too_many(count: int) -> bool:
        return bool(loss.self_compose(count).get_delta_for_epsilon(limit.epsilon) > limit.delta)

    found = smallest_fitting(is_too_many, near + 1, 1, MAX_COUNT)
    assert found is not None, "some number is too many"
    return found - 1


def workload_of(q: float, z: float) -> Workload:
    """Plan DP-SGD without end."""
    return Workload.of([StepEvent(PoissonSampled(q, Gaussian(z)), MAX_COUNT)], RELATION)


def print_steps() -> None:
    """Print the numbers of steps."""
    print(
        f"\n{'q':<10}{'z':<6}{'epsilon':>8}{'delta':>8}{'orders':>10}{'plan':>8}{'theirs':>8}{'plan/theirs':>12}{'gain':>7}{'ms':>6}"
    )
    gains, times = [], []
    shares: dict[float, list[float]] = {share: [] for share in SHARES}
    for (q, z), (epsilon, delta) in [*PUBLISHED, *product(EVENTS, LIMITS)]:
        start = process_time()
        planned = workload_of(q, z).longest(epsilon, DECLARED_SHARE * delta)
        times.append((process_time() - start) * 1e3)
        limit = Limit(epsilon, delta)
        by_orders, ideal = steps_by_orders(q, z, limit), steps_by_theirs(q, z, limit, int(planned * 1.005))
        gain = planned / by_orders if by_orders else inf
        if ideal >= MANY:
            for share, found in shares.items():
                found.append(workload_of(q, z).longest(epsilon, share * delta) / ideal)
        gains.append(gain)
        numbers = f"{by_orders:>10}{planned:>8}{ideal:>8}{planned / max(ideal, 1):>12.4f}{gain:>7.2f}{times[-1]:>6.0f}"
        print(f"{q:<10.4g}{z:<6g}{epsilon:>8g}{delta:>8.0e}{numbers}")
    print(f"\n{len(gains)} settings, {len(shares[SHARES[0]])} of at least {MANY} steps")
    for share, found in shares.items():
        print(f"plan with {share:g} of delta / theirs: median {median(found):.4f}, at least {min(found):.4f}")
    print(f"plan / orders: median {median(gains):.2f}, at least {min(gains):.2f}; {median(times):.0f} ms each")


def print_shares() -> None:
    """Print what staying with a plan and leaving it cost."""
    print(f"\n{'share':<8}{'on plan / full delta':>22}{'at least':>10}{'leaving / no plan':>20}{'at least':>10}")
    for share in UNDECLARED:
        stays, leaves = [], []
        for (q, z), (epsilon, delta) in [*PUBLISHED, *product(EVENTS, LIMITS)]:
            limit, workload = Limit(epsilon, delta), workload_of(q, z)
            full, steps = workload.longest(epsilon, delta), workload.longest(epsilon, share * delta)
            without = steps_by_orders(q, z, limit)
            if full >= MANY:
                stays.append(steps / full)
            if without >= MANY:
                left = steps_by_orders(q, z, limit, PlanBound(share, share * delta, 1))
                leaves.append(left / without)
        print(f"{share:<8g}{median(stays):>22.4f}{min(stays):>10.4f}{median(leaves):>20.4f}{min(leaves):>10.4f}")


def print_schedules() -> None:
    """Print the steps of declared schedules beside the ideal."""
    print(f"\n{'mode':<6}{'rate':>10}{'q':>9}{'z':>6}{'epsilon':>9}{'plan':>8}{'ideal':>8}{'plan/ideal':>12}")
    found = []
    for schedule in SCHEDULES:
        items = (StepEvent(schedule, 1),)
        workload = Workload.of(items, RELATION)
        epsilon = float(f"{workload.epsilon(schedule.steps // 2, 1e-6):.2g}")
        limit = Limit(epsilon, 1e-6)
        bound = planned_weights(limit, items, RELATION, GRID_VERSION, DECLARED_SHARE).plan
        assert bound is not None, "it has a plan"
        with patch("app.accounting.pld.merging.MAX_PLANNED", FINE):
            ideal = Workload.of(items, RELATION).longest(epsilon, limit.delta)
        found.append(bound.steps / ideal)
        assert isinstance(schedule.event, PoissonSampled), "every one is sampled"
        numbers = f"{schedule.event.sampling_probability:>9.3g}{noise_multiplier(schedule.event):>6g}{epsilon:>9g}"
        print(f"{schedule.mode:<6}{schedule.decay_rate:>10.2g}{numbers}{bound.steps:>8}{ideal:>8}{found[-1]:>12.4f}")
    print(f"plan / ideal: median {median(found):.4f}, at least {min(found):.4f}")


def print_search() -> None:
    """Print how long the search for the number of steps takes."""
    random = Random(SEED)  # noqa: S311 - no secret
    workload_of(0.01, 1.0).longest(1.0, 1e-6)
    times = []
    for _ in range(SEARCHES):
        q, z, epsilon = exp(random.uniform(log(1e-4), 0)), random.uniform(0.4, 8), random.uniform(0.1, 10)
        delta = exp(random.uniform(log(1e-9), log(1e-4)))
        start = process_time()
        workload_of(q, z).longest(epsilon, DECLARED_SHARE * delta)
        times.append((process_time() - start) * 1e3)
    worst = f"99 % {quantiles(times, n=100)[-1]:.1f} ms, at most {max(times):.1f} ms"
    print(f"\nsearch for steps, {SEARCHES} limits: median {median(times):.1f} ms, {worst}")


def print_readings() -> None:
    """Print how long the epsilons of a plan's beginnings take."""
    print(
        f"\n{'q':<10}{'z':<6}{'steps':>10}{'first ms':>10}{'each ms':>9}{'alone ms':>10}{'more':>10}{'more, few':>11}"
    )
    for (q, z), count, delta in READ:
        parts = [part for _, part in workload_of(q, z).parts]
        few = [count >> place for place in range(2, 13) if count >> place]
        readings = PlanReadings(parts)
        start = process_time()
        readings.epsilon(count, delta)
        first = process_time()
        for knot in range(1, KNOTS):
            readings.epsilon(max(1, count * knot**2 // KNOTS**2), delta)
        later = process_time()
        alone = {each: prefix_epsilon(parts, each, delta) for each in {*few, count, count // 2, count // 3}}
        end = process_time()
        more = {each: readings.epsilon(each, delta) / known - 1 for each, known in alone.items() if known}
        spent = (first - start, (later - first) / KNOTS, (end - later) / len(alone))
        times = "".join(f"{each * 1e3:>{width}.1f}" for each, width in zip(spent, (10, 9, 10), strict=True))
        most = max(part for each, part in more.items() if each >= count // 4), max(more.values())
        print(f"{q:<10.4g}{z:<6g}{count:>10}{times}{most[0]:>10.1e}{most[1]:>11.1e}")


def noise_by_theirs(q: float, count: int, epsilon: float, delta: float) -> float:
    """Calibrate the noise by dp_accounting, to 1e-6."""

    def event_at(z: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        return dp_accounting.SelfComposedDpEvent(step, count)

    return float(dp_accounting.calibrate_dp_mechanism(PLDAccountant, event_at, epsilon, delta, NOISES))


def print_noise() -> None:
    """Print the least noise of plans, ours and theirs, and how long it takes to find."""
    print(
        f"\n{'q':<10}{'steps':>8}{'epsilon':>8}{'delta':>8}{'ours':>10}{'theirs':>10}{'ms':>8}{'theirs':>9}{'faster':>8}"
    )
    ratios = []
    for q, count, epsilon, delta in CALIBRATED:
        spent: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            start = process_time()
            target = DeclaredTarget(
                Limit(epsilon, delta / DECLARED_SHARE), (), RELATION, {}
            )  # a plan with all of delta
            ours = min_planned_noise(PoissonSampled(q, Gaussian(1.0)), count, target, near=1.0)
            middle = process_time()
            other = noise_by_theirs(q, count, epsilon, delta)
            for times, time in zip(spent, (middle - start, process_time() - middle), strict=True):
                times.append(time)
        own_time, other_time = map(median, spent)
        ratios.append(other_time / own_time)
        numbers = f"{ours:>10}{other:>10.6f}{own_time * 1e3:>8.0f}{other_time * 1e3:>9.0f}{ratios[-1]:>8.0f}"
        print(f"{q:<10.4g}{count:>8}{epsilon:>8g}{delta:>8.0e}{numbers}")
    print(f"times as fast: median {median(ratios):.0f}, at least {min(ratios):.0f}")


def print_epsilons() -> None:
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


SECTIONS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {
        "epsilons": print_epsilons,
        "steps": print_steps,
        "shares": print_shares,
        "schedules": print_schedules,
        "search": print_search,
        "readings": print_readings,
        "noise": print_noise,
    }
)


def main() -> None:
    """Print the sections that are named, or all."""
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()


if __name__ == "__main__":
    main()
