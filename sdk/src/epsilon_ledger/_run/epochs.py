"""An epoch of batches that hold each record once, as one event."""

from collections.abc import Mapping, Sequence, Sized
from typing import Any, Final

from epsilon_ledger._run.batch_sources import reason_against
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.events import SAMPLES, Event, EventCount
from epsilon_ledger._wire.members import wire_events
from epsilon_ledger._wire.models import RunState

_SINGLE_NOISE: Final = frozenset({"gaussian", "laplace", "discrete_gaussian"})
_NOT_ONE_BATCH: Final = {
    **dict.fromkeys(SAMPLES, "which holds a record in any number of its batches: authorize each step with track"),
    "decay": "which is a sum of steps: give `events`, the event of each batch",
}


def epoch_event(state: RunState, event: Event | None, events: Sequence[EventCount] | None) -> Event:
    """Return the event that an epoch costs: that of its costliest batch.

    For a fixed assignment of the records, a replaced record is in one batch only. The other releases are functions of
    earlier releases and of records that stay (parallel composition). An assignment that is drawn independently of the
    records is a mixture of such, which costs as much as its costliest part (joint convexity of divergences).

    Args:
        state: of the run.
        event: of each batch; None: the run's own, or the events.
        events: of the batches, with counts, where the noise changes.

    Raises:
        ValueError: the population has another relation, or an event is not that of one batch.
    """
    if state.neighboring_relation == "add_or_remove_one":
        raise ValueError(
            "Under add_or_remove_one, an epoch is not charged at once: a further record moves others from batch to "
            "batch, so it changes all of them. Create the population with neighboring_relation='replace_one', where "
            "noise counts half. Or draw Poisson samples and authorize each step with track. If each record's batch "
            "depends on that record alone, such as on a hash of its id, charge_training charges the epoch."
        )
    if events is not None:
        if event is not None:
            raise ValueError("Give either event or events.")
        event = _least_noise([item["event"] for item in wire_events(events)])
    event = event if event is not None else state.event
    if event is None:
        raise ValueError("The run was created without an event: give the batches' `event`.")
    _require_one_batch(event)
    return event


def epoch_steps(
    batches: object, events: Sequence[EventCount] | None, steps: int | None, *, assume_disjoint: bool
) -> int:
    """Return the maximum number of batches of an epoch.

    Args:
        batches: of the epoch.
        events: of the batches, with counts.
        steps: maximum number of batches; None: that of `events`, or the length.
        assume_disjoint: whether the caller vouches for the batches.

    Raises:
        ValueError: a record may be in several batches, or the number of batches is unknown.
    """
    reason = None if assume_disjoint else reason_against(batches)
    if reason is not None:
        raise ValueError(
            f"These batches are not charged as one epoch: {reason}. If you know that no record is in two batches, and "
            "that no record's content decides about the batch of any record, say `assume_disjoint=True`."
        )
    if steps is not None:
        return whole("steps", steps)
    if events is not None:
        return sum(item["count"] for item in wire_events(events))
    length = _length(batches)
    if length is None:
        raise ValueError("These batches have no length, and might never end: give their number in an epoch as `steps`.")
    return max(1, length)


def _length(batches: object) -> int | None:
    """Count batches; None if they do not tell."""
    if not isinstance(batches, Sized):
        return None
    try:
        return len(batches)
    except TypeError:  # a torch loader of an IterableDataset has the method, and no answer
        return None


def _least_noise(events: Sequence[Event]) -> Event:
    """Return the one of several events with the least noise.

    Raises:
        ValueError: there is none, or they differ in more than their noise.
    """
    if not events:
        raise ValueError("Give the event of at least one batch.")
    first: Mapping[str, Any] = events[0]
    for event in events:
        if event["type"] not in _SINGLE_NOISE or {**event, "noise_multiplier": None} != {
            **first,
            "noise_multiplier": None,
        }:
            raise ValueError(
                f"Which of these events costs most is not known, because they differ in more than their noise: "
                f"{first} and {event}. Give `event`, one that costs at least as much as that of any batch."
            )
    return min(events, key=lambda event: float(str(event["noise_multiplier"])))


def _require_one_batch(event: Event) -> None:
    """Require an event that describes the releases of one batch."""
    reason = _NOT_ONE_BATCH.get(str(event.get("type")))
    if reason is not None:
        raise ValueError(f"An epoch is not charged as {event['type']}, {reason}.")
    inner: Any = event.get("event")
    parts: Any = event.get("events", ())
    for part in [*([] if inner is None else [inner]), *parts]:
        _require_one_batch(part)
