"""The decision on one command: a function of its unit of work, without a connection."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache

from app.accounting.curves import RdpCurve
from app.accounting.events import fingerprint as event_fingerprint
from app.ledger.accounts import Account, PricedStep, StepEvent, total_cost, zero_curve
from app.ledger.admission import Admission, Refusal, admit, first_steps, first_that_fit, reading_of, record
from app.ledger.counting import admit_by_counting
from app.ledger.decisions import Decision, DecisionOutcome
from app.ledger.errors import InvalidInputError
from app.ledger.parallel_exposure import is_exact, without
from app.ledger.policy_checks import (
    require_bounded_on_removal,
    require_declared,
    require_open,
    require_reporter,
    require_steps,
    sources_of,
)
from app.ledger.reservations import (
    Reservation,
    Shortfall,
    count_covered,
    has_lapsed,
    is_revoked,
    remaining_items,
    take,
)
from app.ledger.runs import (
    TERMINAL,
    Run,
    RunStatus,
    require_active,
    require_attempt,
    require_no_gap,
    require_no_sweep,
)
from app.ledger.windows import ALWAYS
from app.service.alerts.alert_factory import exhausted_alert, overdrawn_alert
from app.service.charging.requests import (
    Mode,
    NotLoadedError,
    OnExceed,
    PathNotLockedError,
    PlanRevokedError,
    StepCommand,
    StepRequest,
    StepResult,
    refusal_details,
)
from app.service.charging.unit_of_work import UnitOfWork
from app.service.costing import price_steps, require_planned


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
        BudgetClosedError: an account of the path is not open.
        AccountQuarantinedError: an account of the path is quarantined.
        PolicyViolationError: a policy of the path forbids it.
        CostNotReadyError: a cost must be computed first.
        NotLoadedError: rows that few decisions need must be loaded first.
        PathNotLockedError: the run's ancestors must be locked first.
        PlanRevokedError: the run's reservation must be closed first.
    """
    request = command.request
    run = work.run(request.run_id)
    command.context.require_scope(work.paths[request.run_id])
    steps = _steps(request, run)
    fingerprint = _fingerprint(request, steps)
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
    plan = work.reservations.get(request.run_id) if request.mode is Mode.AUTHORIZE else None
    if plan is None and request.mode is Mode.AUTHORIZE:
        counted = _by_counting(work, command, run, steps, fingerprint)
        if counted is not None:
            return StepResult(counted, replayed=False)
    path = work.path(request.run_id)
    if plan is not None and not has_lapsed(plan, command.context.lapsed_by):
        taken, covered = _taken(command, plan, steps)
        if taken is not None:
            return StepResult(_under_reservation(work, command, run, taken, covered, fingerprint), replayed=False)
    if path is None:
        raise PathNotLockedError
    return StepResult(_by_the_accounts(work, command, run, path, steps, fingerprint), replayed=False)


def _steps(request: StepRequest, run: Run) -> tuple[StepEvent, ...]:
    """Resolve the items of a request with the run's default event."""
    steps = []
    for event, count in request.items:
        charged = event or run.event
        if charged is None:
            raise InvalidInputError("The run has no default event; send `event` (or `events`) with the request.")
        steps.append(StepEvent(charged, count))
    return tuple(steps)


def _fingerprint(request: StepRequest, steps: tuple[StepEvent, ...]) -> str:
    """Compute the sha256 (hex) of run, steps and non-default options, which identifies repetitions."""
    items = tuple([(event_fingerprint(step.event), step.count) for step in steps])
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


def _taken(
    command: StepCommand, plan: Reservation, steps: tuple[StepEvent, ...]
) -> tuple[Reservation | None, tuple[StepEvent, ...]]:
    """Take the steps, truncated if allowed, out of the run's reservation.

    Raises:
        PlanRevokedError: a lowered limit has cancelled the steps; the reservation must be closed first.
    """
    taken = take(plan, steps, command.context.lapsed_by)
    if isinstance(taken, Shortfall) and plan.steps_revoked:
        covered = count_covered(plan, steps)
        if not covered and is_revoked(plan, steps[0]) and command.ends_plan:
            raise PlanRevokedError(plan.id)
        if covered and command.request.on_exceed is OnExceed.TRUNCATE:
            steps = first_steps(steps, covered)
            taken = take(plan, steps, command.context.lapsed_by)
    return (None if isinstance(taken, Shortfall) else taken), steps


def _under_reservation(
    work: UnitOfWork, command: StepCommand, run: Run, taken: Reservation, steps: tuple[StepEvent, ...], fingerprint: str
) -> Decision:
    """Charge reserved steps: only the run's own account changes, from held to spent."""
    path = [work.record(at).account for at in work.paths[run.account_id]]
    require_open(path, command.context.now)
    own = path[-1]
    priced = price_steps(own, steps, work.costs_of(own), command.context.costs)
    cost = total_cost(priced)
    exact = _is_exact(work, own, taken)
    held = without(own.held, cost) if exact else _held_by(work, command, own, taken)
    after = own.settle_hold(cost, held)
    remaining = next(item.left for item in taken.items if item.event == steps[-1].event)
    outcome = Admission((after,), reading_of((*path[:-1], after)), remaining, after)
    decision = _decision(command, run, steps, fingerprint, outcome, taken.id)
    work.take(taken)
    if exact:
        work.charge((after,), priced, command.context.now, from_held=True)
    else:
        work.change((after,), command.context.now)
    return work.append(run, decision, work.find_deviations(run, steps, command.context.now))


