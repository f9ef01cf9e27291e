"""Knots of a workload: counts with epsilons, which rise along the events that are guessed to come next."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import takewhile
from operator import ge
from typing import Final, NamedTuple

from app.accounting.curves import RdpCurve
from app.accounting.epsilon_knots import APART, Knot
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.tightest_epsilon import tightest_knots
from app.service.worker_pool import Job

FIRST: Final = 24
"""Most knots that a step waits for."""

BEGIN: Final = 4
"""Knots that a step of one kind waits for at first: of few steps of tiny samples each takes long. Of several kinds it
waits for one, since the next event is often of a further kind."""

AHEAD: Final = 160
"""Most knots that are computed before they are needed."""

RATIO: Final = 1 + 1.1 * APART
"""Largest ratio of the epsilons of neighbouring knots between which the value of the second one counts."""

RECENT: Final = 64
"""Latest events of a run that are looked at to guess the next ones."""

TOGETHER: Final = 8
"""Knots that are found together."""

NEAR: Final = 3 * TOGETHER
"""Knots before the last one from which on further ones are computed."""

MOST: Final = 512
"""Maximum earlier knots of several kinds."""


class PlacedKnot(NamedTuple):
    """Counts in the order of the kinds, and an epsilon that holds up to them."""

    counts: tuple[int, ...]
    epsilon: float


@dataclass(slots=True, eq=False)
class Knots:
    """Knots of a workload, increasing.

    Args:
        events: of its kinds, with their curves.
        recent: the latest events, by place among the kinds.
        asked: how many knots were computed at once.
        cycle: the events that were guessed to come next, again and again.
        reached: the place of the last knot that was found.
        ahead: how many knots were computed last before they were needed.
        totals: of the counts of each knot.
        ends: for each knot, the place of the last one before a gap behind it.
        further: the knots behind, which are being computed.
        is_last: whether there are none behind the last one, whose epsilon is infinite.
    """

    events: Mapping[DpEvent, RdpCurve]
    recent: deque[int]
    asked: int
    cycle: Sequence[DpEvent]
    knots: list[PlacedKnot]
    reached: int = 0
    ahead: int = BEGIN
    totals: list[int] = field(init=False)
    ends: list[int] = field(init=False)
    further: "Future[list[Knot]] | None" = None
    is_last: bool = False

    def __post_init__(self) -> None:
        """Sum the counts, and find the gaps."""
        self.totals = [sum(knot.counts) for knot in self.knots]
        self.ends = []
        for at in reversed(range(len(self.knots))):
            self.ends.append(self.ends[-1] if self.ends and not self._is_gap(at) else at)
        self.ends.reverse()

    def _is_gap(self, at: int) -> bool:
        """Check whether the counts between a knot and the next one have no epsilon."""
        apart = self.totals[at + 1] - self.totals[at]
        return apart > 1 and self.knots[at + 1].epsilon > self.knots[at].epsilon * RATIO

    @classmethod
    def none(cls, events: Mapping[DpEvent, RdpCurve]) -> "Knots":
        """Begin without knots."""
        return cls(events, deque(maxlen=RECENT), 0, (), [])

    def job(
        self, relation: NeighboringRelation, delta: float, now: Mapping[DpEvent, int], number: int
    ) -> "Job[list[Knot]]":
        """Compute knots from some counts on."""
        return Job(tightest_knots, (now, self.cycle, self.events, relation, delta, number))

    def place(self, counts: tuple[int, ...]) -> int | None:
        """Find the first knot that has no fewer repetitions of any kind."""
        for at in range(bisect_left(self.totals, sum(counts)), len(self.knots)):
            if _covers(self.knots[at].counts, counts):
                return at
        return None

    def holds_at(self, place: int, counts: tuple[int, ...]) -> bool:
        """Check that the epsilon of a knot is little above that of counts which it covers."""
        knot = self.knots[place]
        if knot.counts == counts:
            return True
        before = self.knots[place - 1] if place else None
        return before is not None and _covers(counts, before.counts) and knot.epsilon <= before.epsilon * RATIO

    def end(self, place: int) -> int | None:
        """Find the last knot before a gap, if that is near; of one kind, several runs have computed knots."""
        end = self.ends[place]
        near = end <= place + NEAR and not (self.is_last and end == len(self.knots) - 1)
        return end if near else None

    def next_number(self) -> int:
        """Choose how many knots to compute: more if the last ones were of use, fewer if other events came."""
        single = len(self.events) == 1
        if not self.asked:
            return BEGIN if single else 1
        used = single or self.reached + 1 >= len(self.knots)
        return min(2 * self.asked, FIRST) if used else max(self.asked // 2, 1)

    def next_ahead(self) -> int:
        """Choose how many knots to compute before they are needed: ever more, since most workloads are left soon."""
        self.ahead = min(4 * self.ahead, AHEAD)
        return self.ahead

    def guess(self, event: int) -> list[int]:
        """Guess the events after one, by place: the latest ones again, in the period that they kept for longest."""
        latest = [*self.recent, event]

        def kept(period: int) -> int:
            before = zip(reversed(latest), reversed(latest[:-period]), strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], before))

        period = max(range(1, len(latest)), key=kept, default=1)
        return latest[-period:]

    def with_knots(self, computed: Sequence[Knot]) -> "Knots":
        """Copy these with knots along the cycle, of several kinds from the last one on, and with what follows them."""
        further = [PlacedKnot(tuple([knot.counts[event] for event in self.events]), knot.epsilon) for knot in computed]
        if len(self.events) > 1:
            knots = [*self.knots[-MOST:-1], *further]
        else:
            knots = _thinned(sorted({knot.counts: knot for knot in (*further, *self.knots)}.values()))
        turned = (sum(further[-1].counts) - sum(further[0].counts)) % len(self.cycle)
        cycle = [*self.cycle[turned:], *self.cycle[:turned]]
        return Knots(self.events, self.recent, self.asked, cycle, knots, ahead=self.ahead)


def _thinned(knots: Sequence[PlacedKnot]) -> list[PlacedKnot]:
    """Leave out the knots that others make superfluous: about 2,000 are enough for a billion repetitions."""
    kept: list[PlacedKnot] = []
    for knot in knots:
        while len(kept) > 1 and knot.epsilon <= kept[-2].epsilon * RATIO:
            kept.pop()
        kept.append(knot)
    return kept


def _covers(most: Sequence[int], counts: Sequence[int]) -> bool:
    return all(map(ge, most, counts))
