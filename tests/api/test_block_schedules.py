"""Block schedules: what is set, shown and removed, and what is refused."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from app.service.verification import verify
from tests.clocks import stand_at
from tests.conftest import Ledger

NOW = datetime(2031, 3, 10, 12, tzinfo=UTC)
ATTESTED: dict[str, Any] = {"composition": "parallel", "attestation": "each record has one date"}
SCHEDULE: dict[str, Any] = {"period": "month", "start": "2031-01-15", "limit": {"epsilon": 1.0, "delta": 1e-5}}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_at(monkeypatch, lambda: NOW)


def put(ledger: Ledger, account: object, role: str = "admin", tag: str | None = "*", **changes: Any) -> httpx2.Response:  # noqa: ANN401 - JSON
    headers = ledger.headers(role) | ({} if tag is None else {"If-Match": tag})
    body = {"schedule": SCHEDULE | changes, "reason": "Each month has a budget of its own."}
    reply: httpx2.Response = ledger.http.put(f"/v1/accounts/{account}/block-schedule", json=body, headers=headers)
    return reply


def remove(ledger: Ledger, account: object, tag: str = "*", reason: str = "The study ends.") -> httpx2.Response:
    headers = ledger.headers() | {"If-Match": tag}
    url = f"/v1/accounts/{account}/block-schedule"
    reply: httpx2.Response = ledger.http.delete(url, params={"reason": reason}, headers=headers)
    return reply


def names(ledger: Ledger) -> list[str]:
    return [each["name"] for each in ledger.get("/v1/budgets").json()["items"]]


def actions(ledger: Ledger) -> list[tuple[str, str | None]]:
    items = ledger.get("/v1/audit-events?limit=3", "admin").json()["items"]
    return [(each["action"], each["reason"]) for each in items]


def test_a_schedule_opens_the_periods_that_have_begun(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    none = ledger.get(f"/v1/accounts/{top}/block-schedule")
    assert (none.json()["schedule"], none.json()["next_opens_at"]) == (None, None)
    made = put(ledger, top, tag=none.headers["ETag"], prefix="visits-")
    assert made.status_code == 200, made.text
    assert made.json() == {
        "account": top,
        "path": "mimic",
        "schedule": SCHEDULE | {"prefix": "visits-"},
        "next_opens_at": "2031-04-01T00:00:00Z",
        "failure": None,
    }
    assert names(ledger) == ["visits-2031-03", "visits-2031-02", "visits-2031-01"]
    read = ledger.get("/v1/accounts/mimic/block-schedule")
    assert (read.json(), read.headers["ETag"]) == (made.json(), made.headers["ETag"])
    again = ledger.get("/v1/accounts/mimic/block-schedule", If_None_Match=read.headers["ETag"])
    assert again.status_code == 304
    assert verify(ledger.database).sound


def test_a_schedule_of_the_future_opens_nothing_yet(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    made = put(ledger, top, start="2031-04-20")
    assert (made.status_code, made.json()["next_opens_at"]) == (200, "2031-04-01T00:00:00Z")
    assert names(ledger) == []


def test_a_block_that_exists_is_kept_and_a_new_limit_is_for_the_next(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    february = {"data_from": "2031-02-01T00:00:00Z", "data_to": "2031-03-01T00:00:00Z", "label": "by hand"}
    ledger.budget("february", block=february)
    assert put(ledger, top).status_code == 200
    assert names(ledger) == ["2031-03", "2031-01", "february"]
    assert put(ledger, top, limit={"epsilon": 2.0, "delta": 1e-6}).status_code == 200
    assert names(ledger) == ["2031-03", "2031-01", "february"]
    assert {each["limit"]["epsilon"] for each in ledger.get("/v1/budgets").json()["items"]} == {1.0}


def test_an_equal_schedule_is_not_recorded_again(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    first, before = put(ledger, top), actions(ledger)
    again = put(ledger, top, tag=first.headers["ETag"])
    assert (again.json(), again.headers["ETag"]) == (first.json(), first.headers["ETag"])
    assert actions(ledger) == before


def test_a_schedule_is_removed_with_a_reason_and_its_blocks_stay(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    assert put(ledger, top).status_code == 200
    gone = remove(ledger, top)
    assert (gone.status_code, gone.content) == (204, b"")
    assert actions(ledger)[0] == ("block_schedule.removed", "The study ends.")
    assert ledger.get(f"/v1/accounts/{top}/block-schedule").json()["schedule"] is None
    assert len(names(ledger)) == 3
    again = remove(ledger, top)
    assert (again.status_code, again.json()["detail"]) == (404, "mimic has no block schedule.")
    assert remove(ledger, top, reason="").json()["code"] == "invalid_request"
    assert verify(ledger.database).sound


def test_a_change_that_was_not_seen_is_not_overwritten(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    assert put(ledger, top, tag=None).json()["code"] == "precondition_required"
    seen = ledger.get(f"/v1/accounts/{top}/block-schedule").headers["ETag"]
    assert put(ledger, top, tag=seen).status_code == 200
    assert put(ledger, top, tag=seen, prefix="other-").json()["code"] == "precondition_failed"
    assert remove(ledger, top, tag=seen).json()["code"] == "precondition_failed"


def test_more_periods_than_parts_name_the_first_day_that_would_do(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    refused = put(ledger, top, period="week", start="2020-01-01")
    assert (refused.status_code, refused.json()["field"]) == (422, "schedule.start")
    assert "Start on 2029-12-24 or later." in refused.json()["detail"]
    assert put(ledger, top, period="week", start="2029-12-23").status_code == 422
    assert names(ledger) == []
    assert put(ledger, top, period="week", start="2029-12-24").status_code == 200
    assert len(ledger.get("/v1/budgets?limit=200").json()["items"]) == 64


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"period": "day"}, "period"),
        ({"start": "2026-13-01"}, "start"),
        ({"limit": {"epsilon": 0, "delta": 1e-5}}, "limit.epsilon"),
        ({"prefix": "a/"}, "prefix"),
        ({"count": 3}, "count"),
    ],
)
def test_what_is_wrong_is_named(ledger: Ledger, change: dict[str, Any], field: str) -> None:
    top = ledger.population(**ATTESTED)["id"]
    refused = put(ledger, top, **change)
    assert refused.status_code == 422
    assert [each["field"] for each in refused.json()["errors"]] == [f"body.schedule.{field}"]


@pytest.mark.parametrize("start", ["2031-01-01", "2031-12-01"])
def test_what_could_never_be_opened_is_refused_at_once(ledger: Ledger, start: str) -> None:
    ledger.population("sums")
    assert "is not: the spending of its children adds up" in put(ledger, "sums", start=start).json()["detail"]
    ledger.population(**ATTESTED, size=1000)
    assert put(ledger, "mimic", start=start, limit={"epsilon": 1.0, "delta": 0.01}).json()["code"] == "delta_too_large"
    policy = {"policy": {"max_delta": 1e-6}, "reason": "The board has met."}
    headers = ledger.headers() | {"If-Match": "*"}
    assert ledger.http.put("/v1/accounts/mimic/policy", json=policy, headers=headers).status_code == 200
    assert put(ledger, "mimic", start=start).json()["code"] == "policy_violation"
    assert ledger.post("/v1/accounts/sums/archive", {}).status_code == 200
    assert put(ledger, "sums", start=start).json()["code"] == "account_archived"
    assert names(ledger) == []


def test_a_name_that_is_taken_opens_nothing(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    ledger.budget("2031-02")
    assert put(ledger, top).json()["code"] == "name_taken"
    assert names(ledger) == ["2031-02"]
    assert ledger.get(f"/v1/accounts/{top}/block-schedule").json()["schedule"] is None


def test_a_trainer_may_read_a_schedule_and_not_set_it(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    assert put(ledger, top, "trainer").json()["code"] == "insufficient_scope"
    assert ledger.get(f"/v1/accounts/{top}/block-schedule", "trainer").status_code == 200
    assert ledger.get(f"/v1/accounts/{top}/block-schedule", organisation="clinic").status_code == 404
    ledger.budget()
    run = ledger.run()
    assert ledger.get(f"/v1/accounts/{run}/block-schedule").json()["code"] == "not_found"
