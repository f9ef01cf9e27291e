"""Check the decision chain of a run and the order of its steps."""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isclose

from app.ledger.hash_chain import DecisionEntry, entry_hash, genesis
from app.ledger.reservations import ReservationStatus
from app.ledger.runs import RunStatus
from app.persistence.repositories import raw_rows
from app.persistence.repositories.raw_rows import Key, StoredEntry, StoredReservation, StoredRun
from app.persistence.tolerant import DAMAGED
from app.service.ids import is_of
from app.service.verification.audit_replay import status_disagreement
from app.service.verification.balances import is_readable
from app.service.verification.report import Balance, VerificationContext

STEPS_TAKEN = frozenset({"admitted", "reported"})
CHARGED = STEPS_TAKEN | {"forfeited"}
"""Outcomes that have a cost."""

TOLERANCE = 1e-9
"""Relative tolerance of epsilon between processors and library versions."""


@dataclass
class _Walk:
    """Progress through a run's chain.

    Args:
        broken: whether a bad decision was reported; the hashes of later ones are not checked.
        next_step: after the last step taken in the attempt.
        begun: whether the attempt has taken a step.
        used: repetitions charged to each reservation, by event; likewise `forfeited`.
        unasked: those of `used` that were executed although a lowered limit had cancelled them.
        governing: the account whose limit the decisions name: the run's own, or the nearest above.
        epsilon: as the last decision recorded it.
        overdrawn: whether a report exceeded a limit.
    """

    head: bytes
    decisions: int = 0
    broken: bool = False
    attempt: int = 1
    next_step: int = 0
    begun: bool = False
    used: dict[str, Counter[str]] = field(default_factory=dict)
    forfeited: dict[str, Counter[str]] = field(default_factory=dict)
    unasked: dict[str, Counter[str]] = field(default_factory=dict)
    governing: Balance | None = None
    epsilon: float | None = None
    overdrawn: bool = False


def replay(audit: VerificationContext, run: StoredRun) -> None:
    """Check a run's chain, add its charges to the accounts above, and balance its reservations."""
    key = (run.organisation_id, run.id)
    audit.runs += 1
    governing = next((balance for balance in audit.upwards(key) if balance.account.limit is not None), None)
    walk = _Walk(genesis(*key), next_step=run.attempts.get(1, 0), governing=governing)
    closed: Counter[str] = Counter()
    reported: Counter[str] = Counter()
    try:
        for kept in raw_rows.entries(audit.tx, *key, audit.report):
            _check_link(audit, key, walk, kept)
            if not walk.broken:
                _note_terms(audit, key, walk, kept.entry)
            if kept.entry.outcome in STEPS_TAKEN:
                _check_steps(audit, key, run, walk, kept)
            elif (kept.next_step, kept.follows_step, kept.opens_step) != (None, None, None):
                audit.add(key, f"decision {kept.entry.position} took no steps, and yet others are tied to it.")
            if kept.entry.outcome in CHARGED:
                _check_count(audit, key, kept.entry)
                _count(audit, key, walk, kept, closed, reported)
    except DAMAGED as fault:
        audit.add(key, f"a decision behind the {walk.decisions} first ones cannot be read: {fault}")
        return
    _check_end(audit, key, run, walk)
    _check_epsilon(audit, key, walk)
    own = audit.balances[key]
    own.reported.update(reported)
    for balance in audit.adding(key):
        balance.spent.update(closed)
        balance.reported.update(reported)
    for balance in audit.above(key):
        balance.workloads.update(closed)
    own.workloads.update(own.spent)
    _balance_reservations(audit, key, run, walk)


def _check_link(audit: VerificationContext, key: Key, walk: _Walk, kept: StoredEntry) -> None:
    """Report the first decision that is missing or does not match its hash."""
    entry = kept.entry
    problem = None
    if entry.position != walk.decisions:
        problem = f"decision {walk.decisions} is missing from its chain."
    elif entry_hash(walk.head, entry) != kept.entry_hash:
        problem = f"decision {entry.position} is not the one that was made: its hash is that of another."
    if problem and not walk.broken:
        walk.broken = True
        audit.add(key, problem, min(walk.decisions, entry.position))
    walk.head = kept.entry_hash
    walk.decisions = entry.position + 1
    anchored = audit.anchors(key).get(walk.decisions)
    if anchored is not None and anchored != kept.entry_hash.hex() and not walk.broken:
        walk.broken = True
        detail = f"decision {entry.position} is not the one that the organisation's chain is tied to: it was rewritten."
        audit.add(key, detail, entry.position)
    audit.decisions += 1


def _note_terms(audit: VerificationContext, key: Key, walk: _Walk, entry: DecisionEntry) -> None:
    """Collect the limits and the epsilon of a decision with a valid hash."""
    if walk.governing is not None:
        walk.governing.limits.add((entry.epsilon_limit, entry.delta))
    binding = audit.balances.get((key[0], entry.binding_account_id))
    if binding is not None and entry.refusal_details is not None:
        with suppress(KeyError, TypeError, ValueError):  # the hash proves the text, not its form
            facts = json.loads(entry.refusal_details)
            binding.limits.add((float(facts["epsilon_limit"]), float(facts["delta"])))
    walk.epsilon = entry.epsilon
    if entry.outcome == "reported" and entry.steps_remaining is None:
        walk.overdrawn = True


