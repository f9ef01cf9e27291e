"""The decision on one command, from the rows of its unit of work."""

import json
from collections.abc import Sequence
from dataclasses import replace

from app.ledger.accounts import Account, StepEvent, total_cost
from app.ledger.admission import Admission, Refusal, admit, first_that_fit, reading_of, record
from app.ledger.composition import require_bounded_on_removal
from app.ledger.decisions import Decision, DecisionOutcome
from app.ledger.errors import SequenceConflictError
from app.ledger.reservations import (
    Reservation,
    Shortfall,
    count_covered,
    has_lapsed,
    is_exact,
    is_withdrawn,
    subtract_hold,
    take,
)
from app.ledger.runs import TERMINAL, Run, RunStatus, require_active, require_attempt, require_no_gap
from app.ledger.windows import require_open
from app.service.alerts.alert_factory import exhausted_alert, overdrawn_alert
from app.service.charging.refusing import refusal_details, with_limit_change
from app.service.charging.requests import (
    Mode,
    OnExceed,
    PathNotLockedError,
    PlanWithdrawnError,
    StepCommand,
    StepResult,
)
from app.service.charging.step_checks import require_allowed, require_no_sweep, with_deviations
from app.service.charging.unit_of_work import UnitOfWork
from app.service.idempotency import key_reused_error


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
        PathNotLockedError: the run's ancestors must be locked first.
        PlanWithdrawnError: the run's reservation must be closed first.
    """
    request = command.request
    run = work.run(command.organisation_id, request.run_id)
    command.call.require_scope(work.paths[command.organisation_id, request.run_id])
    steps = request.steps_of(run)
    asked = request.fingerprint(steps)
    earlier = _earlier(work, command, run, asked)
    if earlier is not None:
        return StepResult(earlier, replayed=True)
    if request.mode is Mode.AUTHORIZE:
        require_attempt(run, request.attempt)
        require_active(run)
        if not command.charges_sweep:
            require_no_sweep(work, command.organisation_id, run)
    elif request.first_step is not None:  # a late report is recorded, but not at another attempt's steps
        require_attempt(run, request.attempt)
    require_no_gap(run, request.first_step)
    path = work.path(command.organisation_id, request.run_id)
    taken, covered = _taken(work, command, steps)
    if taken is not None:
        decision = _under_reservation(work, command, run, taken, covered, asked)
    elif path is None:
        raise PathNotLockedError
    else:
        decision = _by_the_accounts(work, command, run, path, steps, asked)
    return StepResult(decision, replayed=False)


def _earlier(work: UnitOfWork, command: StepCommand, run: Run, asked: str) -> Decision | None:
    """Find an earlier decision on this request by key or first step."""
    organisation_id, request = command.organisation_id, command.request
    if request.idempotency_key is not None:
        key = (organisation_id, request.idempotency_key)
        pinned = work.pinned.get(key)
        if pinned is not None:
            # A newer attempt must not release by an old admission; a report may be repeated by any attempt.
            same_teller = pinned.attempt == request.attempt or request.mode is Mode.REPORT
            same_place = request.first_step in {None, pinned.first_step}
            if pinned.request_fingerprint != asked or not (same_teller and same_place):
                raise key_reused_error(request.idempotency_key)
            return pinned
        if key in work.reused:
            raise key_reused_error(request.idempotency_key)
    current = request.attempt == run.attempt
    if request.first_step is None or (current and request.first_step >= run.next_step):
        return None
    admitted = work.taken_at(organisation_id, run.account_id, request.attempt, request.first_step)
    if admitted is not None and admitted.request_fingerprint == asked:
        return admitted
    if not current:
        return None
    which = ""
    if admitted is not None:
        last = admitted.next_step - 1
        which = f" (steps {admitted.first_step} to {last})" if last > admitted.first_step else " (that step alone)"
    raise SequenceConflictError(
        f"Step {request.first_step} was admitted before, as part of another request{which}. "
        f"The next step is {run.next_step}.",
        next_step=run.next_step,
    )


def _taken(
    work: UnitOfWork, command: StepCommand, steps: tuple[StepEvent, ...]
) -> tuple[Reservation | None, tuple[StepEvent, ...]]:
    """Take the steps, truncated if allowed, out of the run's reservation.

    Raises:
        PlanWithdrawnError: a lowered limit has cancelled the steps; the reservation must be closed first.
    """
    reservation = _usable(work, command)
    taken = None if reservation is None else take(reservation, steps, command.call.lapsed_by)
    if isinstance(taken, Shortfall) and reservation is not None and reservation.steps_withdrawn:
        covered = count_covered(reservation, steps)
        if not covered and is_withdrawn(reservation, steps[0]) and command.ends_plan:
            raise PlanWithdrawnError(reservation.id)
        if covered and command.request.on_exceed is OnExceed.TRUNCATE:
            steps = _first(steps, covered)
            taken = take(reservation, steps, command.call.lapsed_by)
    return (None if isinstance(taken, Shortfall) else taken), steps


def _usable(work: UnitOfWork, command: StepCommand) -> Reservation | None:
    """Get the run's reservation, if its plan can cover the request."""
    reservation = work.reservations.get((command.organisation_id, command.request.run_id))
    if reservation is None or command.request.mode is Mode.REPORT or has_lapsed(reservation, command.call.lapsed_by):
        return None
    return reservation


