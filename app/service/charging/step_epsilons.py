"""Epsilon in the answers to steps: looked up among knots that are computed ahead for the kinds of event in use.

A step whose counts no knot covers waits until some are computed, outside the write lock, as it would wait for the price
of a new event. Further knots are computed in a worker process before a step needs them.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from operator import ge
from threading import Lock
from typing import Final, NamedTuple

from app.accounting.curves import RdpCurve
from app.accounting.epsilon_knots import APART, Knot
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.tightest_epsilon import tightest_knots
from app.ledger.accounts.account_records import Counts
from app.ledger.errors import RateLimitedError
from app.persistence.lru_cache import LruCache
from app.service.costing import CostNotReadyError
from app.service.worker_pool import WORKER_POOL, Job

FIRST: Final = 24
"""Most knots that a step waits for."""

BEGIN: Final = 4
"""Knots that a step waits for at first: of few steps of tiny samples each takes long, and events may come in another
order."""

AHEAD: Final = 160
"""Knots that are computed before they are needed."""

MOST_COMPOSED: Final = 6
"""Most kinds of a run whose distributions are composed for the answers to its steps: while each kind is new, every step
would need lattices of its own. Of more, the answers have the epsilon of the Rényi curves."""

RATIO: Final = 1 + 1.1 * APART
"""Largest ratio of the epsilons of neighbouring knots between which the value of the second one counts."""

RECENT: Final = 64
"""Latest events of a run that are looked at to guess the next ones."""

NEAR: Final = 16
"""Knots before the last one from which on further ones are computed."""

MOST: Final = 1024
"""Maximum knots of a workload."""

REMEMBERED: Final = 1024
"""Workloads with knots."""

LOCKS: Final = 64

_Asked = tuple[NeighboringRelation, float, tuple[tuple[DpEvent, int], ...], tuple[DpEvent, ...], int]
"""What knots are computed from."""


class Workload(NamedTuple):
    """What knots are for: one kind of event of any run, or several kinds of one run.

    Args:
        run_id: empty for one kind.
        kinds: fingerprints of the events, sorted.
    """

    relation: NeighboringRelation
    delta: float
    run_id: str
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, relation: NeighboringRelation, delta: float, run_id: str, counts: Counts) -> "Workload":
        """Get the workload of a run's counts."""
        return cls(relation, delta, "" if len(counts) == 1 else run_id, tuple(sorted(counts)))


class _Knot(NamedTuple):
    """Counts in the order of the kinds, and an epsilon that holds up to them."""

    counts: tuple[int, ...]
    epsilon: float


