"""Time: windows of budgets, blocks of new data, and schedules that open them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from app.service.verification.verify import verify
from tests.api import trainer
from tests.api.trainer import is_refused
from tests.clocks import stand_at
from tests.conftest import Ledger

LIMIT = {"epsilon": 1.0, "delta": 1e-5}
NOISE = {"type": "gaussian", "noise_multiplier": 60.0}
START = datetime(2031, 3, 10, 12, tzinfo=UTC)
PARALLEL: dict[str, Any] = {"composition": "parallel", "attestation": "each record has one date"}


def after(days: float) -> str:
    return (START + timedelta(days=days)).isoformat()


@pytest.fixture(autouse=True)
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the service's clock stand so many days from the start."""

    def stand(days: float) -> None:
        stand_at(monkeypatch, lambda: START + timedelta(days=days))

    stand(0)
    return stand


def quarter(ledger: Ledger, **window: str) -> str:
    """A run under a team's budget within a quarter's."""
    ledger.population()
    ledger.budget("quarter", **window)
    ledger.budget("team", "mimic/quarter")
    return ledger.run("mimic/quarter/team", event=NOISE)


def steps(ledger: Ledger, run: str, **body: object) -> httpx2.Response:
    return ledger.post(f"/v1/runs/{run}/steps", {"count": 1} | body)


def shut(reply: httpx2.Response, days: float | None, word: str) -> None:
    answer = is_refused(reply, 403, "account_closed")
    assert (word in answer["detail"], answer["account_path"]) == (True, "mimic/quarter")
    assert answer["account"].startswith("bud_")
    closes = answer["closes_at"] and datetime.fromisoformat(answer["closes_at"])
    assert closes == (None if days is None else START + timedelta(days=days))


def test_closed_budget_admits_nothing(ledger: Ledger, at: Callable[[float], None]) -> None:
    run = quarter(ledger, opens_at=after(-1), closes_at=after(1))
    first = steps(ledger, run, first_step=0)
    assert first.json()["decision"] == "admitted"
    at(1)
    shut(steps(ledger, run), 1, "has been closed since")
    shut(steps(ledger, run, on_exceed="truncate"), 1, "closed")
    shut(ledger.post(f"/v1/runs/{run}/steps?dry_run=true", {"count": 1}), 1, "closed")
    shut(ledger.post(f"/v1/runs/{run}/reservations", {"events": [{"event": NOISE, "count": 1}]}), 1, "closed")
    shut(ledger.post("/v1/runs", {"name": "late", "budget": "mimic/quarter/team"}), 1, "closed")
    assert len(ledger.get("/v1/runs").json()["items"]) == 1
    again = steps(ledger, run, first_step=0)
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
    assert ledger.get(f"/v1/runs/{run}").json()["next_step"] == 1


def test_budget_admits_nothing_before_it_opens(ledger: Ledger, at: Callable[[float], None]) -> None:
    ledger.population()
    made = ledger.budget("quarter", opens_at=after(1), closes_at="2099-01-01T01:00:00+01:00")
    assert made["closes_at"] == "2099-01-01T00:00:00Z", "shown in UTC"
    assert ledger.get(f"/v1/budgets/{made['id']}").json() == made
    ledger.budget("team", "mimic/quarter")
    early = is_refused(
        ledger.post("/v1/runs", {"name": "early", "budget": "mimic/quarter/team"}), 403, "account_closed"
    )
    assert "opens at" in early["detail"]
    at(1)
    assert steps(ledger, ledger.run("mimic/quarter/team", event=NOISE)).json()["decision"] == "admitted"


def test_steps_under_a_reservation_end_with_the_window(ledger: Ledger, at: Callable[[float], None]) -> None:
    run = quarter(ledger, closes_at=after(1))
    plan = {"events": [{"event": NOISE, "count": 5}], "lease_seconds": 7 * 86400}
    held = ledger.post(f"/v1/runs/{run}/reservations", plan).json()["id"]
    for _ in range(2):
        assert steps(ledger, run).json()["reservation"] == held
    at(1)
    shut(steps(ledger, run), 1, "closed")
    done = ledger.post(f"/v1/reservations/{held}/commit", {"steps_executed": 3})  # what has happened is charged
    assert (done.status_code, done.json()["status"]) == (200, "committed")
    assert ledger.get(f"/v1/runs/{run}").json()["next_step"] == 3
    assert verify(ledger.database).sound


