"""What a request leaves in the database, and what a damaged database leaves to a request."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import dp_events, event_costs
from tests.clocks import stand_at
from tests.conftest import Ledger


@pytest.fixture
def opened(ledger: Ledger) -> Ledger:
    ledger.population()
    ledger.budget()
    return ledger


def _prices(ledger: Ledger) -> int:
    with ledger.database.read(ALL_TENANTS) as tx:
        return int(tx.execute(select(func.count()).select_from(event_costs)).scalar_one())


def _noises(count: int, start: float) -> dict[str, Any]:
    return {
        "events": [{"event": {"type": "gaussian", "noise_multiplier": start + index / 1000}} for index in range(count)]
    }


def test_a_refusal_stores_no_prices(opened: Ledger) -> None:
    run = opened.run()
    assert opened.post(f"/v1/runs/{run}/steps", _noises(50, 0.5)).status_code == 403
    assert _prices(opened) == 0
    assert opened.post(f"/v1/runs/{run}/steps", _noises(3, 500.0)).status_code == 200
    assert _prices(opened) == 3
    points = opened.get(f"/v1/runs/{run}/history").json()["points"]
    assert [len(point["events"]) for point in points] == [50, 3]


def test_a_tampered_default_event_is_not_charged(opened: Ledger) -> None:
    run = opened.run()
    with opened.database.write(ALL_TENANTS) as tx:
        row = tx.execute(select(dp_events)).one()
        tx.execute(update(dp_events).values(canonical_json=row.canonical_json.replace("1.1", "700.0")))
    for reply in (opened.post(f"/v1/runs/{run}/steps", {"count": 1000}), opened.get(f"/v1/runs/{run}")):
        assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable")
        assert "verify" in reply.json()["detail"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """The time that requests see."""
    times = [datetime(2026, 11, 21, 9, 0, tzinfo=UTC)]

    stand_at(monkeypatch, lambda: times[-1])
    return times


def test_a_clock_that_goes_back_hides_nothing_from_a_cursor(opened: Ledger, clock: list[datetime]) -> None:
    seen = [opened.run()]
    page = opened.get("/v1/runs?limit=1").json()
    assert page["next"] is None
    clock.append(clock[0] - timedelta(days=1))
    later = [opened.run() for _ in range(3)]
    assert sorted([*seen, *later]) == [*seen, *later]
    found: list[str] = []
    cursor = ""
    while True:
        page = opened.get(f"/v1/runs?limit=1&after={cursor}").json()
        found += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert found == [*seen, *later][::-1]


def test_readiness_does_not_wait_for_a_writer(opened: Ledger) -> None:
    with opened.database.write(ALL_TENANTS):
        assert opened.http.get("/readyz").status_code == 200
