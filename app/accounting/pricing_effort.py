"""Estimate the work of pricing events, and bound that of a request.

Work is measured in microseconds of the machine that ran `benchmarks/planning.py`, from a table of upper bounds per
formula; privacy loss distributions count their lattices themselves. It ignores caches and load, so the same request is
always accepted or always refused. Nothing is counted outside `bounded`. See docs/adr/0027.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from app.accounting.base_rdp import laplace_noise
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import (
    Batch,
    Composed,
    Decay,
    DiscreteGaussian,
    DiscreteLaplace,
    DpEvent,
    EpsilonDelta,
    Exponential,
    GroupPrivacy,
    Laplace,
    MixtureOfGaussians,
    NeighboringRelation,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SampledWithReplacement,
    SelfComposed,
    TreeAggregation,
    TruncatedPoissonSampled,
    is_noisy_sum,
    scheduled_events,
    without_no_ops,
)
from app.accounting.formulas.amplification import MIN_INTEGRATED_NOISE
from app.accounting.formulas.gaussian_mixture import MAX_REPLACED, Mixture, is_summed, mixture_work, replaced_work
from app.accounting.formulas.mechanisms import noise_of_pure_loss
from app.accounting.formulas.random_batches import MAX_OCCURRENCES, most_occurrences
from app.accounting.group_privacy import for_group, sampled_mixture

T = TypeVar("T")

MAX_WORK: Final = 800_000
"""Per request: 0.8 s. A schedule of 1,000 different noises on a sample takes all but 0.05 s of it."""

MAX_PLAN_WORK: Final = 1_500_000
"""Besides, for what a limit allows of a plan: 1.5 s. A schedule of 1,000 different noises takes two thirds of it."""

FEW_ORDERS: Final = 64
"""Up to this many orders take less time than the whole grid."""

OVERHEAD: Final = 10
"""Overhead of an event beyond its formula: hashing, group conversion, addition."""


class Work(NamedTuple):
    """Upper bounds over at most FEW_ORDERS orders, and over a whole grid."""

    few_orders: int
    grid: int

    def over(self, *, few: bool) -> int:
        """Get the bound for a number of orders."""
        return self.few_orders if few else self.grid


PLAIN: Final = Work(20, 80)
TREE: Final = Work(30, 60)  # and 1 for each step count
MECHANISMS: Final = {
    Laplace: Work(120, 350),
    DiscreteLaplace: Work(300, 1500),
    PermuteAndFlip: Work(120, 350),
    EpsilonDelta: Work(60, 350),
    Exponential: Work(100, 900),
    RandomizedResponse: Work(100, 900),
}
"""Mechanisms that take more than PLAIN."""

FIXED_BATCH: Final = Work(2000, 9000)
SAMPLED_GAUSSIAN: Final = Work(250, 730)
SAMPLED: Final = {
    DiscreteGaussian: Work(350, 1500),
    DiscreteLaplace: Work(1200, 25_000),
    Exponential: Work(150, 1500),
    EpsilonDelta: Work(150, 1500),
}
"""Mechanisms on a Poisson sample, besides those below; all others are Gaussian or have no bound."""

SAMPLED_LAPLACE: Final = Work(600, 3000)
SAMPLED_LAPLACE_NODES: Final = Work(50, 800)
"""Besides, over the noise multiplier: the integral needs about 1 / z nodes, down to MIN_INTEGRATED_NOISE."""

RARE: Final = 1e-3
"""A sampling probability for which the sum of a mixture is estimated; the work hardly depends on it."""

REPLACE_SAMPLED: Final = Work(100, 300)
"""The bound for a sample in which one record is replaced."""

SELECTION: Final = 700
POISSON_SELECTION: Final = 4500
"""The bound for a Poisson number of runs compares every order with every other one."""

MOST_MEASURED: Final = 10**12
"""Work that is measured has no limit."""

MOST_KNOWN: Final = 512
"""Results that a request is counted for once; the caches that keep them have at least as many places."""


@dataclass(slots=True)
class _Tally:
    """Work of a block, in microseconds: its limit, what was counted, and results that are counted already."""

    most: int
    spent: int = 0
    known: set[Hashable] = field(default_factory=set)


_tally: ContextVar[_Tally | None] = ContextVar("_tally", default=None)


@contextmanager
def bounded(most: int = MAX_WORK) -> Iterator[None]:
    """Limit the work of the enclosed block to `most` microseconds."""
    token = _tally.set(_Tally(most))
    try:
        yield
    finally:
        _tally.reset(token)


@contextmanager
def bounded_apart() -> Iterator[None]:
    """Limit the work of a block within `bounded` apart, to MAX_PLAN_WORK; without that, it has no limit."""
    with bounded(MAX_PLAN_WORK) if _tally.get() is not None else nullcontext():
        yield


def measured(compute: Callable[[], T]) -> tuple[T, int]:
    """Compute a result that is cached for all requests, apart from limits, with its work in microseconds."""
    tally = _Tally(MOST_MEASURED)
    token = _tally.set(tally)
    try:
        return compute(), tally.spent
    finally:
        _tally.reset(token)


def use_effort(work: float) -> None:
    """Count work, in microseconds; raise PlanTooExpensiveError beyond the limit of `bounded`."""
    require_affordable(work)
    tally = _tally.get()
    if tally is not None:
        tally.spent += int(work)


def use_effort_once(result: Hashable, work: float) -> None:
    """Count the work of a result that is cached for the request, as `use_effort`, unless the request has it already."""
    tally = _tally.get()
    if tally is None or result in tally.known:
        return
    use_effort(work)
    if len(tally.known) >= MOST_KNOWN:
        tally.known.clear()
    tally.known.add(result)


def require_affordable(work: float) -> None:
    """Raise PlanTooExpensiveError if work would exceed the limit, without counting it."""
    tally = _tally.get()
    if tally is not None and tally.spent + int(work) > tally.most:
        raise PlanTooExpensiveError(_too_expensive_message("What this asks for takes more", tally.most))


def use_effort_of_curve(event: DpEvent, orders: int, relation: NeighboringRelation) -> None:
    """Count the work of pricing an event over a number of orders, as `use_effort`."""
    if _tally.get() is not None:
        use_effort(curve_work(event, few=orders <= FEW_ORDERS, relation=relation))


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


def curve_work(event: DpEvent, *, few: bool, relation: NeighboringRelation | None = None) -> int:
    """Estimate an upper bound, in microseconds, on the work of pricing an event once.

    Args:
        event: to price.
        few: whether at most FEW_ORDERS orders are needed, not a whole grid.
        relation: of neighbours. None: not known; a Gaussian sum on a sample takes longer if a record is replaced.
    """
    event = without_no_ops(event)
    match event:
        case Composed():
            work = OVERHEAD * len(event.events) + sum(
                curve_work(part, few=few, relation=relation) for part in set(event.events)
            )
        case Decay():
            # The work of a mixture grows while the noise falls.
            grows = isinstance(event.event, GroupPrivacy) or relation is NeighboringRelation.REPLACE_ONE
            steps = [step for step, _ in scheduled_events(event)] if grows else [event.event] * event.curve_count()
            work = len(steps) * max(curve_work(step, few=few, relation=relation) for step in (steps[0], steps[-1]))
        case RepeatAndSelect():  # the second order is searched over the whole grid
            work = (POISSON_SELECTION if event.shape is None else SELECTION) + curve_work(
                event.event, few=False, relation=relation
            )
        case PoissonSampled() if not event.takes_all:
            replaced = _if_replaced(event) if relation is NeighboringRelation.REPLACE_ONE else None
            work = (
                _sampled_work(event.event, few=few, relation=relation)
                if replaced is None
                else curve_work(replaced, few=few, relation=relation)
            )
            work += OVERHEAD
        case SampledWithoutReplacement() | TruncatedPoissonSampled() | SampledWithReplacement() if _batches(event):
            work = OVERHEAD + _batches(event) * FIXED_BATCH.over(few=few)
        case MixtureOfGaussians():
            work = OVERHEAD + _mixture_work(event, 1.0, few=few, relation=relation)
        case GroupPrivacy():
            work = OVERHEAD + curve_work(_of_group(event), few=few, relation=relation)
        case PoissonSampled() | SampledWithoutReplacement() | SelfComposed():
            work = OVERHEAD + curve_work(event.event, few=few, relation=relation)
        case TreeAggregation():
            work = OVERHEAD + TREE.over(few=few) + len(event.step_counts)
        case _:
            work = OVERHEAD + MECHANISMS.get(type(event), PLAIN).over(few=few)
    return work


def _batches(event: Batch) -> int:
    """Count the bounds for a batch of fixed size that an event takes."""
    match event:
        case SampledWithoutReplacement():
            return int(not event.takes_all)
        case SampledWithReplacement():
            return 1 if event.source_dataset_size == 1 else _occurrences(event)
        case TruncatedPoissonSampled():
            return 3  # two, and three sampled Gaussians


def _of_group(event: GroupPrivacy) -> DpEvent:
    """Get the event that protects the group; the one inside if there is none, and a price is refused."""
    try:
        return for_group(event.event, event.group_size)
    except UnsupportedEventError:
        return event.event


def _if_replaced(event: PoissonSampled) -> MixtureOfGaussians | None:
    """Get the mixture that is priced if a record of a sample is replaced; None if there is none."""
    try:
        return sampled_mixture(event)
    except UnsupportedEventError:
        return None


def _occurrences(event: SampledWithReplacement) -> int:
    return most_occurrences(event.source_dataset_size, event.sample_size, MAX_OCCURRENCES)


def _mixture_work(event: MixtureOfGaussians, taken: float, *, few: bool, relation: NeighboringRelation | None) -> int:
    """Estimate the work of a mixture: a sum if a record is added, a batch for each distance if one is replaced."""
    mixture = Mixture.of(event.standard_deviation, event.sensitivities, event.sampling_probs, taken)
    summed = mixture_work(mixture, few=few) if is_summed(mixture) else 0
    summed += SAMPLED_GAUSSIAN.over(few=few)
    replaced = min(len(mixture.sizes), MAX_REPLACED) * FIXED_BATCH.over(few=few) + replaced_work(mixture, few=few)
    if relation is None:
        return max(summed, replaced)
    return replaced if relation is NeighboringRelation.REPLACE_ONE else summed


def _sampled_work(event: DpEvent, *, few: bool, relation: NeighboringRelation | None) -> int:
    """Estimate the work of pricing an event on a Poisson sample."""
    amplified = _amplified_work(event, few=few, relation=relation)
    if is_noisy_sum(event):
        return amplified
    # If a record is replaced, the bound is computed from the curve of the event inside.
    return max(amplified, REPLACE_SAMPLED.over(few=few) + curve_work(event, few=few, relation=relation))


def _amplified_work(event: DpEvent, *, few: bool, relation: NeighboringRelation | None) -> int:
    if isinstance(event, GroupPrivacy):
        return OVERHEAD + _amplified_work(_of_group(event), few=few, relation=relation)
    if isinstance(event, Laplace | PermuteAndFlip):
        added = NeighboringRelation.ADD_OR_REMOVE_ONE
        z = laplace_noise(event, added) if isinstance(event, Laplace) else noise_of_pure_loss(event.epsilon)
        nodes = SAMPLED_LAPLACE_NODES.over(few=few) / max(z, MIN_INTEGRATED_NOISE)
        return int(SAMPLED_LAPLACE.over(few=few) + nodes)
    if isinstance(event, MixtureOfGaussians):
        return _mixture_work(event, RARE, few=few, relation=relation)
    if type(event) in SAMPLED:
        return SAMPLED[type(event)].over(few=few)
    return _composition_work(event) + SAMPLED_GAUSSIAN.over(few=few)


def _composition_work(event: DpEvent) -> int:
    """Estimate the work of combining the parts of a Gaussian release."""
    if isinstance(event, Composed):
        return sum(_composition_work(part) for part in event.events)
    return OVERHEAD + (_composition_work(event.event) if isinstance(event, SelfComposed | GroupPrivacy) else 0)
