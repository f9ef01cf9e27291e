"""Tasks of several lanes, taken in turn: whoever asks much waits for themselves, and for nobody else."""

from collections import OrderedDict, deque
from threading import Condition
from typing import Final, Generic, TypeVar

from app.ledger.errors import RateLimitedError

T = TypeVar("T")

MOST_WAITING: Final = 16
"""Tasks of one lane that wait at the most; further ones are told to come again."""

RETRY_AFTER: Final = 2
"""Seconds after which whoever was told so may."""


class FairQueue(Generic[T]):
    """A queue with a lane for each organisation: one task of a lane is worked on at a time, and lanes take turns."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self._at_work: set[str] = set()

    def put(self, lane: str, task: T) -> None:
        """Add a task.

        Args:
            lane: whose.
            task: what is to be done.

        Raises:
            RateLimitedError: too many of this lane wait.
        """
        with self._changed:
            waiting = self._lanes.setdefault(lane, deque())
            if len(waiting) >= MOST_WAITING:
                raise RateLimitedError(
                    f"{MOST_WAITING} calculations of this organisation wait already. Repeat the request in a moment.",
                    retry_after=RETRY_AFTER,
                )
            waiting.append(task)
            self._changed.notify()

    def take(self, seconds: float) -> tuple[str, T] | None:
        """Wait for a task whose lane nobody works for, and begin to.

        Args:
            seconds: how long to wait.

        Returns:
            The lane and its oldest task; `done` must be called afterwards. None: there was none.
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
        """Let the next task of a lane have its turn.

        Args:
            lane: as `take` returned it.
        """
        with self._changed:
            self._at_work.discard(lane)
            self._changed.notify_all()

    def _next(self) -> str | None:
        return next((lane for lane in self._lanes if lane not in self._at_work), None)
