"""Grants: steps reserved in advance and allocated without the network."""

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.problems import LatestLimitChange
from epsilon_ledger._wire.requests import Request
from epsilon_ledger._wire.reservation_models import CreatedReservation

MAX_EVENTS = 1_000
"""Maximum number of events in a request."""


@dataclass(frozen=True, slots=True)
class PrefetchConfig:
    """Prefetching of grants.

    Args:
        every: steps of one grant; 1 requests each step directly.
        background: request the next grant while the last one is in use.
        lease_seconds: in 1 ... 604,800; without contact for so long a grant is forfeited.
        schedule: event of step t of the training, from 0 over all attempts; None: the run's or the last event.

    Raises:
        ValueError: a number is out of its range.
    """

    every: int = 1
    background: bool = False
    lease_seconds: int = 600
    schedule: Callable[[int], Event] | None = None

    @classmethod
    def of(
        cls,
        prefetch: int,
        background: bool,  # noqa: FBT001 - only handed on
        schedule: Callable[[int], Event] | None,
        lease_seconds: int | None,
    ) -> "PrefetchConfig":
        """Build the configuration from a caller's arguments."""
        options = {} if lease_seconds is None else {"lease_seconds": lease_seconds}
        return cls(every=prefetch, background=background, schedule=schedule, **options)

    def __post_init__(self) -> None:
        """Validate the combination."""
        if self.every < 1:
            raise ValueError(f"prefetch must be at least 1, not {self.every}.")
        if self.background and self.every == 1:
            raise ValueError("There is nothing to ask for in the background: set prefetch to 50, for instance.")
        if self.schedule is not None and self.every > MAX_EVENTS:
            raise ValueError(f"With a schedule, prefetch can be {MAX_EVENTS} at most, not {self.every}.")
        if not 1 <= self.lease_seconds <= 7 * 24 * 3600:
            raise ValueError(f"lease_seconds must be in 1 ... 604,800, not {self.lease_seconds}.")

    def require_none(self, *, has_reservation: bool) -> None:
        """Require that a run with a reservation of its own prefetches no grants.

        Raises:
            ValueError: it has a reservation, and prefetches grants.
        """
        if has_reservation and self.every > 1:
            raise ValueError("A run that prefetches grants makes its own reservations: leave prefetch at 1.")


class StepQueue:
    """Steps to reserve in order, as the ledger stores a reservation: each event once, repeated.

    A reservation ends before an event would recur, because the ledger would merge both. Events are copied against later
    changes.
    """

    def __init__(self) -> None:
        self.remaining = 0
        # In reverse order: the next step is at the end.
        self._parts: list[tuple[Any, int]] = []
        self._known: set[Hashable] = set()

    def __len__(self) -> int:
        """Count the different events left."""
        return len(self._parts)

    def add(self, event: Event, count: int) -> bool:
        """Append steps; return whether one reservation can hold them."""
        plain = json_copy(event)
        if self._parts and self._parts[0][0] == plain:
            self._parts[0] = (plain, self._parts[0][1] + count)
        elif (key := _hashable(plain)) in self._known:
            return False
        else:
            self._known.add(key)
            self._parts.insert(0, (plain, count))
        self.remaining += count
        return True

    def copy(self) -> "StepQueue":
        """Copy the remaining steps."""
        copied = StepQueue()
        for event, count in reversed(self._parts):
            copied.add(event, count)
        return copied

    def to_wire(self) -> list[EventCount]:
        """Return the steps as sent."""
        return [{"event": event, "count": count} for event, count in reversed(self._parts)]

    def take(self, count: int, event: Event | None) -> bool:
        """Take all of `count` steps from the front, or none; return whether they were there.

        `event` is required of each step, unless it is None.
        """
        if count > self.remaining:
            return False
        planned, repeated = self._parts[-1]
        if event is not None and (count > repeated or (planned != event and planned != json_copy(event))):
            return False
        # Subtracted first: an interrupt here loses steps instead of allocating them twice.
        self.remaining -= count
        while count >= repeated:
            self._parts.pop()
            count -= repeated
            if not count:
                return True
            repeated = self._parts[-1][1]
        self._parts[-1] = (self._parts[-1][0], repeated - count)
        return True


def json_copy(event: Event) -> dict[str, Any]:
    """Copy an event through JSON."""
    travelled: dict[str, Any] = json.loads(json.dumps(event, allow_nan=False))
    return travelled


def _hashable(value: Any) -> Hashable:  # noqa: ANN401 - JSON is anything
    """Convert JSON to a hashable value that preserves equality."""
    if isinstance(value, dict):
        return frozenset((name, _hashable(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(_hashable(each) for each in value)
    assert isinstance(value, Hashable), "JSON has nothing else"
    return value


@dataclass(slots=True)
class Grant:
    """A reservation of this run and its use.

    Args:
        reservation: the ledger's response.
        steps: the remaining steps.
        renew_at: time on the run's clock to request the next grant.
        ends_at: time of the forfeiture, after which nothing is allocated.
        closing: nothing more is allocated: its end was requested, or the next step is unknown.
    """

    reservation: CreatedReservation
    steps: StepQueue
    renew_at: float
    ends_at: float
    closing: bool = False

    @property
    def used(self) -> int:
        """Number of allocated steps."""
        return self.reservation.steps_reserved - self.steps.remaining

    @property
    def next_step(self) -> int:
        """Number of the first step not allocated."""
        return self.reservation.next_step + self.used

    def precedes(self, change: LatestLimitChange | None) -> bool:
        """Return whether the grant is older than a limit change, by the ledger's clock."""
        granted_at = self.reservation.expires_at - timedelta(seconds=self.reservation.lease_seconds)
        return change is not None and granted_at <= change.changed_at


@dataclass(slots=True)
class PendingGrant:
    """A requested grant.

    Args:
        request: with its key; repeated until it is answered.
        steps: those reserved.
        used: allocated steps of the previous grant at the time of the request.
        next_step: number of the first step not allocated then.
        requested_at: time of the request.
    """

    request: Request
    steps: StepQueue
    used: int
    next_step: int
    requested_at: float
