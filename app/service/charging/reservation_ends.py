"""Closing of reservations: charge the executed steps, release or forfeit the rest.

A reservation is forfeited, that is charged in full, if its unused steps may have been executed.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account, with_usage, zero_curve
from app.ledger.admission.admission import governing_of, repetitions_left
from app.ledger.admission.composition import recompose, topmost_parallel_under
from app.ledger.audit import Actor
from app.ledger.errors import LedgerUnavailableError
from app.ledger.filter.parallel_exposure import is_exact, without
from app.ledger.runs.decisions import Decision, DecisionOutcome
from app.ledger.runs.reservation_closing import ReservationClose, commit
from app.ledger.runs.reservations import Reservation, has_lapsed
from app.ledger.runs.run import TERMINAL, Run, RunStatus
from app.ledger.step_events import PricedStep, StepEvent, total_cost
from app.persistence.repositories import accounts, partitions, reservations
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.service.alerts.alert_factory import exhausted_alert, forfeited_alert, overdrawn_alert
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.charging.loading import load_kinds, load_run
from app.service.charging.readings import read_after
from app.service.charging.saving import save
from app.service.charging.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class _Ended:
    """The reservation to close, with actor and time."""

    id: str
    by: Actor
    at: datetime


def close_reservation(
    tx: Connection, work: UnitOfWork, before: Reservation, closing: ReservationClose, actor: Actor, now: datetime
) -> None:
    """Settle a reservation's hold on its locked path, and close it; the caller saves the work."""
    path = work.path(before.run_id)
    others = _load_others(tx, work, path, before)
    run = work.run(before.run_id)
    used = [StepEvent(item.event, item.used) for item in before.items if item.used]
    further = (*closing.charged, *closing.reported, *closing.forfeited)
    cost = _cost(work, path, further)
    reserved = _cost(work, path, [StepEvent(item.event, item.count) for item in before.items])
    above = _above(work, path, others, _cost(work, path, used) + cost, reserved)
    own = path[-1].settle_hold(cost, zero_curve(path[-1].grid_version))
    work.charge(above, _priced(work, path, (*used, *further)), now, from_held=True, compact=True)
    work.charge([own], _priced(work, path, further), now, from_held=True, compact=True)
    if counts := work.record(own.id).counts:
        load_kinds(tx, CostCache(), work, own, counts)
    outcomes = {
        DecisionOutcome.ADMITTED: closing.charged,
        DecisionOutcome.REPORTED: closing.reported,
        DecisionOutcome.FORFEITED: closing.forfeited,
    }
    for outcome, steps in outcomes.items():
        if steps:
            run = _append(work, run, _Ended(before.id, actor, now), outcome, steps)
    if closing.forfeited:
        lost = sum(step.count for step in closing.forfeited)
        work.alerts.append(forfeited_alert(own, before, lost, now, lapsed=has_lapsed(before, now)))
    work.close(closing.reservation, now)


@use_case(locks_organisation=False)
def close_revoked(tx: Connection, context: RequestContext, run_id: str, reservation_id: str) -> None:
    """Commit a cancelled reservation with its authorised steps and release the rest.

    A request for the reservation's next step proves that this step was not executed. A reservation that is no longer
    active is left alone.
    """
    work = load_run(tx, context.organisation_id, run_id)
    active = work.reservations.get(run_id)
    if active is not None and active.id == reservation_id and not has_lapsed(active, context.lapsed_by):
        close_reservation(tx, work, active, commit(active, active.steps_used), context.actor, context.now)
        save(tx, work)


@dataclass(frozen=True, slots=True)
class _Others:
    """What other reservations hold on the ancestors of a run.

    Args:
        parts: topmost parallel accounts under each ancestor that adds them up.
        kept: those of them that the path does not touch.
        reserved: reserved events that each ancestor adds up directly; left out if subtraction is exact.
    """

    parts: dict[str, list[str]]
    kept: dict[str, Account]
    reserved: dict[str, list[tuple[DpEvent, int]]]


def _load_others(tx: Connection, work: UnitOfWork, path: Sequence[Account], before: Reservation) -> _Others:
    """Load what other reservations hold, and the costs of all these reservations."""
    owner = work.organisation_id
    sequential = [account for account in path[:-1] if account.partitions_per_unit is None]
    parts = partitions.topmost_parallel(tx, owner, [account.id for account in sequential])
    reserved = {
        account.id: reservations.reserved_under(tx, owner, account.id, before.id)
        for account in sequential
        if account.id in parts or not is_exact(account.held, ())
    }
    beside = {part for found in parts.values() for part in found} - {account.id for account in path}
    kept = {each: work.unlocked[each].account for each in beside if each in work.unlocked}
    unknown = sorted(beside - kept.keys())  # a lock on one of their ancestors protects them
    if unknown:
        found = accounts.find_many(tx, CostCache(), owner, unknown)
        kept |= {record.account.id: record.account for record in found}
    events = {item.event for item in before.items} | {event for each in reserved.values() for event, _ in each}
    table = CostTable.of(owner, path[0])
    work.costs_of(path[0]).update(CostCache().find_events(tx, table, events))
    return _Others(parts, kept, reserved)


