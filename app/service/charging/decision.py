"""The decision on one command: a function of its unit of work, without a connection."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache, partial

from app.ledger.accounts.account import Account
from app.ledger.admission.admission import Admission, Refusal, admit, first_that_fit, record
from app.ledger.errors import InvalidInputError
from app.ledger.governance.policy_checks import (
    require_bounded_on_removal,
    require_declared,
    require_open,
    require_plan_on,
    require_plans_kept,
    require_reporter,
    require_steps,
    sources_of,
)
from app.ledger.governance.unit_checks import require_priced
from app.ledger.repeated_events import map_once, step_events
from app.ledger.runs.decisions import Decision, item_of
from app.ledger.runs.reservation_use import count_covered
from app.ledger.runs.reservations import has_lapsed
from app.ledger.runs.run import (
    TERMINAL,
    Run,
    RunStatus,
    require_active,
    require_attempt,
    require_no_gap,
    require_no_sweep,
)
from app.ledger.step_events import StepEvent, first_steps
from app.service.alerts.alert_factory import exhausted_alert, overdrawn_alert
from app.service.charging.filter_warnings import find_warnings
from app.service.charging.readings import read_after
from app.service.charging.remaining_training import remaining_training
from app.service.charging.requests import (
    Decided,
    Mode,
    NotLoadedError,
    OnExceed,
    StepCommand,
    StepRequest,
    StepResult,
    new_decision,
)
from app.service.charging.reserved_steps import charge_reserved, take_reserved
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import price_steps


def decide(work: UnitOfWork, command: StepCommand) -> StepResult:
    """Decide a run's next steps; an error leaves the work unchanged.

    Repeated steps or a repeated key get the first decision.

    Raises:
        InvalidInputError: neither the request nor the run has an event.
        UnsupportedEventError: an event has no sound bound under the population's relation.
        IdempotencyKeyReusedError: the key was used for another request.
        SequenceConflictError: these steps were admitted before with different content.
        SequenceGapError: the steps do not follow the last admitted one.
        AttemptSupersededError: a newer attempt has begun.
        RunStateConflictError: the run is not active.
        AccountClosedError: an account of the path is not open.
        AccountQuarantinedError: an account of the path is quarantined.
        PolicyViolationError: a policy of the path forbids it.
        CostNotReadyError: a cost must be computed first.
        NotLoadedError: rows that few decisions need must be loaded first.
        ReservationRevokedError: the run's reservation must be closed first.
    """
    request = command.request
    run = work.run(request.run_id)
    command.context.require_scope(work.paths[request.run_id])
    steps = _steps(request, run)
    fingerprint = request_fingerprint(request, steps)
    earlier = work.find_earlier(request, run, fingerprint)
    if earlier is not None:
        return StepResult(earlier, replayed=True)
    if request.mode is Mode.AUTHORIZE:
        require_attempt(run, request.attempt)
        require_active(run)
        if not command.charges_sweep:
            require_no_sweep(run, work.sweeps)
    elif request.first_step is not None:  # a late report is recorded, but not at another attempt's steps
        require_attempt(run, request.attempt)
    require_no_gap(run, request.first_step)
    reservation = work.reservations.get(request.run_id) if request.mode is Mode.AUTHORIZE else None
    path = work.path(request.run_id)
    if reservation is not None and not has_lapsed(reservation, command.context.lapsed_by):
        taken, covered = take_reserved(command, reservation, steps)
        if taken is not None:
            return StepResult(charge_reserved(work, command, run, taken, covered, fingerprint), replayed=False)
    return StepResult(_by_the_accounts(work, command, run, path, steps, fingerprint), replayed=False)


def _steps(request: StepRequest, run: Run) -> tuple[StepEvent, ...]:
    """Resolve the items of a request with the run's default event."""
    items = []
    for event, count in request.items:
        charged = event or run.event
        if charged is None:
            raise InvalidInputError("The run has no default event; send `event` (or `events`) with the request.")
        items.append((charged, count))
    return step_events(items)


def request_fingerprint(request: StepRequest, steps: tuple[StepEvent, ...]) -> str:
    """Compute the sha256 (hex) of run, steps and non-default options, which identifies repetitions."""
    items = tuple(map_once(item_of, steps))
    digest = _digest if len(items) == 1 else _digest.__wrapped__  # a trainer repeats itself
    return digest(request.run_id, items, request.mode, request.on_exceed)


