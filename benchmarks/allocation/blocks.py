"""Blocks of data as accounts, with the service's own filter or with a paper's."""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from app.accounting.curves import GRID_VERSION, PURE, orders
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.filter.filters import FilterWeights
from app.ledger.filter.limits import Limit
from app.ledger.step_events import PricedStep, StepEvent

RELATION: Final = NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclass(frozen=True)
class BlockFilter:
    """The limit and the filter of a workload's blocks.

    Args:
        name: to print.
        limit: of each block.
        weights: None: the first plan that a block grants freezes them, as in the service.
    """

    name: str
    limit: Limit
    weights: FilterWeights | None = None


def own_filter(limit: Limit) -> BlockFilter:
    """Use the filter of the service."""
    return BlockFilter("our filter", limit)


def papers_filter(limit: Limit, at: tuple[int, ...]) -> BlockFilter:
    """Use fixed orders, or the grid's nearest, with the bounds epsilon + ln(delta) / (order - 1), as both papers do.

    This is the classic conversion. The improved one needs less of delta for the same bound: the parts of all orders
    together are less than delta, so it is a filter like any other.
    """
    grid = orders(GRID_VERSION)
    indices = tuple(int(np.argmin(np.abs(grid - order))) for order in at)
    deltas = tuple(limit.delta * (1 - 1 / order) ** (order - 1) / order for order in grid[list(indices)].tolist())
    return BlockFilter("the paper's orders", limit, FilterWeights.of(limit.delta, indices, deltas))


def pure_filter(limit: Limit) -> BlockFilter:
    """Use only the order that represents infinity: epsilons add up, which is basic composition."""
    last = len(orders(GRID_VERSION)) - 1
    assert orders(GRID_VERSION)[last] == PURE
    return BlockFilter("basic composition", limit, FilterWeights.of(limit.delta, (last,), (limit.delta / 2,)))


def make_block(index: int, chosen: BlockFilter) -> Account:
    """Create the population of a block."""
    name = f"pop_{index:05}"
    return _account(name, AccountKind.POPULATION, None, chosen.limit, chosen.weights)


def make_run(index: int, block: Account) -> Account:
    """Create the account of the run that asks for a plan."""
    return _account(f"run_{index:06}", AccountKind.RUN, block.id, None, None)


def _account(
    name: str, kind: AccountKind, parent: str | None, limit: Limit | None, weights: FilterWeights | None
) -> Account:
    return Account(
        id=name,
        kind=kind,
        parent_id=parent,
        population_id=parent or name,
        name=name,
        path=name,
        depth=0 if parent is None else 1,
        relation=RELATION,
        limit=limit,
        planned=(),
        weights=weights,
        spent=zero_curve(),
        held=zero_curve(),
    )


@cache
def priced(event: DpEvent) -> PricedStep:
    """Price a step with an event."""
    return PricedStep(StepEvent(event, 1), event_curve(event, RELATION))


def used_part(block: Account) -> float:
    """Compute the part of a block's limit that is reserved, at the order that has the most left."""
    if block.held.is_zero:
        return 0.0
    bounds = block.bounds()
    usable = bounds.bounds > 0
    return float((block.held.values[bounds.places][usable] / bounds.bounds[usable]).min())


def within_limits(block: Account) -> bool:
    """Check that a block's reservations fit its filter at some order."""
    return block.fits(zero_curve())