def _is_exact(work: UnitOfWork, own: Account, taken: Reservation) -> bool:
    """Check whether the loaded costs show that subtraction leaves the exact hold of a plan."""
    costs = work.costs_of(own)
    left = (costs[item.event] for item in taken.items if item.unused and item.event in costs)
    return is_exact(own.held, left)


def _held_by(work: UnitOfWork, command: StepCommand, own: Account, taken: Reservation) -> RdpCurve:
    """Sum the costs of the rest of a plan."""
    if taken.run_id not in work.costed_plans:
        raise NotLoadedError(own, taken)
    priced = price_steps(own, remaining_items(taken), work.costs_of(own), command.context.costs)
    return total_cost(priced) if priced else zero_curve(own.grid_version)


def _by_counting(
    work: UnitOfWork, command: StepCommand, run: Run, steps: tuple[StepEvent, ...], fingerprint: str
) -> Decision | None:
    """Admit repetitions of one event that fit by counting (ADR 0033); None if the rule must decide."""
    [step, *others] = steps
    path = [work.accounts[at] for at in work.paths[run.account_id] if at in work.accounts]
    if others or len(path) < len(work.paths[run.account_id]):
        return None
    now = command.context.now
    accounts = [counted.record.account for counted in path]
    curve = work.costs_of(accounts[0]).get(step.event)
    if curve is None or not all(account.window is ALWAYS or account.window.holds(now) for account in accounts):
        return None
    outcome = admit_by_counting(path, PricedStep(step, curve))
    if outcome is None or not outcome.steps_remaining:  # the last step raises an alert
        return None
    decision = _decision(command, run, steps, fingerprint, outcome)
    work.count(path, step.count, now)
    return work.append(run, decision, work.find_deviations(run, steps, now))


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
        require_open(path, now)
    costs = work.costs_of(path[0])
    require_planned(path, computed)
    priced = price_steps(path[0], steps, costs, computed)
    outcome: Admission | Refusal
    if request.mode is Mode.REPORT:
        outcome = record(path, priced)
    else:
        fitting = first_that_fit(path, priced) if request.on_exceed is OnExceed.TRUNCATE else 0
        if fitting:
            steps = first_steps(steps, fitting)
            priced = price_steps(path[0], steps, costs, computed)
        outcome = admit(path, priced, computed.noise_that_fits)
    if isinstance(outcome, Refusal):
        outcome = _explained(work, command, outcome, steps)
        work.mentioned.update(step.event for step in steps)
        return work.append(run, _decision(command, run, steps, fingerprint, outcome))
    decision = _decision(command, run, steps, fingerprint, outcome)
    if computed.prices:  # only then may the ledger lack any
        work.remember_costs(path[0], priced)
    work.charge(outcome.accounts, priced, now)
    if outcome.overdrawn or not outcome.steps_remaining:
        _raise_alerts(work, run, outcome, now)
    if outcome.overdrawn and run.status not in TERMINAL:
        run = replace(run, status=RunStatus.OVERDRAWN)
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
    """Add the limit change and the plan's remaining steps to a refusal."""
    binding = refusal.binding
    if binding.limit_revision and binding.id not in work.limit_changes:
        raise NotLoadedError(binding)
    plan = work.reservations.get(command.request.run_id)
    if plan is not None and plan.steps_revoked and not has_lapsed(plan, command.context.lapsed_by):
        covered = count_covered(plan, steps)
        refusal = replace(refusal, max_count_that_fits=max(covered, refusal.max_count_that_fits))
    return replace(refusal, limit_change=work.limit_changes.get(binding.id))


def _raise_alerts(work: UnitOfWork, run: Run, charged: Admission, now: datetime) -> None:
    """Raise alerts for an exhausted account, and for a run that has just overdrawn it."""
    own = charged.accounts[-1]
    if charged.overdrawn:
        if run.status is RunStatus.OVERDRAWN:
            return
        work.alerts.append(overdrawn_alert(own, charged.binding, now))
    work.alerts.append(exhausted_alert(charged.binding, own, now))


def _decision(
    command: StepCommand,
    run: Run,
    steps: tuple[StepEvent, ...],
    fingerprint: str,
    outcome: Admission | Refusal,
    reservation_id: str | None = None,
) -> Decision:
    """Build the decision; appending it to the chain adds the hash."""
    request = command.request
    details, remaining = None, None
    kind = DecisionOutcome.REPORTED if request.mode is Mode.REPORT else DecisionOutcome.ADMITTED
    if isinstance(outcome, Refusal):
        kind, details = DecisionOutcome.REFUSED, json.dumps(refusal_details(outcome))
    elif not outcome.overdrawn:
        remaining = outcome.steps_remaining
    return Decision(
        run_id=run.account_id,
        position=run.decisions,
        attempt=run.attempt,
        outcome=kind,
        steps=steps,
        first_step=run.next_step,
        step_count=sum(step.count for step in steps),
        requested_count=sum(count for _, count in request.items),
        reading=outcome.reading,
        steps_remaining=remaining,
        binding_account_id=outcome.binding.id,
        binding_account_path=outcome.binding.path,
        refusal_details=details,
        request_fingerprint=fingerprint,
        idempotency_key=request.idempotency_key,
        reservation_id=reservation_id,
        created_at=command.context.now,
        actor=command.context.actor,
    )
