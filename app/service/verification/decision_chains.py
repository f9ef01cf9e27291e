"""Check the decision chain of a run and the order of its steps."""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

from sqlalchemy import Row

from app.ledger.filter.limits import Limit, Unit
from app.ledger.runs.decisions import DecisionEntry, entry_hash, genesis
from app.ledger.runs.reservations import NEVER_HELD, ReservationStatus
from app.ledger.runs.run import RunStatus
from app.persistence.repositories import raw_rows
from app.persistence.repositories.raw_rows import Key, StoredEntry, StoredReservation
from app.persistence.tolerant_rows import DAMAGED
from app.service.ids import is_of
from app.service.verification.audit_replay import status_discrepancy
from app.service.verification.report import Balance, VerificationContext

STEPS_TAKEN = frozenset({"admitted", "reported"})
FARTHEST: Final = 1.005
"""Largest epsilon of a decision over the one that its Rényi curve proves: it holds up to the next knot."""

CHARGED = STEPS_TAKEN | {"forfeited"}
"""Outcomes that have a cost."""


def check_run(audit: VerificationContext, run: Row[Any]) -> None:
    """Check a run's chain, add its charges to the accounts above, and balance its reservations."""
    key = (run.organisation_id, run.account_id)
    audit.checked["runs"] += 1
    governing = next((balance for balance in audit.upwards(key) if balance.account.limit is not None), None)
    _ChainReplay(
        audit, run, key, genesis(*key), next_step=audit.attempts.get(key, {}).get(1, 0), governing=governing
    ).check()


