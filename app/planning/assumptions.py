"""Assumptions shared by all planning requests, numbers with and without a plan, and warnings about results."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Generic, TypeVar

from app.accounting.curves import GRID_VERSION, RdpCurve, finite_orders
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import (
    DpEvent,
    NeighboringRelation,
    NoOp,
    PoissonSampled,
    SampledWithoutReplacement,
    SampledWithReplacement,
    TruncatedPoissonSampled,
    type_name,
    without_no_ops,
)
from app.accounting.pricing_effort import bounded_apart
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import zero_curve
from app.ledger.filter.filters import smallest_useful_epsilon
from app.ledger.filter.limits import Limit
from app.ledger.step_events import PricedStep, StepEvent, counts_of, total_cost

Found = TypeVar("Found")
Number = TypeVar("Number")

VACUOUS_EPSILON = 20.0
"""Epsilon above which the guarantee is vacuous: e^epsilon is over 4.8e8."""


class Batches(StrEnum):
    """How a trainer draws its batches."""

    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"


@dataclass(frozen=True, slots=True)
class ByPlan(Generic[Number]):
    """A number for an account that declares all events as planned, and for one that declares none.

    Args:
        with_plan: never the worse one. That of an account without a plan where a plan cannot hold the events.
        without_plan: by Rényi orders that are tuned to these events.
    """

    with_plan: Number
    without_plan: Number


@dataclass(frozen=True, slots=True)
class PlanAssumptions:
    """Assumptions of a plan: relation, number of privacy units if known, and how batches are drawn."""

    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
    population_size: int | None = None
    batches: Batches = Batches.POISSON

    def curve(self, steps: Iterable[StepEvent]) -> RdpCurve:
        """Sum the curves of step events exactly, on the newest grid."""
        steps = tuple(steps)
        return total_of(steps, self.curves(steps))

    def curves(self, steps: Iterable[StepEvent]) -> dict[DpEvent, RdpCurve]:
        """Compute the curves of different events, on the newest grid."""
        return {event: event_curve(event, self.relation, GRID_VERSION) for event in counts_of(steps)}

    def warnings(self, steps: Sequence[StepEvent], delta: float) -> list[str]:
        """List warnings about a plan's delta, batches, and parts that release nothing."""
        found, events = [], [step.event for step in steps]
        if self.population_size is not None and delta * self.population_size >= 1:
            found.append(
                f"delta {delta:.4g} is not below 1/{self.population_size} = {1 / self.population_size:.3g}: it would "
                "allow one whole record of this population to be published."
            )
        poisson = _samples_in(events, (PoissonSampled, TruncatedPoissonSampled))
        if self.batches is not Batches.POISSON and poisson:
            found.append(
                f"The batches are {_DRAWN[self.batches]}, but {poisson} events are accounted as Poisson samples, "
                "in which every record is taken independently: this epsilon does not hold for such batches."
            )
        if any(without_no_ops(event) != event for event in events) or NoOp() in events:
            found.append(
                "Nothing is released by no_op events, samples with probability 0, and epsilon_delta events of (0, 0): "
                "they cost 0."
            )
        drawn = _samples_in(events, (SampledWithoutReplacement, SampledWithReplacement))
        if self.batches is Batches.SHUFFLED and drawn:
            found.append(
                f"The batches are taken in turn from shuffled data, but {drawn} events are "
                "accounted as batches drawn anew at every step: this epsilon does not hold for such batches."
            )
        return found


def total_of(steps: Iterable[StepEvent], curves: Mapping[DpEvent, RdpCurve]) -> RdpCurve:
    """Sum curves of step events exactly."""
    priced = [PricedStep(step, curves[step.event]) for step in steps]
    return total_cost(priced) if priced else zero_curve()


_DRAWN = {Batches.FIXED: "of a fixed size", Batches.SHUFFLED: "taken in turn from shuffled data"}


def if_planned(search: Callable[[], Found]) -> tuple[Found | None, list[str]]:
    """Search for an account that declares a plan; None, with a warning, where a plan cannot hold the events."""
    try:
        with bounded_apart():
            return search(), []
    except (UnsupportedEventError, PlanTooExpensiveError) as error:
        return None, [_about_unplanned(error)]


def _about_unplanned(error: UnsupportedEventError | PlanTooExpensiveError) -> str:
    """Warn about events that a plan cannot hold, or whose plan would take too much work."""
    reason = str(error)
    if isinstance(error, PlanTooExpensiveError):
        reason = "To compute what a declared plan admits takes more work than a request may take."
    return f"{reason} `with_plan` is the number of an account without a plan."


def about_size(epsilon: float) -> list[str]:
    """Warn about a vacuous epsilon."""
    if epsilon <= VACUOUS_EPSILON:
        return []
    return [f"An epsilon above {VACUOUS_EPSILON:g} is vacuous: it gives almost no protection."]


def about_loss(used: float) -> list[str]:
    """Warn about an account of whose capacity, or of one above it, more than all is used."""
    if used <= 1:
        return []
    return ["More is spent than a limit allows: by what was reported, or since the limit was lowered."]


def about_limit(limit: Limit) -> list[str]:
    """List warnings about the limit of an account."""
    if limit.is_exact:
        return about_size(limit.epsilon)
    smallest = smallest_useful_epsilon(limit.delta, finite_orders(GRID_VERSION))
    if limit.value > smallest:
        return about_size(limit.value)
    warning = (
        f"With delta {limit.delta:g} Gaussian noise is admitted above epsilon {smallest:.4g} only: this limit holds "
        "nothing but mechanisms whose loss is bounded, such as Laplace noise."
    )
    return [warning]


def _with_parts(event: DpEvent) -> Iterator[DpEvent]:
    """Iterate over an event and all nested events."""
    yield event
    values = [getattr(event, field.name) for field in fields(event)]
    for part in (part for value in values for part in (value if isinstance(value, tuple) else (value,))):
        if isinstance(part, DpEvent):
            yield from _with_parts(part)


def _samples_in(events: Iterable[DpEvent], kinds: tuple[type[DpEvent], ...]) -> str:
    """Name the kinds of samples that amplify a part of some events."""
    parts = (part for event in events for part in _with_parts(event) if isinstance(part, kinds))
    return " and ".join(sorted({type_name(part) for part in parts if not getattr(part, "takes_all", False)}))
