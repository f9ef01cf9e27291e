"""Closing of reservations: charge the executed steps, release or forfeit the rest.

A plan is forfeited, that is charged in full, if its unused steps may have been executed.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from app.accounting.curves import RdpCurve
from app.ledger.accounts import Account, PricedStep, StepEvent, total_cost, zero_curve
from app.ledger.admission import reading_of, repetitions_left
from app.ledger.composition import recompose, topmost_parallel_under
from app.ledger.decisions import Decision, DecisionOutcome
from app.ledger.errors import LedgerUnavailableError
from app.ledger.hash_chain import Actor
from app.ledger.headroom import fits
from app.ledger.parallel_exposure import without
from app.ledger.reservations import Reservation, ReservationClose, commit, has_lapsed, is_exact, subtract_hold
from app.ledger.runs import TERMINAL, Run, RunStatus
from app.persistence.database import Database
from app.persistence.repositories import accounts, partitions, reservations
from app.service.alerts.alert_factory import exhausted_alert, forfeited_alert, overdrawn_alert
from app.service.auth.request_context import RequestContext
from app.service.charging.loading import load_run
from app.service.charging.saving import save
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import CostNotReadyError, PrecomputedCosts


@dataclass(frozen=True, slots=True)
class _Ended:
    """The closed reservation, with actor and time."""

    id: str
    by: Actor
    at: datetime


def close_reservation(
    work: UnitOfWork, organisation_id: str, before: Reservation, closing: ReservationClose, asker: Actor, now: datetime
) -> None:
    """Settle a reservation's hold on its locked path, and close it."""
    path = work.path(organisation_id, before.run_id)
    assert path is not None, "the whole path is locked before a reservation ends"
    run = work.run(organisation_id, before.run_id)
    used = [StepEvent(item.event, item.used) for item in before.items if item.used]
    spent_before = _cost(work, organisation_id, path[0], used)
    further = _cost(work, organisation_id, path[0], (*closing.charged, *closing.reported, *closing.forfeited))
    reserved = _cost(work, organisation_id, path[0], [StepEvent(item.event, item.count) for item in before.items])
    above = _above(work, organisation_id, path, before.id, spent_before + further, reserved)
    own = path[-1].settle_hold(further, zero_curve(path[-1].grid_version))
    work.change(organisation_id, (*above, own), now)
    outcomes = {
        DecisionOutcome.ADMITTED: closing.charged,
        DecisionOutcome.REPORTED: closing.reported,
        DecisionOutcome.FORFEITED: closing.forfeited,
    }
    for outcome, steps in outcomes.items():
        if steps:
            run = _append(work, organisation_id, run, _Ended(before.id, asker, now), outcome, steps)
    work.move(organisation_id, replace(run, reservation_id=None))
    if closing.forfeited:
        lost = sum(step.count for step in closing.forfeited)
        work.tell(organisation_id, [forfeited_alert(own, before, lost, now, lapsed=has_lapsed(before, now))])
    del work.reservations[organisation_id, before.run_id]
    work.changed_plan_items.pop((organisation_id, before.run_id), None)
    reservations.close(work.tx, organisation_id, closing.reservation, now)


def close_withdrawn(db: Database, call: RequestContext, run_id: str, reservation_id: str) -> None:
    """Commit a cancelled plan with its authorised steps and release the rest.

    A request for the plan's next step proves that this step was not executed. A plan that is no longer active is left
    alone.
    """

    def commit_rest() -> None:
        with db.write(call.organisation_id) as tx:
            work = load_run(tx, call.organisation_id, run_id)
            active = work.reservations.get((call.organisation_id, run_id))
            if active is None or active.id != reservation_id or has_lapsed(active, call.lapsed_by):
                return
            close_reservation(
                work, call.organisation_id, active, commit(active, active.steps_used), call.actor, call.now
            )
            save(work)

    db.retried(commit_rest)


def _append(
    work: UnitOfWork,
    organisation_id: str,
    run: Run,
    ended: _Ended,
    outcome: DecisionOutcome,
    steps: Sequence[StepEvent],
) -> Run:
    """Append a decision; set a run over a limit to overdrawn."""
    path = work.path(organisation_id, run.account_id)
    assert path is not None, "it has not been unlocked"
    priced = _priced(work, organisation_id, path[0], steps)
    # Executed steps that were cancelled count as reported: recorded even over a limit.
    over = (
        next((account for account in path if not fits(account)), None) if outcome is DecisionOutcome.REPORTED else None
    )
    if over is not None and run.status not in TERMINAL:
        run = replace(run, status=RunStatus.OVERDRAWN)
        used_up = exhausted_alert(over, path[-1], ended.at)
        work.tell(organisation_id, [overdrawn_alert(path[-1], over, ended.at), used_up])
    work.append(organisation_id, run, _decision(path, run, ended, outcome, priced, over))
    return work.run(organisation_id, run.account_id)


