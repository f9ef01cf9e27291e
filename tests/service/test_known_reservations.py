"""A process knows as many waiting reservations as one that has just started, whatever it has seen before."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Table, func, insert, select, update

from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import waiting
from app.persistence.tables import audit_entries, reservation_items
from app.persistence.tables import reservations as reservation_rows
from app.service.auth.request_context import service_context
from app.service.scheduling import grants
from app.service.scheduling import waiting_reservations as known_reservations
from app.service.scheduling.grants import expire_waiting, grant_in_organisation
from app.service.scheduling.queue_snapshots import QueueSnapshot, WaitingReservations, grants_in
from tests.api.trainer import LOUD, Trainer, counted, moved
from tests.api.waiting import FITTING
from tests.conftest import Ledger
from tests.service.prepared_ledgers import ATTESTED
from tests.service.step_commands import organisation


@dataclass
class Process:
    """A process beside the ledger's own, and what it knows; the run `held` keeps others waiting."""

    ledger: Ledger
    owner: str
    plans: WaitingReservations
    held: dict[str, Any]

    def snapshot(self, tx: Connection | None = None, asked: tuple[str, ...] = ()) -> QueueSnapshot:
        context = service_context(self.ledger.database, self.owner)
        if tx is not None:
            return self.plans.snapshot(tx, context.now, context.lapsed_by, asked)
        with self.ledger.database.read(self.owner) as own:
            return self.plans.snapshot(own, context.now, context.lapsed_by, asked)

    def is_up_to_date(self) -> bool:
        """Whether it sees what a new process sees, in the same order."""
        seen, fresh = self.snapshot(), Process(self.ledger, self.owner, WaitingReservations(self.owner), {}).snapshot()
        return (seen.rows, seen.queue_of, ordered(seen)) == (fresh.rows, fresh.queue_of, ordered(fresh))


def ordered(snapshot: QueueSnapshot) -> dict[str, list[str]]:
    return {
        population: [
            each.reservation.id for each in line.order([*line.reservations.values()], snapshot.ledgers, snapshot.now)
        ]
        for population, line in snapshot.lines.items()
        if line.reservations
    }


@pytest.fixture
def process(ledger: Ledger) -> Process:
    ledger.population(**ATTESTED)  # whose other parts are looked at, too
    ledger.budget()
    owner = organisation(ledger)
    made = Process(ledger, owner, WaitingReservations(owner), register(ledger, "held"))
    register(ledger, "first", waits=True)
    assert len(made.snapshot().rows) == 1
    return made


def register(ledger: Ledger, name: str, *, waits: bool = False) -> dict[str, Any]:
    until = {"wait_until": (datetime.now(UTC) + timedelta(days=1)).isoformat()} if waits else {}
    plan = {"event": LOUD, "reserve": counted((LOUD, FITTING)), "lease_seconds": 3600}
    reply = ledger.post("/v1/runs", {"name": name, "budget": "mimic/icu-team"} | plan | until)
    assert reply.status_code == 201, reply.text
    registered: dict[str, Any] = reply.json()
    assert (registered["status"] == "waiting") is waits
    return registered


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("reservations/{plan}/prioritize", {"priority": 3, "reason": "sooner"}, 200),
        ("reservations/{plan}/cancel", {"reason": "no need"}, 200),
        ("runs/{run}/pause", None, 409),
        ("runs/{run}/abort", None, 200),
    ],
)
def test_change_of_a_reservation_is_seen(process: Process, path: str, body: object, status: int) -> None:
    register(process.ledger, "second", waits=True)
    assert process.is_up_to_date()
    asked = register(process.ledger, "third", waits=True)
    assert process.is_up_to_date()
    where = path.format(plan=asked["waiting_reservation"], run=asked["id"])
    assert process.ledger.post(f"/v1/{where}", body).status_code == status
    assert process.is_up_to_date()


def test_pause_of_an_active_run_is_seen_and_its_reservation_keeps_its_place(process: Process) -> None:
    trainer = Trainer(process.ledger, process.ledger.run(name="open", event=LOUD))
    until = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert trainer.reserve((LOUD, FITTING), wait_until=until).status_code == 202
    assert process.is_up_to_date()
    assert trainer.act("pause").status_code == 200
    assert process.is_up_to_date()