def _explained(work: UnitOfWork, command: StepCommand, refusal: Refusal, steps: Sequence[StepEvent]) -> Refusal:
    """Add the limit change and the plan's remaining steps to a refusal."""
    reservation = _usable(work, command)
    if reservation is not None and reservation.steps_withdrawn:
        covered = count_covered(reservation, steps)
        refusal = replace(refusal, max_count_that_fits=max(covered, refusal.max_count_that_fits))
    return with_limit_change(work.tx, command.organisation_id, refusal)


def _under_reservation(
    work: UnitOfWork, command: StepCommand, run: Run, taken: Reservation, steps: tuple[StepEvent, ...], asked: str
) -> Decision:
    """Charge reserved steps: only the run's own account changes, from held to spent."""
    organisation_id = command.organisation_id
    path = work.ancestors(organisation_id, run.account_id)
    require_open(path, command.now)
    own = path[-1]
    priced = work.quote(organisation_id, own, steps, command.ready)
    cost = total_cost(priced)
    left = [StepEvent(item.event, 1) for item in taken.items if item.unused]
    exact = is_exact(own.held, (work.quote(organisation_id, own, [each], command.ready)[0].curve for each in left))
    held = subtract_hold(own.held, cost) if exact else work.held_by(organisation_id, taken, own, command.ready)
    after = own.settle_hold(cost, held)
    remaining = next(item.left for item in taken.items if item.event == steps[-1].event)
    outcome = Admission((after,), reading_of((*path[:-1], after)), remaining, after)
    decision = replace(_decision(command, run, steps, asked, outcome), reservation_id=taken.id)
    work.take(organisation_id, taken)
    if exact:
        work.charge(organisation_id, (after,), priced, command.now, from_held=True)
    else:
        work.change(organisation_id, (after,), command.now)
    return work.append(organisation_id, with_deviations(work, command, run, steps), decision)


def _by_the_accounts(
    work: UnitOfWork,
    command: StepCommand,
    run: Run,
    path: tuple[Account, ...],
    steps: tuple[StepEvent, ...],
    asked: str,
) -> Decision:
    """Admit, refuse or record steps against every account of the path."""
    organisation_id, request, ready = command.organisation_id, command.request, command.ready
    require_allowed(work, command, run, path, steps)
    require_bounded_on_removal(path, [step.event for step in steps])
    if request.mode is Mode.AUTHORIZE:  # reports are recorded at any time
        require_open(path, command.now)
    for account in path:
        # Weights that are not frozen yet may be tuned to the plan, whose costs must not be computed under the lock.
        if account.planned and not account.weights_frozen:
            ready.require(account, [step.event for step in account.planned])
    priced = work.quote(organisation_id, path[0], steps, ready)
    outcome: Admission | Refusal
    if request.mode is Mode.REPORT:
        outcome = record(path, priced)
    else:
        fitting = first_that_fit(path, priced) if request.on_exceed is OnExceed.TRUNCATE else 0
        if fitting:
            steps = _first(steps, fitting)
            priced = work.quote(organisation_id, path[0], steps, ready)
        outcome = admit(path, priced, ready.noise_that_fits)
        if isinstance(outcome, Refusal):
            outcome = _explained(work, command, outcome, steps)
    decision = _decision(command, run, steps, asked, outcome)
    if isinstance(outcome, Refusal):
        work.remember_events(organisation_id, steps)
        return work.append(organisation_id, run, decision)
    work.remember_prices(organisation_id, path[0], priced)
    work.charge(organisation_id, outcome.accounts, priced, command.now)
    _tell(work, command, run, outcome)
    if outcome.overdrawn and run.status not in TERMINAL:
        run = replace(run, status=RunStatus.OVERDRAWN)
    return work.append(organisation_id, with_deviations(work, command, run, steps), decision)


def _tell(work: UnitOfWork, command: StepCommand, run: Run, charged: Admission) -> None:
    """Raise alerts for an overdrawn run or an exhausted account."""
    own = charged.accounts[-1]
    if charged.overdrawn and run.status is not RunStatus.OVERDRAWN:
        used_up = exhausted_alert(charged.binding, own, command.now)
        work.tell(command.organisation_id, [overdrawn_alert(own, charged.binding, command.now), used_up])
    elif not charged.overdrawn and not charged.steps_remaining:
        work.tell(command.organisation_id, [exhausted_alert(charged.binding, own, command.now)])


def _first(steps: Sequence[StepEvent], count: int) -> tuple[StepEvent, ...]:
    """Take the first `count` steps."""
    kept = []
    for step in steps:
        if count <= 0:
            break
        kept.append(StepEvent(step.event, min(step.count, count)))
        count -= step.count
    return tuple(kept)


def _decision(
    command: StepCommand, run: Run, steps: tuple[StepEvent, ...], asked: str, outcome: Admission | Refusal
) -> Decision:
    """Build the decision; appending it to the chain adds the hash."""
    request = command.request
    facts, remaining = None, None
    kind = DecisionOutcome.REPORTED if request.mode is Mode.REPORT else DecisionOutcome.ADMITTED
    if isinstance(outcome, Refusal):
        kind, facts = DecisionOutcome.REFUSED, json.dumps(refusal_details(outcome))
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
        refusal_details=facts,
        request_fingerprint=asked,
        idempotency_key=request.idempotency_key,
        reservation_id=None,
        created_at=command.now,
        asker=command.call.actor,
        opens_attempt=run.next_step == run.attempt_first_step,
    )