def _cost(work: UnitOfWork, organisation_id: str, account: Account, steps: Sequence[StepEvent]) -> RdpCurve:
    if not steps:
        return zero_curve(account.grid_version)
    return total_cost(_priced(work, organisation_id, account, steps))


def _priced(work: UnitOfWork, organisation_id: str, account: Account, steps: Sequence[StepEvent]) -> list[PricedStep]:
    """Get the costs of planned steps as stored when the plan was made."""
    try:
        return work.quote(organisation_id, account, steps, PrecomputedCosts())
    except CostNotReadyError as missing:
        raise LedgerUnavailableError(
            "The ledger's price of an event of this plan is missing, so the plan cannot be ended. "
            "Run `epsilon-ledger verify`."
        ) from missing


def _above(
    work: UnitOfWork,
    organisation_id: str,
    path: Sequence[Account],
    ended_id: str,
    spent: RdpCurve,
    reserved: RdpCurve,
) -> list[Account]:
    """Compute a run's ancestors after the close of a reservation.

    Of its `reserved` hold, `spent` is now spent.
    """
    composed = partitions.topmost_parallel(
        work.tx, organisation_id, [account.id for account in path[:-1] if account.partitions_per_unit is None]
    )
    after: dict[str, Account] = {}

    def now(account_id: str) -> Account:
        return after.get(account_id) or _as_kept(work, organisation_id, account_id)

    for account in reversed(path[:-1]):
        inner = topmost_parallel_under(path, account)
        if account.partitions_per_unit is not None:
            children = work.parts[organisation_id, account.id]
            after[account.id] = recompose(account, map(now, children))
        elif account.id not in composed:
            held = _held_after(work, organisation_id, account, ended_id, reserved)
            after[account.id] = account.settle_hold(spent, held)
        else:
            held = _planned_beneath(work, organisation_id, account, ended_id)
            for part in composed[account.id]:
                held = held + now(part).held
            moved = spent if inner is None else without(after[inner.id].spent, inner.spent)
            after[account.id] = account.settle_hold(moved, held)
    return [after[account.id] for account in path[:-1]]


def _as_kept(work: UnitOfWork, organisation_id: str, account_id: str) -> Account:
    """Read an account that a lock on one of its ancestors protects."""
    if (organisation_id, account_id) in work.accounts or (organisation_id, account_id) in work.unlocked_partitions:
        return work.record(organisation_id, account_id).account
    [record] = accounts.find_many(work.tx, work.memory.prices, organisation_id, [account_id])
    return record.account


def _held_after(work: UnitOfWork, organisation_id: str, account: Account, ended_id: str, ended: RdpCurve) -> RdpCurve:
    """Compute the hold of an ancestor for the other reservations under it."""
    if is_exact(account.held, ()):
        return subtract_hold(account.held, ended)
    return _planned_beneath(work, organisation_id, account, ended_id)


def _planned_beneath(work: UnitOfWork, organisation_id: str, account: Account, ended_id: str) -> RdpCurve:
    """Sum the other reservations that reach an account without passing a parallel one."""
    total = zero_curve(account.grid_version)
    for event, count in reservations.planned_beneath(work.tx, organisation_id, account.id, ended_id):
        [one] = _priced(work, organisation_id, account, [StepEvent(event, 1)])
        total = total + one.curve.times(count)
    return total


def _decision(
    path: Sequence[Account],
    run: Run,
    ended: _Ended,
    outcome: DecisionOutcome,
    steps: Sequence[PricedStep],
    over: Account | None,
) -> Decision:
    """Build the chain entry of the accounts after the close."""
    remaining, binding = None, over or path[-1]
    if outcome is not DecisionOutcome.FORFEITED and over is None:
        remaining, binding = repetitions_left(path, steps[-1])
    count = sum(priced.step.count for priced in steps)
    asked = json.dumps([ended.id, str(outcome), count])
    return Decision(
        run_id=run.account_id,
        position=run.decisions,
        attempt=run.attempt,
        outcome=outcome,
        steps=tuple(priced.step for priced in steps),
        first_step=run.next_step,
        step_count=count,
        requested_count=count,
        reading=reading_of(path),
        steps_remaining=remaining,
        binding_account_id=binding.id,
        binding_account_path=binding.path,
        refusal_details=None,
        request_fingerprint=hashlib.sha256(asked.encode()).hexdigest(),
        idempotency_key=None,
        reservation_id=ended.id,
        created_at=ended.at,
        asker=ended.by,
        opens_attempt=outcome is not DecisionOutcome.FORFEITED and run.next_step == run.attempt_first_step,
    )
