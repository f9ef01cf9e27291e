"""Block schedules as time passes: each block is opened once, by the service, when its period begins."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from app.persistence.clock import Moment
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import block_schedules
from app.service.accounts.lookup import find_parent
from app.service.governance import block_schedules as schedules
from app.service.governance.block_schedules import RETRY, open_due_blocks
from app.service.verification import verify
from tests.clocks import stand_at
from tests.conftest import SAMPLED, Ledger
from tests.ledgers import schedule_blocks
from tests.service.tampering import tampering
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


def test_each_month_is_opened_when_it_begins(ledger: Ledger, at: Clock) -> None:
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


def test_what_the_service_opens_is_recorded_as_what_a_person_opens(ledger: Ledger, at: Clock) -> None:
    scheduled(ledger)
    at(month(2))
    newest, before = ledger.get("/v1/audit-events?action=budget.created&limit=2", "auditor").json()["items"]
    assert (newest["actor"], before["actor"]) == ("service", before["actor"])
    assert before["actor"].startswith("key_")
    by_time = {"name", "path", "block"}
    assert {name: newest["after"][name] for name in newest["after"].keys() - by_time} == {
        name: before["after"][name] for name in before["after"].keys() - by_time
    }
    assert newest["after"]["block"] == ["2031-02-01T00:00:00+00:00", "2031-03-01T00:00:00+00:00", "2031-02"]


def test_no_block_opens_before_its_period_has_surely_begun(ledger: Ledger, at: Clock) -> None:
    scheduled(ledger)
    at(month(1, 20))
    unsure = Moment(latest=month(2), earliest=month(2) - timedelta(milliseconds=1))
    assert open_due_blocks(ledger.database, unsure) == 0
    assert open_due_blocks(ledger.database, Moment(month(2), month(2))) == 1


def test_a_removed_schedule_opens_nothing(ledger: Ledger, at: Clock) -> None:
    top = scheduled(ledger)
    headers = ledger.headers() | {"If-Match": "*"}
    gone = ledger.http.delete(f"/v1/accounts/{top}/block-schedule?reason=Over.", headers=headers)
    assert (gone.status_code, at(month(3))) == (204, 0)


def test_two_replicas_open_each_block_once(ledger: Ledger, at: Clock) -> None:
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
def test_a_block_that_cannot_be_opened_is_told_once_and_tried_again(
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


def test_once_the_cause_is_gone_the_block_is_opened(ledger: Ledger, at: Clock) -> None:
    top = scheduled(ledger)
    archive(ledger)
    assert at(month(2)) == 0
    unarchive(ledger, top)
    assert at(month(2) + RETRY - timedelta(seconds=1)) == 0
    assert at(month(2) + RETRY) == 1
    assert (failure(ledger), names(ledger)) == (None, ["2031-01", "2031-02"])


def test_setting_the_schedule_again_tries_at_once(ledger: Ledger, at: Clock) -> None:
    top = scheduled(ledger)
    archive(ledger)
    at(month(2))
    unarchive(ledger, top)
    put(ledger, top)
    assert (failure(ledger), names(ledger)) == (None, ["2031-01", "2031-02"])


def test_one_account_that_fails_does_not_block_the_others(
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


@pytest.mark.parametrize(
    ("column", "value"),
    [("period", "week"), ("start", "2030-01-01"), ("epsilon_limit", 9.0), ("delta_limit", 0.1), ("prefix", "x")],
)
def test_a_schedule_changed_behind_the_ledgers_back_is_found(
    ledger: Ledger, at: Clock, column: str, value: object
) -> None:
    scheduled(ledger)
    at(month(2))
    assert verify(ledger.database).sound
    with tampering(ledger.database) as tx:
        tx.execute(update(block_schedules).values({column: value}))
    [problem] = verify(ledger.database).problems
    assert f"of block_schedules is not as the audit log has it: {column}." in problem


def test_a_schedule_that_is_gone_or_that_nobody_set_is_found(ledger: Ledger, at: Clock) -> None:
    scheduled(ledger)
    at(month(2))
    with tampering(ledger.database) as tx:
        kept = dict(tx.execute(select(block_schedules)).mappings().one())
        tx.execute(block_schedules.delete())
    [problem] = verify(ledger.database).problems
    assert "of block_schedules is missing" in problem
    with tampering(ledger.database) as tx:
        tx.execute(block_schedules.insert().values(kept))
    assert verify(ledger.database).sound
    headers = ledger.headers() | {"If-Match": "*"}
    assert ledger.http.delete("/v1/accounts/mimic/block-schedule?reason=Over.", headers=headers).status_code == 204
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(block_schedules.insert().values(kept))
    [problem] = verify(ledger.database).problems
    assert "of block_schedules" in problem
