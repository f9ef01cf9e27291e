"""A queue with fair turns between its lanes."""

from collections import OrderedDict, deque
from threading import Condition
from typing import Final, Generic, TypeVar

from app.ledger.errors import RateLimitedError

T = TypeVar("T")

MOST_WAITING: Final = 16
"""Maximum number of waiting tasks in a lane."""

RETRY_AFTER: Final = 2
"""Retry-After of a full lane, in seconds."""


class FairQueue(Generic[T]):
    """Queue with a lane for each organisation; one task of a lane runs at a time."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self._at_work: set[str] = set()

    def put(self, lane: str, task: T) -> None:
        """Add a task to a lane.

        Raises:
            RateLimitedError: too many tasks of the lane are waiting.
        """
        with self._changed:
            waiting = self._lanes.setdefault(lane, deque())
            if len(waiting) >= MOST_WAITING:
                raise RateLimitedError(
                    f"{MOST_WAITING} calculations of this organisation are waiting. Retry the request shortly.",
                    retry_after=RETRY_AFTER,
                )
            waiting.append(task)
            self._changed.notify()

    def take(self, seconds: float) -> tuple[str, T] | None:
        """Wait for a task of an idle lane and mark the lane as busy.

        Returns:
            The lane and its oldest task, to be followed by `done`; None on timeout.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._next() is not None, seconds):
                return None
            lane = self._next()
            assert lane is not None, "it was waited for"
            waiting = self._lanes.pop(lane)
            task = waiting.popleft()
            if waiting:  # behind all others
                self._lanes[lane] = waiting
            self._at_work.add(lane)
            return lane, task

    def done(self, lane: str) -> None:
        """Mark a lane as idle."""
        with self._changed:
            self._at_work.discard(lane)
            self._changed.notify_all()

    def _next(self) -> str | None:
        return next((lane for lane in self._lanes if lane not in self._at_work), None)