@dataclass
class _ChainReplay:
    """Check of a run's chain.

    Args:
        broken: whether a bad decision was reported; the hashes of later ones are not checked.
        next_step: after the last step taken in the attempt.
        last: the last decision; `ranges` has the actor of each range of decisions by its first position.
        used: repetitions charged to each reservation, by event; likewise `forfeited`.
        reported: those of `used` that were executed although a lowered limit had cancelled them.
        governing: the account whose limit the decisions name: the run's own, or the nearest above.
        overdrawn: whether a report exceeded a limit.
        first_version: least version of the population in a charge.
        closed: charges outside of active reservations, which ancestors have as well; `closed_reports` are the reports.
    """

    audit: VerificationContext
    run: Row[Any]
    key: Key
    head: bytes
    decisions: int = 0
    broken: bool = False
    attempt: int = 1
    next_step: int = 0
    last: DecisionEntry | None = None
    ranges: dict[int, str] = field(default_factory=dict)
    used: dict[str, Counter[str]] = field(default_factory=dict)
    forfeited: dict[str, Counter[str]] = field(default_factory=dict)
    reported: dict[str, Counter[str]] = field(default_factory=dict)
    governing: Balance | None = None
    overdrawn: bool = False
    closed: Counter[str] = field(default_factory=Counter)
    closed_reports: Counter[str] = field(default_factory=Counter)
    first_version: float = inf

    def check(self) -> None:
        """Check the chain, add its charges to the accounts above, and balance its reservations."""
        audit, key = self.audit, self.key
        try:
            for stored in raw_rows.entries(audit.tx, *key, audit.report):
                self._check_entry(stored)
        except DAMAGED as error:
            self._fail(f"a decision behind the {self.decisions} first ones cannot be read: {error}")
            return
        self._check_end()
        self._check_epsilon()
        self.own.reported.update(self.closed_reports)
        for balance in audit.adding(key):
            balance.spent.update(self.closed)
            balance.reported.update(self.closed_reports)
        for balance in audit.above(key):
            balance.workloads.update(self.closed)
        self.own.workloads.update(self.own.spent)
        population = next(iter(audit.paths.get(key, ())), ("", 0))[0]
        for balance in (*audit.above(key), self.own):
            earlier = balance.first_versions.get(population, inf)
            balance.first_versions[population] = min(earlier, self.first_version)
        self._balance_reservations()

    @property
    def own(self) -> Balance:
        """The run's own account."""
        return self.audit.balances[self.key]

    def _fail(self, detail: str, position: int | None = None) -> None:
        self.audit.add(self.key, detail, position)

    def _fail_at(self, entry: DecisionEntry, detail: str) -> None:
        self._fail(f"decision {entry.position} {detail}", entry.position)

    def _check_entry(self, stored: StoredEntry) -> None:
        self._check_link(stored)
        if not self.broken:
            self._collect_limits(stored.entry)
        if stored.entry.outcome in STEPS_TAKEN:
            self._check_steps(stored.entry)
        if stored.entry.outcome in CHARGED:
            self._charge(stored.entry)

    def _check_link(self, stored: StoredEntry) -> None:
        """Report the first decision that is missing or does not match its hash."""
        entry = stored.entry
        problem = None
        if entry.position != self.decisions:
            problem = f"decision {self.decisions} is missing from its chain."
        elif entry_hash(self.head, entry) != stored.entry_hash:
            problem = f"decision {entry.position} is not the one that was made: its hash is that of another."
        if problem and not self.broken:
            self.broken = True
            self._fail(problem, min(self.decisions, entry.position))
        self.head = stored.entry_hash
        self.decisions = entry.position + 1
        anchored = self.audit.anchors(self.key).get(self.decisions)
        if anchored is not None and anchored != stored.entry_hash.hex() and not self.broken:
            self.broken = True
            self._fail_at(entry, "is not the one that the organisation's chain is tied to: it was rewritten.")
        if self.last is not None and entry.population_version < self.last.population_version:
            self._fail_at(entry, "was made on an earlier state of its population than the one before.")
        if self.last is None or entry.actor != self.last.actor or entry.created_at < self.last.created_at:
            self.ranges[entry.position] = entry.actor
        self.last = entry
        self.audit.checked["decisions"] += 1

    def _collect_limits(self, entry: DecisionEntry) -> None:
        """Collect the limits and the numbers of a decision with a valid hash."""
        if self.governing is not None:
            self.governing.limits.add(Limit(entry.limit_value, entry.limit_delta, Unit(entry.limit_unit)))
        binding = self.audit.balances.get((self.key[0], entry.binding_account_id))
        if binding is not None and entry.refusal_details is not None:
            with suppress(KeyError, TypeError, ValueError):  # the hash proves the text, not its form
                details = json.loads(entry.refusal_details)
                binding.limits.add(Limit.of(details["limit"]))
        if entry.outcome == "reported" and entry.steps_remaining is None:
            self.overdrawn = True

    def _check_steps(self, entry: DecisionEntry) -> None:
        """Compare the steps of a decision with the ones before it."""
        if entry.attempt != self.attempt:
            self._open_attempt(entry.attempt, entry.position)
        if entry.first_step != self.next_step:
            self._fail_at(entry, f"begins at step {entry.first_step}; the steps before it end at {self.next_step}.")
        self.next_step = entry.first_step + sum(count for _, count in entry.items)

    def _open_attempt(self, attempt: int, position: int | None) -> None:
        """Check that an attempt follows the last one and starts within its steps."""
        first_step = self.audit.attempts.get(self.key, {}).get(attempt)
        if attempt < self.attempt or first_step is None or first_step > self.next_step:
            self._fail(f"attempt {attempt} does not follow attempt {self.attempt} at step {self.next_step}.", position)
        self.attempt = attempt
        self.next_step = self.next_step if first_step is None else first_step

    def _charge(self, entry: DecisionEntry) -> None:
        """Add a decision's charges to the run and, unless reserved, to its ancestors."""
        self.first_version = min(self.first_version, entry.population_version)
        counted = sum(count for _, count in entry.items)
        if counted != entry.step_count:
            self._fail_at(entry, f"says that it takes {entry.step_count} steps; its charges are {counted}.")
        self.audit.checked["charges"] += len(entry.items)
        if entry.outcome in STEPS_TAKEN:
            self.audit.checked["steps"] += counted
        reservation = None
        if entry.reservation_id is not None:
            reservation = self.audit.reservations.get((self.key[0], entry.reservation_id))
            if reservation is None or reservation.run_id != self.key[1]:
                self._fail_at(entry, f"is under a reservation {entry.reservation_id} that the run has not.")
                reservation = None
            else:
                if reservation.attempt != entry.attempt:
                    self._fail_at(entry, f"of attempt {entry.attempt} is under a reservation of another attempt.")
                taken = self.forfeited if entry.outcome == "forfeited" else self.used
                _add(taken.setdefault(reservation.id, Counter()), entry.items)
                if entry.outcome == "reported":
                    _add(self.reported.setdefault(reservation.id, Counter()), entry.items)
        _add(self.own.spent, entry.items)
        if reservation is None or reservation.status != ReservationStatus.ACTIVE:
            _add(self.closed, entry.items)
            if entry.outcome == "reported":
                _add(self.closed_reports, entry.items)

    def _check_end(self) -> None:
        """Compare the run's row with its decisions."""
        if not self.broken and self.head != self.run.chain_head:
            last = f"at decision {self.decisions - 1}" if self.decisions else "before the first decision"
            self._fail(f"its chain ends {last}, but not with the run's head: decisions are missing.", self.decisions)
        tied = max(self.audit.anchors(self.key), default=0)
        if tied > self.decisions:
            self._fail(f"{self.decisions} decisions are kept, but the organisation's chain is tied to {tied} of them.")
        if self.decisions != self.run.decision_count:
            self._fail(f"{self.decisions} decisions are kept, but {self.run.decision_count} were made.")
        ranges = self.audit.ranges.get(self.key, {})
        if not self.broken and self.ranges != ranges:
            first, _ = min(self.ranges.items() ^ ranges.items())
            self._fail(f"the ranges of its decisions, which lists of them use, are wrong at decision {first}.", first)
        attempts = sorted(self.audit.attempts.get(self.key, ()))
        if len(attempts) != self.run.attempt or attempts != list(range(1, len(attempts) + 1)):
            self._fail(f"its attempts are {attempts}, but its current one is {self.run.attempt}.")
        for attempt in [one for one in attempts if one > self.attempt]:
            self._open_attempt(attempt, None)
        if self.run.next_step != self.next_step:
            self._fail(f"its steps end at {self.next_step}, but its next step is {self.run.next_step}.")
        if wrong := status_discrepancy(self.run, self.audit.recorded(self.key), overdrawn=self.overdrawn):
            self._fail(wrong)
        if self.overdrawn and self.run.status in {RunStatus.ACTIVE, RunStatus.PAUSED}:
            self._fail(f"it has reported more than its limit allows, and yet it is {self.run.status}.")

    def _check_epsilon(self) -> None:
        """Compare the last decision's epsilon with the Rényi curve of the run's charges, which bounds it from above."""
        if self.broken or self.last is None:
            return
        spent = self.audit.cost(self.key[0], self.own.account, self.own.spent)
        if spent is None:
            return
        limit = Limit(self.last.limit_value, self.last.limit_delta, Unit(self.last.limit_unit))
        most = replace(self.own.account, spent=spent).rdp_epsilon(limit.shown_delta) * FARTHEST
        if self.last.epsilon > most:
            self._fail_at(self.last, f"has epsilon {self.last.epsilon}, but its charges have at most {most}.")

    def _balance_reservations(self) -> None:
        """Check that each reservation balances: reserved = committed + returned + forfeited."""
        active = None
        self._check_none_forgotten()
        for reservation in self.audit.reservations_of.get(self.key, ()):
            self._check_plan(reservation)
            own = self.own
            if reservation.status in NEVER_HELD:
                continue
            for balance in (own, *self.audit.above(self.key)):
                balance.workloads.update(reservation.items)
            if reservation.status == ReservationStatus.ACTIVE:
                active = reservation.id
                if reservation.attempt != self.run.attempt:
                    self._fail(f"its active reservation {active} is not one of its attempt {self.run.attempt}.")
                own.held.update({event: count - used for event, (count, used) in reservation.items.items()})
                _allow(own, reservation, {event: used for event, (_, used) in reservation.items.items()})
                for balance in self.audit.adding(self.key):
                    balance.held.update({event: count for event, (count, _) in reservation.items.items()})
                    _allow(balance, reservation, {})
            elif reservation.status == ReservationStatus.FORFEITED:
                for balance in (own, *self.audit.adding(self.key)):
                    balance.revoked.update(reservation.revoked)
        if self.run.reservation_id != active:
            self._fail(f"it names the reservation {self.run.reservation_id}, but its active one is {active}.")

    def _check_plan(self, reservation: StoredReservation) -> None:
        name = f"reservation {reservation.id}"
        if not is_of(reservation.id, reservation.created_at):
            self._fail(f"{name} was not made when its id says.")
        counts = {event: count for event, (count, _) in reservation.items.items()}
        reserved = self.audit.cost(self.key[0], self.own.account, counts)
        stored = raw_rows.reserved(self.audit.tx, self.key[0], reservation.id, self.audit.report)
        if reserved is None or (reserved.to_bytes(), reserved.delta) != stored:
            self._fail(f"the curve of {name} is not that of its events.")
        self._check_revoked(reservation)
        self._check_wait(reservation)
        used = {event: used for event, (_, used) in reservation.items.items() if used}
        if used != self.used.get(reservation.id, Counter()):
            self._fail(f"what {name} says to be used of it is not what was charged under it.")
        status, executed = reservation.status, reservation.steps_executed
        left = {event: count - used for event, (count, used) in reservation.items.items() if count != used}
        due = left if status == ReservationStatus.FORFEITED else {}
        if self.forfeited.get(reservation.id, Counter()) != due:
            self._fail(f"what is left of {name}, which is {status}, is not what was forfeited.")
        if status == ReservationStatus.VOIDED and used:
            self._fail(f"{name} is voided, and yet steps were charged under it.")
        if executed != (sum(used.values()) if status == ReservationStatus.COMMITTED else None):
            self._fail(f"{name} attests {executed} steps; {sum(used.values())} were charged under it.")

    def _check_none_forgotten(self) -> None:
        """Look for the reservations that have waited by the audit log."""
        state = self.audit.state(self.key[0])
        known = {reservation.id for reservation in self.audit.reservations_of.get(self.key, ())}
        for reservation_id in () if state is None else state.waits_of.get(self.key[1], ()):
            if reservation_id not in known:
                self._fail(
                    f"its reservation {reservation_id} has waited by its organisation's audit events, and is missing."
                )

    def _check_wait(self, reservation: StoredReservation) -> None:
        """Compare a reservation that waits, or has waited, with the audit log."""
        state = self.audit.state(self.key[0])
        if state is None:
            return
        wait, held = state.waits.get(reservation.id), reservation.status not in NEVER_HELD
        found = (reservation.wait_until, reservation.priority, reservation.granted_at)
        if wait is None:
            sound = held and found == (None, 0, None)
        else:
            ended = held if wait.granted_at is not None else reservation.status == wait.status
            sound = ended and found == (wait.wait_until, wait.priority, wait.granted_at)
        if not sound:
            self._fail(f"the wait of reservation {reservation.id} is not as its organisation's audit events have it.")

    def _check_revoked(self, reservation: StoredReservation) -> None:
        """Compare a reservation's cancelled steps with the audit log and its charges."""
        name, state = f"reservation {reservation.id}", self.audit.state(self.key[0])
        if state is not None and reservation.revoked != state.revoked.get(reservation.id, Counter()):
            self._fail(f"what {name} records as revoked differs from the audit log of lowered limits.")
        admitted = self.used.get(reservation.id, Counter()) - self.reported.get(reservation.id, Counter())
        for event, count in reservation.revoked.items():
            if admitted[event] + count > reservation.items[event][0]:
                self._fail(f"steps were let through under {name} that a lowered limit had revoked.")


def _add(counts: Counter[str], items: tuple[tuple[str, int], ...]) -> None:
    for fingerprint, count in items:
        counts[fingerprint] += count


def _allow(balance: Balance, reservation: StoredReservation, spent: Mapping[str, int]) -> None:
    """Count the steps that an active reservation may take, or has taken and not settled."""
    for event, (count, used) in reservation.items.items():
        allowed = count - reservation.revoked.get(event, 0)
        balance.allowed[event] += allowed - spent.get(event, 0)
        balance.left += allowed - used