MAY = {"data_from": "2026-05-01T00:00:00Z", "data_to": "2026-06-01T00:00:00Z"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"opens_at": after(1), "closes_at": after(1)}, "closes_at"),
    ({"opens_at": "2026-12-01T00:00:00"}, "with its zone"),
    ({"closes_at": "tomorrow"}, "closes_at"),
    ({"closes_at": 1798761600}, "as text such as"),
    ({"closes_at": "2026-02-30T00:00:00Z"}, "closes_at"),
    ({"opens_at": "0001-01-01T00:00:00+14:00"}, "years 1 and 9999"),
    ({"block": MAY | {"data_to": MAY["data_from"]}}, "data_to"),
    ({"block": {"data_from": MAY["data_from"]}}, "data_to"),
    ({"block": MAY}, "composed in parallel"),
]


def test_contradictory_times_are_refused(ledger: Ledger) -> None:
    ledger.population()
    for terms, words in BAD:
        reply = ledger.post("/v1/budgets", {"name": "b", "parent": "mimic", "limit": LIMIT} | terms)
        assert words in is_refused(reply, 422, "invalid_request")["detail"]


def test_blocks_of_one_account_are_disjoint(ledger: Ledger) -> None:
    top = ledger.population(**PARALLEL)["id"]
    made = ledger.budget("may", block=MAY | {"label": "the fifth"})
    assert made["block"] == MAY | {"label": "the fifth"}
    ledger.budget("june", block={"data_from": MAY["data_to"], "data_to": "2026-07-01T00:00:00Z"})
    across = {"data_from": "2026-05-31T23:59:59Z", "data_to": "2026-06-02T00:00:00Z"}
    reply = ledger.post("/v1/budgets", {"name": "x", "parent": "mimic", "limit": LIMIT, "block": across})
    assert "overlaps mimic/may" in is_refused(reply, 422, "invalid_request")["detail"]
    ledger.budget("other-data", "mimic")  # a part need not be a block
    refused = is_refused(ledger.post(f"/v1/accounts/{top}/blocks", YEAR), 422, "invalid_request")
    assert (refused["field"], "overlaps mimic/may" in refused["detail"]) == ("block", True)
    assert names(ledger) == ["other-data", "june", "may"], "and none of the year was made"


def test_budget_renews_with_new_data_and_the_odometer_stands_beside_it(ledger: Ledger) -> None:
    population = ledger.population(limit=LIMIT, **PARALLEL)
    spent = []
    for name, begin, end in (("may", 5, 6), ("june", 6, 7)):
        block = {"data_from": f"2026-0{begin}-01T00:00:00Z", "data_to": f"2026-0{end}-01T00:00:00Z"}
        ledger.budget(name, limit=LIMIT, block=block)
        run = ledger.run(f"mimic/{name}", event=NOISE)
        spent.append(ledger.get(f"/v1/runs/{run}").json()["steps_remaining"])
        assert steps(ledger, run, count=spent[-1]).json()["steps_remaining"] == 0
    assert spent[0] == spent[1]  # new data, a whole budget
    may, june = ledger.get("/v1/budgets").json()["items"]
    odometer = ledger.get(f"/v1/populations/{population['id']}").json()
    assert may["epsilon"] == june["epsilon"] == odometer["epsilon"]
    named = {"population": population["id"], "population_path": "mimic", "delta": 1e-5, "limit": LIMIT}
    for read in (may, june, odometer):
        assert read["lifetime"] == named | {"epsilon": odometer["epsilon"], "used": odometer["used"]}
    old = ledger.run("mimic/may", event=NOISE)
    is_refused(steps(ledger, old), 403, "budget_exceeded")  # and the old data never comes back


YEAR: dict[str, Any] = {"period": "month", "start": "2026-01-15", "count": 12, "limit": {"epsilon": 1.0, "delta": 1e-5}}


def test_year_of_monthly_data_is_twelve_budgets(ledger: Ledger) -> None:
    top = ledger.population(**PARALLEL)["id"]
    items = ledger.post(f"/v1/accounts/{top}/blocks", YEAR).json()["items"]
    assert [each["name"] for each in items] == [f"2026-{month:02}" for month in range(1, 13)]
    days = {"data_from": "2026-02-01T00:00:00Z", "data_to": "2026-03-01T00:00:00Z"}
    assert items[1]["block"] == days | {"label": "2026-02"}
    assert verify(ledger.database).sound


SCHEDULE: dict[str, Any] = {"period": "month", "start": "2031-01-15", "limit": {"epsilon": 1.0, "delta": 1e-5}}