def _append(work: UnitOfWork, run: Run, ended: _Ended, outcome: DecisionOutcome, steps: Sequence[StepEvent]) -> Run:
    """Append a decision; set a run over a limit to overdrawn."""
    path = work.path(run.account_id)
    priced = _priced(work, path, steps)
    # Executed steps that were cancelled count as reported: recorded even over a limit.
    over = (
        next((account for account in path if not account.fits()), None) if outcome is DecisionOutcome.REPORTED else None
    )
    if over is not None and run.status not in TERMINAL:
        run = run._replace(status=RunStatus.OVERDRAWN)
        exhausted = exhausted_alert(over, path[-1], ended.at)
        work.alerts += [overdrawn_alert(path[-1], over, ended.at), exhausted]
    work.append(run, _decision(work, path, run, ended, outcome, priced, over=over))
    return work.run(run.account_id)


def _cost(work: UnitOfWork, path: Sequence[Account], steps: Sequence[StepEvent]) -> RdpCurve:
    return total_cost(_priced(work, path, steps)) if steps else zero_curve(path[0].grid_version)


def _priced(work: UnitOfWork, path: Sequence[Account], steps: Sequence[StepEvent]) -> Sequence[PricedStep]:
    return with_usage(path, [PricedStep(step, _curve(work, path[0], step.event)) for step in steps])


def _curve(work: UnitOfWork, account: Account, event: DpEvent) -> RdpCurve:
    """Get the cost of a reserved event as stored when the reservation was made."""
    found = work.costs_of(account).get(event)
    if found is None:
        raise LedgerUnavailableError(
            "The ledger's price of an event of this reservation is missing, so the reservation cannot be ended. "
            "Run `epsilon-ledger verify`."
        )
    return found


def _above(
    work: UnitOfWork, path: Sequence[Account], others: _Others, spent: RdpCurve, reserved: RdpCurve
) -> list[Account]:
    """Compute a run's ancestors after the close of a reservation.

    Of its `reserved` hold, `spent` is now spent.
    """
    after: dict[str, Account] = {}
    for account in reversed(path[:-1]):
        inner = topmost_parallel_under(path, account)
        if account.partitions_per_unit is not None:
            children = [after.get(each) or work.record(each).account for each in work.parts[account.id]]
            after[account.id] = recompose(account, children)
        elif account.id not in others.reserved:
            after[account.id] = account.settle_hold(spent, without(account.held, reserved))
        else:
            held = zero_curve(account.grid_version)
            # A sum over reservations may pass the limit of a step event.
            for event, count in others.reserved[account.id]:
                [one] = _priced(work, path, [StepEvent(event, 1)])
                held = held + one.curve.times(count)
            for part in others.parts.get(account.id, ()):
                held = held + (after.get(part) or others.kept[part]).held
            moved = spent if inner is None else without(after[inner.id].spent, inner.spent)
            after[account.id] = account.settle_hold(moved, held)
    return [after[account.id] for account in path[:-1]]


def _decision(
    work: UnitOfWork,
    path: Sequence[Account],
    run: Run,
    ended: _Ended,
    outcome: DecisionOutcome,
    steps: Sequence[PricedStep],
    *,
    over: Account | None,
) -> Decision:
    """Build the chain entry of the accounts after the close."""
    remaining, binding = None, over or path[-1]
    if outcome is not DecisionOutcome.FORFEITED and over is None:
        remaining, binding = repetitions_left(path, steps[-1])
    limited = binding if binding.limit is not None else governing_of(path)
    count = sum(priced.step.count for priced in steps)
    request = json.dumps([ended.id, str(outcome), count])
    return Decision(
        run_id=run.account_id,
        position=run.decisions,
        attempt=run.attempt,
        outcome=outcome,
        steps=tuple(priced.step for priced in steps),
        first_step=run.next_step,
        step_count=count,
        requested_count=count,
        reading=read_after(work, path, limited.used()),
        steps_remaining=remaining,
        binding_account_id=binding.id,
        binding_account_path=binding.path,
        refusal_details=None,
        ended_plans=None,
        warnings=None,
        request_fingerprint=hashlib.sha256(request.encode()).hexdigest(),
        idempotency_key=None,
        reservation_id=ended.id,
        population_version=path[0].version,
        created_at=ended.at,
        actor=ended.by,
    )