@lru_cache(maxsize=4096)
def _digest(run_id: str, items: tuple[tuple[str, int], ...], mode: Mode, on_exceed: OnExceed) -> str:
    content: list[object] = [run_id, items]
    options = {"mode": mode, "on_exceed": on_exceed}
    unusual = {name: str(value) for name, value in options.items() if value not in {Mode.AUTHORIZE, OnExceed.REFUSE}}
    if unusual:
        content.append(unusual)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _by_the_accounts(
    work: UnitOfWork,
    command: StepCommand,
    run: Run,
    path: tuple[Account, ...],
    steps: tuple[StepEvent, ...],
    fingerprint: str,
) -> Decision:
    """Admit, refuse or record steps against every account of the path."""
    request, computed, now = command.request, command.context.costs, command.context.now
    _require_allowed(work, command, run, path, steps)
    require_bounded_on_removal(path, [step.event for step in steps])
    if request.mode is Mode.AUTHORIZE:  # reports are recorded at any time
        require_priced(path, [step.event for step in steps])
        require_open(path, now)
        require_plan_on(path)
    costs = work.costs_of(path[0])
    priced = price_steps(path[0], steps, costs, computed)
    outcome: Admission | Refusal
    if request.mode is Mode.REPORT:
        outcome = record(path, priced)
    else:
        fitting = first_that_fit(path, priced) if request.on_exceed is OnExceed.TRUNCATE else 0
        if fitting:
            steps = first_steps(steps, fitting)
            priced = price_steps(path[0], steps, costs, computed)
        requested = sum([step.count for step in steps])
        needs = partial(remaining_training, work, run, path, requested, request.expected_steps)
        outcome = admit(path, priced, partial(computed.alternatives, needs=needs))
    if isinstance(outcome, Refusal):
        outcome = _explained(work, command, outcome, steps)
        work.mentioned.update(step.event for step in steps)
        reading = read_after(work, path, outcome.used)
        return work.append(
            run, new_decision(command, run, steps, fingerprint, Decided(outcome, reading), path[0].version)
        )
    if request.mode is Mode.AUTHORIZE:
        require_plans_kept(sources_of(path), outcome.ended_plans)
    reading = read_after(work, outcome.accounts, outcome.used, priced)
    decided = Decided(outcome, reading, find_warnings(work, run, outcome.accounts, priced))
    decision = new_decision(command, run, steps, fingerprint, decided, outcome.accounts[0].version)
    if computed.prices:  # only then may the ledger lack any
        work.remember_costs(path[0], priced)
    work.charge(outcome.accounts, priced, now)
    if outcome.overdrawn or not outcome.steps_remaining:
        _raise_alerts(work, run, outcome, now)
    if outcome.overdrawn and run.status not in TERMINAL:
        run = run._replace(status=RunStatus.OVERDRAWN)
    return work.append(run, decision, work.find_deviations(run, steps, now))


def _require_allowed(
    work: UnitOfWork, command: StepCommand, run: Run, path: tuple[Account, ...], steps: Sequence[StepEvent]
) -> None:
    """Require that policies allow the steps; for reported steps, only the reporter's role."""
    sources = sources_of(path)
    if not sources:
        return
    if command.request.mode is Mode.REPORT:
        require_reporter(sources, command.context.principal.role)
        return
    require_steps(sources, path[0].relation, [step.event for step in steps])
    require_declared(sources, work.find_deviations(run, steps, command.context.now))


def _explained(work: UnitOfWork, command: StepCommand, refusal: Refusal, steps: Sequence[StepEvent]) -> Refusal:
    """Add the limit change and the reservation's remaining steps to a refusal."""
    binding = refusal.binding
    if binding.limit_revision and binding.id not in work.limit_changes:
        raise NotLoadedError(binding)
    reservation = work.reservations.get(command.request.run_id)
    if reservation is not None and reservation.steps_revoked and not has_lapsed(reservation, command.context.lapsed_by):
        covered = count_covered(reservation, steps)
        refusal = replace(refusal, max_steps_that_fit=max(covered, refusal.max_steps_that_fit))
    return replace(refusal, limit_change=work.limit_changes.get(binding.id))


def _raise_alerts(work: UnitOfWork, run: Run, charged: Admission, now: datetime) -> None:
    """Raise alerts for an exhausted account, and for a run that has just overdrawn it."""
    own = charged.accounts[-1]
    if charged.overdrawn:
        if run.status is RunStatus.OVERDRAWN:
            return
        work.alerts.append(overdrawn_alert(own, charged.binding, now))
    work.alerts.append(exhausted_alert(charged.binding, own, now))