def put(ledger: Ledger, account: object, tag: str | None = "*", **changes: Any) -> httpx2.Response:  # noqa: ANN401 - JSON
    body = {"schedule": SCHEDULE | changes, "reason": "Each month has a budget of its own."}
    return ledger.put(f"/v1/accounts/{account}/block-schedule", body, tag=tag)


def remove(ledger: Ledger, account: object, tag: str = "*", reason: str = "The study ends.") -> httpx2.Response:
    headers = ledger.headers() | {"If-Match": tag}
    url = f"/v1/accounts/{account}/block-schedule"
    return ledger.http.delete(url, params={"reason": reason}, headers=headers)


def names(ledger: Ledger) -> list[str]:
    return [each["name"] for each in ledger.get("/v1/budgets").json()["items"]]


def test_schedule_opens_the_periods_that_have_begun(ledger: Ledger) -> None:
    """It is read with a tag, under which alone it is changed."""
    top, path = ledger.population(**PARALLEL)["id"], "/v1/accounts/mimic/block-schedule"
    none = ledger.get(path)
    assert (none.json()["schedule"], none.json()["next_opens_at"]) == (None, None)
    is_refused(put(ledger, top, tag=None), 428, "precondition_required")
    made = put(ledger, top, tag=none.headers["ETag"], prefix="visits-")
    named = {"account": top, "path": "mimic", "schedule": SCHEDULE | {"prefix": "visits-"}}
    assert made.json() == named | {"next_opens_at": "2031-04-01T00:00:00Z", "failure": None}
    assert names(ledger) == ["visits-2031-03", "visits-2031-02", "visits-2031-01"]
    read = ledger.get(path)
    assert (read.json(), read.headers["ETag"]) == (made.json(), made.headers["ETag"])
    assert ledger.get(path, If_None_Match=read.headers["ETag"]).status_code == 304
    for stale in (put(ledger, top, tag=none.headers["ETag"]), remove(ledger, top, tag=none.headers["ETag"])):
        is_refused(stale, 412, "precondition_failed")
    assert verify(ledger.database).sound


def test_schedule_is_removed_with_a_reason_and_its_blocks_stay(ledger: Ledger) -> None:
    top = ledger.population(**PARALLEL)["id"]
    assert put(ledger, top).status_code == 200
    gone = remove(ledger, top)
    assert (gone.status_code, gone.content) == (204, b"")
    [event] = trainer.audited(ledger, "action=block_schedule.removed")
    assert event["reason"] == "The study ends."
    assert ledger.get(f"/v1/accounts/{top}/block-schedule").json()["schedule"] is None
    assert len(names(ledger)) == 3
    assert is_refused(remove(ledger, top), 404, "not_found")["detail"] == "mimic has no block schedule."
    is_refused(remove(ledger, top, reason=""), 422, "invalid_request")
    assert verify(ledger.database).sound


def test_more_periods_than_parts_name_the_first_day_that_would_do(ledger: Ledger) -> None:
    top = ledger.population(**PARALLEL)["id"]
    refused = is_refused(put(ledger, top, period="week", start="2020-01-01"), 422, "invalid_request")
    assert (refused["field"], "Start on 2029-12-24 or later." in refused["detail"]) == ("schedule.start", True)
    assert put(ledger, top, period="week", start="2029-12-23").status_code == 422
    assert names(ledger) == []
    assert put(ledger, top, period="week", start="2029-12-24").status_code == 200
    assert len(ledger.get("/v1/budgets?limit=200").json()["items"]) == 64
    more = is_refused(
        ledger.post("/v1/budgets", {"name": "x", "parent": "mimic", "limit": LIMIT}), 422, "invalid_request"
    )
    assert more["detail"] == "mimic has 64 parts already, the most that an account may have."


def test_schedule_that_could_never_be_opened_is_refused_at_once(ledger: Ledger) -> None:
    """Also if it would open nothing before the end of the year."""
    ledger.population("sums")
    start = "2031-12-01"
    assert "is not: the spending of its children adds up" in put(ledger, "sums", start=start).json()["detail"]
    ledger.population(**PARALLEL, size=1000)
    for begins in (start, "2031-01-01"):
        refused = put(ledger, "mimic", start=begins, limit={"epsilon": 1.0, "delta": 0.01})
        assert refused.json()["code"] == "delta_too_large"
    assert ledger.set_policy({"max_delta": 1e-6}, "mimic").status_code == 200
    assert put(ledger, "mimic", start=start).json()["code"] == "policy_violation"
    assert ledger.post("/v1/accounts/sums/archive", {}).status_code == 200
    assert put(ledger, "sums", start=start).json()["code"] == "account_archived"
    assert names(ledger) == []
