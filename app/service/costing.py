"""Costs of steps, computed once per event outside the write lock."""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pricing_effort import MAX_PLAN_WORK, MAX_WORK, curve_work
from app.accounting.rdp import event_curves
from app.ledger.accounts.account import Account
from app.ledger.admission.alternatives import Alternatives, RemainingTraining, unsearched
from app.ledger.errors import LedgerUnavailableError, RateLimitedError
from app.ledger.filter.filters import FilterWeights
from app.ledger.fitting.alternative_search import find_alternatives
from app.ledger.repeated_events import distinct, map_once
from app.ledger.step_events import PricedStep, StepEvent
from app.persistence.lru_cache import LruCache
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.service.worker_pool import WORKER_POOL, Job

MAX_SEARCHES = 3
"""Searches for the alternatives to a refused request on changing accounts, before the refusal omits them."""

LITTLE_WORK: Final = 25_000
"""Microseconds up to which a thread of this process computes; most events take a thirtieth of it."""

USUAL_TRIALS: Final = 10
"""Typical number of curves that a search for alternatives computes."""


_WEIGHTS: Final[LruCache[Job[Any], tuple[FilterWeights | None]]] = LruCache(1024)
"""Weights by what chooses them: the runs of a sweep have equal plans. They depend on nothing else."""


@dataclass
class PrecomputedCosts:
    """Costs computed for one request outside the write lock.

    Args:
        prices: curves by relation, grid version and event.
        found: alternatives to a refused request, by the accounts' state and the charge.
        searches: number of searches for them.
    """

    prices: dict[tuple[NeighboringRelation, int, DpEvent], RdpCurve] = field(default_factory=dict)
    found: dict[Hashable, Alternatives] = field(default_factory=dict)
    searches: int = 0

    def curve(self, account: Account, event: DpEvent) -> RdpCurve:
        """Return the precomputed curve of an event under an account's rules."""
        return self.prices[account.relation, account.grid_version, event]

    def require(self, account: Account, wanted: Iterable[DpEvent]) -> None:
        """Abort the transaction unless all events are precomputed.

        Raises:
            CostNotReadyError: handled by `RequestContext.run_with_costs`.
        """
        rule = (account.relation, account.grid_version)
        unpriced = [event for event in wanted if (*rule, event) not in self.prices]
        if unpriced:
            now, work = _as_many_as_fit(unpriced, account.relation)

            def keep(curves: list[RdpCurve]) -> None:
                self.prices.update({(*rule, event): curve for event, curve in zip(now, curves, strict=True)})

            raise CostNotReadyError(Job(event_curves, (now, *rule)), keep, work)

    def filter_weights(self, calculation: Job[FilterWeights] | Job[FilterWeights | None]) -> FilterWeights | None:
        """Return the weights of a filter, which takes up to a second to choose for a plan.

        Raises:
            CostNotReadyError: handled by `RequestContext.run_with_costs`.
        """
        found = _WEIGHTS.get(calculation)
        if found is None:
            raise CostNotReadyError(calculation, lambda weights: _WEIGHTS.put(calculation, (weights,)), MAX_WORK)
        [weights] = found
        return weights

    def alternatives(
        self, path: Sequence[Account], steps: Sequence[PricedStep], fitting: int, needs: Callable[[], RemainingTraining]
    ) -> Alternatives:
        """Return the alternatives to a refused request, as `find_alternatives`.

        `fitting` of the steps fit as they are; there is no other alternative if the accounts changed during each
        search, or too many searches wait.

        Raises:
            CostNotReadyError: handled by `RequestContext.run_with_costs`.
        """
        training = needs()
        state = (tuple((account.id, account.version) for account in path), tuple(each.step for each in steps), training)
        if state not in self.found:
            number = max(training.steps, sum(each.step.count for each in steps))
            if self.searches >= MAX_SEARCHES:
                return unsearched(number, fitting)

            def keep(found: Alternatives | None) -> None:
                self.searches += 1
                self.found[state] = found or unsearched(number, fitting)

            search = Job(find_alternatives, (tuple(path), tuple(steps), training), MAX_WORK + MAX_PLAN_WORK)
            work = MAX_PLAN_WORK if any(account.plan is not None for account in path) else 0
            if len(steps) == 1:
                work += USUAL_TRIALS * curve_work(steps[0].step.event, few=False, relation=path[0].relation)
            raise CostNotReadyError(search, keep, work, needed=False)
        return self.found[state]


