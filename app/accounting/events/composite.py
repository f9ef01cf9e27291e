"""Events that consist of other events."""

from dataclasses import dataclass
from typing import Final

from app.accounting.errors import InvalidEventError
from app.accounting.events.base import (
    MAX_COUNT,
    DpEvent,
    Interval,
    as_tuple,
    check_event,
    check_whole,
    curve_count,
    set_real,
    wire_type,
)

MAX_EVENTS: Final = 1000
MAX_CURVES: Final = 1000
MAX_GROUP: Final = 1_000_000
MIN_SHAPE: Final = -0.9999
"""Nearer to -1 the number of runs is almost constant, and its parameter loses its digits."""


@wire_type("composed")
@dataclass(frozen=True, slots=True)
class Composed(DpEvent):
    """1 to 1,000 mechanisms on the same data, each possibly chosen from earlier outputs."""

    events: tuple[DpEvent, ...]

    def __post_init__(self) -> None:
        """Check the bounds and the pricing work; a list becomes a tuple."""
        object.__setattr__(self, "events", as_tuple("events", self.events, MAX_EVENTS, "events"))
        curves = 0
        for event in self.events:
            check_event(event, "is composed with the others")
            curves += curve_count(event)
            if curves > MAX_CURVES:
                raise InvalidEventError(
                    f"The composed event takes more than {MAX_CURVES} curves: one for each event that is no wrapper, "
                    "one for each noise multiplier of a decay. Send several events; repetitions cost nothing."
                )


@wire_type("self_composed")
@dataclass(frozen=True, slots=True)
class SelfComposed(DpEvent):
    """The same mechanism repeated on the same data, 1 to 1e9 times."""

    event: DpEvent
    count: int

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_whole("count", self.count, 1, MAX_COUNT, "how often the event is repeated")
        check_event(self.event, "is repeated")


@wire_type("repeat_and_select")
@dataclass(frozen=True, slots=True)
class RepeatAndSelect(DpEvent):
    """A hyperparameter search: random many runs, of which only the best output is released.

    Each run draws its hyperparameters from the same distribution; the number of runs is drawn in advance and is not
    released. Source: Papernot, Steinke 2022 (arXiv 2110.03620), Definition 1.

    Args:
        event: one run, a bound for all hyperparameters.
        mean: expected number of runs, in [1, 1e9].
        shape: of the truncated negative binomial distribution of the number of runs, in [-0.9999, 1e6]; 1 is geometric,
            0 logarithmic, None Poisson, the limit at infinity.
    """

    event: DpEvent
    mean: float
    shape: float | None

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_event(self.event, "is one run")
        set_real(self, "mean", Interval(1, MAX_COUNT), "the expected number of runs")
        if self.shape is not None:
            shape = "the shape of the distribution of the number of runs, or null for Poisson's"
            set_real(self, "shape", Interval(MIN_SHAPE, 1e6), shape)


@wire_type("group_privacy")
@dataclass(frozen=True, slots=True)
class GroupPrivacy(DpEvent):
    """A mechanism that protects records, where one privacy unit owns several.

    Args:
        group_size: maximum number of records per unit, 1 to 1e6; under `replace_one` the replacing unit has equally
            many.
        event: the mechanism, with parameters for records as units.
    """

    group_size: int
    event: DpEvent

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_whole("group_size", self.group_size, 1, MAX_GROUP, "the most records that one privacy unit owns")
        check_event(self.event, "protects one record")


@curve_count.register
def _(event: Composed) -> int:
    return sum(curve_count(part) for part in event.events)


@curve_count.register
def _(event: SelfComposed | GroupPrivacy) -> int:
    return curve_count(event.event)


@curve_count.register
def _(event: RepeatAndSelect) -> int:
    # The bound for a Poisson number of runs compares every order with every other one.
    return curve_count(event.event) + (1 if event.shape is not None else 8)