@dataclass(slots=True, eq=False)
class _Knots:
    """Knots of a workload, increasing.

    Args:
        events: of its kinds, with their curves.
        recent: the latest events, by place among the kinds.
        asked: how many knots were computed at once.
        cycle: the events that were guessed to come next, again and again.
        reached: the place of the last knot that was found.
        totals: of the counts of each knot.
        further: the knots behind, which are being computed.
        is_last: whether there are none behind the last one, whose epsilon is infinite.
    """

    events: Mapping[DpEvent, RdpCurve]
    recent: deque[int]
    asked: int
    cycle: Sequence[DpEvent]
    knots: list[_Knot]
    reached: int = 0
    totals: list[int] = field(init=False)
    further: "Future[list[Knot]] | None" = None
    is_last: bool = False

    def __post_init__(self) -> None:
        """Sum the counts."""
        self.totals = [sum(knot.counts) for knot in self.knots]

    def job(
        self, relation: NeighboringRelation, delta: float, now: Mapping[DpEvent, int], number: int
    ) -> "Job[list[Knot]]":
        """Compute knots from some counts on."""
        return Job(tightest_knots, (now, self.cycle, self.events, relation, delta, number))

    def place(self, counts: tuple[int, ...]) -> int | None:
        """Find the first knot that has no fewer repetitions of any kind."""
        begin = bisect_left(self.totals, sum(counts))
        return next((at for at in range(begin, len(self.knots)) if _covers(self.knots[at].counts, counts)), None)

    def holds_at(self, place: int, counts: tuple[int, ...]) -> bool:
        """Check that the epsilon of a knot is little above that of counts which it covers."""
        knot = self.knots[place]
        if knot.counts == counts:
            return True
        before = self.knots[place - 1] if place else None
        return before is not None and _covers(counts, before.counts) and knot.epsilon <= before.epsilon * RATIO

    def end(self, place: int) -> int | None:
        """Find the last knot before a gap, if that is near; of one kind, several runs have computed knots."""
        for at in range(place, min(place + NEAR, len(self.knots) - 1)):
            apart = self.totals[at + 1] - self.totals[at]
            if apart > 1 and self.knots[at + 1].epsilon > self.knots[at].epsilon * RATIO:
                return at
        last = len(self.knots) - 1
        return last if place + NEAR >= last and not self.is_last else None

    def next_number(self) -> int:
        """Choose how many knots to compute: more if the last ones were of use, fewer if other events came."""
        if not self.asked:
            return BEGIN
        used = len(self.events) == 1 or self.reached + 1 >= len(self.knots)
        return min(2 * self.asked, FIRST) if used else max(self.asked // 2, 1)

    def guess(self, event: int) -> list[int]:
        """Guess the events after one, by place: the latest ones again, in the period that they kept for longest."""
        latest = [*self.recent, event]

        def kept(period: int) -> int:
            before = zip(reversed(latest), reversed(latest[:-period]), strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], before))

        period = max(range(1, len(latest)), key=kept, default=1)
        return latest[-period:]

    def with_knots(self, further: Sequence[_Knot]) -> "_Knots":
        """Copy these with knots along the cycle, of several kinds from the last one on, and with what follows them."""
        if len(self.events) > 1:
            knots = [*self.knots[-MOST // 2 : -1], *further]
        else:
            knots = sorted({knot.counts: knot for knot in (*further, *self.knots)}.values())[-MOST:]
        turned = (sum(further[-1].counts) - sum(further[0].counts)) % len(self.cycle)
        cycle = [*self.cycle[turned:], *self.cycle[:turned]]
        return _Knots(self.events, self.recent, self.asked, cycle, knots)


class StepEpsilons:
    """The knots of the workloads in use. They depend on nothing but mechanisms and counts."""

    def __init__(self) -> None:
        self._known: LruCache[Workload, _Knots] = LruCache(REMEMBERED)
        self._locks = [Lock() for _ in range(LOCKS)]
        """So that runs which lack the same knots compute them once."""
        self._computed: LruCache[_Asked, list[Knot]] = LruCache(REMEMBERED)
        """The knots that steps waited for: runs of one training that begin together have the same counts."""

    def find(self, workload: Workload, counts: Counts, event: str) -> tuple[int, float] | None:
        """Find the further repetitions of an event up to which an epsilon holds, and this; None: it is not known."""
        known = self._known.get(workload)
        if known is None:
            return None
        if known.further is not None and known.further.done():
            known = self._taken(workload, known, known.further)
        now, at = tuple([counts[kind] for kind in workload.kinds]), workload.kinds.index(event)
        place = known.place(now)
        if place is None or not known.holds_at(place, now):
            return None
        known.recent.append(at)
        known.reached = place
        self._continue(workload, known, place)
        knot = known.knots[place]
        return knot.counts[at] - now[at], knot.epsilon

    def missing(
        self, workload: Workload, counts: Counts, event: str, events: Mapping[str, tuple[DpEvent, RdpCurve]]
    ) -> CostNotReadyError:
        """Get what a charge of an event waits for: knots from these counts on; `events` has those of all kinds."""
        known = {events[kind][0]: events[kind][1] for kind in workload.kinds}
        now = dict(zip(known, (counts[kind] for kind in workload.kinds), strict=True))
        job = Job(self._compute, (workload, now, workload.kinds.index(event), known))
        return CostNotReadyError(job, needed=False)

    def _compute(
        self, workload: Workload, now: Mapping[DpEvent, int], event: int, curves: Mapping[DpEvent, RdpCurve]
    ) -> None:
        """Compute knots from some counts on, unless another thread has done it meanwhile."""
        counts = tuple(now.values())
        with self._locks[hash((workload.kinds, counts)) % len(self._locks)]:
            known = self._known.get(workload)
            if known is None:
                known = _Knots(curves, deque(maxlen=RECENT), 0, (), [])
            place = known.place(counts)
            if place is not None and known.holds_at(place, counts):
                return
            number, events = known.next_number(), list(curves)
            cycle = [events[at] for at in known.guess(event)]
            kept = _Knots(curves, known.recent, number, cycle, known.knots if len(curves) == 1 else [])
            asked = (workload.relation, workload.delta, tuple(now.items()), tuple(cycle), number)
            found = self._computed.get(asked)
            if found is None:
                found = kept.job(workload.relation, workload.delta, now, number).result()
                self._computed.put(asked, found)
            self._known.put(workload, kept.with_knots(_in_order(curves, found)))

    def _continue(self, workload: Workload, known: _Knots, place: int) -> None:
        """Begin to compute the knots behind the last ones, where these are near."""
        end = known.end(place) if known.further is None else None
        if end is None:
            return
        last = dict(zip(known.events, known.knots[end].counts, strict=True))
        with suppress(RateLimitedError):
            job = known.job(workload.relation, workload.delta, last, AHEAD)
            known.further = WORKER_POOL.submit("epsilons", job)

    def _taken(self, workload: Workload, known: _Knots, computed: "Future[list[Knot]]") -> _Knots:
        """Take the knots that were computed ahead."""
        further = [] if computed.exception() is not None else computed.result()
        known.further, known.is_last = None, len(further) == 1
        if len(further) > 1:
            known = known.with_knots(_in_order(known.events, further))
            self._known.put(workload, known)
        return known


STEP_EPSILONS: Final = StepEpsilons()
"""The knots of this process."""


def _in_order(events: Mapping[DpEvent, object], knots: Sequence[Knot]) -> list[_Knot]:
    return [_Knot(tuple([knot.counts[event] for event in events]), knot.epsilon) for knot in knots]


def _covers(most: Sequence[int], counts: Sequence[int]) -> bool:
    return all(map(ge, most, counts))
