"""Time: budgets that open and close, blocks of new data, and the odometer that stands beside them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from app.service.verification import verify
from tests.clocks import stand_at
from tests.conftest import Ledger

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


@pytest.mark.both_databases
def test_after_it_has_closed_nothing_is_taken_from_a_budget(ledger: Ledger, at: Callable[[float], None]) -> None:
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


def test_before_it_opens_neither(ledger: Ledger, at: Callable[[float], None]) -> None:
    ledger.population()
    ledger.budget("quarter", opens_at=after(1))
    ledger.budget("team", "mimic/quarter")
    shut(ledger.post("/v1/runs", {"name": "early", "budget": "mimic/quarter/team"}), None, "opens at")
    at(1)
    assert steps(ledger, ledger.run("mimic/quarter/team", event=NOISE)).json()["decision"] == "admitted"


def test_what_has_happened_is_recorded_all_the_same(ledger: Ledger, at: Callable[[float], None]) -> None:
    run = quarter(ledger, closes_at=after(1))
    at(2)
    assert steps(ledger, run, mode="report").json()["decision"] == "reported"
    assert verify(ledger.database).sound


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


def test_of_several_budgets_each_has_to_be_open(ledger: Ledger, at: Callable[[float], None]) -> None:
    run = quarter(ledger, closes_at=after(1))
    assert ledger.post(f"/v1/runs/{run}/complete", {}).status_code == 200
    ledger.budget("always")
    body = {"name": "both", "budgets": ["mimic/always", "mimic/quarter/team"], "event": NOISE}
    both = ledger.post("/v1/runs", body).json()["id"]
    assert steps(ledger, both).json()["decision"] == "admitted"
    at(1)
    shut(steps(ledger, both), 1, "closed")


@pytest.mark.both_databases
def test_a_window_is_shown_in_utc(ledger: Ledger) -> None:
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
def test_times_that_mean_nothing_are_refused(ledger: Ledger, what: str) -> None:
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


def test_a_budget_renews_with_new_data_and_the_odometer_stands_beside_it(ledger: Ledger) -> None:
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
