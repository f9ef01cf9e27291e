"""PrivateKube's micro-benchmarks: mice and elephants at one block, and at blocks that arrive.

Source: Luo et al., OSDI 2021, section 6.1, and the simulator released with it.
"""

from dataclasses import dataclass
from math import log, sqrt
from random import Random
from typing import Final

from app.accounting.events import EpsilonDelta, Gaussian
from app.ledger.filter.limits import Limit
from app.ledger.step_events import PricedStep
from benchmarks.allocation.blocks import BlockFilter, own_filter, papers_filter, priced, pure_filter
from benchmarks.allocation.simulation import Arrival, Workload

SMALL, LARGE = 0.01, 0.1  # epsilons of mice and elephants; a block has 1
JUST_BELOW: Final = 1 - 1e-8
"""Factor for demands, so that a hundred of a hundredth, each rounded up, fit: the released simulator has one, too."""

ORDERS: Final = (16, 32, 64, 128, 256, 512, 1024)
"""The released simulator's orders with a positive bound; not 2,048 and 20,480, which no grid of ours has."""

MOST_SMALL: Final = 14514
"""Gaussian mice that fit a block, at order 32."""

BASIC_LIMIT: Final = Limit(1.0, 1e-7)
RENYI_LIMIT: Final = Limit(1.0, 1e-6)
INITIAL_BLOCKS, SECONDS_PER_BLOCK, DURATION, MANY_BLOCKS = 11, 10.0, 300.0, 10
BASIC_INTERVAL, RENYI_INTERVAL, TIMEOUT = 0.078125, 0.004264781, 300.0


@dataclass(frozen=True)
class Kind:
    """How plans compose.

    Args:
        name: to print.
        demands: of mice and of elephants.
        filters: of the blocks.
        most_small: mice that fit a block.
        interval: mean seconds between plans, at blocks that arrive.
    """

    name: str
    demands: tuple[PricedStep, PricedStep]
    filters: tuple[BlockFilter, ...]
    most_small: int
    interval: float


def basic() -> Kind:
    """Plans of pure epsilon."""
    small, large = (priced(EpsilonDelta(epsilon * JUST_BELOW, 0.0)) for epsilon in (SMALL, LARGE))
    return Kind("basic", (small, large), (pure_filter(BASIC_LIMIT), own_filter(BASIC_LIMIT)), 100, BASIC_INTERVAL)


def renyi(scale: int) -> Kind:
    """Gaussian plans with the noise of (epsilon, 1e-9), each `scale` times: so many fewer of them arrive and fit."""
    noises = [sqrt(2 * log(1.25 / 1e-9) / scale) / epsilon for epsilon in (SMALL, LARGE)]
    small, large = (priced(Gaussian(noise)) for noise in noises)
    filters = papers_filter(RENYI_LIMIT, ORDERS), own_filter(RENYI_LIMIT)
    return Kind("Renyi", (small, large), filters, MOST_SMALL // scale, RENYI_INTERVAL * scale)


def single_block(kind: Kind, chosen: BlockFilter, seed: int, *, mice: float = 0.75) -> Workload:
    """One block, and 2.36 times the plans that it can grant if all are mice."""
    random = Random(seed)  # noqa: S311 - a workload, not noise
    duration = kind.most_small * 2.25 * 1.05
    # So that the queue keeps its length relative to a block's plans, the timeout shrinks with them.
    timeout = TIMEOUT if kind.most_small == 100 else TIMEOUT * kind.most_small / MOST_SMALL  # noqa: PLR2004
    arrivals = tuple(_arrivals(random, 1.0, duration, kind.demands, mice, many=0.0))
    return Workload(chosen, (0.0,), arrivals, timeout)


def many_blocks(kind: Kind, chosen: BlockFilter, seed: int, *, mice: float = 0.75) -> Workload:
    """Eleven blocks and another one every ten seconds; plans ask for the newest one or the newest ten."""
    random = Random(seed)  # noqa: S311 - a workload, not noise
    later = int(DURATION / SECONDS_PER_BLOCK)
    born = (*[0.0] * INITIAL_BLOCKS, *(SECONDS_PER_BLOCK * (1 + each) for each in range(later)))
    arrivals = tuple(_arrivals(random, kind.interval, DURATION, kind.demands, mice, many=0.25))
    return Workload(chosen, born, arrivals)


def _arrivals(
    random: Random,
    interval: float,
    duration: float,
    demands: tuple[PricedStep, PricedStep],
    mice: float,
    *,
    many: float,
) -> list[Arrival]:
    found, at = [], random.expovariate(1 / interval)
    while at < duration:
        is_small = random.random() < mice
        last = 0 if not many else INITIAL_BLOCKS - 1 + int(at / SECONDS_PER_BLOCK)
        first = last - MANY_BLOCKS + 1 if random.random() < many else last
        found.append(Arrival(at, demands[not is_small], tuple(range(first, last + 1)), is_small))
        at += random.expovariate(1 / interval)
    return found
