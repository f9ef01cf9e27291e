"""Forecasts and silence: what upkeep reads, and what it tells of."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import usage_history
from app.persistence.tables import account_usage_snapshots, accounts, balances, reservations
from app.service import maintenance
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.maintenance import alert_stale_reservations
from tests.conftest import Ledger
from tests.service.step_commands import LOUD, CommandRunner, opened, request
from tests.service.test_alert_outbox import answer

NOW = datetime.now(UTC)


def day(number: float) -> datetime:
    return NOW + timedelta(days=number)


def charged(ledger: Ledger, run: str, count: int, at: datetime) -> None:
    """Steps that were taken at a time, by an office whose clock says so."""
    CommandRunner(ledger).group(request(run, (LOUD, count)))
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).values(updated_at=at, version=accounts.c.version + 1))


def aged(ledger: Ledger, at: datetime) -> None:
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).values(created_at=at))


def read(ledger: Ledger) -> list[tuple[str, int, float]]:
    found = (
        select(accounts.c.path, account_usage_snapshots.c.day, account_usage_snapshots.c.utilisation)
        .join(accounts, accounts.c.id == account_usage_snapshots.c.account_id)
        .order_by(account_usage_snapshots.c.day, accounts.c.depth)
    )
    with ledger.database.read(ALL_TENANTS) as tx:
        return [(row.path, row.day, row.utilisation) for row in tx.execute(found)]


def foreseen(ledger: Ledger) -> list[tuple[str, dict[str, Any]]]:
    return [(path, facts) for _, path, facts in answer(ledger, "account.exhaustion_forecast")]


def test_accounts_that_change_are_read_once_a_day_and_others_not(ledger: Ledger) -> None:
    run = opened(ledger)
    assert record_usage_snapshots(ledger.database, day(0)) == 0
    charged(ledger, run, 10, day(0))
    assert record_usage_snapshots(ledger.database, day(0)) == 2
    charged(ledger, run, 10, day(0.01))
    assert record_usage_snapshots(ledger.database, day(0.02)) == 0  # within the hour
    before = read(ledger)
    assert record_usage_snapshots(ledger.database, NOW + timedelta(hours=2)) == 2
    assert record_usage_snapshots(ledger.database, NOW + timedelta(hours=4)) == 0
    assert record_usage_snapshots(ledger.database, day(3)) == 0
    after = read(ledger)
    assert [path for path, *_ in before] == ["mimic", "mimic/icu-team"]
    assert after[-1][2] > before[-1][2] > 0
    assert len(after) in {2, 4}  # the same day, or midnight lay between


def test_a_budget_that_goes_on_like_this_tells_when_it_will_end(ledger: Ledger) -> None:
    run = opened(ledger)
    aged(ledger, day(-2))
    charged(ledger, run, 20, day(0))  # of 219 that fit
    record_usage_snapshots(ledger.database, day(0))
    [(path, facts)] = foreseen(ledger)
    assert path == "mimic/icu-team"
    assert facts["utilisation"] == pytest.approx(20 / 219, rel=0.02)
    days = (datetime.fromisoformat(facts["exhaustion_at"]) - day(0)) / timedelta(days=1)
    assert days == pytest.approx(199 / 10, rel=0.02)
    assert facts["within_days"] == 30
    charged(ledger, run, 20, day(0.5))
    record_usage_snapshots(ledger.database, day(0.5))
    assert len(foreseen(ledger)) == 1


@pytest.mark.parametrize(
    ("age", "steps", "days"), [(2, 5, 30), (0.5, 100, 30), (2, 20, 0), (2, 20, 10)], ids=["slow", "young", "off", "far"]
)
def test_a_budget_that_lasts_tells_nothing(ledger: Ledger, age: float, steps: int, days: int) -> None:
    run = opened(ledger)
    budget = ledger.get("/v1/budgets").json()["items"][0]["id"]
    said = {"thresholds": [], "forecast_days": days}
    reply = ledger.http.put(f"/v1/accounts/{budget}/alert-settings", json=said, headers=ledger.headers())
    assert reply.status_code == 200
    aged(ledger, day(-age))
    charged(ledger, run, steps, day(0))
    record_usage_snapshots(ledger.database, day(0))
    assert foreseen(ledger) == []


def test_the_pace_is_that_of_the_last_seven_days(ledger: Ledger) -> None:
    run = opened(ledger)
    aged(ledger, day(-100))
    budget = ledger.get("/v1/budgets").json()["items"][0]["id"]
    for at, steps in ((-90.0, 50), (-8.0, 10), (-3.0, 7), (-0.1, 7)):
        charged(ledger, run, steps, day(at))
        record_usage_snapshots(ledger.database, day(at))
    shown = ledger.get(f"/v1/accounts/{budget}/forecast").json()
    assert shown["utilisation"] == pytest.approx(74 / 219, rel=0.02)
    assert shown["utilisation_per_day"] == pytest.approx(14 / 219 / 8, rel=0.02)
    assert datetime.fromisoformat(shown["observed_since"]) == pytest.approx(day(-8), abs=timedelta(seconds=1))
    left = (datetime.fromisoformat(shown["exhaustion_at"]) - day(0)) / timedelta(days=1)
    assert left == pytest.approx(145 / (14 / 8), rel=0.02)


def test_an_account_of_which_nothing_is_known_has_no_forecast(ledger: Ledger) -> None:
    run = opened(ledger)
    aged(ledger, day(-100))  # as one that is older than readings are
    charged(ledger, run, 50, day(0))
    budget = ledger.get("/v1/budgets").json()["items"][0]["id"]
    shown = ledger.get(f"/v1/accounts/{budget}/forecast").json()
    assert shown["utilisation"] > 0.2
    assert (shown["utilisation_per_day"], shown["exhaustion_at"], shown["observed_since"]) == (None, None, None)


def test_a_run_without_a_limit_has_no_forecast(ledger: Ledger) -> None:
    reply = ledger.get(f"/v1/accounts/{opened(ledger)}/forecast")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")


def test_an_account_that_cannot_be_read_holds_up_no_other(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    run = opened(ledger)
    charged(ledger, run, 10, day(0))
    population = ledger.get("/v1/populations").json()["items"][0]["id"]
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(balances.delete().where(balances.c.account_id == population))
    record_usage_snapshots(ledger.database, day(0))
    assert [path for path, *_ in read(ledger)] == ["mimic/icu-team"]
    assert [record.message for record in caplog.records if "is not forecast" in record.message]


def test_readings_of_a_day_take_each_other_s_place(ledger: Ledger) -> None:
    opened(ledger)
    account = ledger.get("/v1/budgets").json()["items"][0]["id"]
    with ledger.database.write(ALL_TENANTS) as tx:
        owner = tx.execute(select(accounts.c.organisation_id).where(accounts.c.id == account)).scalar_one()
        noon = NOW.replace(hour=12, minute=0, second=0, microsecond=0)
        for hours, share in ((0, 0.1), (1, 0.2), (24, 0.3)):
            usage_history.put(tx, owner, account, usage_history.Reading(share, noon + timedelta(hours=hours)))
        first = {account: usage_history.Reading(0.2, noon + timedelta(hours=1))}
        assert usage_history.readings_before(tx, owner, [account], noon + timedelta(hours=2)) == first
        assert usage_history.readings_before(tx, owner, [account], noon - timedelta(days=1)) == first
    assert [share for *_, share in read(ledger)] == [0.2, 0.3]


def _reserved(ledger: Ledger, run: str, lease: int = 600) -> str:
    plan = {"plan": [{"event": {"type": "gaussian", "noise_multiplier": 60.0}, "count": 5}], "lease_seconds": lease}
    return str(ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer").json()["id"])


def test_a_trainer_that_is_silent_for_half_its_lease_is_told_of_once(ledger: Ledger) -> None:
    run = opened(ledger)
    reservation = _reserved(ledger, run)
    made = datetime.now(UTC)
    assert alert_stale_reservations(ledger.database, made + timedelta(seconds=290)) == 0
    assert alert_stale_reservations(ledger.database, made + timedelta(seconds=310)) == 1
    assert alert_stale_reservations(ledger.database, made + timedelta(seconds=320)) == 0
    [(_, path, facts)] = answer(ledger, "reservation.stale")
    assert path.startswith("mimic/icu-team/")
    assert (facts["reservation"], facts["lease_seconds"], facts["steps_planned"]) == (reservation, 600, 5)
    assert datetime.fromisoformat(facts["silent_since"]) == pytest.approx(made, abs=timedelta(seconds=5))


@pytest.mark.parametrize("sign", ["a renewal", "a step"])
def test_a_sign_of_life_ends_a_silence(ledger: Ledger, sign: str) -> None:
    run = opened(ledger)
    reservation = _reserved(ledger, run, lease=1000)
    with ledger.database.write(ALL_TENANTS) as tx:  # all of it was long ago
        tx.execute(update(reservations).values(expires_at=datetime.now(UTC) + timedelta(seconds=400)))
        tx.execute(update(accounts).values(updated_at=datetime.now(UTC) - timedelta(seconds=600)))
    if sign == "a renewal":
        assert ledger.post(f"/v1/reservations/{reservation}/renew", None, "trainer").status_code == 200
    else:
        assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    assert alert_stale_reservations(ledger.database, datetime.now(UTC)) == 0
    assert answer(ledger, "reservation.stale") == []


def test_a_plan_that_ended_or_lapsed_is_not_silent(ledger: Ledger) -> None:
    run = opened(ledger)
    reservation = _reserved(ledger, run)
    assert alert_stale_reservations(ledger.database, datetime.now(UTC) + timedelta(seconds=700)) == 0
    assert ledger.post(f"/v1/reservations/{reservation}/void", None, "trainer").status_code == 200
    assert alert_stale_reservations(ledger.database, datetime.now(UTC) + timedelta(seconds=400)) == 0


def test_upkeep_does_all_of_it(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("alert_stale_reservations", "record_usage_snapshots"):
        monkeypatch.setattr(maintenance, name, lambda *_, name=name: done.append(name))

    async def work() -> None:
        keeping = asyncio.create_task(maintenance.run_maintenance(ledger.database, 0.01, 0.02))
        async with asyncio.timeout(30):
            while len(set(done)) < 2:  # noqa: ASYNC110 - another thread looks
                await asyncio.sleep(0.01)
        keeping.cancel()

    asyncio.run(work())


def test_the_pace_of_a_moment_is_no_pace(ledger: Ledger) -> None:
    run = opened(ledger)
    CommandRunner(ledger).group(request(run, (LOUD, 50)))
    budget = ledger.get("/v1/budgets").json()["items"][0]["id"]
    shown = ledger.get(f"/v1/accounts/{budget}/forecast").json()
    assert (shown["utilisation_per_day"], shown["exhaustion_at"], shown["observed_since"]) == (None, None, None)
    aged(ledger, day(-0.1))
    assert ledger.get(f"/v1/accounts/{budget}/forecast").json()["utilisation_per_day"] > 0
