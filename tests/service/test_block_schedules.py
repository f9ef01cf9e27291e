"""Block schedules as time passes: each block is opened once, by the service, when its period begins."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.persistence.clock import Moment
from app.persistence.database import Database
from app.service.governance import block_schedules as schedules
from app.service.governance.block_schedules import RETRY, open_due_blocks
from app.service.verification.verify import verify
from tests.clocks import stand_at
from tests.conftest import SAMPLED, Ledger
from tests.ledgers import schedule_blocks
from tests.service.test_alert_outbox import answer

START = datetime(2031, 1, 10, tzinfo=UTC)
SCHEDULE: dict[str, Any] = {"period": "month", "start": "2031-01-01", "limit": {"epsilon": 1.0, "delta": 1e-5}}

Clock = Callable[[datetime], int]
"""Sets the clock, lets the service snapshot, and returns the number of blocks that it opened."""


def scheduled(ledger: Ledger) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stand_at(patch, lambda: START)
        top = str(ledger.population(composition="parallel", attestation="each record has one date")["id"])
        reply = schedule_blocks(ledger, top, **SCHEDULE)
        assert reply.status_code == 200, reply.text


FURNISHED = {"at": scheduled}


@pytest.fixture
def at(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """With a population whose blocks open each month."""
    times = [START]
    stand_at(monkeypatch, lambda: times[-1])

    def snapshot(now: datetime) -> int:
        times.append(now)
        return open_due_blocks(ledger.database, ledger.database.clock.moment())

    return snapshot


def month(number: int, day: int = 1) -> datetime:
    return datetime(2031, number, day, tzinfo=UTC)


def names(ledger: Ledger, parent: str = "mimic") -> list[str]:
    items = ledger.get(f"/v1/budgets?parent={parent}&limit=200").json()["items"]
    return [each["name"] for each in reversed(items)]


def failure(ledger: Ledger) -> str | None:
    found: str | None = ledger.get("/v1/accounts/mimic/block-schedule").json()["failure"]
    return found


def test_block_is_opened_when_its_month_begins(ledger: Ledger, at: Clock) -> None:
    assert names(ledger) == ["2031-01"]
    assert at(month(2) - timedelta(microseconds=1)) == 0
    unsure = Moment(latest=month(2), earliest=month(2) - timedelta(milliseconds=1))
    assert open_due_blocks(ledger.database, unsure) == 0
    assert [at(month(2)), at(month(2))] == [1, 0]
    newest, before = ledger.get("/v1/audit-events?action=budget.created&limit=2", "auditor").json()["items"]
    assert (newest["actor"], before["actor"][:4]) == ("service", "key_")
    assert newest["after"]["block"] == ["2031-02-01T00:00:00+00:00", "2031-03-01T00:00:00+00:00", "2031-02"]
    by_time = dict.fromkeys(("name", "path", "block"))
    assert newest["after"] | by_time == before["after"] | by_time
    assert at(month(5, 20)) == 3  # the service was off for a while
    assert schedule_blocks(ledger, top(ledger), **SCHEDULE).status_code == 200  # it is the same, and not recorded
    assert len(ledger.get("/v1/audit-events?action=block_schedule.replaced", "auditor").json()["items"]) == 1
    assert names(ledger) == [f"2031-0{number}" for number in range(1, 6)]
    run = ledger.run("mimic/2031-05")
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 3, "event": SAMPLED}).status_code == 200
    assert verify(ledger.database).sound
    headers = ledger.headers() | {"If-Match": "*"}
    gone = ledger.http.delete("/v1/accounts/mimic/block-schedule?reason=Over.", headers=headers)
    assert (gone.status_code, at(month(7))) == (204, 0)


@pytest.mark.both_databases
def test_replicas_open_each_block_once(ledger: Ledger, replica: Database, at: Clock) -> None:
    at(month(1, 20))
    start = threading.Barrier(2, timeout=30)

    def snapshot(database: Database) -> int:
        start.wait()
        return open_due_blocks(database, Moment(month(9), month(9)))

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(snapshot, [ledger.database, replica])) == [0, 8]
    assert names(ledger) == [f"2031-0{number}" for number in range(1, 10)]
    assert failure(ledger) is None
    assert verify(ledger.database).sound


def top(ledger: Ledger) -> str:
    return str(ledger.get("/v1/populations?path=mimic").json()["items"][0]["id"])


def archive(ledger: Ledger) -> None:
    assert ledger.post(f"/v1/accounts/{top(ledger)}/archive", {}).status_code == 200


FEBRUARY = {"data_from": "2031-02-10T00:00:00Z", "data_to": "2031-02-20T00:00:00Z"}
HINDRANCES: dict[str, tuple[Callable[[Ledger], object], list[str]]] = {
    "The block overlaps mimic/trial": (lambda ledger: ledger.budget("trial", block=FEBRUARY), ["2031-03"]),
    "There is '2031-02' already": (lambda ledger: ledger.budget("2031-02"), ["2031-03"]),
    "mimic is archived": (archive, []),
}


@pytest.mark.parametrize("reason", HINDRANCES)
def test_block_that_cannot_be_opened_is_alerted_once_and_tried_again(
    ledger: Ledger, at: Clock, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    population, (hinder, others) = top(ledger), HINDRANCES[reason]
    hinder(ledger)
    before = set(names(ledger))
    with caplog.at_level(logging.WARNING, logger=schedules.__name__):
        assert [at(month(2)), at(month(2) + RETRY), at(month(3))] == [0, 0, len(others)]
    assert set(names(ledger)) - before == set(others)
    told = failure(ledger) or ""
    assert told.startswith("2031-02 is not open: ")
    [logged] = [record.getMessage() for record in caplog.records if record.name == schedules.__name__]
    [(_, path, facts)] = answer(ledger, "block_schedule.failed")
    assert (path, facts["block"]) == ("mimic", "2031-02")
    assert all(reason in said for said in (told, logged, facts["detail"]))
    assert verify(ledger.database).sound
    if not others:  # once the cause is gone, it is opened
        proposal = ledger.post(f"/v1/accounts/{population}/unarchive", {}).json()["id"]
        assert ledger.post(f"/v1/proposals/{proposal}/approve", {}, "privacy_officer").status_code == 200
        assert [at(month(3) + RETRY - timedelta(seconds=1)), at(month(3) + RETRY)] == [0, 2]
        assert (failure(ledger), names(ledger)) == (None, ["2031-01", "2031-02", "2031-03"])