class CostNotReadyError(Exception):
    """A transaction needs a result that must be computed outside the write lock.

    Args:
        calculation: to compute before the work is repeated.
        keep: called with the result.
        work: estimated time, in microseconds.
        needed: whether the work cannot go on without the result; if not, `keep` is called with None where too many
            calculations wait, the process dies, or it takes too long.
    """

    def __init__(
        self, calculation: Job[Any], keep: Callable[[Any], None] = lambda _: None, work: int = 0, *, needed: bool = True
    ) -> None:
        super().__init__("something must be computed first")
        self._calculation = calculation
        self._keep = keep
        self._work = work
        self._needed = needed

    def compute(self, organisation_id: str) -> None:
        """Compute the result in this thread or, if long, a worker process.

        Raises:
            RateLimitedError: too many calculations of the organisation are waiting.
        """
        if self._work <= LITTLE_WORK:
            self._keep(self._calculation.result())
            return
        try:
            result = self._submit(organisation_id).result()
        except (RateLimitedError, LedgerUnavailableError, PlanTooExpensiveError):
            if self._needed:
                raise
            result = None
        self._keep(result)

    async def computed(self, organisation_id: str) -> None:
        """Compute the result without blocking the event loop.

        Raises:
            RateLimitedError: as for `compute`.
        """
        if self._work <= LITTLE_WORK:
            await asyncio.to_thread(self.compute, organisation_id)
            return
        try:
            result = await asyncio.wrap_future(self._submit(organisation_id))
        except (RateLimitedError, LedgerUnavailableError, PlanTooExpensiveError):
            if self._needed:
                raise
            result = None
        self._keep(result)

    def _submit(self, organisation_id: str) -> "Future[Any]":
        """Queue the calculation in the lane of an organisation's costs, apart from its plans'.

        What is not needed has another lane, which is not urgent: searches for refused requests must not keep others
        from what they need.
        """
        lane = f"{'prices' if self._needed else 'alternatives'} {organisation_id}"
        return WORKER_POOL.submit(lane, self._calculation, urgent=self._needed)


def _as_many_as_fit(events: Sequence[DpEvent], relation: NeighboringRelation) -> tuple[list[DpEvent], int]:
    """Get the first events that one calculation may do, and its work."""
    chosen: list[DpEvent] = []
    total = 0
    for event in events:
        work = curve_work(event, few=False, relation=relation)
        if chosen and total + work > MAX_WORK:
            break
        chosen.append(event)
        total += work
    return chosen, total


def price_steps(
    account: Account, steps: Sequence[StepEvent], stored: Mapping[DpEvent, RdpCurve], costs: PrecomputedCosts
) -> list[PricedStep]:
    """Price step events from the ledger's costs or the precomputed ones.

    Args:
        account: any account of the population; its relation and grid apply.
        steps: to price.
        stored: costs of the ledger, which take precedence.
        costs: precomputed, of what the ledger lacks.

    Raises:
        CostNotReadyError: neither has the costs of an event.
    """
    lacking = [step.event for step in distinct(steps).values() if step.event not in stored]
    if lacking:
        costs.require(account, lacking)
    return map_once(lambda step: PricedStep(step, stored.get(step.event) or costs.curve(account, step.event)), steps)


def cost_steps(
    tx: Connection, organisation_id: str, account: Account, steps: Sequence[StepEvent], costs: PrecomputedCosts
) -> list[PricedStep]:
    """Price step events as `price_steps`, with the costs read from the ledger."""
    table = CostTable.of(organisation_id, account)
    return price_steps(account, steps, CostCache().find_events(tx, table, [step.event for step in steps]), costs)
