"""The state of an organisation's ledger within one transaction: loaded rows, and the changes to write.

It has no connection: rows are loaded before the first decision and saved after the last one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.alerts import Alert
from app.ledger.admission.admission import LimitChange
from app.ledger.admission.composition import exposed
from app.ledger.admission.counted_accounts import CountedAccount
from app.ledger.errors import AccountQuarantinedError, SequenceConflictError
from app.ledger.governance.steps_lost import PricedGroup
from app.ledger.runs.decisions import Decision, DecisionEntry, DecisionOutcome, entry_hash, entry_of
from app.ledger.runs.deviations import Deviation, merge_deviations
from app.ledger.runs.reservations import Reservation
from app.ledger.runs.run import Run, RunStatus, find_deviations
from app.ledger.step_events import PricedStep, StepEvent
from app.service.accounts.lookup import missing_account_error
from app.service.charging.ledger_state import CostRule
from app.service.charging.requests import Mode, StepRequest
from app.service.idempotency import key_reused_error


@dataclass
class UnitOfWork:
    """Rows loaded by a transaction, and its changes.

    Args:
        paths: account ids of each run's path, by depth and id.
        accounts: loaded accounts; locked if the transaction writes.
        unlocked: children that the lock on their parallel parent protects.
        parts: child ids of parallel accounts.
        stored_runs: the runs as they were loaded.
        reservations: active reservations by run.
        sweeps: runs that are charged once, as a whole sweep.
        by_key: decisions by idempotency key.
        reused_keys: idempotency keys of requests of other kinds.
        by_first_step: decisions that advanced a run, by run, attempt and first step.
        costs: costs of events.
        kinds: events that were charged before, with their curves, by fingerprint; None: they are lost.
        registered: what other runs under the accounts of a run's path declared, by run.
        costed_reservations: runs whose reservations have all their costs loaded.
        limit_changes: the last change of an account's limit; None: the log has none.
        decided: entries of decisions to append, with their hashes.
        new_ranges: run, position and actor of the decisions that begin ranges.
        changed: accounts to write; `changed_runs` and `changed_items` (positions in a run's reservation) likewise.
        frozen: those of the changed accounts whose filter weights are new.
        opened: reservations to add, with their curves; likewise those `queued` to wait.
        granted: reservations that have waited.
        stored_costs: costs that are known to be stored.
        mentioned: events of refusals, stored without costs.
        added_costs: those of them that the ledger lacks.
    """

    organisation_id: str
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    accounts: dict[str, CountedAccount] = field(default_factory=dict)
    unlocked: dict[str, AccountRecord] = field(default_factory=dict)
    parts: dict[str, list[str]] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    stored_runs: dict[str, Run] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    sweeps: set[str] = field(default_factory=set)
    by_key: dict[str, Decision] = field(default_factory=dict)
    reused_keys: set[str] = field(default_factory=set)
    by_first_step: dict[tuple[str, int, int], Decision] = field(default_factory=dict)
    costs: dict[CostRule, dict[DpEvent, RdpCurve]] = field(default_factory=dict)
    kinds: dict[str, tuple[DpEvent, RdpCurve] | None] = field(default_factory=dict)
    registered: dict[str, Sequence[PricedGroup]] = field(default_factory=dict)
    costed_reservations: set[str] = field(default_factory=set)
    limit_changes: dict[str, LimitChange | None] = field(default_factory=dict)
    decided: list[tuple[DecisionEntry, bytes]] = field(default_factory=list)
    new_ranges: list[tuple[str, int, str]] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    changed_runs: set[str] = field(default_factory=set)
    changed_items: dict[str, set[int]] = field(default_factory=dict)
    opened: list[tuple[Reservation, RdpCurve, datetime]] = field(default_factory=list)
    queued: list[tuple[Reservation, RdpCurve, datetime]] = field(default_factory=list)
    granted: list[tuple[Reservation, datetime]] = field(default_factory=list)
    closed: list[tuple[Reservation, datetime]] = field(default_factory=list)
    stored_costs: set[tuple[str, CostRule, DpEvent]] = field(default_factory=set)
    mentioned: set[DpEvent] = field(default_factory=set)
    alerts: list[Alert] = field(default_factory=list)
    added_costs: dict[CostRule, dict[DpEvent, RdpCurve]] = field(default_factory=dict)

    def add_run(self, path: tuple[str, ...], run: Run, reservation: Reservation | None) -> None:
        """Add a run as it was loaded, with its active reservation and the ids of its path."""
        self.paths[run.account_id] = path
        self.runs[run.account_id] = self.stored_runs[run.account_id] = run
        if reservation is not None:
            self.reservations[run.account_id] = reservation

    def run(self, run_id: str) -> Run:
        """Get a run.

        Raises:
            NotFoundError: it was not found.
        """
        found = self.runs.get(run_id)
        if found is None:
            raise missing_account_error(AccountKind.RUN, run_id)
        return found

    def record(self, account_id: str) -> AccountRecord:
        """Get a loaded account."""
        counted = self.accounts.get(account_id)
        return self.unlocked[account_id] if counted is None else counted.settled()

    def path(self, run_id: str) -> tuple[Account, ...]:
        """Get the accounts of a run's path.

        Raises:
            AccountQuarantinedError: one of them, or a child of a parallel one, is quarantined.
        """
        path = [self._sound(at) for at in self.paths[run_id]]
        return exposed(path, self._parts_of(path)) if self.parts else tuple(path)

    def _sound(self, account_id: str) -> Account:
        """Get an account that is not quarantined."""
        record = self.record(account_id)
        if record.quarantine is not None:
            raise _quarantined(record.account)
        return record.account

    def _parts_of(self, path: Sequence[Account]) -> Iterator[Account]:
        """Yield the children of all parallel accounts of a path."""
        for account in path:
            for part in self.parts.get(account.id, ()):
                yield self._sound(part)  # if it is not, its parent's balance is unproven, too

    def find_earlier(self, request: StepRequest, run: Run, fingerprint: str) -> Decision | None:
        """Find an earlier decision on this request by key or first step.

        Raises:
            IdempotencyKeyReusedError: the key was used for another request.
            SequenceConflictError: these steps were admitted before with different content.
        """
        if request.idempotency_key is not None:
            by_key = self.by_key.get(request.idempotency_key)
            if by_key is not None:
                # A newer attempt must not release by an old admission; a report may be repeated by any attempt.
                same_trainer = by_key.attempt == request.attempt or request.mode is Mode.REPORT
                same_place = request.first_step in {None, by_key.first_step}
                if by_key.request_fingerprint != fingerprint or not (same_trainer and same_place):
                    raise key_reused_error(request.idempotency_key)
                return by_key
            if request.idempotency_key in self.reused_keys:
                raise key_reused_error(request.idempotency_key)
        current = request.attempt == run.attempt
        if request.first_step is None or (current and request.first_step >= run.next_step):
            return None
        admitted = self.by_first_step.get((run.account_id, request.attempt, request.first_step))
        if admitted is not None and admitted.request_fingerprint == fingerprint:
            return admitted
        if not current:
            return None
        raise SequenceConflictError(
            f"Step {request.first_step} was admitted before, {_difference(request, admitted)}. "
            f"The next step is {run.next_step}.",
            next_step=run.next_step,
        )

    def find_deviations(self, run: Run, steps: Sequence[StepEvent], now: datetime) -> tuple[Deviation, ...]:
        """Find the deviations of steps from the run's declaration."""
        own = self.accounts[run.account_id].record
        return find_deviations(run, own.account.planned, steps, (now - own.created_at).total_seconds() / 3600)

    def costs_of(self, account: Account) -> dict[DpEvent, RdpCurve]:
        """Get the loaded costs under an account's rules."""
        return self.costs.setdefault((account.relation, account.grid_version), {})

    def remember_costs(self, account: Account, steps: Iterable[PricedStep]) -> None:
        """Add the costs that the ledger lacks."""
        costs = self.costs_of(account)
        new = {priced.step.event: priced.curve for priced in steps if priced.step.event not in costs}
        if new:
            costs.update(new)
            self.added_costs.setdefault((account.relation, account.grid_version), {}).update(new)

    def take(self, taken: Reservation) -> None:
        """Replace a run's reservation after steps were taken out of it."""
        before = self.reservations[taken.run_id]
        places = {place for place, item in enumerate(taken.items) if item is not before.items[place]}
        self.changed_items.setdefault(taken.run_id, set()).update(places)
        self.reservations[taken.run_id] = taken

    def open(self, opened: Reservation, reserved: RdpCurve, now: datetime) -> None:
        """Add a run's reservation, with its curve."""
        self.opened.append((opened, reserved, now))
        self.reservations[opened.run_id] = opened
        self.move(self.run(opened.run_id)._replace(reservation_id=opened.id))

    def queue(self, waiting: Reservation, requested: RdpCurve, now: datetime) -> None:
        """Add a reservation that waits, with its curve."""
        self.queued.append((waiting, requested, now))

    def grant(self, granted: Reservation, now: datetime) -> None:
        """Activate a run's reservation that has waited."""
        self.granted.append((granted, now))
        self.reservations[granted.run_id] = granted
        self.move(self.run(granted.run_id)._replace(reservation_id=granted.id, status=RunStatus.ACTIVE))

    def close(self, closed: Reservation, now: datetime) -> None:
        """End a run's reservation."""
        self.closed.append((closed, now))
        self.reservations.pop(closed.run_id)
        self.changed_items.pop(closed.run_id, None)
        self.move(self.run(closed.run_id)._replace(reservation_id=None))

    def charge(
        self,
        charged: Iterable[Account],
        steps: Sequence[PricedStep],
        now: datetime,
        *,
        from_held: bool = False,
        compact: bool = False,
    ) -> None:
        """Replace accounts that these steps, or their move from held, charged; see `AccountRecord.charged_to`."""
        for account in charged:
            before = self.record(account.id)
            self._write(before, before.charged_to(account, steps, now, from_held=from_held, compact=compact))

    def change(self, changed: Iterable[Account], now: datetime) -> None:
        """Replace accounts that nothing was charged to; their curves are written in full."""
        for account in changed:
            before = self.record(account.id)
            self._write(before, before.changed_to(account, now))

    def renew(self, run_id: str, now: datetime | None = None) -> None:
        """Give a run's account a new version, so that no cached row of the run is valid any more."""
        before = self.record(run_id)
        account = replace(before.account, version=before.account.version + 1)
        self._write(before, before.changed_to(account, now or before.updated_at, compact=False))

    def _write(self, before: AccountRecord, after: AccountRecord) -> None:
        account_id = after.account.id
        self.accounts[account_id] = CountedAccount(after)
        self.changed.add(account_id)
        if after.account.weights is not before.account.weights:
            self.frozen.add(account_id)

    def append(self, run: Run, decision: Decision, found: tuple[Deviation, ...] = ()) -> Decision:
        """Append a decision to its run's chain, and the deviations found in its steps to the run."""
        if decision.outcome is DecisionOutcome.REFUSED:  # any other one changes the run's account
            self.renew(run.account_id)
        entry = entry_of(self.organisation_id, decision)
        head = entry_hash(run.chain_head, entry)
        self.decided.append((entry, head))
        if decision.idempotency_key is not None:
            self.by_key[decision.idempotency_key] = decision
        if decision.admitted:
            self.by_first_step[decision.run_id, decision.attempt, decision.first_step] = decision
        last = run.last_decided_at
        if entry.actor != run.last_actor or last is None or entry.created_at < last:  # a clock may be set back
            self.new_ranges.append((entry.run_id, entry.position, entry.actor))
        after = run.advanced(decision.next_step, head, entry.created_at, entry.actor)
        self.move(after._replace(deviations=merge_deviations(run.deviations, found)) if found else after)
        return decision

    def run_change(self, run_id: str) -> tuple[str, Run, Run]:
        """Get the owner of a run, and the run as it was loaded and as it is now."""
        return self.organisation_id, self.stored_runs[run_id], self.runs[run_id]

    def move(self, run: Run) -> None:
        """Replace a run."""
        self.runs[run.account_id] = run
        self.changed_runs.add(run.account_id)


def _quarantined(account: Account) -> AccountQuarantinedError:
    return AccountQuarantinedError(
        f"Nothing is charged to {account.path}: verification found that its balance does not follow "
        "from its charges. Run `epsilon-ledger verify`, restore the rows that it names, and let two persons lift the "
        f"quarantine: POST /v1/accounts/{account.id}/quarantine/lift.",
        account=account.id,
    )


def _difference(request: StepRequest, admitted: Decision | None) -> str:
    """Describe how admitted steps differ from a request; their events are not loaded."""
    if admitted is None:
        return "as part of another request"
    if admitted.requested_count != sum(count for _, count in request.items):
        last = admitted.next_step - 1
        which = f"steps {admitted.first_step} to {last}" if last > admitted.first_step else "that step alone"
        return f"as part of another request ({which})"
    mode = Mode.REPORT if admitted.outcome is DecisionOutcome.REPORTED else Mode.AUTHORIZE
    if request.mode is not mode:
        return f"in mode `{mode}`"
    return "with another `event`, `events` or `on_exceed`"
