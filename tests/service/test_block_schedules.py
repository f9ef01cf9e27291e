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
from app.service.accounts.lookup import find_parent
from app.service.governance import block_schedules as schedules
from app.service.governance.block_schedules import RETRY, open_due_blocks
from app.service.verification import verify
from tests.clocks import stand_at
from tests.conftest import SAMPLED, Ledger
from tests.ledgers import schedule_blocks
from tests.service.test_alert_outbox import answer

START = datetime(2031, 1, 10, tzinfo=UTC)
ATTESTED: dict[str, Any] = {"composition": "parallel", "attestation": "each record has one date"}
SCHEDULE: dict[str, Any] = {"period": "month", "start": "2031-01-01", "limit": {"epsilon": 1.0, "delta": 1e-5}}
FAILED = "block_schedule.failed"

Clock = Callable[[datetime], int]
"""Sets the clock, lets the service look, and returns the number of blocks that it opened."""


@pytest.fixture
def at(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Clock:
    times = [START]
    stand_at(monkeypatch, lambda: times[-1])

    def look(now: datetime) -> int:
        times.append(now)
        return open_due_blocks(ledger.database, ledger.database.clock.moment())

    return look


def month(number: int, day: int = 1) -> datetime:
    return datetime(2031, number, day, tzinfo=UTC)


def scheduled(ledger: Ledger, name: str = "mimic") -> str:
    top = str(ledger.population(name, **ATTESTED)["id"])
    put(ledger, top)
    return top


def put(ledger: Ledger, account: str) -> None:
    reply = schedule_blocks(ledger, account, **SCHEDULE)
    assert reply.status_code == 200, reply.text


def names(ledger: Ledger, parent: str = "mimic") -> list[str]:
    items = ledger.get(f"/v1/budgets?parent={parent}&limit=200").json()["items"]
    return [each["name"] for each in reversed(items)]


def failure(ledger: Ledger) -> str | None:
    found: str | None = ledger.get("/v1/accounts/mimic/block-schedule").json()["failure"]
    return found


def test_block_is_opened_when_its_month_begins(ledger: Ledger, at: Clock) -> None:
    scheduled(ledger)
    assert names(ledger) == ["2031-01"]
    assert at(month(2) - timedelta(microseconds=1)) == 0
    assert at(month(2)) == 1
    assert at(month(2)) == 0
    assert at(month(5, 20)) == 3  # the service was off for a while
    assert names(ledger) == [f"2031-0{number}" for number in range(1, 6)]
    run = ledger.run("mimic/2031-05")
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 3, "event": SAMPLED}).status_code == 200
    assert verify(ledger.database).sound


def test_block_is_not_opened_before_its_period_has_surely_begun(ledger: Ledger, at: Clock) -> None:
    scheduled(ledger)
    at(month(1, 20))
    unsure = Moment(latest=month(2), earliest=month(2) - timedelta(milliseconds=1))
    assert open_due_blocks(ledger.database, unsure) == 0
    assert open_due_blocks(ledger.database, Moment(month(2), month(2))) == 1


def test_replicas_open_each_block_once(ledger: Ledger, at: Clock) -> None:
    scheduled(ledger)
    at(month(1, 20))
    other = Database(ledger.database.engine.url.render_as_string(hide_password=False))
    start = threading.Barrier(2, timeout=30)

    def look(database: Database) -> int:
        start.wait()
        return open_due_blocks(database, Moment(month(9), month(9)))

    with ThreadPoolExecutor(2) as pool:
        opened = list(pool.map(look, [ledger.database, other]))
    other.dispose()
    assert sorted(opened) == [0, 8]
    assert names(ledger) == [f"2031-0{number}" for number in range(1, 10)]
    assert failure(ledger) is None
    assert verify(ledger.database).sound


def take_part_of_february(ledger: Ledger) -> None:
    block = {"data_from": "2031-02-10T00:00:00Z", "data_to": "2031-02-20T00:00:00Z"}
    ledger.budget("trial", block=block)


def take_the_name(ledger: Ledger) -> None:
    ledger.budget("2031-02")


def forbid(ledger: Ledger) -> None:
    policy = {"policy": {"max_delta": 1e-6}, "reason": "The board has met."}
    headers = ledger.headers() | {"If-Match": "*"}
    assert ledger.http.put("/v1/policy", json=policy, headers=headers).status_code == 200


def archive(ledger: Ledger) -> None:
    top = ledger.get("/v1/populations").json()["items"][0]["id"]
    assert ledger.post(f"/v1/accounts/{top}/archive", {}).status_code == 200


def fill(ledger: Ledger) -> None:
    top = ledger.get("/v1/populations").json()["items"][0]["id"]
    years = SCHEDULE | {"start": "2040-01-01", "count": 63}
    assert ledger.post(f"/v1/accounts/{top}/blocks", years).status_code == 201


@pytest.mark.parametrize(
    ("hinder", "reason", "others"),
    [
        (take_part_of_february, "The block overlaps mimic/trial", ["2031-03"]),
        (take_the_name, "There is '2031-02' already", ["2031-03"]),
        (forbid, "max_delta", []),
        (archive, "mimic is archived", []),
        (fill, "mimic has 64 parts already", []),
    ],
)
def test_block_that_cannot_be_opened_is_alerted_once_and_tried_again(
    ledger: Ledger,
    at: Clock,
    caplog: pytest.LogCaptureFixture,
    hinder: Callable[[Ledger], None],
    reason: str,
    others: list[str],
) -> None:
    scheduled(ledger)
    hinder(ledger)
    before = set(names(ledger))
    with caplog.at_level(logging.WARNING, logger=schedules.__name__):
        assert at(month(2)) == 0
        assert at(month(2) + RETRY) == 0
        assert at(month(3)) == len(others)
    assert set(names(ledger)) - before == set(others)
    told = failure(ledger)
    assert told is not None
    assert told.startswith("2031-02 is not open: ")
    assert reason in told
    [logged] = [record.getMessage() for record in caplog.records if record.name == schedules.__name__]
    assert reason in logged
    [(_, path, facts)] = answer(ledger, FAILED)
    assert (path, facts["block"]) == ("mimic", "2031-02")
    assert reason in facts["detail"]
    assert verify(ledger.database).sound


def unarchive(ledger: Ledger, account: str) -> None:
    """Unarchive an account, by two persons."""
    proposal = ledger.post(f"/v1/accounts/{account}/unarchive", {}).json()["id"]
    assert ledger.post(f"/v1/proposals/{proposal}/approve", {}, "privacy_officer").status_code == 200


def test_block_is_opened_once_the_cause_is_gone(ledger: Ledger, at: Clock) -> None:
    top = scheduled(ledger)
    archive(ledger)
    assert at(month(2)) == 0
    unarchive(ledger, top)
    assert at(month(2) + RETRY - timedelta(seconds=1)) == 0
    assert at(month(2) + RETRY) == 1
    assert (failure(ledger), names(ledger)) == (None, ["2031-01", "2031-02"])


def test_account_that_fails_does_not_block_others(
    ledger: Ledger, at: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scheduled(ledger)
    scheduled(ledger, "notes")

    def fail(tx: Any, context: Any, account: str) -> Any:  # noqa: ANN401 - passed through
        found = find_parent(tx, context, account)
        if found.account.name == "mimic":
            raise LookupError("a bug")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(schedules, "find_parent", fail)
        assert at(month(2)) == 1
    assert "is not processed" in caplog.text
    assert (names(ledger), names(ledger, "notes")) == (["2031-01"], ["2031-01", "2031-02"])
    assert at(month(2)) == 1
