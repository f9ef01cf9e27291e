"""An organisation that is moved from one database to another is the same one, and on one of them at any moment."""

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, Table, select, update

from app.api.schemas.reservations import DEFAULT_LEASE_SECONDS
from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.ledger.moves import Move, MoveState
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import moves, row_copies
from app.persistence.tables import accounts, decisions, metadata, organisations
from app.service.alerts.delivery_worker import claim_due
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.audit.checkpoints import sign_due
from app.service.auth import credential_cache
from app.service.auth.authentication import create_organisation
from app.service.governance.block_schedules import open_due_blocks
from app.service.maintenance import alert_stale_reservations, expire_reservations
from app.service.moves import move, mover
from app.service.moves.move import MoveResult, cancel_move, move_organisation
from app.service.moves.mover import Progress
from app.service.runs.lost import end_lost_runs
from app.service.scheduling.grants import expire_waiting
from app.service.signatures import signer_of
from app.service.verification import verify
from tests.api.trainer import QUIET, Trainer
from tests.clocks import stand_at
from tests.conftest import Ledger, signing_key
from tests.ledgers import schedule_blocks
from tests.persistence.dump import Dump, dump
from tests.service.full_ledger import fill
from tests.service.placed_service import NOW, PlacedService, take_a_step

SILENT = {"type": "gaussian", "noise_multiplier": 1000.0}
CHANGED = {"accounts": ("version", "updated_at", "moving_since"), "api_keys": ("last_used_at",)}
"""Columns that a move may change."""


DAY = timedelta(days=1)


