"""Plans that arrive at blocks, decided by the service's rules."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final

import numpy as np

from app.ledger.accounts.account import Account
from app.ledger.filter.filters import filter_bounds
from app.ledger.scheduling.queue import Ledgers, WaitingReservation, schedule
from app.ledger.scheduling.scheduling_rules import Line
from app.ledger.scheduling.withholding import Withholding
from app.ledger.settings.allocation import ALL, Allocation, Unlock, UnlockByReservations, UnlockOverTime
from app.ledger.step_events import PricedStep
from benchmarks.allocation.blocks import BlockFilter, make_block, make_run, used_part, within_limits

START: Final = datetime(2026, 1, 1, tzinfo=UTC)

SLOWED: Final = 1000
"""Our seconds for one of a workload: a part of a limit is locked for at least a second, and the papers' for less."""

Unlocking = Callable[[datetime], Unlock]
"""Makes the unlocking of a block by the time of its creation."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A plan that asks for all of some blocks' budget or nothing.

    Args:
        at: seconds since the start.
        demand: on each block.
        blocks: increasing indices.
        is_small: whether it is one of the mice.
    """

    at: float
    demand: PricedStep
    blocks: tuple[int, ...]
    is_small: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """What arrives.

    Args:
        blocks: their filter.
        born: when each block is created, increasing seconds.
        arrivals: increasing in time.
        timeout: seconds after which a plan waits no longer; None: it waits to the end.
    """

    blocks: BlockFilter
    born: tuple[float, ...]
    arrivals: tuple[Arrival, ...]
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a workload.

    Args:
        delays: seconds that each granted plan waited, by its index.
        blocks: at the end.
        small: number of the granted plans that are mice.
        fair: indices of the plans that asked for no more than a fair share of any block, by PrivateKube's definition.
    """

    delays: dict[int, float]
    blocks: tuple[Account, ...]
    small: int
    fair: frozenset[int] = frozenset()

    @property
    def granted(self) -> int:
        """Number of granted plans."""
        return len(self.delays)

    @property
    def efficiency(self) -> float:
        """Mean part of the blocks' limits that was granted."""
        return float(np.mean([used_part(block) for block in self.blocks]))

    @property
    def fairness(self) -> float:
        """Part of the fair plans that was granted; NaN if there are none."""
        return len(self.fair & self.delays.keys()) / len(self.fair) if self.fair else float("nan")

    def delay(self, quantile: float) -> float:
        """Compute a quantile of the granted plans' delays in seconds; NaN if there are none."""
        return float(np.quantile(list(self.delays.values()), quantile)) if self.delays else float("nan")


@dataclass
class _State:
    """The blocks of a simulation, and how much of each is unlocked."""

    ledgers: Ledgers
    line: Line
    unlocks: list[Unlock | None]
    names: list[str]
    arrived: dict[int, int] = field(default_factory=dict)

    def unlock(self, indices: Collection[int], now: datetime) -> list[str]:
        """Unlock what is due of some blocks; returns those of which more is usable now."""
        changed = []
        for index in indices:
            unlock, known = self.unlocks[index], self.ledgers.withholdings.get(self.names[index])
            if unlock is None or known is None or known.unlocked == ALL:
                continue
            if isinstance(unlock, UnlockByReservations):
                fraction = unlock.fraction(self.arrived.get(index, 0))
            else:
                fraction = unlock.fraction(now)
            if fraction != known.unlocked:
                self.ledgers.withholdings[self.names[index]] = replace(known, unlocked=fraction)
                changed.append(self.names[index])
        return changed

    def is_unlocked(self, name: str) -> bool:
        """Check whether all of a block is usable."""
        known = self.ledgers.withholdings.get(name)
        return known is None or known.unlocked == ALL

    def decide(
        self, waiting: Sequence[WaitingReservation], now: datetime, batch: int | None
    ) -> list[WaitingReservation]:
        """Grant waiting plans; they are sorted anew after a batch of grants."""
        granted: list[WaitingReservation] = []
        while waiting:
            order = self.line.order(waiting, self.ledgers, now)
            found = []
            for grant in schedule(order, (), self.ledgers):
                found.append(grant.standing.reservation)
                if len(found) == batch:
                    break
            for plan in found:
                self.line.remove(plan.id)
            granted += found
            if batch is None or len(found) < batch:
                break
            done = {plan.id for plan in found}
            waiting = [plan for plan in waiting if plan.id not in done]
        return granted

    def drop_hopeless(self, names: Collection[str]) -> None:
        """Let go of plans that do not fit a block of which all is unlocked: here nothing is ever returned."""
        for name in names:
            if self.is_unlocked(name):
                fitting = {plan.id for plan in self.line.candidates(self.ledgers, [name])}
                for plan in self.line.through([name]):
                    if plan.id not in fitting:
                        self.line.remove(plan.id)


