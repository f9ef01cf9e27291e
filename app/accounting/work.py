"""How much work a price is, known before it is computed; and a bound on the work of one request.

Work is counted in microseconds of the machine on which `benchmarks/planning.py` was run: whole numbers from a table
that say at most what each formula takes. The same question is the same work, whatever is remembered and how busy the
machine is, so an answer never depends on that. Nothing is counted unless somebody sets a bound.
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

MOST_WORK: Final = 800_000
"""Of one request: 0.8 s. A schedule of a thousand different noises on a sample takes all but 0.05 s of it."""

FEW: Final = 64
"""So many orders take less time than the whole grid does."""

LINK: Final = 10
"""What an event takes beside its formula: being hashed, rewritten for a group, added up."""

SELECTION: Final = 700
POISSON_SELECTION: Final = 4500
"""The bound for a Poisson number of runs compares every order with every other one."""

TAKEN_OR_NOT: Final = 300
TAKEN_OR_NOT_FEW: Final = 100
"""The bound for a sample in which a record is replaced by another one."""

_spent: ContextVar[list[int] | None] = ContextVar("_spent", default=None)


@contextmanager
def bounded(most: int = MOST_WORK) -> Iterator[None]:
    """Bound the work of what is done within.

    Args:
        most: in microseconds.

    Yields:
        Nothing; beyond the bound, `spend` raises.
    """
    token = _spent.set([0, most])
    try:
        yield
    finally:
        _spent.reset(token)


def spend(work: int) -> None:
    """Count work that is about to be done.

    Args:
        work: in microseconds.

    Raises:
        PlanTooExpensiveError: together with what was done before it is more than one request may take.
    """
    expect(work)
    spent = _spent.get()
    if spent is not None:
        spent[0] += work


def expect(work: int) -> None:
    """Refuse work before it is begun, if all of it would be too much.

    Args:
        work: in microseconds, that will be done at least; it is not counted here.

    Raises:
        PlanTooExpensiveError: as `spend`.
    """
    spent = _spent.get()
    if spent is not None and spent[0] + work > spent[1]:
        raise PlanTooExpensiveError(_told("What this asks for takes more", spent[1]))


def spend_curve(event: DpEvent, orders: int) -> None:
    """Count the work of pricing an event, and do nothing else.

    Args:
        event: what is about to be priced.
        orders: over how many of them.

    Raises:
        PlanTooExpensiveError: as `spend`.
    """
    if _spent.get() is not None:
        spend(curve_work(event, few=orders <= FEW))


def require_little_work(events: Iterable[DpEvent]) -> int:
    """Refuse events whose prices together are more work than one request may make.

    Args:
        events: of a request.

    Returns:
        The work, in microseconds.

    Raises:
        PlanTooExpensiveError: it is too much.
    """
    work = sum(curve_work(event, few=False) for event in set(events))
    if work > MOST_WORK:
        raise PlanTooExpensiveError(_told(f"To price these events takes about {work / 1e6:.1f} s", MOST_WORK))
    return work


def _told(what: str, most: int) -> str:
    return (
        f"{what}, and a request may take {most / 1e6:g} s of a processor. Send fewer different events, or a schedule "
        "of fewer steps; repetitions cost nothing. A search prices its event some twenty times: ask for the epsilon of "
        "parameters that you choose instead."
    )


@singledispatch
def curve_work(event: DpEvent, *, few: bool) -> int:  # noqa: ARG001 - dispatch looks at it
    """Return how much work it is at most to price an event once.

    Args:
        event: what is priced.
        few: over at most FEW orders, and not over a whole grid.

    Returns:
        Microseconds.
    """
    return LINK + (20 if few else 80)


@curve_work.register
def _(event: Laplace | EpsilonDelta, *, few: bool) -> int:
    del event
    return LINK + (60 if few else 350)


@curve_work.register
def _(event: Exponential | RandomizedResponse, *, few: bool) -> int:
    del event
    return LINK + (100 if few else 900)


@curve_work.register
def _(event: TreeAggregation, *, few: bool) -> int:
    return LINK + (30 if few else 60) + len(event.step_counts)


@curve_work.register
def _(event: PoissonSampled, *, few: bool) -> int:
    if event.sampling_probability == 1:
        return LINK + curve_work(event.event, few=few)
    amplified = _sampled_work(event.event, few=few)
    if is_noisy_sum(event.event):
        return LINK + amplified
    # Under a relation by which a record is replaced, it is made of the curve of what happens to the sample.
    return LINK + max(amplified, (TAKEN_OR_NOT_FEW if few else TAKEN_OR_NOT) + curve_work(event.event, few=few))


@curve_work.register
def _(event: SampledWithoutReplacement, *, few: bool) -> int:
    if event.sample_size == event.source_dataset_size:
        return LINK + curve_work(event.event, few=few)
    return LINK + (2000 if few else 9000)


@curve_work.register
def _(event: Composed, *, few: bool) -> int:
    return LINK * len(event.events) + sum(curve_work(part, few=few) for part in set(event.events))


@curve_work.register
def _(event: SelfComposed | GroupPrivacy, *, few: bool) -> int:
    return LINK + curve_work(event.event, few=few)


@curve_work.register
def _(event: RepeatAndSelect, *, few: bool) -> int:
    del few  # the other order is looked for over the whole grid
    return (SELECTION if event.shape is not None else POISSON_SELECTION) + curve_work(event.event, few=False)


@curve_work.register
def _(event: Decay, *, few: bool) -> int:
    return curve_count(event) * curve_work(event.event, few=few)


@singledispatch
def _sampled_work(event: DpEvent, *, few: bool) -> int:
    """Return how much work a Poisson sample of an event is: one Gaussian, whatever it is made of."""
    return _links(event) + (250 if few else 730)


@_sampled_work.register
def _(event: DiscreteGaussian, *, few: bool) -> int:
    del event
    return 350 if few else 1500


@_sampled_work.register
def _(event: Laplace, *, few: bool) -> int:
    # An integral whose number of nodes grows with 1 / z, up to the noise below which it is not computed.
    whole = 3000 + 800 / max(event.noise_multiplier, 0.05)
    return 600 if few else int(whole)


@_sampled_work.register
def _(event: Exponential | EpsilonDelta, *, few: bool) -> int:
    del event
    return 150 if few else 1500


@_sampled_work.register
def _(event: GroupPrivacy, *, few: bool) -> int:
    # What the group makes of a noise multiplier is not looked at: the slowest is counted.
    quieter = Laplace(0.05) if isinstance(event.event, Laplace) else event.event
    return LINK + _sampled_work(quieter, few=few)


def _links(event: DpEvent) -> int:
    """Return the work of adding up the parts of a Gaussian release."""
    if isinstance(event, Composed):
        return sum(_links(part) for part in event.events)
    return LINK + (_links(event.event) if isinstance(event, SelfComposed | GroupPrivacy) else 0)
