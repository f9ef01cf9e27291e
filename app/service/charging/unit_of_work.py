"""State of the ledger within one transaction."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, fingerprint
from app.ledger.account_records import AccountRecord, Since
from app.ledger.accounts import Account, PricedStep, StepEvent, total_cost, zero_curve
from app.ledger.alerts import Alert
from app.ledger.composition import exposed
from app.ledger.decisions import Decision, sealed
from app.ledger.errors import AccountQuarantinedError, NotFoundError
from app.ledger.reservations import Reservation, remaining_items
from app.ledger.runs import Run
from app.persistence.repositories import accounts, balances, decisions
from app.persistence.repositories.dp_events import CostTable
from app.service.charging.cache import Key, LedgerCache
from app.service.costing import PrecomputedCosts


@dataclass
class UnitOfWork:
    """Rows loaded by a transaction, with the changes to write.

    Args:
        paths: account ids of each run's path, by depth and id.
        accounts: loaded accounts; locked if the transaction writes.
        parts: child ids of parallel accounts.
        unlocked_partitions: children that the lock on their parallel parent protects.
        quarantined_paths: paths of unlocked accounts in quarantine.
        reservations: active reservations by run.
        pinned: decisions by organisation and idempotency key.
        reused: idempotency keys of requests of other kinds.
        changed_plan_items: positions in a run's plan that were used.
        decided: decisions to append.
        known_costs: costs stored in the ledger.
        prices: costs to store.
        mentioned: events of refusals, stored without costs.
    """

    tx: Connection
    memory: LedgerCache
    paths: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    accounts: dict[Key, AccountRecord] = field(default_factory=dict)
    parts: dict[Key, list[str]] = field(default_factory=dict)
    unlocked_partitions: dict[Key, AccountRecord] = field(default_factory=dict)
    quarantined_paths: dict[Key, str] = field(default_factory=dict)
    runs: dict[Key, Run] = field(default_factory=dict)
    reservations: dict[Key, Reservation] = field(default_factory=dict)
    pinned: dict[Key, Decision] = field(default_factory=dict)
    reused: set[Key] = field(default_factory=set)
    changed_plan_items: dict[Key, set[int]] = field(default_factory=dict)
    decided: list[tuple[str, Decision]] = field(default_factory=list)
    changed: set[Key] = field(default_factory=set)
    changed_runs: set[Key] = field(default_factory=set)
    known_costs: dict[CostTable, dict[DpEvent, RdpCurve]] = field(default_factory=dict)
    prices: dict[CostTable, dict[DpEvent, RdpCurve]] = field(default_factory=dict)
    mentioned: dict[str, set[DpEvent]] = field(default_factory=dict)
    alerts: dict[str, list[Alert]] = field(default_factory=dict)

    def run(self, organisation_id: str, run_id: str) -> Run:
        """Get a run."""
        found = self.runs.get((organisation_id, run_id))
        if found is None:
            raise NotFoundError(f"There is no run {run_id!r} in your organisation.")
        return found

    def record(self, organisation_id: str, account_id: str) -> AccountRecord:
        """Get a loaded account."""
        key = (organisation_id, account_id)
        return self.accounts.get(key) or self.unlocked_partitions[key]

    def path(self, organisation_id: str, run_id: str) -> tuple[Account, ...] | None:
        """Get the accounts of a run's path; None if they are not locked.

        Raises:
            AccountQuarantinedError: one of them, or a child of a parallel one, is quarantined.
        """
        path = self.paths[organisation_id, run_id]
        found = [self.accounts.get((organisation_id, at)) for at in path]
        for at, record in zip(path, found, strict=True):
            stopped = self.quarantined_paths.get((organisation_id, at))
            if record is not None and record.quarantine is not None:
                stopped = record.account.path
            if stopped is not None:
                raise _quarantined(stopped, at)
        whole = [record.account for record in found if record is not None]
        if len(whole) != len(found):
            return None
        return exposed(whole, self._parts_of(organisation_id, path)) if self.parts else tuple(whole)

    def _parts_of(self, organisation_id: str, path: Sequence[str]) -> Iterator[Account]:
        """Yield the children of all parallel accounts of a path."""
        for at in path:
            for part in self.parts.get((organisation_id, at), ()):
                record = self.record(organisation_id, part)
                if record.quarantine is not None:  # its parent's balance is unproven, too
                    raise _quarantined(record.account.path, part)
                yield record.account

    def ancestors(self, organisation_id: str, run_id: str) -> tuple[Account, ...]:
        """Get a run's path for its limits; ancestors may be unlocked."""
        path = self.paths[organisation_id, run_id]
        unlocked = [at for at in path if (organisation_id, at) not in self.accounts]
        seen = {at: self.memory.accounts.get((organisation_id, at)) for at in unlocked}
        # They are not locked: a filter that was not frozen when it was cached may be by now.
        unknown = [at for at, record in seen.items() if record is None or not record.account.weights_frozen]
        if unknown:
            for record in accounts.find_many(self.tx, self.memory.prices, organisation_id, unknown):
                seen[record.account.id] = record
                self.memory.accounts.put((organisation_id, record.account.id), record)
        records = [self.accounts.get((organisation_id, at)) or seen[at] for at in path]
        return tuple(record.account for record in records if record is not None)

    def taken_at(self, organisation_id: str, run_id: str, attempt: int, first_step: int) -> Decision | None:
        """Find the decision that admitted a request with this first step."""
        for owner, decision in self.decided:
            if (owner, decision.run_id, decision.attempt, decision.first_step) == (
                organisation_id,
                run_id,
                attempt,
                first_step,
            ) and decision.admitted:
                return decision
        return decisions.find_admitted(self.tx, organisation_id, run_id, attempt, first_step)

    def held_by(
        self, organisation_id: str, reservation: Reservation, account: Account, ready: PrecomputedCosts
    ) -> RdpCurve:
        """Sum the costs of the rest of a reservation's plan."""
        left = remaining_items(reservation)
        if not left:
            return zero_curve(account.grid_version)
        return total_cost(self.quote(organisation_id, account, left, ready))

    def quote(
        self, organisation_id: str, account: Account, steps: Sequence[StepEvent], ready: PrecomputedCosts
    ) -> list[PricedStep]:
        """Price step events, or raise CostNotReadyError."""
        kept = CostTable(organisation_id, account.relation, account.grid_version)
        listed = self.known_costs.setdefault(kept, {})
        new = self.prices.get(kept, {})
        unknown = {fingerprint(event): event for event in {step.event for step in steps} - listed.keys() - new.keys()}
        if unknown:
            found = self.memory.prices.find(self.tx, kept, unknown)
            listed.update((unknown[key], curve) for key, curve in found.items())
            lacking = [event for key, event in unknown.items() if key not in found]
            if lacking:
                ready.require(account, lacking)
        return [
            PricedStep(step, listed.get(step.event) or new.get(step.event) or ready.curve(account, step.event))
            for step in steps
        ]

    def remember_prices(self, organisation_id: str, account: Account, steps: Iterable[PricedStep]) -> None:
        """Store the costs that the ledger lacks."""
        kept = CostTable(organisation_id, account.relation, account.grid_version)
        listed = self.known_costs.get(kept, {})
        new = {priced.step.event: priced.curve for priced in steps if priced.step.event not in listed}
        if new:
            self.prices.setdefault(kept, {}).update(new)

    def remember_events(self, organisation_id: str, steps: Iterable[StepEvent]) -> None:
        """Store the organisation's use of events."""
        self.mentioned.setdefault(organisation_id, set()).update(step.event for step in steps)

    def take(self, organisation_id: str, taken: Reservation) -> None:
        """Replace a run's reservation after steps were taken out of its plan."""
        key = (organisation_id, taken.run_id)
        before = self.reservations[key]
        places = {place for place, item in enumerate(taken.items) if item is not before.items[place]}
        self.changed_plan_items[key] = self.changed_plan_items.get(key, set()) | places
        self.reservations[key] = taken

    def charge(
        self,
        organisation_id: str,
        charged: Iterable[Account],
        steps: Sequence[PricedStep],
        now: datetime,
        *,
        from_held: bool = False,
    ) -> None:
        """Replace accounts that these steps, or their move from held, charged."""
        for account in charged:
            before = self.accounts[organisation_id, account.id]
            since = before.since
            if account.exposure is None:
                since = balances.charged(since, steps, from_held=from_held)
            elif (account.spent, account.held) != (before.account.spent, before.account.held):
                since = None  # a maximum over partitions is no sum of events
            self._put(organisation_id, account, since, now)

    def change(self, organisation_id: str, changed: Iterable[Account], now: datetime) -> None:
        """Replace accounts; their curves are written in full."""
        for account in changed:
            self._put(organisation_id, account, None, now)

    def _put(self, organisation_id: str, account: Account, since: Since | None, now: datetime) -> None:
        key = (organisation_id, account.id)
        if account.exposure is not None:  # valid for one run only
            account = replace(account, exposure=None)
        self.accounts[key] = self.accounts[key].changed_to(account, now, since)
        self.changed.add(key)

    def append(self, organisation_id: str, run: Run, decision: Decision) -> Decision:
        """Append a decision with its hash to its run's chain."""
        whole = sealed(organisation_id, decision, run.chain_head)
        self.decided.append((organisation_id, whole))
        if whole.idempotency_key is not None:
            self.pinned[organisation_id, whole.idempotency_key] = whole
        self.move(
            organisation_id,
            replace(run, next_step=whole.next_step, decisions=run.decisions + 1, chain_head=whole.entry_hash),
        )
        return whole

    def tell(self, organisation_id: str, alerts: Iterable[Alert]) -> None:
        """Queue alerts to be written with the transaction."""
        new = list(alerts)
        if new:
            self.alerts.setdefault(organisation_id, []).extend(new)

    def move(self, organisation_id: str, run: Run) -> None:
        """Replace a run."""
        key = (organisation_id, run.account_id)
        self.runs[key] = run
        self.changed_runs.add(key)


def _quarantined(path: str, account_id: str) -> AccountQuarantinedError:
    return AccountQuarantinedError(
        f"Nothing is charged to {path}: verification found that its balance does not follow "
        "from its charges. Run `epsilon-ledger verify`, restore the rows that it names, and let two persons lift the "
        f"quarantine: POST /v1/accounts/{account_id}/quarantine/lift.",
        account=account_id,
    )