def simulate(workload: Workload, line: Line, unlocking: Unlocking | None = None) -> Outcome:
    """Decide at each arrival, as PrivateKube does: first unlock, then try the plans that this may have made fit."""
    state, plans = _begin(workload, line, unlocking)
    growing: set[int] = set()
    unborn = deque(enumerate(workload.born))
    waiting = deque(enumerate(workload.arrivals))
    delays: dict[int, float] = {}
    for index, arrival in enumerate(workload.arrivals):
        now = _time(arrival.at)
        while unborn and unborn[0][1] <= arrival.at:
            growing.add(unborn.popleft()[0])
        while workload.timeout is not None and waiting[0][1].at + workload.timeout <= arrival.at:
            old, _ = waiting.popleft()
            if plans[old].id in state.line.reservations:
                state.line.remove(plans[old].id)
        plan = plans[index]
        state.line.add(plan)
        for block in arrival.blocks:
            state.arrived[block] = state.arrived.get(block, 0) + 1
        only_asked = isinstance(state.unlocks[0], UnlockByReservations)
        changed = state.unlock(arrival.blocks if only_asked else growing, now)
        growing -= {block for block in growing if state.is_unlocked(state.names[block])}
        tried = state.line.candidates(state.ledgers, changed)
        if not set(plan.path) & set(changed):
            tried.append(plan)
        granted = state.decide(tried, now, None)
        for each in granted:
            of = int(each.id)
            delays[of] = arrival.at - workload.arrivals[of].at
        state.drop_hopeless({*changed, *(name for each in granted for name in each.path[:-1]), *plan.path[:-1]})
    return _outcome(workload, state, delays)


def simulate_batches(
    workload: Workload,
    line: Line,
    times: Sequence[float],
    unlocking: Unlocking | None = None,
    batch: int | None = None,
) -> Outcome:
    """Decide at given times over all that waits, as DPack does; plans are sorted anew after a batch of grants."""
    state, plans = _begin(workload, line, unlocking)
    waiting = deque(enumerate(workload.arrivals))
    delays: dict[int, float] = {}
    for time in times:
        while waiting and waiting[0][1].at <= time:
            state.line.add(plans[waiting.popleft()[0]])
        born = [index for index, at in enumerate(workload.born) if at <= time]
        state.unlock(born, _time(time))
        for plan in state.decide(list(state.line.reservations.values()), _time(time), batch):
            of = int(plan.id)
            delays[of] = time - workload.arrivals[of].at
    return _outcome(workload, state, delays)


def by_reservations(number: int) -> Unlocking:
    """Unlock a block by its first plans: DPF-N."""
    return lambda since: UnlockByReservations(since, number)


def over_time(seconds: float, parts: int) -> Unlocking:
    """Unlock a block over some of the workload's seconds: DPF-T."""
    return lambda since: UnlockOverTime(since, timedelta(seconds=seconds * SLOWED), parts)


def fair_plans(workload: Workload, number: int) -> frozenset[int]:
    """Find the plans among the first of each of their blocks that ask for at most a fair share at all orders.

    `number` is how many have a fair share. The filter must be fixed. Source: Luo et al., Definition of a fair demand.
    """
    weights = workload.blocks.weights
    if weights is None:
        return frozenset()
    bounds = filter_bounds(workload.blocks.limit, weights, 1)
    usable = bounds.bounds > 0
    places = bounds.places[usable]
    arrived: dict[int, int] = {}
    found = set()
    for index, arrival in enumerate(workload.arrivals):
        for each in arrival.blocks:
            arrived[each] = arrived.get(each, 0) + 1
        small = (arrival.demand.cost.values[places] * number <= bounds.bounds[usable]).all()
        if small and all(arrived[each] <= number for each in arrival.blocks):
            found.add(index)
    return frozenset(found)


def _begin(
    workload: Workload, line: Line, unlocking: Unlocking | None
) -> tuple[_State, tuple[WaitingReservation, ...]]:
    blocks = [make_block(index, workload.blocks) for index in range(len(workload.born))]
    runs = [make_run(index, blocks[arrival.blocks[0]]) for index, arrival in enumerate(workload.arrivals)]
    plans = tuple(
        WaitingReservation(
            f"{index:06}", (*(blocks[each].id for each in arrival.blocks), run.id), (arrival.demand,), at
        )
        for index, (arrival, run) in enumerate(zip(workload.arrivals, runs, strict=True))
        for at in [_time(arrival.at)]
    )
    unlocks = [None if unlocking is None else unlocking(_time(born)) for born in workload.born]
    locked = {
        block.id: Withholding(Allocation(unlock=unlock), unlocked=Fraction(0))
        for block, unlock in zip(blocks, unlocks, strict=True)
        if unlock is not None
    }
    ledgers = Ledgers({account.id: account for account in (*blocks, *runs)}, locked)
    return _State(ledgers, line, unlocks, [block.id for block in blocks]), plans


def _outcome(workload: Workload, state: _State, delays: dict[int, float]) -> Outcome:
    blocks = tuple(state.ledgers.accounts[name] for name in state.names)
    assert all(map(within_limits, blocks)), "no block is past its limit"
    return Outcome(delays, blocks, sum(workload.arrivals[each].is_small for each in delays))


def _time(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds * SLOWED)
