"""What steps cost: computed once for each event, outside the writers' lock, then read from the ledger."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation, fingerprint
from app.accounting.work import MOST_WORK, curve_work
from app.ledger.accounts import Account, PricedStep, StepEvent
from app.ledger.noise_search import noise_that_fits
from app.persistence.repositories import dp_events
from app.persistence.repositories.dp_events import CostTable
from app.service.worker_pool.costs import price_events
from app.service.worker_pool.pool import WORKER_POOL, Job

T = TypeVar("T")
MAX_SEARCHES = 3
"""How often a busy account may change under a search before the refusal goes without its result."""

LITTLE_WORK: Final = 25_000
"""Microseconds: what takes no longer is computed by a thread of this process. Most events are a thirtieth of it."""

USUAL_TRIALS: Final = 15
"""Curves that a search for noise computes, mostly."""


@dataclass
class PrecomputedCosts:
    """What was computed for one request, outside the writers' lock.

    Args:
        prices: curves of events, by what decides them besides: a relation, and a version of the grid.
        noises: the noise that fits, by the state of the accounts and the charge.
        searches: how often noise that fits was searched.
    """

    prices: dict[tuple[NeighboringRelation, int, DpEvent], RdpCurve] = field(default_factory=dict)
    noises: dict[Hashable, float | None] = field(default_factory=dict)
    searches: int = 0

    def curve(self, account: Account, event: DpEvent) -> RdpCurve:
        """What was computed of an event under an account's rules."""
        return self.prices[account.relation, account.grid_version, event]

    def require(self, account: Account, wanted: Iterable[DpEvent]) -> None:
        """Leave the transaction if an event that it will price was not computed before.

        Raises:
            UnpreparedError: caught by `prepared`.
        """
        rule = (account.relation, account.grid_version)
        unpriced = [event for event in wanted if (*rule, event) not in self.prices]
        if unpriced:
            now, work = _as_many_as_fit(unpriced)

            def keep(curves: list[RdpCurve]) -> None:
                self.prices.update({(*rule, event): curve for event, curve in zip(now, curves, strict=True)})

            raise CostNotReadyError(Job(price_events, (now, *rule)), keep, work)

    def noise_that_fits(self, path: Sequence[Account], steps: Sequence[PricedStep]) -> float | None:
        """As in the ledger's admission, but searched outside the transaction.

        Returns:
            As there; None also where the accounts changed under every search.

        Raises:
            UnpreparedError: caught by `prepared`.
        """
        if len(steps) > 1:
            return None
        state = (tuple((account.id, account.version) for account in path), steps[0].step)
        if state not in self.noises:
            if self.searches >= MAX_SEARCHES:
                return None

            def keep(noise: float | None) -> None:
                self.searches += 1
                self.noises[state] = noise

            work = USUAL_TRIALS * curve_work(steps[0].step.event, few=False)
            raise CostNotReadyError(Job(noise_that_fits, (tuple(path), tuple(steps))), keep, work)
        return self.noises[state]


class CostNotReadyError(Exception):
    """A transaction needs something that takes milliseconds to compute; it must not compute it while others wait.

    Args:
        calculation: what is to be computed before the work is begun anew.
        keep: is given its result.
        work: about how much it is, in microseconds.
    """

    def __init__(self, calculation: Job[Any], keep: Callable[[Any], None] = lambda _: None, work: int = 0) -> None:
        super().__init__("something must be computed first")
        self._calculation = calculation
        self._keep = keep
        self._work = work

    def compute(self, organisation_id: str) -> None:
        """Compute it, and wait: by this thread, or by another process if it takes long.

        Args:
            organisation_id: who waits in turn with others.

        Raises:
            RateLimitedError: too many calculations of the organisation wait.
        """
        if self._work <= LITTLE_WORK:
            self._keep(self._calculation.result())
        else:
            self._keep(WORKER_POOL.submit(_lane(organisation_id), self._calculation).result())

    async def computed(self, organisation_id: str) -> None:
        """As `compute`, while the event loop goes on.

        Args:
            organisation_id: who waits in turn with others.

        Raises:
            RateLimitedError: as `compute`.
        """
        if self._work <= LITTLE_WORK:
            await asyncio.to_thread(self.compute, organisation_id)
        else:
            self._keep(await asyncio.wrap_future(WORKER_POOL.submit(_lane(organisation_id), self._calculation)))


def _lane(organisation_id: str) -> str:
    """Where an organisation's prices wait: whoever trains does not stand behind its people's plans."""
    return f"prices {organisation_id}"


def _as_many_as_fit(events: Sequence[DpEvent]) -> tuple[list[DpEvent], int]:
    """Events from the first on that are together no more work than one calculation may be, and their work."""
    chosen: list[DpEvent] = []
    total = 0
    for event in events:
        work = curve_work(event, few=False)
        if chosen and total + work > MOST_WORK:
            break
        chosen.append(event)
        total += work
    return chosen, total


def run_with_costs(organisation_id: str, work: Callable[[PrecomputedCosts], T]) -> T:
    """Do a unit of work that begins its own transaction, and again when something was not computed yet.

    The transaction that finds it missing is given up before it has changed anything, the computing is done without
    the lock, and the work begins anew.

    Args:
        organisation_id: whose work it is.
        work: is given what was computed so far.

    Returns:
        What the work returns.

    Raises:
        UnsupportedEventError: an event has no sound bound under the population's relation.
        RateLimitedError: too many calculations of the organisation wait.
    """
    ready = PrecomputedCosts()
    while True:
        try:
            return work(ready)
        except CostNotReadyError as missing:
            missing.compute(organisation_id)


def cost_steps(
    tx: Connection, organisation_id: str, account: Account, steps: Sequence[StepEvent], ready: PrecomputedCosts
) -> list[PricedStep]:
    """Price step events by the ledger's price list, or by what was computed for it.

    Args:
        tx: the caller's transaction.
        organisation_id: whose ledger.
        account: any account of the population; its relation and grid hold.
        steps: what is to be priced.
        ready: has the curves that the list may lack.

    Returns:
        The steps, in order.

    Raises:
        UnpreparedError: neither the list nor `ready` has an event.
    """
    kept = CostTable(organisation_id, account.relation, account.grid_version)
    curves = dp_events.find_curves(tx, kept, (fingerprint(step.event) for step in steps))
    missing = {step.event for step in steps if fingerprint(step.event) not in curves}
    ready.require(account, missing)
    curves |= {fingerprint(event): ready.curve(account, event) for event in missing}
    return [PricedStep(step, curves[fingerprint(step.event)]) for step in steps]
