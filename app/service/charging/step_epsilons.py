"""Epsilon in the answers to steps: looked up among knots that are computed ahead for the kinds of event in use.

A step whose counts no knot covers waits until some are computed, outside the write lock, as it would wait for the price
of a new event. The knots behind the last third are computed before a step needs them.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from operator import ge
from typing import Final, NamedTuple

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.tightest_epsilon import APART, Knot, knots_ahead
from app.ledger.accounts.account_records import Counts
from app.ledger.errors import RateLimitedError
from app.persistence.lru_cache import LruCache
from app.service.costing import CostNotReadyError
from app.service.worker_pool import WORKER_POOL, Job

FIRST: Final = 32
"""Knots that a step waits for."""

FEW: Final = 4
"""Knots that a step waits for where several kinds of few events come in turn, so that most knots would not be used."""

MOST_APART: Final = 1.0045
"""Largest ratio of the epsilons of neighbouring knots between which the value of the second one counts."""

AHEAD: Final = 160
"""Knots that are computed before they are needed."""

OF_A_KIND: Final = 15_000
"""Microseconds for the distribution of an event, about; then knots take little."""

REMEMBERED: Final = 4096
"""Runs and events with knots."""


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


@dataclass(slots=True, eq=False)
class _Knots:
    """Knots of a workload, increasing.

    Args:
        events: of its kinds, with their curves.
        origin: counts of an earlier time, since which the growth is looked at.
        mix: ratio in which the counts grow.
        totals: of the counts of each knot.
        further: the knots behind, which are being computed.
    """

    events: Mapping[DpEvent, RdpCurve]
    origin: tuple[int, ...]
    mix: tuple[int, ...]
    knots: tuple[Knot, ...]
    totals: list[int] = field(init=False)
    further: "Future[tuple[Knot, ...]] | None" = None

    def __post_init__(self) -> None:
        """Sum the counts."""
        self.totals = [sum(knot.counts) for knot in self.knots]

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
        return before is not None and _covers(counts, before.counts) and knot.epsilon <= before.epsilon * MOST_APART


class StepEpsilons:
    """The knots of the workloads in use. They depend on nothing but mechanisms and counts."""

    def __init__(self) -> None:
        self._known: LruCache[Workload, _Knots] = LruCache(REMEMBERED)

    def find(self, workload: Workload, counts: Counts, event: str) -> tuple[int, float] | None:
        """Find the further repetitions of an event up to which an epsilon holds, and this; None: it is not known."""
        known = self._known.get(workload)
        if known is None:
            return None
        now = tuple([counts[kind] for kind in workload.kinds])
        place = known.place(now)
        if place is None:
            return None
        if 3 * place > 2 * len(known.knots):
            self._continue(workload, known)
        if not known.holds_at(place, now):
            return None
        knot, at = known.knots[place], workload.kinds.index(event)
        return knot.counts[at] - now[at], knot.epsilon

    def missing(
        self, workload: Workload, counts: Counts, event: str, events: Mapping[str, tuple[DpEvent, RdpCurve]]
    ) -> CostNotReadyError:
        """Get what a charge of an event waits for: knots from these counts on; `events` has those of all kinds."""
        now = tuple(counts[kind] for kind in workload.kinds)
        known = self._known.get(workload)
        origin = (0,) * len(now) if known is None else known.origin
        grown = tuple(max(each - before, 0) for each, before in zip(now, origin, strict=True))
        mix = grown if known is not None and any(grown) else tuple(int(kind == event) for kind in workload.kinds)
        if known is None or sum(grown) > sum(now) // 4:
            origin = now
        curves = dict(events[kind] for kind in workload.kinds)
        number = FIRST if len(now) == 1 or sum(now) * APART >= 1 else FEW
        question = (curves, now, mix, workload.relation, workload.delta, number)

        def keep(found: tuple[Knot, ...] | None) -> None:
            knots = found or knots_ahead(*question, distributions=False)
            self._known.put(workload, _Knots(curves, origin, mix, knots))

        return CostNotReadyError(Job(knots_ahead, question), keep, OF_A_KIND * len(now), needed=False)

    def _continue(self, workload: Workload, known: _Knots) -> None:
        """Begin to compute further knots, or take those that are computed."""
        if known.further is None:
            question = (known.events, known.knots[-1].counts, known.mix, workload.relation, workload.delta, AHEAD)
            with suppress(RateLimitedError):
                known.further = WORKER_POOL.submit("epsilons", Job(knots_ahead, question))
        elif known.further.done():
            further = () if known.further.exception() is not None else known.further.result()
            known.further = None
            if further:
                kept = known.knots[len(known.knots) // 2 : -1]
                self._known.put(workload, _Knots(known.events, known.origin, known.mix, (*kept, *further)))


STEP_EPSILONS: Final = StepEpsilons()
"""The knots of this process."""


def _covers(most: Sequence[int], counts: Sequence[int]) -> bool:
    return all(map(ge, most, counts))
