"""Tune the filter of an account without a plan to the steps of its registered runs (ADR 0053).

The choice depends on what runs declare when they are registered, and is made while nothing is spent or reserved: then
it is as free as that of a limit.
"""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Final, NamedTuple

import numpy as np

from app.accounting.conversion import threshold_units
from app.accounting.curves import EXHAUSTED, Floats, RdpCurve, orders
from app.accounting.events import DpEvent, RepeatAndSelect
from app.ledger.accounts.account import Account
from app.ledger.filter.filters import PLANNED_SHARE, FilterWeights, filter_weights
from app.ledger.filter.limits import Limit
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent, is_endless

MOST_RUNS: Final = 256
"""Runs of an account to which its filter is tuned, the first ones that have not ended."""


def registered_steps(
    planned: Sequence[StepEvent], event: DpEvent | None, expected: int | None
) -> tuple[StepEvent, ...]:
    """List the steps that a run declares when it is registered, by its plan or else its default event.

    Args:
        planned: its planned events; the last one may have no end.
        event: its default event.
        expected: number of all its steps; None: not known, so that the last event is repeated without end.
    """
    if not planned and event is not None:
        once = isinstance(event, RepeatAndSelect)  # a whole sweep is charged at once
        planned = [StepEvent(event, 1 if once else MAX_COUNT)]
    if expected is None or not is_endless(planned):
        return tuple(planned)
    *first, last = planned
    left = expected - sum(step.count for step in first)
    return (*first, StepEvent(last.event, min(left, MAX_COUNT))) if left > 0 else tuple(first)


def is_tunable(account: Account) -> bool:
    """Check whether an account's filter may still be tuned: nothing is planned, spent or reserved."""
    has_orders = account.limit is not None and not account.limit.is_exact
    return has_orders and not account.planned and account.is_untouched


def tuned_weights(account: Account, parts: Iterable[Sequence[PricedStep]]) -> FilterWeights | None:
    """Choose the weights of a filter for the steps of registered runs.

    Args:
        account: with a limit.
        parts: the steps of its runs; of a parallel account, those in each of its parts.

    Returns:
        None if no event is known of any run, or nothing of them fits.
    """
    assert account.limit is not None, "only a limit has a filter"
    limit, grid_version = account.limit, account.grid_version
    merged = [_by_event(part) for part in parts]
    curves = {event: kind.curve for kinds in merged for event, kind in kinds.items()}
    if len(curves) <= 1:
        return next((filter_weights(limit, curve, grid_version) for curve in curves.values()), None)
    found = [_workload(limit, list(kinds.values()), grid_version) for kinds in merged if kinds]
    curve = _scaled(limit, _largest(found, account.parts_that_count), grid_version)
    return None if curve is None else filter_weights(limit, curve, grid_version)


def weights_after(account: Account, steps: Sequence[PricedStep]) -> FilterWeights | None:
    """Choose the weights that would have fitted the most of further steps after what an account has spent.

    They show what is lost, and are chosen too late to be used. None: nothing of the steps would fit.
    """
    assert account.limit is not None, "only a limit has a filter"
    limit, grid_version = account.limit, account.grid_version
    spent = _times(account.spent, 1)
    rest = _sum([_times(step.curve, step.step.count) for step in steps], grid_version)
    share = min(_fitting(limit, rest, grid_version, spent.losses), 1.0)
    if not share:
        return None
    both = _Workload(spent.losses + share * rest.losses, spent.delta + share * rest.delta)
    curve = _scaled(limit, both, grid_version)
    return None if curve is None else filter_weights(limit, curve, grid_version)


class _Kind(NamedTuple):
    """An event's curve, and its steps whose number is known; `endless` if there are others."""

    curve: RdpCurve
    known: int
    endless: bool


class _Workload(NamedTuple):
    """A loss at each order, and the sum of own deltas, in the units of curves; not rounded."""

    losses: Floats
    delta: float


def _by_event(steps: Iterable[PricedStep]) -> dict[DpEvent, _Kind]:
    """Add up the steps that a filter can be tuned to, in order of first occurrence."""
    kinds: dict[DpEvent, _Kind] = {}
    for step in steps:
        curve, (event, number) = step.curve, (step.step.event, step.step.count)
        if curve.is_zero or curve.is_exhausted:
            continue
        kind = kinds.get(event, _Kind(curve, 0, endless=False))
        endless = number == MAX_COUNT
        kinds[event] = _Kind(curve, kind.known + (0 if endless else number), kind.endless or endless)
    return kinds


def _workload(limit: Limit, kinds: Sequence[_Kind], grid_version: int) -> _Workload:
    """Compose the known steps, and of the endless kinds as many as fit beside them: an equal share of each."""
    known = _sum([_times(kind.curve, kind.known) for kind in kinds if kind.known], grid_version)
    endless = [kind.curve for kind in kinds if kind.endless]
    if not endless:
        return known
    shares = [_times(curve, _fitting(limit, _times(curve, 1), grid_version)) for curve in endless]
    rest = _sum(shares, grid_version)
    beside = _fitting(limit, rest, grid_version, known.losses)
    if not beside:  # the known steps take all
        return known
    return _Workload(known.losses + beside * rest.losses, known.delta + beside * rest.delta)


def _times(curve: RdpCurve, count: float) -> _Workload:
    losses = np.where(curve.values < EXHAUSTED, curve.values.astype(float) * count, np.inf)
    return _Workload(losses, curve.delta * count)


def _sum(found: Sequence[_Workload], grid_version: int) -> _Workload:
    losses = np.zeros(orders(grid_version).shape)
    for each in found:
        losses = losses + each.losses
    return _Workload(losses, sum([each.delta for each in found]))


def _largest(found: Sequence[_Workload], most: int | None) -> _Workload:
    """Add workloads up; of parts, the `most` largest ones at each order."""
    count = len(found) if most is None else min(most, len(found))
    losses = np.sort(np.stack([each.losses for each in found]), axis=0)[-count:].sum(axis=0)
    return _Workload(losses, sum(sorted([each.delta for each in found])[-count:]))


def _fitting(limit: Limit, workload: _Workload, grid_version: int, taken: Floats | float = 0.0) -> float:
    """Compute how often a workload fits after what is taken, at the order where that is most."""
    most = threshold_units(orders(grid_version), limit.value, PLANNED_SHARE * limit.delta) - taken
    usable = np.isfinite(workload.losses) & (most > 0)
    return float(np.max(most[usable] / np.maximum(workload.losses[usable], 1.0), initial=0.0))


def _scaled(limit: Limit, workload: _Workload, grid_version: int) -> RdpCurve | None:
    """Scale a workload so that it fits once, in the integers of curves; None if no order admits anything of it."""
    times = _fitting(limit, workload, grid_version)
    if not times:
        return None
    losses = np.ceil(workload.losses * times)
    values = np.where(losses < EXHAUSTED, np.minimum(losses, 2.0**62).astype(np.int64), EXHAUSTED)
    return RdpCurve(values, min(ceil(workload.delta * times), EXHAUSTED))
