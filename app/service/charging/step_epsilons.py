"""Epsilon in the answers to steps: looked up among knots that are computed ahead for the kinds of event in use.

A step whose counts no knot covers waits until some are computed, outside the write lock, as it would wait for the price
of a new event. Further knots are computed in a worker process before a step needs them.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import Final, NamedTuple

from app.accounting.curves import RdpCurve
from app.accounting.epsilon_knots import Knot
from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger.accounts.account_records import Counts
from app.ledger.admission.epsilons_ahead import EpsilonsAhead
from app.ledger.errors import RateLimitedError
from app.persistence.lru_cache import LruCache
from app.service.charging.workload_knots import TOGETHER, Knots
from app.service.costing import CostNotReadyError
from app.service.worker_pool import WORKER_POOL, Job

MOST_COMPOSED: Final = 6
"""Most kinds of a run whose distributions are composed for the answers to its steps: while each kind is new, every step
would need lattices of its own. Of more, the answers have the epsilon of the Rényi curves."""

REMEMBERED: Final = 1024
"""Workloads with knots."""

MOST_WAITED: Final = 16
"""Calculations that are waited for at a time; meanwhile, further steps have the epsilon of their Rényi curves."""

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


class StepEpsilons:
    """The knots of the workloads in use. They depend on nothing but mechanisms and counts."""

    def __init__(self) -> None:
        self._known: LruCache[Workload, Knots] = LruCache(REMEMBERED)
        self._lock = Lock()
        """So that runs which lack the same knots compute them once, and leave the interpreter to others."""
        self.waited = 0
        """Calculations that are waited for."""
        self._computed: LruCache[_Asked, list[Knot]] = LruCache(REMEMBERED)
        """The knots that steps waited for: runs of one training that begin together have the same counts."""

    def find(self, workload: Workload, counts: Counts, event: str) -> EpsilonsAhead | None:
        """Find the epsilon of counts, of which an event came last, and those of the next knots; None: not known."""
        known = self._known.get(workload)
        if known is None:
            return None
        if known.further is not None and known.further.done():
            known = self._taken(workload, known, known.further)
        now = tuple([counts[kind] for kind in workload.kinds])
        place = known.place(now)
        if place is None or not known.holds_at(place, now):
            return None
        known.recent.append(workload.kinds.index(event))
        known.reached = place
        # The first step of a workload may be its last one.
        end = known.end(place) if len(known.recent) > 1 and known.further is None else None
        if end is not None:
            self._continue(workload, known, end)
        # Of several kinds, the next knot holds only where these come in the order that was guessed.
        number = TOGETHER if len(workload.kinds) == 1 else 1
        found = known.knots[place : min(place + number, known.ends[place] + 1)]
        most = {kind: [knot.counts[at] for knot in found] for at, kind in enumerate(workload.kinds)}
        return EpsilonsAhead(most, [knot.epsilon for knot in found])

    @property
    def is_busy(self) -> bool:
        """Whether no further step should wait."""
        return self.waited >= MOST_WAITED

    def missing(
        self, workload: Workload, counts: Counts, event: str, events: Mapping[str, tuple[DpEvent, RdpCurve]]
    ) -> "EpsilonNotReadyError":
        """Get what a charge of an event waits for: knots from these counts on; `events` has those of all kinds."""
        known = {events[kind][0]: events[kind][1] for kind in workload.kinds}
        now = dict(zip(known, (counts[kind] for kind in workload.kinds), strict=True))
        job = Job(self._compute, (workload, now, workload.kinds.index(event), known))
        return EpsilonNotReadyError(self, job)

    def _compute(
        self, workload: Workload, now: Mapping[DpEvent, int], event: int, curves: Mapping[DpEvent, RdpCurve]
    ) -> None:
        """Compute knots from some counts on, unless another thread has done it meanwhile."""
        counts = tuple(now.values())
        with self._lock:
            known = self._known.get(workload)
            if known is None:
                known = Knots.none(curves)
            place = known.place(counts)
            if place is not None and known.holds_at(place, counts):
                return
            number, events = known.next_number(), list(curves)
            cycle = [events[at] for at in known.guess(event)]
            before = known.knots if len(curves) == 1 else []
            kept = Knots(curves, known.recent, number, cycle, before, ahead=known.ahead)
            asked = (workload.relation, workload.delta, tuple(now.items()), tuple(cycle), number)
            found = self._computed.get(asked)
            if found is None:
                found = kept.job(workload.relation, workload.delta, now, number).result()
                self._computed.put(asked, found)
            self._known.put(workload, kept.with_knots(found))

    def _continue(self, workload: Workload, known: Knots, end: int) -> None:
        """Begin to compute the knots behind one."""
        last = dict(zip(known.events, known.knots[end].counts, strict=True))
        with suppress(RateLimitedError):
            job = known.job(workload.relation, workload.delta, last, known.next_ahead())
            known.further = WORKER_POOL.submit("epsilons", job)

    def _taken(self, workload: Workload, known: Knots, computed: "Future[list[Knot]]") -> Knots:
        """Take the knots that were computed ahead."""
        further = [] if computed.exception() is not None else computed.result()
        known.further, known.is_last = None, len(further) == 1
        if len(further) > 1:
            known = known.with_knots(further)
            self._known.put(workload, known)
        return known


class EpsilonNotReadyError(CostNotReadyError):
    """A step needs knots, which are counted while it waits for them."""

    def __init__(self, table: StepEpsilons, job: "Job[None]") -> None:
        super().__init__(job)
        self._table = table

    async def computed(self, organisation_id: str) -> None:
        """Compute the knots without blocking the event loop."""
        self._table.waited += 1
        try:
            await super().computed(organisation_id)
        finally:
            self._table.waited -= 1


STEP_EPSILONS: Final = StepEpsilons()
"""The knots of this process."""
