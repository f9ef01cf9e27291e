"""Charge steps to the reservation of their run, which holds their cost on every account of its path."""

from collections.abc import Sequence

from app.accounting.curves import RdpCurve
from app.ledger.accounts.account import Account, with_usage, zero_curve
from app.ledger.admission.admission import Admission, governing_of
from app.ledger.filter.parallel_exposure import is_exact, without
from app.ledger.governance.policy_checks import require_open
from app.ledger.runs.decisions import Decision
from app.ledger.runs.reservation_use import count_covered, is_revoked, take
from app.ledger.runs.reservations import Reservation, Shortfall, remaining_items
from app.ledger.runs.run import Run
from app.ledger.step_events import StepEvent, first_steps, total_cost
from app.service.charging.filter_warnings import find_warnings
from app.service.charging.readings import read_after
from app.service.charging.requests import (
    Decided,
    NotLoadedError,
    OnExceed,
    ReservationRevokedError,
    StepCommand,
    new_decision,
)
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import price_steps


def take_reserved(
    command: StepCommand, reservation: Reservation, steps: tuple[StepEvent, ...]
) -> tuple[Reservation | None, tuple[StepEvent, ...]]:
    """Take the steps, truncated if allowed, out of the run's reservation.

    Raises:
        ReservationRevokedError: a lowered limit has cancelled the steps; the reservation must be closed first.
    """
    taken = take(reservation, steps, command.context.lapsed_by)
    if isinstance(taken, Shortfall) and reservation.steps_revoked:
        covered = count_covered(reservation, steps)
        if not covered and is_revoked(reservation, steps[0]) and command.ends_reservation:
            raise ReservationRevokedError(reservation.id)
        if covered and command.request.on_exceed is OnExceed.TRUNCATE:
            steps = first_steps(steps, covered)
            taken = take(reservation, steps, command.context.lapsed_by)
    return (None if isinstance(taken, Shortfall) else taken), steps


def charge_reserved(
    work: UnitOfWork, command: StepCommand, run: Run, taken: Reservation, steps: tuple[StepEvent, ...], fingerprint: str
) -> Decision:
    """Charge reserved steps: only the run's own account changes, from held to spent."""
    path = [work.record(at).account for at in work.paths[run.account_id]]
    require_open(path, command.context.now)
    own = path[-1]
    priced = price_steps(own, steps, work.costs_of(own), command.context.costs)
    cost = total_cost(with_usage(path, priced))
    exact = _is_exact(work, own, taken)
    held = without(own.held, cost) if exact else _held_by(work, command, path, taken)
    after = own.settle_hold(cost, held)
    remaining = next(item.left for item in taken.items if item.event == steps[-1].event)
    charged = (*path[:-1], after)
    limited = after if after.limit is not None else governing_of(charged)
    outcome = Admission((after,), remaining, after, limited.used())
    reading = read_after(work, charged, outcome.used, priced)
    decided = Decided(outcome, reading, find_warnings(work, run, charged, priced))
    decision = new_decision(command, run, steps, fingerprint, decided, path[0].version, reservation_id=taken.id)
    work.take(taken)
    work.charge((after,), priced, command.context.now, from_held=True, compact=not exact)
    return work.append(run, decision, work.find_deviations(run, steps, command.context.now))


def _is_exact(work: UnitOfWork, own: Account, taken: Reservation) -> bool:
    """Check whether the loaded costs show that subtraction leaves the exact hold of a reservation."""
    costs = work.costs_of(own)
    left = (costs[item.event] for item in taken.items if item.unused and item.event in costs)
    return is_exact(own.held, left)


def _held_by(work: UnitOfWork, command: StepCommand, path: Sequence[Account], taken: Reservation) -> RdpCurve:
    """Sum the costs of the rest of a reservation of a path's run."""
    own = path[-1]
    if taken.run_id not in work.costed_reservations:
        raise NotLoadedError(own, taken)
    priced = price_steps(own, remaining_items(taken), work.costs_of(own), command.context.costs)
    return total_cost(with_usage(path, priced)) if priced else zero_curve(own.grid_version)
