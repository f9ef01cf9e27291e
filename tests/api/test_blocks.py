"""Time: windows of budgets, blocks of new data, and schedules that open them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from app.service.verification import verify
from tests.clocks import stand_at
from tests.conftest import SAMPLED, Ledger

LIMIT = {"epsilon": 1.0, "delta": 1e-5}
NOISE = {"type": "gaussian", "noise_multiplier": 60.0}
START = datetime.now(UTC)
PARALLEL: dict[str, Any] = {"composition": "parallel", "attestation": "a patient's records count by their month"}


def after(days: float) -> str:
    return (START + timedelta(days=days)).isoformat()


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the service's clock stand so many days from now."""

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
    answer = reply.json()
    assert (reply.status_code, answer["code"]) == (403, "budget_closed"), reply.text
    assert word in answer["detail"]
    assert answer["account_path"] == "mimic/quarter"
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
    shut(ledger.post(f"/v1/runs/{run}/reservations", {"plan": [{"event": NOISE, "count": 1}]}), 1, "closed")
    shut(ledger.post("/v1/runs", {"name": "late", "budget": "mimic/quarter/team"}), 1, "closed")
    assert len(ledger.get("/v1/runs").json()["items"]) == 1
    again = steps(ledger, run, first_step=0)
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
    assert ledger.get(f"/v1/runs/{run}").json()["next_step"] == 1


def test_budget_admits_nothing_before_it_opens(ledger: Ledger, at: Callable[[float], None]) -> None:
    ledger.population()
    ledger.budget("quarter", opens_at=after(1))
    ledger.budget("team", "mimic/quarter")
    shut(ledger.post("/v1/runs", {"name": "early", "budget": "mimic/quarter/team"}), None, "opens at")
    at(1)
    assert steps(ledger, ledger.run("mimic/quarter/team", event=NOISE)).json()["decision"] == "admitted"


def test_steps_under_a_reservation_end_with_the_window(ledger: Ledger, at: Callable[[float], None]) -> None:
    run = quarter(ledger, closes_at=after(1))
    plan = {"plan": [{"event": NOISE, "count": 5}], "lease_seconds": 7 * 86400}
    held = ledger.post(f"/v1/runs/{run}/reservations", plan).json()["id"]
    for _ in range(2):
        assert steps(ledger, run).json()["reservation"] == held
    at(1)
    shut(steps(ledger, run), 1, "closed")
    done = ledger.post(f"/v1/reservations/{held}/commit", {"steps_executed": 3})  # what has happened is charged
    assert (done.status_code, done.json()["status"]) == (200, "committed")
    assert ledger.get(f"/v1/runs/{run}").json()["next_step"] == 3
    assert verify(ledger.database).sound


@pytest.mark.both_databases
def test_window_is_shown_in_utc(ledger: Ledger) -> None:
    ledger.population()
    made = ledger.budget("b", opens_at="2026-12-01T01:00:00+01:00", closes_at="2027-01-01T00:00:00Z")
    assert (made["opens_at"], made["closes_at"]) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
    assert ledger.get(f"/v1/budgets/{made['id']}").json() == made


MAY = {"data_from": "2026-05-01T00:00:00Z", "data_to": "2026-06-01T00:00:00Z"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "it closes as it opens": ({"opens_at": after(1), "closes_at": after(1)}, "closes_at"),
    "no offset": ({"opens_at": "2026-12-01T00:00:00"}, "time zone"),
    "no moment": ({"closes_at": "tomorrow"}, "closes_at"),
    "a number": ({"closes_at": 1798761600}, "write a moment as text"),
    "a day of which there is none": ({"closes_at": "2026-02-30T00:00:00Z"}, "closes_at"),
    "before all years": ({"opens_at": "0001-01-01T00:00:00+14:00"}, "years 1 and 9999"),
    "a block that ends as it begins": ({"block": MAY | {"data_to": MAY["data_from"]}}, "data_to"),
    "a block without an end": ({"block": {"data_from": MAY["data_from"]}}, "data_to"),
    "a block that is no part": ({"block": MAY}, "composed in parallel"),
}


@pytest.mark.parametrize("what", BAD)
def test_contradictory_times_are_refused(ledger: Ledger, what: str) -> None:
    ledger.population()
    terms, words = BAD[what]
    reply = ledger.post("/v1/budgets", {"name": "b", "parent": "mimic", "limit": LIMIT} | terms)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert words in reply.json()["detail"]