def test_granted_reservation_is_seen(process: Process) -> None:
    assert process.ledger.post(f"/v1/reservations/{process.held['reservation']}/void", None).status_code == 200
    assert grant_in_organisation(process.ledger.database, process.owner) == 1
    assert process.snapshot().rows == {}
    assert process.is_up_to_date()


def test_unchanged_reservation_is_not_read_twice(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    register(process.ledger, "second", waits=True)
    read: list[str] = []
    among = waiting.list_among

    def noted(tx: Connection, owner: str, plans: set[str], runs: set[str]) -> list[waiting.WaitingRow]:
        found = among(tx, owner, plans, runs)
        read.extend(row.id for row in found)
        return found

    monkeypatch.setattr(waiting, "list_among", noted)
    monkeypatch.setattr(waiting, "list_waiting", lambda *_: pytest.fail("all plans were read"))
    assert [len(process.snapshot().rows) for _ in range(2)] == [2, 2]
    assert len(read) == 1


def test_all_reservations_are_read_after_many_events(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_reservations, "MAX_EVENTS", 1)
    register(process.ledger, "second", waits=True)
    monkeypatch.setattr(waiting, "list_among", lambda *_: pytest.fail("the plans were read one by one"))
    assert len(process.snapshot().rows) == 2


def test_rolled_back_reservation_is_forgotten(process: Process) -> None:
    [first] = process.snapshot().rows
    copied: list[tuple[Table, str, dict[str, Any]]] = [(reservation_rows, "id", {"run_id": process.held["id"]})]
    with suppress(InterruptedError), process.ledger.database.write(process.owner) as tx:
        for table, column, values in (*copied, (reservation_items, "reservation_id", {})):
            [row] = tx.execute(select(table).where(table.c[column] == first)).mappings()
            tx.execute(insert(table).values({**row, column: "res_copied", **values}))
        assert len(process.snapshot(tx, asked=("res_copied",)).rows) == 2
        raise InterruptedError
    assert list(process.snapshot().rows) == [first]
    assert process.is_up_to_date()


def test_reservation_that_fits_too_late_is_barred_for_a_while(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = process.ledger.database
    assert process.ledger.post(f"/v1/reservations/{process.held['reservation']}/void", None).status_code == 200
    for later in ({"days": 2}, {"days": 2, "minutes": 2}):
        moved(monkeypatch, **later)
        assert grant_in_organisation(database, process.owner) == 0
    assert (len(process.snapshot().rows), expire_waiting(database), len(process.snapshot().rows)) == (1, 1, 0)


def test_reservation_that_a_step_leaves_no_room_goes_on_waiting(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may be charged between the snapshot that finds a reservation and the locks under which it is granted."""
    database, trainer = process.ledger.database, Trainer(process.ledger, process.ledger.run(name="open", event=LOUD))
    assert process.ledger.post(f"/v1/reservations/{process.held['reservation']}/void", None).status_code == 200
    snapshot = process.snapshot()
    with database.read(process.owner) as tx:
        found = grants_in(tx, process.owner, snapshot, set(), set(snapshot.rows))
    assert [each.standing.reservation.id for each in found] == list(snapshot.rows)
    assert trainer.steps(count=5).status_code == 200
    monkeypatch.setattr(grants, "grants_in", lambda *_: found)
    assert grant_in_organisation(database, process.owner) == 0
    assert list(process.snapshot().rows) == list(snapshot.rows)


def test_reservation_that_is_due_in_two_processes_expires_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = [(process.owner, plan) for plan in process.snapshot().rows]
    moved(monkeypatch, days=2)
    monkeypatch.setattr(grants, "find_due", lambda *_: due * 2)
    assert expire_waiting(process.ledger.database) == 1


@pytest.mark.both_databases
def test_all_reservations_are_read_after_a_restore(process: Process) -> None:
    """The log has as many events as before, and others."""
    second = register(process.ledger, "second", waits=True)["waiting_reservation"]
    assert len(process.snapshot().rows) == 2
    with process.ledger.database.write(ALL_TENANTS) as tx:
        last = select(func.max(audit_entries.c.position)).where(audit_entries.c.organisation_id == process.owner)
        here = (audit_entries.c.organisation_id == process.owner, audit_entries.c.position == last.scalar_subquery())
        tx.execute(update(audit_entries).where(*here).values(entry_hash=bytes(32)))
        tx.execute(update(reservation_rows).where(reservation_rows.c.id == second).values(priority=7))
    assert process.snapshot().rows[second].priority == 7
    assert process.is_up_to_date()