def _check_steps(audit: VerificationContext, key: Key, run: StoredRun, walk: _Walk, kept: StoredEntry) -> None:
    """Compare the steps of a decision with the ones before it."""
    entry = kept.entry
    if entry.attempt != walk.attempt:
        _open_attempt(audit, key, run, walk, entry.attempt, entry.position)
    expected = walk.next_step
    ties = (None, expected) if not walk.begun else (expected, None)
    if entry.first_step != expected or (kept.follows_step, kept.opens_step) != ties:
        detail = (
            f"decision {entry.position} begins at step {entry.first_step}; the steps before it end at {expected}."
            if entry.first_step != expected
            else f"decision {entry.position} does not say that it follows the steps before it."
        )
        audit.add(key, detail, entry.position)
    if kept.next_step != entry.first_step + entry.step_count:
        audit.add(key, f"decision {entry.position} says that it ends at step {kept.next_step}.", entry.position)
    walk.begun = True
    walk.next_step = entry.first_step + sum(count for _, count in entry.items)


def _check_count(audit: VerificationContext, key: Key, entry: DecisionEntry) -> None:
    counted = sum(count for _, count in entry.items)
    if counted != entry.step_count:
        detail = f"decision {entry.position} says that it takes {entry.step_count} steps; its charges are {counted}."
        audit.add(key, detail, entry.position)


def _open_attempt(
    audit: VerificationContext, key: Key, run: StoredRun, walk: _Walk, attempt: int, position: int | None
) -> None:
    """Check that an attempt follows the last one and starts within its steps."""
    first_step = run.attempts.get(attempt)
    if attempt < walk.attempt or first_step is None or first_step > walk.next_step:
        audit.add(key, f"attempt {attempt} does not follow attempt {walk.attempt} at step {walk.next_step}.", position)
    walk.attempt, walk.begun = attempt, False
    walk.next_step = walk.next_step if first_step is None else first_step


def _count(
    audit: VerificationContext, key: Key, walk: _Walk, kept: StoredEntry, closed: Counter[str], reported: Counter[str]
) -> None:
    """Add a decision's charges to the run and, unless reserved, to its ancestors."""
    entry = kept.entry
    audit.charges += len(entry.items)
    if entry.outcome in STEPS_TAKEN:
        audit.steps += sum(count for _, count in entry.items)
    reservation = None
    if entry.reservation_id is not None:
        reservation = audit.reservations.get((key[0], entry.reservation_id))
        if reservation is None or reservation.run_id != key[1]:
            detail = f"decision {entry.position} is under a reservation {entry.reservation_id} that the run has not."
            audit.add(key, detail, entry.position)
            reservation = None
        else:
            if reservation.attempt != entry.attempt:
                detail = f"decision {entry.position} of attempt {entry.attempt} is under a plan of another attempt."
                audit.add(key, detail, entry.position)
            taken = walk.forfeited if entry.outcome == "forfeited" else walk.used
            _add(taken.setdefault(reservation.id, Counter()), entry.items)
            if entry.outcome == "reported":
                _add(walk.unasked.setdefault(reservation.id, Counter()), entry.items)
    _add(audit.balances[key].spent, entry.items)
    if reservation is None or reservation.status != ReservationStatus.ACTIVE:
        _add(closed, entry.items)
        if entry.outcome == "reported":
            _add(reported, entry.items)


def _add(counts: Counter[str], items: tuple[tuple[str, int], ...]) -> None:
    for fingerprint, count in items:
        counts[fingerprint] += count


def _check_end(audit: VerificationContext, key: Key, run: StoredRun, walk: _Walk) -> None:
    """Compare the run's row with its decisions."""
    if not walk.broken and walk.head != run.chain_head:
        last = f"at decision {walk.decisions - 1}" if walk.decisions else "before the first decision"
        audit.add(key, f"its chain ends {last}, but not with the run's head: decisions are missing.", walk.decisions)
    tied = max(audit.anchors(key), default=0)
    if tied > walk.decisions:
        audit.add(key, f"{walk.decisions} decisions are kept, but the organisation's chain is tied to {tied} of them.")
    if walk.decisions != run.decision_count:
        audit.add(key, f"{walk.decisions} decisions are kept, but {run.decision_count} were made.")
    if sorted(run.attempts) != list(range(1, len(run.attempts) + 1)) or len(run.attempts) != run.attempt:
        audit.add(key, f"its attempts are {sorted(run.attempts)}, but its current one is {run.attempt}.")
    for attempt in sorted(one for one in run.attempts if one > walk.attempt):
        _open_attempt(audit, key, run, walk, attempt, None)
    if run.next_step != walk.next_step:
        audit.add(key, f"its steps end at {walk.next_step}, but its next step is {run.next_step}.")
    wrong = status_disagreement(run.status, audit.terms(key), overdrawn=walk.overdrawn)
    if wrong is not None:
        audit.add(key, wrong)
    if walk.overdrawn and run.status in {RunStatus.ACTIVE, RunStatus.PAUSED}:
        audit.add(key, f"it has reported more than its limit allows, and yet it is {run.status}.")


