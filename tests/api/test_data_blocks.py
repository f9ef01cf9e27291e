"""Data blocks by calendar: all or none, and never over each other."""

from typing import Any

import pytest

from app.service.verification import verify
from tests.conftest import SAMPLED, Ledger

ATTESTED: dict[str, Any] = {"composition": "parallel", "attestation": "each record has one date"}
YEAR: dict[str, Any] = {"period": "month", "start": "2026-01-15", "count": 12, "limit": {"epsilon": 1.0, "delta": 1e-5}}


def test_a_year_of_monthly_data_is_twelve_budgets(ledger: Ledger) -> None:
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


def test_the_same_request_twice_makes_them_once(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    first, again = (
        ledger.post(f"/v1/accounts/{top}/blocks", YEAR | {"count": 2}, Idempotency_Key="once") for _ in range(2)
    )
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(ledger.get("/v1/budgets").json()["items"]) == 2


def test_one_that_is_taken_makes_none(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    march = {"data_from": "2026-03-10T00:00:00Z", "data_to": "2026-03-20T00:00:00Z"}
    ledger.budget("spring", block=march)
    refused = ledger.post(f"/v1/accounts/{top}/blocks", YEAR)
    assert (refused.status_code, refused.json()["field"]) == (422, "block")
    assert "overlaps mimic/spring" in refused.json()["detail"]
    assert [each["name"] for each in ledger.get("/v1/budgets").json()["items"]] == ["spring"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"period": "day"}, "period"),
        ({"start": "2026-13-01"}, "start"),
        ({"start": 20260101}, "start"),
        ({"count": 0}, "count"),
        ({"count": 65}, "count"),
        ({"prefix": "pop_"}, "prefix"),
        ({"prefix": "a/"}, "prefix"),
    ],
)
def test_what_is_wrong_is_named(ledger: Ledger, change: dict[str, object], field: str) -> None:
    top = ledger.population(**ATTESTED)["id"]
    refused = ledger.post(f"/v1/accounts/{top}/blocks", YEAR | change)
    assert refused.status_code == 422
    assert [each["field"] for each in refused.json()["errors"]] == [f"body.{field}"]


def test_an_account_without_parts_has_no_blocks(ledger: Ledger) -> None:
    top = ledger.population()["id"]
    refused = ledger.post(f"/v1/accounts/{top}/blocks", YEAR)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert "is not: the spending of its children adds up" in refused.json()["detail"]


def test_as_many_as_an_account_may_have_are_made_at_once(ledger: Ledger) -> None:
    top = ledger.population(**ATTESTED)["id"]
    weeks = YEAR | {"period": "week", "count": 64, "prefix": "logs-"}
    assert ledger.post(f"/v1/accounts/{top}/blocks", weeks).status_code == 201
    more = ledger.post(f"/v1/accounts/{top}/blocks", YEAR | {"start": "2030-01-01", "count": 1})
    assert "64 parts already" in more.json()["detail"]
