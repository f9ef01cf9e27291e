"""Looks at the reservations that wait in an organisation, and the grants that changes lead to."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from threading import RLock
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from app.ledger.runs.run import RunStatus
from app.ledger.scheduling.queue import Grant, Ledgers, Standing, WaitingReservation, schedule
from app.ledger.scheduling.scheduling_rules import Line
from app.persistence.database import Database
from app.persistence.repositories import accounts as account_rows
from app.persistence.repositories.waiting import WaitingRow
from app.service.scheduling.waiting_reservations import KnownReservations, refresh
from app.service.scheduling.withholdings import read_withholdings

BEGINS: frozenset[str] = frozenset(map(str, (RunStatus.ACTIVE, RunStatus.WAITING)))
"""Statuses of runs whose reservations may be granted."""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The waiting reservations of an organisation, and the ledgers at one time.

    Args:
        now: the time.
        rows: by reservation.
        lines: by population.
        queue_of: as in `KnownReservations`.
        ledgers: accounts above the runs; `with_runs` adds runs.
        states: what an account's plans depend on, by account.
        skipped: reservations that are left out for a while.
    """

    now: datetime
    rows: dict[str, WaitingRow]
    lines: dict[str, Line]
    queue_of: dict[str, tuple[str, str | None]]
    ledgers: Ledgers
    states: dict[str, object]
    skipped: Collection[str] = ()

    def line_of(self, reservation_id: str) -> Line:
        """Get the line in which a reservation waits."""
        return self.lines[self.queue_of[reservation_id][0]]


class WaitingReservations:
    """The waiting reservations of an organisation in one database; no other organisation waits for them.

    A caller holds `lock` while it uses them and a look at them. A transaction that has locked the organisation may wait
    for it: who holds the lock waits for no row.
    """

    def __init__(self, organisation_id: str) -> None:
        self.organisation_id = organisation_id
        self.lock = RLock()
        self._known = KnownReservations()

    def snapshot(self, tx: Connection, now: datetime, earliest: datetime, asked: Collection[str] = ()) -> QueueSnapshot:
        """Read the waiting reservations and their accounts.

        `now` is for windows, `earliest` for what is unlocked. Reservations that are `asked` for may be written in this
        transaction.
        """
        known = self._known
        try:
            refresh(tx, self.organisation_id, known, asked)
        except BaseException:
            self._known = KnownReservations()
            raise
        for each in [each for each, until in known.skipped.items() if now >= until or each not in known.reservations]:
            del known.skipped[each]
            if each in known.reservations:  # it is tried again
                known.left.update(known.reservations[each].path[:-1])
        found = {each: record.account for each, record in known.records.items()}
        withholdings = read_withholdings(tx, self.organisation_id, found.values(), earliest)
        closed = {each for each, record in known.records.items() if record.quarantine is not None}
        closed |= {each.id for each in found.values() if not each.window.holds(now)}
        states: dict[str, object] = {}
        for each, record in known.records.items():
            withholding = withholdings.get(each)
            part = None if withholding is None else (withholding.unlocked, withholding.window)
            states[each] = (record.account.version, record.updated_at, part, each in closed)
        ledgers = Ledgers(found, withholdings, lambda account: account.id not in closed)
        return QueueSnapshot(now, known.rows, known.lines, known.queue_of, ledgers, states, set(known.skipped))

    def changed(self, snapshot: QueueSnapshot) -> tuple[set[str], set[str]]:
        """Find the accounts and reservations that have changed since no reservation fitted."""
        known = self._known
        accounts = {each for each, state in snapshot.states.items() if known.settled.get(each) != state}
        return accounts | (known.left & snapshot.states.keys()), set(known.changed)

    def settle(self, snapshot: QueueSnapshot) -> None:
        """Note that no reservation fits in what a snapshot has seen."""
        self._known.settled = snapshot.states
        self._known.left.clear()
        self._known.changed.clear()

    def defer(self, reservation_id: str) -> None:
        """Read a reservation again with the next snapshot: its run is not as it was seen."""
        self._known.unsure.add(reservation_id)

    def skip(self, reservation_id: str, until: datetime) -> None:
        """Leave a reservation out for a while, so that it keeps no other waiting."""
        self._known.skipped[reservation_id] = until


_QUEUES: "WeakKeyDictionary[Database, dict[str, WaitingReservations]]" = WeakKeyDictionary()


def waiting_reservations(db: Database, organisation_id: str) -> WaitingReservations:
    """Get what this process knows of an organisation's waiting reservations in a database."""
    return _QUEUES.setdefault(db, {}).setdefault(organisation_id, WaitingReservations(organisation_id))


def grants_in(
    tx: Connection,
    organisation_id: str,
    snapshot: QueueSnapshot,
    accounts: set[str],
    reservations: set[str],
    newcomer: str | None = None,
) -> list[Grant]:
    """Compute the grants that changed accounts and reservations lead to, in order; the ledgers are changed.

    `newcomer` is the reservation of a run that the ledgers have already.
    """
    tried: list[tuple[Line, list[WaitingReservation], list[Standing]]] = []
    for population in sorted(snapshot.lines):
        line = snapshot.lines[population]
        named = reservations & line.reservations.keys()
        if not named and line.accounts.isdisjoint(accounts):
            continue
        aged = [
            each
            for each in line.aged(snapshot.now)
            if each.reservation.id == newcomer or _may_begin(snapshot, each.reservation)
        ]
        wanted = {reservation.id: reservation for reservation in line.candidates(snapshot.ledgers, accounts, aged)}
        wanted |= {each: line.reservations[each] for each in named}
        ready = [
            reservation
            for reservation in wanted.values()
            if reservation.id == newcomer or _may_begin(snapshot, reservation)
        ]
        if ready:
            tried.append((line, ready, aged))
    needed = [reservation for _, ready, aged in tried for reservation in (*ready, *(each.reservation for each in aged))]
    with_runs(tx, organisation_id, snapshot.ledgers, needed)
    granted: list[Grant] = []
    for line, ready, aged in tried:
        granted += schedule(line.order(ready, snapshot.ledgers, snapshot.now), aged, snapshot.ledgers)
    return granted


def _may_begin(snapshot: QueueSnapshot, reservation: WaitingReservation) -> bool:
    """Check whether a reservation may be granted; a skipped one or one of a paused run waits, and delays nobody."""
    return snapshot.rows[reservation.id].run_status in BEGINS and reservation.id not in snapshot.skipped


def with_runs(
    tx: Connection, organisation_id: str, ledgers: Ledgers, reservations: Iterable[WaitingReservation]
) -> None:
    """Add the accounts of reservations' runs to the ledgers."""
    unknown = sorted({reservation.path[-1] for reservation in reservations} - ledgers.accounts.keys())
    if unknown:
        for record in account_rows.read_many(tx, organisation_id, unknown):
            ledgers.accounts[record.account.id] = record.account