def _check_epsilon(audit: VerificationContext, key: Key, walk: _Walk) -> None:
    """Compare the last decision's epsilon with the governing filter's, to detect an exchanged filter."""
    own, governing = audit.balances[key], walk.governing
    if walk.broken or walk.epsilon is None or governing is None or not is_readable(governing.account):
        return
    spent = audit.cost(key[0], own.account, own.spent)
    if spent is None:
        return
    stages = [stage for stage in audit.stages((key[0], governing.account.id)) if is_readable(stage)]
    if not any(_agree(stage.epsilon(spent), walk.epsilon) for stage in stages):
        governing.misread = True


def _agree(now: float, then: float) -> bool:
    return isclose(now, then, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _balance_reservations(audit: VerificationContext, key: Key, run: StoredRun, walk: _Walk) -> None:
    """Check that each reservation balances: reserved = committed + returned + forfeited."""
    active = None
    for reservation in audit.plans.get(key, ()):
        _check_plan(audit, key, reservation, walk)
        own = audit.balances[key]
        for balance in (own, *audit.above(key)):
            balance.workloads.update(reservation.items)
        if reservation.status == ReservationStatus.ACTIVE:
            active = reservation.id
            if reservation.attempt != run.attempt:
                audit.add(key, f"its active reservation {active} is not one of its attempt {run.attempt}.")
            _add(own.held, tuple((event, count - used) for event, (count, used) in reservation.items.items()))
            _allow(own, reservation, {event: used for event, (_, used) in reservation.items.items()})
            for balance in audit.adding(key):
                _add(balance.held, tuple((event, count) for event, (count, _) in reservation.items.items()))
                _allow(balance, reservation, {})
        elif reservation.status == ReservationStatus.FORFEITED:
            for balance in (own, *audit.adding(key)):
                balance.withdrawn.update(reservation.withdrawn)
    if run.reservation_id != active:
        audit.add(key, f"it names the reservation {run.reservation_id}, but its active one is {active}.")


def _check_plan(audit: VerificationContext, key: Key, reservation: StoredReservation, walk: _Walk) -> None:
    account = audit.balances[key].account
    name = f"reservation {reservation.id}"
    if not is_of(reservation.id, reservation.created_at):
        audit.add(key, f"{name} was not made when its id says.")
    reserved = audit.cost(key[0], account, {event: count for event, (count, _) in reservation.items.items()})
    if reserved is None or (reserved.to_bytes(), reserved.delta) != raw_rows.reserved(
        audit.tx, key[0], reservation.id, audit.report
    ):
        audit.add(key, f"the curve of {name} is not that of its plan.")
    _check_withdrawn(audit, key, reservation, walk)
    used = {event: used for event, (_, used) in reservation.items.items() if used}
    if used != walk.used.get(reservation.id, Counter()):
        audit.add(key, f"what {name} says to be used of its plan is not what was charged under it.")
    status, executed = reservation.status, reservation.steps_executed
    left = {event: count - used for event, (count, used) in reservation.items.items() if count != used}
    due = left if status == ReservationStatus.FORFEITED else {}
    if walk.forfeited.get(reservation.id, Counter()) != due:
        audit.add(key, f"what is left of the plan of {name}, which is {status}, is not what was forfeited.")
    if status == ReservationStatus.VOIDED and used:
        audit.add(key, f"{name} is voided, and yet steps were charged under it.")
    if executed != (sum(used.values()) if status == ReservationStatus.COMMITTED else None):
        audit.add(key, f"{name} attests {executed} steps; {sum(used.values())} were charged under it.")


def _check_withdrawn(audit: VerificationContext, key: Key, reservation: StoredReservation, walk: _Walk) -> None:
    """Compare a reservation's cancelled steps with the audit log and its charges."""
    name, told = f"reservation {reservation.id}", audit.withdrawn(key[0], reservation.id)
    if told is not None and reservation.withdrawn != told:
        audit.add(key, f"what {name} records as withdrawn from its plan differs from the audit log of lowered limits.")
    asked = walk.used.get(reservation.id, Counter()) - walk.unasked.get(reservation.id, Counter())
    for event, count in reservation.withdrawn.items():
        if asked[event] + count > reservation.items[event][0]:
            audit.add(key, f"steps were let through under {name} that a lowered limit had withdrawn.")


def _allow(balance: Balance, reservation: StoredReservation, spent: Mapping[str, int]) -> None:
    """Count the steps that an active reservation may take, or has taken and not settled."""
    for event, (count, used) in reservation.items.items():
        allowed = count - reservation.withdrawn.get(event, 0)
        balance.allowed[event] += allowed - spent.get(event, 0)
        balance.left += allowed - used
