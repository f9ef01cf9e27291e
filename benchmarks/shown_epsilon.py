"""The epsilon that people read, and that of the answers to steps, against dp_accounting and Opacus.

Random workloads of one to six kinds: Gaussian, Laplace and both on Poisson samples, randomized response. What is read
must not be below dp_accounting's optimistic distribution, and is compared with its pessimistic one and with what
Opacus' RDP accountant prints. The answers to steps come from knots, in a random order of the steps.

Run with `python -m benchmarks.shown_epsilon [number of workloads]`.
"""

import sys
from collections.abc import Mapping
from random import Random
from statistics import median
from typing import Final

from dp_accounting.pld import privacy_loss_distribution as pld
from opacus.accountants.analysis import rdp as opacus_rdp

from app.accounting.events import (
    DpEvent,
    Gaussian,
    Laplace,
    NeighboringRelation,
    PoissonSampled,
    fingerprint,
)
from app.accounting.rdp import event_curve
from app.accounting.tightest_epsilon import tightest_epsilon
from app.service.charging.step_epsilons import StepEpsilons, Workload

ADD: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
INTERVAL: Final = 2e-5
"""Width of dp_accounting's lattice: a tenth of its usual one where losses are small."""


def workload(chance: Random) -> dict[DpEvent, int]:
    """Draw events with counts."""
    found: dict[DpEvent, int] = {}
    for _ in range(chance.randint(1, 6)):
        rate, count = 10 ** chance.uniform(-3, -0.5), int(10 ** chance.uniform(0, 3))
        event = chance.choice(
            [
                PoissonSampled(rate, Gaussian(chance.uniform(0.8, 3.0))),
                PoissonSampled(rate, Gaussian(chance.uniform(0.8, 3.0))),
                Gaussian(chance.uniform(20.0, 100.0)),
                Laplace(chance.uniform(50.0, 300.0)),
            ]
        )
        found[event] = count if isinstance(event, PoissonSampled) else min(count, 100)
    return found


def by_dp_accounting(counts: Mapping[DpEvent, int], delta: float, *, pessimistic: bool) -> float:
    """Compute epsilon by dp_accounting's privacy loss distributions."""
    total = None
    for event, count in counts.items():
        rate, inner = (event.sampling_probability, event.event) if isinstance(event, PoissonSampled) else (1.0, event)
        more = {"pessimistic_estimate": pessimistic, "use_connect_dots": pessimistic, "sampling_prob": rate}
        more |= {"value_discretization_interval": INTERVAL}
        if isinstance(inner, Gaussian):
            each = pld.from_gaussian_mechanism(inner.noise_multiplier, **more)
        else:
            assert isinstance(inner, Laplace), "others are not drawn"
            each = pld.from_laplace_mechanism(inner.noise_multiplier, **more)
        each = each.self_compose(count)
        total = each if total is None else total.compose(each)
    assert total is not None, "there is an event"
    return float(total.get_epsilon_for_delta(delta))


def by_opacus(counts: Mapping[DpEvent, int], delta: float) -> float | None:
    """Compute epsilon by Opacus' RDP accountant; None for other noise than Gaussian."""
    orders = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))
    total = 0.0
    for event, count in counts.items():
        rate, inner = (event.sampling_probability, event.event) if isinstance(event, PoissonSampled) else (1.0, event)
        if not isinstance(inner, Gaussian):
            return None
        total = total + opacus_rdp.compute_rdp(
            q=rate, noise_multiplier=inner.noise_multiplier, steps=count, orders=orders
        )
    return float(opacus_rdp.get_privacy_spent(orders=orders, rdp=total, delta=delta)[0])


def answers(counts: Mapping[DpEvent, int], delta: float, chance: Random) -> list[tuple[dict[DpEvent, int], float]]:
    """Take steps in a random order, and list some of their answers with the counts after them."""
    epsilons, key = StepEpsilons(), {event: fingerprint(event) for event in counts}
    known = {key[event]: (event, event_curve(event, ADD)) for event in counts}
    left, taken = dict(counts), dict[DpEvent, int]()
    found = []
    while left:
        event = chance.choice(list(left))
        number = min(left[event], chance.choice([1, 1, 1, 3, 20]))
        taken[event] = taken.get(event, 0) + number
        left[event] -= number
        if not left[event]:
            del left[event]
        at = {key[each]: count for each, count in taken.items()}
        asked = Workload.of(ADD, delta, "run", at)
        answer = epsilons.find(asked, at, key[event])
        if answer is None:
            epsilons.missing(asked, at, key[event], {each: known[each] for each in at}).compute("org")
            answer = epsilons.find(asked, at, key[event])
        assert answer is not None, "it was computed"
        found.append((dict(taken), answer.epsilons[0]))
    return [*chance.sample(found[:-1], min(3, len(found) - 1)), found[-1]]


def main(number: int) -> None:
    """Print the largest and the median ratios."""
    chance = Random(50)  # noqa: S311 - repeatable, not secret
    ratios: dict[str, list[float]] = {}
    for _ in range(number):
        counts, delta = workload(chance), 10 ** chance.uniform(-8, -5)
        curves = {event: event_curve(event, ADD) for event in counts}
        read = tightest_epsilon(counts, curves, ADD, delta)
        above = by_dp_accounting(counts, delta, pessimistic=True)
        ratios.setdefault("read / optimistic", []).append(read / by_dp_accounting(counts, delta, pessimistic=False))
        ratios.setdefault("read / pessimistic", []).append(read / above)
        other = by_opacus(counts, delta)
        if other is not None:
            ratios.setdefault("read / Opacus' RDP", []).append(read / other)
        for taken, answer in answers(counts, delta, chance):
            own = tightest_epsilon(taken, curves, ADD, delta)
            ratios.setdefault("answer of a step / read", []).append(answer / own)
            if taken == counts:
                ratios.setdefault("answer of the last step / pessimistic", []).append(answer / above)
    print("| ratio | number | least | median | largest |\n|---|---|---|---|---|")
    for name, found in ratios.items():
        print(f"| {name} | {len(found)} | {min(found):.5f} | {median(found):.5f} | {max(found):.5f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