def test_blocks_of_one_account_are_disjoint(ledger: Ledger) -> None:
    ledger.population(**PARALLEL)
    made = ledger.budget("may", block=MAY | {"label": "the fifth"})
    assert made["block"] == MAY | {"label": "the fifth"}
    ledger.budget("june", block={"data_from": MAY["data_to"], "data_to": "2026-07-01T00:00:00Z"})
    across = {"data_from": "2026-05-31T23:59:59Z", "data_to": "2026-06-02T00:00:00Z"}
    reply = ledger.post("/v1/budgets", {"name": "x", "parent": "mimic", "limit": LIMIT, "block": across})
    assert reply.status_code == 422
    assert "overlaps mimic/may" in reply.json()["detail"]
    ledger.budget("other-data", "mimic")  # a part need not be a block


def test_budget_renews_with_new_data_and_the_odometer_stands_beside_it(ledger: Ledger) -> None:
    population = ledger.population(limit=LIMIT, **PARALLEL)
    months = [f"2026-0{month}-01T00:00:00Z" for month in (5, 6, 7)]
    spent = []
    for name, begin, end in (("may", *months[:2]), ("june", *months[1:])):
        ledger.budget(name, limit=LIMIT, block={"data_from": begin, "data_to": end})
        run = ledger.run(f"mimic/{name}", event=NOISE)
        room = ledger.get(f"/v1/runs/{run}").json()["steps_remaining"]
        assert steps(ledger, run, count=room).json()["steps_remaining"] == 0
        spent.append(room)
    assert spent[0] == spent[1]  # new data, a whole budget
    may, june = ledger.get("/v1/budgets").json()["items"]
    odometer = ledger.get(f"/v1/populations/{population['id']}").json()
    assert may["epsilon"] == june["epsilon"] == odometer["epsilon"]
    for read in (may, june, odometer):
        assert read["lifetime"] == {
            "population": population["id"],
            "population_path": "mimic",
            "epsilon": odometer["epsilon"],
            "delta": 1e-5,
            "epsilon_limit": 1.0,
        }
    old = ledger.run("mimic/may", event=NOISE)
    assert steps(ledger, old).json()["code"] == "budget_exceeded"  # and the old data never comes back


ATTESTED: dict[str, Any] = {"composition": "parallel", "attestation": "each record has one date"}
YEAR: dict[str, Any] = {"period": "month", "start": "2026-01-15", "count": 12, "limit": {"epsilon": 1.0, "delta": 1e-5}}


def test_year_of_monthly_data_is_twelve_budgets(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    made = ledger.post(f"/v1/accounts/{top}/blocks", YEAR)
    assert made.status_code == 201, made.text
    items = made.json()["items"]
    assert [each["name"] for each in items] == [f"2026-{month:02}" for month in range(1, 13)]
    assert items[1]["block"] == {
        "data_from": "2026-02-01T00:00:00Z",
        "data_to": "2026-03-01T00:00:00Z",
        "label": "2026-02",
    }
    run = ledger.run("mimic/2026-03")
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 3, "event": SAMPLED}).status_code == 200
    assert verify(ledger.database).sound


def test_overlapping_block_makes_none(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    march = {"data_from": "2026-03-10T00:00:00Z", "data_to": "2026-03-20T00:00:00Z"}
    ledger.budget("spring", block=march)
    refused = ledger.post(f"/v1/accounts/{top}/blocks", YEAR)
    assert (refused.status_code, refused.json()["field"]) == (422, "block")
    assert "overlaps mimic/spring" in refused.json()["detail"]
    assert [each["name"] for each in ledger.get("/v1/budgets").json()["items"]] == ["spring"]


NOW = datetime(2031, 3, 10, 12, tzinfo=UTC)
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


def test_schedule_opens_the_periods_that_have_begun(ledger: Ledger) -> None:
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


def test_schedule_is_removed_with_a_reason_and_its_blocks_stay(ledger: Ledger) -> None:
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


def test_schedule_is_changed_under_the_tag_that_was_read(ledger: Ledger) -> None:
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


@pytest.mark.parametrize("start", ["2031-01-01", "2031-12-01"])
def test_schedule_that_could_never_be_opened_is_refused_at_once(ledger: Ledger, start: str) -> None:
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
