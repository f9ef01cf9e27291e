"""Workloads of DPack's micro-benchmark: plans of unlike best orders and numbers of blocks.

The numbers of plans and blocks are ours: those of the paper are not published with its code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from random import Random

from app.ledger.step_events import PricedStep
from benchmarks.allocation.blocks import BlockFilter
from benchmarks.allocation.dpack_zoo import FILTER, ZooCurve, bent, draw_curves
from benchmarks.allocation.simulation import Arrival, Workload

MOST_BLOCKS = 20
"""Of a plan."""

Shape = Callable[[Sequence[ZooCurve], float], list[PricedStep]]


@dataclass(frozen=True)
class Knobs:
    """How unlike the plans are.

    Args:
        plans: number of them.
        blocks: number of them.
        least: part of a block that each asks for at its best order.
        mean_blocks: of a plan, chosen evenly among all blocks.
        sigma_blocks: deviation of that number.
        sigma_alpha: deviation of the index of the best order.
        shape: how the zoo's curves become demands.
        chosen: filter of the blocks.
    """

    plans: int
    blocks: int
    least: float
    mean_blocks: int
    sigma_blocks: float
    sigma_alpha: float
    shape: Shape = bent
    chosen: BlockFilter = FILTER


def offline(knobs: Knobs, seed: int) -> Workload:
    """All plans and blocks are there at once."""
    random = Random(seed)  # noqa: S311 - a workload, not noise
    demands = knobs.shape(draw_curves(random, knobs.plans, knobs.sigma_alpha), knobs.least)
    counts = _block_counts(random, knobs)
    arrivals = tuple(
        Arrival(0.0, demand, tuple(sorted(random.sample(range(knobs.blocks), count))))
        for demand, count in zip(demands, counts, strict=True)
    )
    return Workload(knobs.chosen, (0.0,) * knobs.blocks, arrivals)


def online(knobs: Knobs, initial: int, seed: int) -> Workload:
    """A block arrives each second after the initial ones, and plans at random times; they ask for the newest blocks."""
    random = Random(seed)  # noqa: S311 - a workload, not noise
    demands = knobs.shape(draw_curves(random, knobs.plans, knobs.sigma_alpha), knobs.least)
    counts = _block_counts(random, knobs)
    seconds = knobs.blocks - initial
    times = sorted(random.uniform(0, seconds) for _ in demands)
    arrivals = []
    for at, demand, count in zip(times, demands, counts, strict=True):
        newest = initial + int(at)
        arrivals.append(Arrival(at, demand, tuple(range(max(0, newest - count), newest))))
    born = (*[0.0] * initial, *(float(1 + each) for each in range(seconds)))
    return Workload(knobs.chosen, born, tuple(arrivals))


def _block_counts(random: Random, knobs: Knobs) -> list[int]:
    most = min(MOST_BLOCKS, knobs.blocks)
    if not knobs.sigma_blocks:
        return [knobs.mean_blocks] * knobs.plans
    numbers = range(1, most + 1)
    likely = [exp(-((each - knobs.mean_blocks) ** 2) / (2 * knobs.sigma_blocks**2)) for each in numbers]
    return random.choices(numbers, likely, k=knobs.plans)
