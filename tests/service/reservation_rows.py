"""Reservations written as a use case would write them, row by row, for tests of what is proven about them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, select

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation, fingerprint
from app.ledger.account_records import AccountRecord, Population
from app.ledger.accounts import Account, with_usage, zero_curve
from app.ledger.admission import admit, reading_of
from app.ledger.audit import SERVICE
from app.ledger.counting import CountedAccount
from app.ledger.decisions import Decision, DecisionOutcome, entry_hash, entry_of
from app.ledger.ids import TIME_DIGITS
from app.ledger.reservations import (
    Reservation,
    ReservationClose,
    ReservationStatus,
    Shortfall,
    plan_of,
    remaining_items,
    take,
)
from app.ledger.runs import Run
from app.ledger.step_events import PricedStep, StepEvent, total_cost
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import accounts, balances, decisions, dp_events, reservations, runs
from app.persistence.repositories.dp_events import CostTable
from app.persistence.tables import organisations

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
LEASE = 600


@dataclass
class Reserver:
    """A trainer that works under reservations, of one run."""

    database: Database
    run_id: str
    organisation_id: str = ""
    made: int = 0

    def __post_init__(self) -> None:
        with self.database.read(ALL_TENANTS) as tx:
            found = select(organisations.c.id).where(organisations.c.name == "hospital")
            self.organisation_id = self.organisation_id or str(tx.execute(found).scalar_one())

    def reserve(self, *steps: StepEvent) -> Reservation:
        """Set a plan aside on every account of the path."""
        with self.database.write(ALL_TENANTS) as tx:
            path, run = self._read(tx)
            priced = self._priced(tx, path, steps)
            admitted = admit(path, priced)
            assert hasattr(admitted, "accounts"), "the plan fits"
            cost = total_cost(priced)
            self.made += 1
            reservation = Reservation(
                id=f"res_{int(NOW.timestamp() * 1000):0{TIME_DIGITS}x}{self.made:04x}{self.run_id[-12:]}",
                run_id=self.run_id,
                attempt=run.attempt,
                status=ReservationStatus.ACTIVE,
                items=plan_of(steps),
                lease_seconds=LEASE,
                expires_at=NOW + timedelta(seconds=LEASE),
            )
            reservations.add(tx, self.organisation_id, reservation, cost, NOW)
            prepared = [account.prepared_for(priced) for account in path]
            self._save(tx, [replace(account, held=account.held + account.counting(cost)) for account in prepared])
            runs.save_all(tx, [(self.organisation_id, run, run._replace(reservation_id=reservation.id))])
        return reservation

    def spend(self, *steps: StepEvent) -> Reservation:
        """Take steps out of the plan: the run's own account alone is charged."""
        with self.database.write(ALL_TENANTS) as tx:
            path, run = self._read(tx)
            taken = take(self._active(tx), steps, NOW)
            assert not isinstance(taken, Shortfall)
            cost = total_cost(self._priced(tx, path, steps))
            own = replace(path[-1].settle_hold(cost, self._left(tx, path, taken)), version=path[-1].version)
            self._save(tx, [own])
            self._append(tx, run, (*path[:-1], own), steps, DecisionOutcome.ADMITTED, taken.id)
            reservations.save_items(tx, [(self.organisation_id, taken, range(len(taken.items)))])
        return taken

    def close(self, closing: ReservationClose) -> None:
        """End the reservation: what was used or forfeited is spent everywhere, the rest is set aside no longer."""
        closed = closing.reservation
        with self.database.write(ALL_TENANTS) as tx:
            path, run = self._read(tx)
            charged = (*closing.charged, *closing.forfeited)
            further = total_cost(self._priced(tx, path, charged)) if charged else zero_curve(path[0].grid_version)
            used = [StepEvent(item.event, item.used) for item in closed.items if item.used]
            whole = zero_curve(path[0].grid_version)
            for gone in (used, closing.forfeited):
                if gone:
                    whole = whole + total_cost(self._priced(tx, path, gone))
            planned = total_cost(self._priced(tx, path, [StepEvent(item.event, item.count) for item in closed.items]))
            above = [
                replace(
                    account,
                    spent=account.spent + account.counting(whole),
                    held=RdpCurve(account.held.values - planned.values, account.held.delta - planned.delta),
                )
                for account in path[:-1]
            ]
            own = path[-1].settle_hold(further, zero_curve(path[-1].grid_version))
            own = replace(own, version=path[-1].version)
            self._save(tx, [*above, own])
            if charged:
                outcome = DecisionOutcome.FORFEITED if closing.forfeited else DecisionOutcome.ADMITTED
                run = self._append(tx, run, (*above, own), charged, outcome, closed.id)
            runs.save_all(tx, [(self.organisation_id, run, run._replace(reservation_id=None))])
            reservations.close(tx, self.organisation_id, closed, NOW)

    def _read(self, tx: Connection) -> tuple[tuple[Account, ...], Run]:
        path = accounts.path_of(tx, self.organisation_id, self.run_id)
        return tuple(record.account for record in path), runs.get(tx, self.organisation_id, self.run_id)

    def _active(self, tx: Connection) -> Reservation:
        active = runs.get(tx, self.organisation_id, self.run_id).reservation_id
        found = reservations.find(tx, self.organisation_id, str(active))
        assert found is not None
        return found

    def _priced(self, tx: Connection, path: Sequence[Account], steps: Sequence[StepEvent]) -> Sequence[PricedStep]:
        account = path[0]
        kept = CostTable(self.organisation_id, account.relation, account.grid_version)
        priced = [account.price(step) for step in steps]
        known = dp_events.find_curves(tx, kept, [fingerprint(step.event) for step in steps])
        new: dict[DpEvent, RdpCurve] = {
            price.step.event: price.curve for price in priced if price.curve not in known.values()
        }
        if new:
            dp_events.add_curves(tx, kept, new)
        return with_usage(path, priced)

    def _left(self, tx: Connection, path: Sequence[Account], reservation: Reservation) -> RdpCurve:
        left = remaining_items(reservation)
        return total_cost(self._priced(tx, path, left)) if left else zero_curve(path[0].grid_version)

    def _save(self, tx: Connection, changed: Sequence[Account]) -> None:
        people = Population("user", NeighboringRelation.ADD_OR_REMOVE_ONE, None)
        records = [
            AccountRecord(replace(account, version=account.version + 1), people, NOW, NOW, uncompacted=None)
            for account in changed
        ]
        balances.save(tx, [(self.organisation_id, CountedAccount(record)) for record in records])

    def _append(
        self,
        tx: Connection,
        run: Run,
        path: tuple[Account, ...],
        steps: Sequence[StepEvent],
        outcome: DecisionOutcome,
        reservation_id: str,
    ) -> Run:
        count = sum(step.count for step in steps)
        decision = Decision(
            run_id=run.account_id,
            position=run.decisions,
            attempt=run.attempt,
            outcome=outcome,
            steps=tuple(steps),
            first_step=run.next_step,
            step_count=count,
            requested_count=count,
            reading=reading_of(path),
            steps_remaining=0 if outcome is DecisionOutcome.ADMITTED else None,
            binding_account_id=run.account_id,
            binding_account_path=path[-1].path,
            refusal_details=None,
            ended_plans=None,
            request_fingerprint="0" * 64,
            idempotency_key=None,
            reservation_id=reservation_id,
            created_at=NOW,
            actor=SERVICE,
        )
        entry = entry_of(self.organisation_id, decision)
        head = entry_hash(run.chain_head, entry)
        begun = [] if entry.actor == run.last_actor else [(*entry[:3], entry.actor)]
        decisions.add_all(tx, [(entry, head)], begun)
        after = run.advanced(decision.next_step, head, entry.created_at, entry.actor)
        runs.save_all(tx, [(self.organisation_id, run, after)])
        return after
