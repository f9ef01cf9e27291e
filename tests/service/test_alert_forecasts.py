"""Forecasts and silence: what upkeep reads, and of what it alerts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from app.persistence.database import ALL_TENANTS
from app.persistence.tables import account_usage_snapshots, accounts, balances, reservations
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.maintenance import alert_stale_reservations
from tests.api.trainer import LOUD, Trainer, hired
from tests.conftest import Ledger
from tests.service.test_alert_outbox import answer

NOW = datetime.now(UTC)


def day(number: float) -> datetime:
    return NOW + timedelta(days=number)


@pytest.fixture
def trainer(ledger: Ledger) -> Trainer:
    """Somebody whose budget lets 219 steps pass."""
    return hired(ledger)


def charge(trainer: Trainer, count: int, at: datetime) -> None:
    """Steps that were taken at a time, by an office whose clock says so."""
    assert trainer.steps(count=count).status_code == 200
    with trainer.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).values(updated_at=at, version=accounts.c.version + 1))


def record(trainer: Trainer, at: datetime) -> int:
    return record_usage_snapshots(trainer.ledger.database, at)


def age(trainer: Trainer, at: datetime) -> None:
    with trainer.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).values(created_at=at))


def team(trainer: Trainer) -> str:
    return str(trainer.ledger.get("/v1/budgets").json()["items"][0]["id"])


def forecast(trainer: Trainer) -> dict[str, Any]:
    found: dict[str, Any] = trainer.ledger.get(f"/v1/accounts/{team(trainer)}/forecast").json()
    return found


def recorded(trainer: Trainer) -> list[tuple[str, float]]:
    """Path and utilisation of every reading, by day and depth."""
    found = (
        select(accounts.c.path, account_usage_snapshots.c.utilisation)
        .join(accounts, accounts.c.id == account_usage_snapshots.c.account_id)
        .order_by(account_usage_snapshots.c.day, accounts.c.depth)
    )
    with trainer.ledger.database.read(ALL_TENANTS) as tx:
        return [(row.path, row.utilisation) for row in tx.execute(found)]


def foreseen(trainer: Trainer) -> list[tuple[str, dict[str, Any]]]:
    return [(path, facts) for _, path, facts in answer(trainer.ledger, "account.exhaustion_forecast")]


def test_changed_accounts_are_read_once_a_day_and_others_not(trainer: Trainer) -> None:
    assert record(trainer, day(0)) == 0
    charge(trainer, 10, day(0))
    assert record(trainer, day(0)) == 2
    charge(trainer, 10, day(0.01))
    assert record(trainer, day(0.02)) == 0  # within the hour
    before = recorded(trainer)
    assert [record(trainer, at) for at in (day(2 / 24), day(4 / 24), day(3))] == [2, 0, 0]
    after = recorded(trainer)
    assert [path for path, _ in before] == ["mimic", "mimic/icu-team"]
    assert after[-1][1] > before[-1][1] > 0
    assert len(after) in {2, 4}  # the same day, or midnight lay between


def test_budget_that_ends_within_its_days_is_forecast_once(trainer: Trainer) -> None:
    age(trainer, day(-2))
    charge(trainer, 20, day(0))
    record(trainer, day(0))
    [(path, facts)] = foreseen(trainer)
    assert (path, facts["within_days"]) == ("mimic/icu-team", 30)
    assert facts["utilisation"] == pytest.approx(20 / 219, rel=0.02)
    days = (datetime.fromisoformat(facts["exhaustion_at"]) - day(0)) / timedelta(days=1)
    assert days == pytest.approx(199 / 10, rel=0.02)
    charge(trainer, 20, day(0.5))
    record(trainer, day(0.5))
    assert len(foreseen(trainer)) == 1


@pytest.mark.parametrize(
    ("days_old", "steps", "days"),
    [(2, 5, 30), (0.5, 100, 30), (2, 20, 0), (2, 20, 10)],
    ids=["slow", "young", "off", "far"],
)
def test_budget_that_lasts_is_not_forecast(trainer: Trainer, days_old: float, steps: int, days: int) -> None:
    ledger, said = trainer.ledger, {"thresholds": [], "forecast_days": days}
    reply = ledger.http.put(f"/v1/accounts/{team(trainer)}/alert-settings", json=said, headers=ledger.headers())
    assert reply.status_code == 200
    age(trainer, day(-days_old))
    charge(trainer, steps, day(0))
    record(trainer, day(0))
    assert foreseen(trainer) == []


def test_pace_is_that_of_the_last_seven_days(trainer: Trainer) -> None:
    age(trainer, day(-100))
    for at, steps in ((-90.0, 50), (-8.0, 10), (-3.0, 7), (-0.1, 7)):
        charge(trainer, steps, day(at))
        record(trainer, day(at))
    shown = forecast(trainer)
    assert shown["utilisation"] == pytest.approx(74 / 219, rel=0.02)
    assert shown["utilisation_per_day"] == pytest.approx(14 / 219 / 8, rel=0.02)
    assert datetime.fromisoformat(shown["observed_since"]) == pytest.approx(day(-8), abs=timedelta(seconds=1))
    left = (datetime.fromisoformat(shown["exhaustion_at"]) - day(0)) / timedelta(days=1)
    assert left == pytest.approx(145 / (14 / 8), rel=0.02)


@pytest.mark.parametrize("days_old", [0, 100], ids=["of a moment", "older than any reading"])
def test_account_without_a_past_has_no_pace(trainer: Trainer, days_old: int) -> None:
    if days_old:
        age(trainer, day(-days_old))
    charge(trainer, 50, day(0))
    shown = forecast(trainer)
    assert shown["utilisation"] > 0.2
    assert (shown["utilisation_per_day"], shown["exhaustion_at"], shown["observed_since"]) == (None, None, None)
    age(trainer, day(-0.1))
    assert forecast(trainer)["utilisation_per_day"] > 0


def test_unreadable_account_holds_up_no_other(trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    charge(trainer, 10, day(0))
    population = trainer.ledger.get("/v1/populations").json()["items"][0]["id"]
    with trainer.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(balances.delete().where(balances.c.account_id == population))
    record(trainer, day(0))
    assert [path for path, _ in recorded(trainer)] == ["mimic/icu-team"]
    assert [entry.message for entry in caplog.records if "is not forecast" in entry.message]


def silent(trainer: Trainer, at: datetime) -> int:
    return alert_stale_reservations(trainer.ledger.database, at)


def test_trainer_silent_for_half_its_lease_is_alerted_once(trainer: Trainer) -> None:
    reservation, made = trainer.reserved((LOUD, 5), lease_seconds=600), datetime.now(UTC)
    assert [silent(trainer, made + timedelta(seconds=late)) for late in (290, 310, 320)] == [0, 1, 0]
    [(_, path, facts)] = answer(trainer.ledger, "reservation.stale")
    assert path.startswith("mimic/icu-team/")
    assert (facts["reservation"], facts["lease_seconds"], facts["steps_planned"]) == (reservation, 600, 5)
    assert datetime.fromisoformat(facts["silent_since"]) == pytest.approx(made, abs=timedelta(seconds=5))


@pytest.mark.parametrize("sign", ["renew", "step", "void", "lapse"])
def test_sign_of_life_or_end_of_a_plan_ends_a_silence(trainer: Trainer, sign: str) -> None:
    reservation, now = trainer.reserved((LOUD, 5), lease_seconds=1000), datetime.now(UTC)
    with trainer.ledger.database.write(ALL_TENANTS) as tx:  # all of it was long ago
        tx.execute(update(reservations).values(expires_at=now + timedelta(seconds=400)))
        tx.execute(update(accounts).values(updated_at=now - timedelta(seconds=600)))
    if sign == "step":
        assert trainer.steps().status_code == 200
    elif sign != "lapse":
        assert trainer.end(reservation, sign).status_code == 200
    assert silent(trainer, datetime.now(UTC) + timedelta(seconds=500 if sign == "lapse" else 0)) == 0
    assert answer(trainer.ledger, "reservation.stale") == []
