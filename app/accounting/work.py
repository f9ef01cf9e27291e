"""Estimate the work of pricing events, and bound that of a request.

Work is measured in microseconds of the machine that ran `benchmarks/planning.py`, from a table of upper bounds per
formula. It ignores caches and load, so the same request is always accepted or always refused. Nothing is counted
outside `bounded`. See docs/adr/0027.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import singledispatch
from typing import Final

from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import (
    Composed,
    Decay,
    DiscreteGaussian,
    DpEvent,
    EpsilonDelta,
    Exponential,
    GroupPrivacy,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SelfComposed,
    TreeAggregation,
    curve_count,
    is_noisy_sum,
)

MAX_WORK: Final = 800_000
"""Per request: 0.8 s. A schedule of 1,000 different noises on a sample takes all but 0.05 s of it."""

FEW_ORDERS: Final = 64
"""Up to this many orders take less time than the whole grid."""

OVERHEAD: Final = 10
"""Overhead of an event beyond its formula: hashing, group conversion, addition."""

SELECTION: Final = 700
POISSON_SELECTION: Final = 4500
"""The bound for a Poisson number of runs compares every order with every other one."""

REPLACE_SAMPLED: Final = 300
REPLACE_SAMPLED_FEW_ORDERS: Final = 100
"""The bound for a sample in which one record is replaced."""

_spent: ContextVar[list[int] | None] = ContextVar("_spent", default=None)


@contextmanager
def bounded(most: int = MAX_WORK) -> Iterator[None]:
    """Limit the work of the enclosed block to `most` microseconds."""
    token = _spent.set([0, most])
    try:
        yield
    finally:
        _spent.reset(token)


def spend(work: int) -> None:
    """Count work, in microseconds; raise PlanTooExpensiveError beyond the limit of `bounded`."""
    require_affordable(work)
    spent = _spent.get()
    if spent is not None:
        spent[0] += work


def require_affordable(work: int) -> None:
    """Raise PlanTooExpensiveError if work would exceed the limit, without counting it."""
    spent = _spent.get()
    if spent is not None and spent[0] + work > spent[1]:
        raise PlanTooExpensiveError(_too_expensive_message("What this asks for takes more", spent[1]))


def spend_curve(event: DpEvent, orders: int) -> None:
    """Count the work of pricing an event over a number of orders, as `spend`."""
    if _spent.get() is not None:
        spend(curve_work(event, few=orders <= FEW_ORDERS))


def require_affordable_events(events: Iterable[DpEvent]) -> int:
    """Compute the work of pricing events; raise PlanTooExpensiveError above MAX_WORK."""
    work = sum(curve_work(event, few=False) for event in set(events))
    if work > MAX_WORK:
        raise PlanTooExpensiveError(
            _too_expensive_message(f"To price these events takes about {work / 1e6:.1f} s", MAX_WORK)
        )
    return work


def _too_expensive_message(what: str, most: int) -> str:
    return (
        f"{what}, and a request may take {most / 1e6:g} s of a processor. Send fewer different events, or a schedule "
        "of fewer steps; repetitions cost nothing. A search prices its event some twenty times: ask for the epsilon of "
        "parameters that you choose instead."
    )


@singledispatch
def curve_work(event: DpEvent, *, few: bool) -> int:  # noqa: ARG001 - dispatch looks at it
    """Estimate an upper bound, in microseconds, on the work of pricing an event once.

    `few` is whether at most FEW orders are needed, not a whole grid.
    """
    return OVERHEAD + (20 if few else 80)


@curve_work.register
def _(event: Laplace | EpsilonDelta, *, few: bool) -> int:
    del event
    return OVERHEAD + (60 if few else 350)


@curve_work.register
def _(event: Exponential | RandomizedResponse, *, few: bool) -> int:
    del event
    return OVERHEAD + (100 if few else 900)


@curve_work.register
def _(event: TreeAggregation, *, few: bool) -> int:
    return OVERHEAD + (30 if few else 60) + len(event.step_counts)


@curve_work.register
def _(event: PoissonSampled, *, few: bool) -> int:
    if event.sampling_probability == 1:
        return OVERHEAD + curve_work(event.event, few=few)
    amplified = _sampled_work(event.event, few=few)
    if is_noisy_sum(event.event):
        return OVERHEAD + amplified
    # If a record is replaced, the bound is computed from the curve of the event inside.
    return OVERHEAD + max(
        amplified, (REPLACE_SAMPLED_FEW_ORDERS if few else REPLACE_SAMPLED) + curve_work(event.event, few=few)
    )


@curve_work.register
def _(event: SampledWithoutReplacement, *, few: bool) -> int:
    if event.sample_size == event.source_dataset_size:
        return OVERHEAD + curve_work(event.event, few=few)
    return OVERHEAD + (2000 if few else 9000)


@curve_work.register
def _(event: Composed, *, few: bool) -> int:
    return OVERHEAD * len(event.events) + sum(curve_work(part, few=few) for part in set(event.events))


@curve_work.register
def _(event: SelfComposed | GroupPrivacy, *, few: bool) -> int:
    return OVERHEAD + curve_work(event.event, few=few)


@curve_work.register
def _(event: RepeatAndSelect, *, few: bool) -> int:
    del few  # the second order is searched over the whole grid
    return (SELECTION if event.shape is not None else POISSON_SELECTION) + curve_work(event.event, few=False)


@curve_work.register
def _(event: Decay, *, few: bool) -> int:
    return curve_count(event) * curve_work(event.event, few=few)


@singledispatch
def _sampled_work(event: DpEvent, *, few: bool) -> int:
    """Estimate the work of pricing an event on a Poisson sample."""
    return _composition_work(event) + (250 if few else 730)


@_sampled_work.register
def _(event: DiscreteGaussian, *, few: bool) -> int:
    del event
    return 350 if few else 1500


@_sampled_work.register
def _(event: Laplace, *, few: bool) -> int:
    # The integral needs about 1 / z nodes, down to the noise below which a bound replaces it.
    whole = 3000 + 800 / max(event.noise_multiplier, 0.05)
    return 600 if few else int(whole)


@_sampled_work.register
def _(event: Exponential | EpsilonDelta, *, few: bool) -> int:
    del event
    return 150 if few else 1500


@_sampled_work.register
def _(event: GroupPrivacy, *, few: bool) -> int:
    # The group's noise multiplier is not computed here: the slowest case is counted.
    quieter = Laplace(0.05) if isinstance(event.event, Laplace) else event.event
    return OVERHEAD + _sampled_work(quieter, few=few)


def _composition_work(event: DpEvent) -> int:
    """Estimate the work of combining the parts of a Gaussian release."""
    if isinstance(event, Composed):
        return sum(_composition_work(part) for part in event.events)
    return OVERHEAD + (_composition_work(event.event) if isinstance(event, SelfComposed | GroupPrivacy) else 0)
