"""Steps that were set aside ahead of time and are handed out one by one, without the network."""

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.models import HeldPlan
from epsilon_ledger._wire.problems import LimitChange
from epsilon_ledger._wire.requests import Request

MOST_EVENTS = 1_000
"""In one request: so many different steps of a schedule can be granted at once."""


@dataclass(frozen=True, slots=True)
class PrefetchConfig:
    """How far a run asks ahead.

    Args:
        every: steps of one grant, at least 1; with 1 each step is asked for on its own.
        background: whether the next grant is asked for while the steps of the last one are taken.
        lease_seconds: how long the trainer may be silent, in 1 ... 604,800; then a grant is forfeited.
        schedule: what step t of the training does, counted from 0 over all attempts; None: the event of the run or of
            the last step.

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
        authorize_every: int,
        background: bool,  # noqa: FBT001 - only handed on
        schedule: Callable[[int], Event] | None,
        lease_seconds: int | None,
    ) -> "PrefetchConfig":
        """What a client's caller asked for; None is the default."""
        told = {} if lease_seconds is None else {"lease_seconds": lease_seconds}
        return cls(every=authorize_every, background=background, schedule=schedule, **told)

    def __post_init__(self) -> None:
        """Refuse what can never work."""
        if self.every < 1:
            raise ValueError(f"authorize_every must be at least 1, not {self.every}.")
        if self.background and self.every == 1:
            raise ValueError("There is nothing to ask for in the background: set authorize_every to 50, for instance.")
        if self.schedule is not None and self.every > MOST_EVENTS:
            raise ValueError(f"With a schedule, authorize_every can be {MOST_EVENTS} at most, not {self.every}.")
        if not 1 <= self.lease_seconds <= 7 * 24 * 3600:
            raise ValueError(f"lease_seconds must lie in 1 ... 604,800, not {self.lease_seconds}.")


class Steps:
    """Planned steps in their order, as the ledger keeps a plan: each event once, for as long as it repeats.

    A plan that comes back to an event ends before it: the ledger would take both for one, and charge what was handed
    out of it in another order. Events are copied, so that nobody changes what was asked for.
    """

    def __init__(self) -> None:
        self.left = 0
        # What comes next is at the end.
        self._parts: list[tuple[Any, int]] = []
        self._known: set[Hashable] = set()

    def __len__(self) -> int:
        """How many different events are left, one after the other."""
        return len(self._parts)

    def add(self, event: Event, count: int) -> bool:
        """Plan further steps behind the others.

        Args:
            event: what each does.
            count: how many.

        Returns:
            Whether that is possible.
        """
        plain = as_sent(event)
        if self._parts and self._parts[0][0] == plain:
            self._parts[0] = (plain, self._parts[0][1] + count)
        elif (key := _hashable(plain)) in self._known:
            return False
        else:
            self._known.add(key)
            self._parts.insert(0, (plain, count))
        self.left += count
        return True

    def rest(self) -> "Steps":
        """A plan of what is left."""
        rest = Steps()
        for event, count in reversed(self._parts):
            rest.add(event, count)
        return rest

    def wire(self) -> list[EventCount]:
        """As a plan is sent."""
        return [{"event": event, "count": count} for event, count in reversed(self._parts)]

    def take(self, count: int, event: Event | None) -> bool:
        """Take steps from the front: all of them or none.

        Args:
            count: how many, at least 1.
            event: what each of them must be; None: whatever is planned.

        Returns:
            Whether they were there.
        """
        if count > self.left:
            return False
        planned, repeated = self._parts[-1]
        if event is not None and (count > repeated or (planned != event and planned != as_sent(event))):
            return False
        # Subtracted before anything is handed out: an interrupt here loses steps, and gives none away.
        self.left -= count
        while count >= repeated:
            self._parts.pop()
            count -= repeated
            if not count:
                return True
            repeated = self._parts[-1][1]
        self._parts[-1] = (self._parts[-1][0], repeated - count)
        return True


def as_sent(event: Event) -> dict[str, Any]:
    """A copy of an event, as it will have travelled."""
    travelled: dict[str, Any] = json.loads(json.dumps(event, allow_nan=False))
    return travelled


def _hashable(value: Any) -> Hashable:  # noqa: ANN401 - JSON is anything
    """Equal for values that are equal."""
    if isinstance(value, dict):
        return frozenset((name, _hashable(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(_hashable(each) for each in value)
    assert isinstance(value, Hashable), "JSON has nothing else"
    return value


@dataclass(slots=True)
class Grant:
    """A plan that is held for this run, and how much of it was handed out.

    Args:
        held: what the ledger said of it.
        steps: those that are left.
        renew_at: moment, seconds of the run's clock, at which the next grant should be asked for.
        ends_at: moment after which nothing more is handed out, for the ledger forfeits it.
        closing: whether nothing more is handed out: its end was asked for, or it is unknown what comes next.
    """

    held: HeldPlan
    steps: Steps
    renew_at: float
    ends_at: float
    closing: bool = False

    @property
    def used(self) -> int:
        """How many steps were handed out."""
        return self.held.steps_planned - self.steps.left

    @property
    def next_step(self) -> int:
        """The number of the first step that was not handed out."""
        return self.held.next_step + self.used

    def precedes(self, change: LimitChange | None) -> bool:
        """Whether the grant was made before a limit was changed, by the ledger's clock."""
        granted_at = self.held.expires_at - timedelta(seconds=self.held.lease_seconds)
        return change is not None and granted_at <= change.changed_at


@dataclass(slots=True)
class PendingGrant:
    """A grant that was asked for and is not there yet.

    Args:
        request: carries its key; it is sent again until it is answered.
        steps: the plan.
        used: how many steps of the grant before had been handed out when it was asked for.
        asked_at: moment at which it was made.
    """

    request: Request
    steps: Steps
    used: int
    asked_at: float
