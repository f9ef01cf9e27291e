"""Hold a run's reservation on its locked path, if rules and budgets allow it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import Refusal, Views, ended_plans, hold
from app.ledger.governance.policy_checks import (
    require_bounded_on_removal,
    require_declared,
    require_plans_kept,
    require_steps,
    sources_of,
)
from app.ledger.governance.unit_checks import require_priced
from app.ledger.runs.reservations import ReservedItem
from app.ledger.runs.run import require_no_sweep
from app.ledger.step_events import PricedStep, StepEvent
from app.service.auth.request_context import RequestContext
from app.service.charging.remaining_training import remaining_training
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import price_steps


@dataclass(frozen=True, slots=True)
class PricedReservation:
    """A reservation that the rules of a run's path allow, with its costs."""

    run_id: str
    items: tuple[ReservedItem, ...]
    path: tuple[Account, ...]
    steps: list[PricedStep]


def price_reservation(
    work: UnitOfWork, context: RequestContext, run_id: str, items: Sequence[ReservedItem]
) -> PricedReservation:
    """Check a reservation by the rules of its run's locked path, and price it.

    Raises:
        UnsupportedEventError: an event has no sound bound under the population's relation, or no value in the unit of
            a limit.
        PolicyViolationError: a policy forbids an event of the reservation.
        RunStateConflictError: the run belongs to a sweep that is charged at once.
    """
    path = work.path(run_id)
    run = work.run(run_id)
    require_no_sweep(run, work.sweeps)
    events: list[DpEvent] = [item.event for item in items]
    require_bounded_on_removal(path, events)
    require_priced(path, events)
    steps = [StepEvent(item.event, item.count) for item in items]
    sources = sources_of(path)
    if sources:
        require_steps(sources, path[0].relation, events)
        require_declared(sources, work.find_deviations(run, steps, context.now))
    priced = price_steps(path[0], steps, work.costs_of(path[0]), context.costs)
    return PricedReservation(run_id, tuple(items), path, priced)


def hold_priced(
    work: UnitOfWork,
    context: RequestContext,
    priced: PricedReservation,
    expected_steps: int | None = None,
    views: Views = tuple,
) -> tuple[Account, ...] | Refusal:
    """Hold a reservation on the accounts of its path, which are open, or refuse it; nothing is written.

    `expected_steps` is the number of all steps of the training, for the alternatives of a refusal.

    Raises:
        PolicyViolationError: a policy forbids to end the plan of an account.
    """
    requested = sum(item.count for item in priced.items)
    needs = partial(remaining_training, work, work.run(priced.run_id), priced.path, requested, expected_steps)
    holding = hold(priced.path, priced.steps, partial(context.costs.alternatives, needs=needs), views)
    if not isinstance(holding, Refusal):
        require_plans_kept(sources_of(priced.path), ended_plans(priced.path, holding, priced.steps))
    return holding