class KilledError(BaseException):
    """The command is killed: it does nothing any more."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is on its way to the old place, and nobody remembers that."""
    monkeypatch.setattr(move, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(credential_cache, "CACHE_SECONDS", 0.0)


@pytest.fixture
def trainer(placed: PlacedService) -> Trainer:
    """Of the hospital, which has rows of every kind."""
    return fill(placed.hospital)


def _moved(placed: PlacedService, told: Progress = lambda _: None) -> MoveResult:
    return move_organisation(placed.placements, "hospital", "eu-2", told)


def _there(placed: PlacedService) -> Ledger:
    """The hospital's ledger in its new place."""
    return Ledger(placed.http, placed.placements.named("eu-2").database, placed.hospital.keys)


def _own(database: Database, owner: str) -> Dump:
    """The rows of an organisation without those columns that a move changes."""
    found: Dump = {}
    with database.read(ALL_TENANTS) as tx:
        for name, table in metadata.tables.items():
            column = table.c.id if name == "organisations" else table.c.organisation_id
            kept = [each for each in table.c if each.name not in CHANGED.get(name, ())]
            rows = tx.execute(select(*kept).where(column == owner).order_by(*table.primary_key))
            found[name] = [tuple(row) for row in rows]
    return found


def _owner(placed: PlacedService, name: str = "hospital") -> str:
    [owner] = {
        found[0] for placement in placed.placements for found in [_part(placement.database, name)] if found is not None
    }
    return owner


def _part(database: Database, name: str) -> tuple[str, Move | None] | None:
    with database.read(ALL_TENANTS) as tx:
        return moves.find(tx, name)


def _deciding(placed: PlacedService) -> list[str]:
    """The placements on which the hospital may be charged."""
    parts = {placement.name: _part(placement.database, "hospital") for placement in placed.placements}
    return [name for name, part in parts.items() if part is not None and part[1] is None]


@pytest.mark.usefixtures("trainer")
@pytest.mark.parametrize("batch", [7, row_copies.BATCH])
def test_all_of_it_is_moved_and_nothing_else(
    placed: PlacedService, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(row_copies, "BATCH", batch)
    monkeypatch.setattr(row_copies, "DELETED", batch)
    monkeypatch.setattr(moves, "BATCH", batch)
    take_a_step(placed.clinic)
    owner, clinic = _owner(placed), _owner(placed, "clinic")
    before, others = _own(placed.hospital.database, owner), _own(placed.clinic.database, clinic)
    told: list[str] = []
    result = _moved(placed, told.append)
    after = _own(_there(placed).database, owner)
    [moved] = after["audit_entries"][len(before["audit_entries"]) :]
    assert "organisation.moved" in moved
    assert after | {"audit_entries": before["audit_entries"]} == before
    assert all(rows == [] for rows in dump(placed.hospital.database).values())
    assert _own(placed.clinic.database, clinic) == others
    assert (result.source, result.target) == ("default", "eu-2")
    assert dict(result.rows) == {name: len(rows) for name, rows in before.items() if rows}
    assert any("verified" in each for each in told)
    assert verify(_there(placed).database).sound


def test_its_trainers_go_on(placed: PlacedService, trainer: Trainer) -> None:
    first = trainer.steps("before", attempt=2)
    _moved(placed)
    again = Trainer(_there(placed), trainer.run)
    replayed, taken = again.steps("before", attempt=2), again.steps("after", attempt=2)
    assert (replayed.status_code, replayed.json()["first_step"]) == (200, first.json()["first_step"])
    assert taken.json()["first_step"] == first.json()["next_step"]
    assert _there(placed).get(f"/v1/runs/{trainer.run}").json()["epsilon"] > 0
    assert verify(_there(placed).database).sound


def test_nothing_changes_while_it_is_moved_and_others_go_on(placed: PlacedService, trainer: Trainer) -> None:
    run = take_a_step(placed.clinic)
    seen: list[tuple[str, Any]] = []

    def look(told: str) -> None:
        hospital = placed.hospital
        seen.append((told, [
            trainer.steps(attempt=2).status_code,
            hospital.post("/v1/populations", {"name": "more", "privacy_unit": "patient"}).status_code,
            hospital.get(f"/v1/runs/{trainer.run}").status_code,
            placed.http.post(f"/v1/runs/{run}/steps", json={}, headers=placed.clinic.headers("trainer")).status_code,
        ]))  # fmt: skip

    _moved(placed, look)
    assert [each[1] for each in seen[:-1]] == [[503, 422, 200, 200]] * 3
    assert seen[-1][1] == [200, 422, 200, 200]


@pytest.mark.usefixtures("trainer")
def test_background_tasks_leave_it_alone_without_a_word(
    placed: PlacedService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them has work to do there, as it shows once the move is cancelled."""
    db, signer = placed.hospital.database, signer_of(str(signing_key()[0]))
    assert signer is not None
    placed.hospital.run(name="silent")
    due = {"prefix": "due-", "start": (db.clock.now() + 60 * DAY).date().isoformat()}
    assert schedule_blocks(placed.hospital, "blocks", **due).status_code == httpx2.codes.OK
    waiting = placed.hospital.run(name="waiting")  # for the end of a reservation that holds a part
    plan = {"plan": [{"event": QUIET, "count": 400}], "wait_until": (db.clock.now() + DAY).isoformat()}
    asked = placed.hospital.post(f"/v1/runs/{waiting}/reservations", plan, "trainer")
    assert (asked.status_code, asked.json()["status"]) == (202, "waiting"), asked.text
    soon, later = db.clock.now() + timedelta(seconds=0.75 * DEFAULT_LEASE_SECONDS), db.clock.now() + 400 * DAY
    jobs: dict[str, tuple[datetime, Callable[[], int]]] = {
        "stale": (soon, lambda: alert_stale_reservations(db, soon)),
        "blocks": (later, lambda: open_due_blocks(db, db.clock.moment())),
        "lapsed": (later, lambda: expire_reservations(db, later)),
        "waited in vain": (later, lambda: expire_waiting(db)),
        "lost": (later, lambda: end_lost_runs(db, later, 30 * DAY)),
        "checkpoint": (later, lambda: sign_due(db, signer, 3600, later)),
        "snapshots": (later, lambda: record_usage_snapshots(db, later)),
        "deliveries": (later, lambda: len(claim_due(db, later))),
    }

    def run_at(at: datetime, job: Callable[[], int]) -> int:
        with monkeypatch.context() as patch:
            stand_at(patch, lambda: at)
            return job()

    def done() -> dict[str, int]:
        return {name: run_at(at, job) for name, (at, job) in jobs.items()}

    def told(_: str) -> None:
        if not meanwhile:
            meanwhile.update(done())
            raise KilledError

    meanwhile: dict[str, int] = {}
    with pytest.raises(KilledError):
        _moved(placed, told)
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []
    assert {name for name, number in meanwhile.items() if number} == {"stale"}  # it counts what it looks at
    assert [name for name, number in done().items() if not number] == ["stale"]  # it has just been heard of


@pytest.mark.usefixtures("trainer")
def test_background_tasks_of_both_places_leave_the_copied_rows_alone(placed: PlacedService) -> None:
    """They would find work on either side: deliveries that are due, and accounts that have changed."""
    later = placed.hospital.database.clock.now() + 400 * DAY
    seen: list[list[tuple[int, int]]] = []

    def told(_: str) -> None:
        databases = [placement.database for placement in placed.placements]
        seen.append([(record_usage_snapshots(db, later), len(claim_due(db, later))) for db in databases])

    _moved(placed, told)
    *meanwhile, [left, moved] = seen
    assert meanwhile == [[(0, 0), (0, 0)]] * 3
    assert left == (0, 0)
    assert min(moved) > 0


def test_a_request_that_is_refused_meanwhile_says_when_to_come_again(placed: PlacedService, trainer: Trainer) -> None:
    replies = []

    def told(_: str) -> None:
        replies.append(trainer.steps(attempt=2))

    _moved(placed, told)
    assert replies[0].json()["code"] == "ledger_unavailable"
    assert "being moved" in replies[0].json()["detail"]
    assert int(replies[0].headers["Retry-After"]) >= 1


def _killed(patch: pytest.MonkeyPatch, at: int, work: Callable[[], object]) -> bool:
    """Do something until so many of its transactions are done; return whether it was killed."""
    done = 0
    step = mover.Mover.step

    def counted(self: mover.Mover, *given: Any) -> Any:  # noqa: ANN401 - as it is
        nonlocal done
        done += 1
        if done > at:
            raise KilledError
        return step(self, *given)

    with patch.context() as patched:
        patched.setattr(mover.Mover, "step", counted)
        with suppress(KilledError):
            work()
            return False
    return True


@pytest.mark.parametrize("then", ["again", "cancel"])
def test_killed_at_any_moment_it_is_on_one_database_and_goes_on(
    placed: PlacedService, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """After each number of transactions; each time the move goes on, or is cancelled and begins anew."""
    run = take_a_step(placed.hospital)
    places = {"default": "eu-2", "eu-2": "default"}
    home, steps = "default", 1
    states = set()
    at = 0
    while True:
        to = places[home]
        going = partial(move_organisation, placed.placements, "hospital", to, lambda _: None)
        was_killed = _killed(monkeypatch, at, going)
        deciding = _deciding(placed)
        assert len(deciding) <= 1
        states.add(tuple(str(part and part[1] and part[1].state) for part in
                         (_part(each.database, "hospital") for each in placed.placements)))  # fmt: skip
        if not was_killed:
            break
        finished = False
        if then == "cancel":
            with suppress(InvalidInputError):
                cancel_move(placed.placements, "hospital", lambda _: None)
                finished = True
                assert _deciding(placed) == [home]
        if not finished:
            with suppress(InvalidInputError):  # killed before it began, or after its end
                going()
            home = to
        assert _deciding(placed) == [home]
        assert sum(_part(each.database, "hospital") is not None for each in placed.placements) == 1
        ledger = Ledger(placed.http, placed.placements.named(home).database, placed.hospital.keys)
        steps += 1
        assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").json()["next_step"] == steps
        at += 1
    assert at > 10
    assert {"leaving", "left", "arriving"} <= {each for pair in states for each in pair}
    assert all(verify(each.database).sound for each in placed.placements)


def test_no_acknowledged_step_is_lost_while_it_moves(placed: PlacedService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move, "SETTLE_SECONDS", 0.5)
    run = take_a_step(placed.hospital)
    admitted, stop = [1], threading.Event()

    def train() -> None:
        while not stop.is_set():
            reply = placed.hospital.post(f"/v1/runs/{run}/steps", {"event": SILENT}, "trainer")
            assert reply.status_code in {200, 503}, reply.text
            admitted.append(reply.status_code == 200)

    trainers = [threading.Thread(target=train) for _ in range(2)]
    for each in trainers:
        each.start()
    try:
        for to in ("eu-2", "default", "eu-2"):
            move_organisation(placed.placements, "hospital", to, lambda _: None)
    finally:
        stop.set()
        for each in trainers:
            each.join()
    with _there(placed).database.read(ALL_TENANTS) as tx:
        kept = tx.execute(select(decisions.c.run_id)).all()
    assert len(kept) == sum(admitted) > 3
    assert verify(_there(placed).database).sound


@pytest.mark.parametrize(
    ("when", "why"), [("stopped", "differs"), ("copied", "differs"), ("verified", "taken this move over")]
)
def test_a_later_command_takes_the_move_over(placed: PlacedService, when: str, why: str) -> None:
    take_a_step(placed.hospital)
    results: list[MoveResult] = []

    def told(progress: str) -> None:
        if when in progress and not results:
            results.append(_moved(placed))

    with pytest.raises(LedgerUnavailableError, match=why):
        _moved(placed, told)
    assert _deciding(placed) == ["eu-2"]
    assert verify(_there(placed).database).sound


def test_a_copy_that_lacks_a_row_is_no_move(placed: PlacedService, monkeypatch: pytest.MonkeyPatch) -> None:
    take_a_step(placed.hospital)
    add = row_copies.add

    def forgetful(tx: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
        add(tx, table, [{**row, "forecast_days": 7} for row in rows] if table is accounts else rows)

    monkeypatch.setattr(row_copies, "add", forgetful)
    with pytest.raises(LedgerUnavailableError, match="differs"):
        _moved(placed)
    _stayed(placed)


def _stayed(placed: PlacedService) -> None:
    assert _deciding(placed) == ["default"]
    assert _part(placed.placements.named("eu-2").database, "hospital") is None
    [run] = placed.hospital.get("/v1/runs").json()["items"]
    assert placed.hospital.post(f"/v1/runs/{run['id']}/steps", {}, "trainer").status_code == 200


def test_a_ledger_that_does_not_verify_stays(placed: PlacedService) -> None:
    take_a_step(placed.hospital)
    with placed.hospital.database.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).where(accounts.c.kind == "population").values(epsilon_limit=9.5))
    with pytest.raises(LedgerUnavailableError, match=r"default does not verify.*limit"):
        _moved(placed)
    _stayed(placed)


def test_rows_that_are_not_complete_are_not_verified_with_the_others(placed: PlacedService) -> None:
    """A scheduled verification of the placement must not quarantine what is on its way."""
    take_a_step(placed.hospital)
    take_a_step(placed.clinic)
    database = placed.clinic.database
    leaving = Move(MoveState.LEFT, "default", "mov_1")
    owner = _owner(placed, "clinic")
    with database.write(ALL_TENANTS) as tx:
        tx.execute(update(decisions).values(first_step=decisions.c.first_step + 1))
    assert not verify(database).sound
    with database.write(ALL_TENANTS) as tx:
        moves.put(tx, owner, leaving)
    assert verify(database).sound
    assert not verify(database, owner).sound


@pytest.mark.parametrize(
    ("organisation", "to", "error", "detail"),
    [
        ("hospital", "default", InvalidInputError, "is on the placement default already"),
        ("hospital", "us-1", NotFoundError, "There is no placement 'us-1'; there are: default, eu-2"),
        ("surgery", "eu-2", NotFoundError, "There is no organisation 'surgery'"),
    ],
)
def test_what_cannot_be_moved_is_named(
    placed: PlacedService, organisation: str, to: str, error: type[Exception], detail: str
) -> None:
    with pytest.raises(error, match=detail):
        move_organisation(placed.placements, organisation, to, lambda _: None)


def test_a_name_that_is_taken_there_is_named(placed: PlacedService) -> None:
    create_organisation(placed.clinic.database, "hospital", NOW)
    with pytest.raises(InvalidInputError, match="has another organisation named 'hospital'"):
        move_organisation(placed.placements, _id_on(placed.hospital.database), "eu-2", lambda _: None)


def _id_on(database: Database) -> str:
    with database.read(ALL_TENANTS) as tx:
        return str(tx.execute(select(organisations.c.id).where(organisations.c.name == "hospital")).scalar_one())


def test_nothing_is_cancelled_that_does_not_move(placed: PlacedService) -> None:
    with pytest.raises(InvalidInputError, match="is not being moved"):
        cancel_move(placed.placements, "hospital", lambda _: None)


def test_a_move_elsewhere_is_finished_or_cancelled_first(placed: PlacedService) -> None:
    with placed.hospital.database.write(ALL_TENANTS) as tx:
        moves.put(tx, _owner(placed), Move(MoveState.LEAVING, "us-1", "mov_1"))
    with pytest.raises(InvalidInputError, match="being moved to us-1; finish or cancel"):
        _moved(placed)


@pytest.mark.parametrize("state", [MoveState.ARRIVING, MoveState.LEFT])
def test_what_a_restored_database_lacks_is_named(placed: PlacedService, state: MoveState) -> None:
    with placed.hospital.database.write(ALL_TENANTS) as tx:
        moves.put(tx, _owner(placed), Move(state, "eu-2", "mov_1"))
    with pytest.raises(InvalidInputError, match="restored"):
        _moved(placed)
