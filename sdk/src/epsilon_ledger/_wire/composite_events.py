"""Events that contain other events: their types and factories, with errors as in `events`."""

import math
from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from epsilon_ledger._wire.coercion import items, real, whole
from epsilon_ledger._wire.events import Event


class ComposedEvent(TypedDict):
    """Several events on the same data."""

    type: Literal["composed"]
    events: list[Event]


def composed(events: Sequence[Event]) -> ComposedEvent:
    """Describe several events on the same data.

    Args:
        events: 1 to 1,000.

    Returns:
        The event for the wire.
    """
    return {"type": "composed", "events": items("events", events, "[gaussian(1.1), laplace(2.0)]")}


class SelfComposedEvent(TypedDict):
    """A repeated event."""

    type: Literal["self_composed"]
    event: Event
    count: int


def self_composed(event: Event, count: int) -> SelfComposedEvent:
    """Describe one event repeated on the same data.

    Args:
        event: of each repetition.
        count: in 1 ... 1e9.

    Returns:
        The event for the wire.
    """
    return {"type": "self_composed", "event": event, "count": whole("count", count)}


class RepeatAndSelectEvent(TypedDict):
    """The best of a random number of runs."""

    type: Literal["repeat_and_select"]
    event: Event
    mean: float
    shape: float | None


def repeat_and_select(event: Event, mean: float, shape: float | None) -> RepeatAndSelectEvent:
    """Describe a hyper-parameter search that releases the best of a random number of runs.

    Args:
        event: of one run, for all hyper-parameters.
        mean: expected number of runs, at least 1.
        shape: of the truncated negative binomial distribution of their number, at least -0.9999: 1 is geometric, 0
            logarithmic; None: Poisson.

    Returns:
        The event for the wire.
    """
    return {
        "type": "repeat_and_select",
        "event": event,
        "mean": real("mean", mean, 1.0, math.inf),
        "shape": None if shape is None else real("shape", shape, -0.9999, math.inf),
    }


class GroupPrivacyEvent(TypedDict):
    """An event that protects single records, where a privacy unit owns several."""

    type: Literal["group_privacy"]
    group_size: int
    event: Event


def group_privacy(group_size: int, event: Event) -> GroupPrivacyEvent:
    """Describe an event that protects single records, where a privacy unit owns several.

    Args:
        group_size: maximum number of records of a unit.
        event: as if each record were a unit.

    Returns:
        The event for the wire.
    """
    return {"type": "group_privacy", "group_size": whole("group_size", group_size), "event": event}


class DecayEvent(TypedDict):
    """An event at each step of a decaying noise schedule."""

    type: Literal["decay"]
    mode: Literal["time", "step", "exp"]
    decay_rate: float
    steps: int
    first_step: NotRequired[int]
    event: Event


def decay(
    mode: Literal["time", "step", "exp"], decay_rate: float, event: Event, *, steps: int, first_step: int = 0
) -> DecayEvent:
    """Describe steps with a decaying noise multiplier z.

    Args:
        mode: at step t it is z / (1 + k t), z (1 - k)^t or z exp(-k t).
        decay_rate: k.
        event: of a step, with the noise multiplier of step 0.
        steps: number of steps, in 1 ... 1e7.
        first_step: number t of the first one.

    Returns:
        The event for the wire.
    """
    wire: DecayEvent = {
        "type": "decay",
        "mode": mode,
        "decay_rate": real("decay_rate", decay_rate, 0.0, math.inf),
        "steps": whole("steps", steps),
        "event": event,
    }
    if first_step:
        wire["first_step"] = whole("first_step", first_step, 0)
    return wire
