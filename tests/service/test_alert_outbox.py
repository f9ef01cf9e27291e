"""The outbox: an alert is there if and only if its cause is, or is foreseen."""

import itertools
import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event as sql_event
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from app.accounting.events import event_to_dict
from app.persistence.database import ALL_TENANTS
from app.persistence.tables import accounts, alerts
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.charging.groups import commit_group
from app.service.maintenance import alert_stale_reservations
from tests.api.trainer import LOUD as WIRED
from tests.api.trainer import Trainer, gaussian
from tests.conftest import Ledger
from tests.service.endpoint import subscribed
from tests.service.step_commands import HUGE, LOUD, QUIET, CommandRunner, another, epsilons_at_once, request
from tests.soak import few

_numbers = itertools.count()

NOWHERE = "https://alerts.example/privacy"
OVER = gaussian(0.5)
"""An event over every limit."""


def answer(ledger: Ledger, kind: str | None = None) -> list[tuple[str, str, dict[str, Any]]]:
    """Type, account's path and facts of every alert, in the order of their making."""
    with ledger.database.read(ALL_TENANTS) as tx:
        rows = tx.execute(
            select(alerts.c.type, accounts.c.path, alerts.c.payload)
            .join(accounts, accounts.c.id == alerts.c.account_id)
            .order_by(alerts.c.created_at, accounts.c.depth, alerts.c.id)
        ).all()
    return [(row.type, row.path, json.loads(row.payload)) for row in rows if kind in {None, row.type}]


def thresholds(ledger: Ledger) -> list[tuple[str, float]]:
    return [(path, facts["threshold"]) for _, path, facts in answer(ledger, "account.threshold_reached")]


def of_team(ledger: Ledger) -> list[float]:
    return [share for path, share in thresholds(ledger) if path == "mimic/icu-team"]


def test_threshold_is_alerted_once_with_the_numbers_of_its_moment(trainer: Trainer) -> None:
    ledger = trainer.ledger
    while trainer.steps(count=5).status_code == 200:
        pass
    assert of_team(ledger) == [0.5, 0.8]
    [facts] = [facts for _, path, facts in answer(ledger) if (path, facts.get("threshold")) == ("mimic/icu-team", 0.8)]
    assert 0.8 <= facts["used"] < 1.0
    assert (facts["limit"], facts["account_kind"]) == ({"epsilon": 1.0, "delta": 1e-5}, "budget")
    with ledger.database.write(ALL_TENANTS) as tx:  # as a change of the limit does
        this = accounts.c.path == "mimic/icu-team"
        tx.execute(update(accounts).where(this).values(limit_value=2.5, version=accounts.c.version + 1))
    while len(of_team(ledger)) == 2 and trainer.steps(count=20).status_code == 200:
        pass
    assert of_team(ledger) == [0.5, 0.8, 0.5]


def test_exhausted_account_and_overdrawn_run_are_alerted_once(trainer: Trainer) -> None:
    ledger = trainer.ledger
    assert trainer.steps(count=10**6, on_exceed="truncate").status_code == 200
    [(_, path, facts)] = answer(ledger, "account.exhausted")
    assert (path, facts["run"]) == ("mimic/icu-team", trainer.run)
    assert trainer.steps().status_code == 403
    assert len(answer(ledger, "account.exhausted")) == 1
    assert [trainer.steps(event=OVER, mode="report").status_code for _ in range(2)] == [200, 200]
    [(_, _, facts)] = answer(ledger, "run.overdrawn")
    assert facts["account"] == trainer.run
    assert facts["over_limit"]["account_path"] in {"mimic", "mimic/icu-team"}
    assert set(of_team(ledger)) == {0.5, 0.8, 1.0}


def test_rolled_back_charge_is_not_alerted(ledger: Ledger, runner: CommandRunner, run: str) -> None:
    """Nor does a charge that crosses nothing execute SQL of alerts."""
    subscribed(ledger, NOWHERE)
    seen: list[str] = []
    runner.charged(request(run, (QUIET, 1)))
    command = runner.command(request(run, (LOUD, 200)))
    runner._prepare(command)

    def fail(_: object, __: object, statement: str, *___: object) -> None:
        seen.append(statement)
        if "INSERT INTO deliveries" in statement:
            raise OperationalError(statement, {}, Exception("disk full"))

    sql_event.listen(ledger.database.engine, "before_cursor_execute", fail)
    runner.charged(request(run, (QUIET, 1)))
    assert not [statement for statement in seen if "alerts" in statement or "receivers" in statement]
    with pytest.raises(OperationalError), epsilons_at_once():
        commit_group(ledger.database, runner.memory, [command])
    sql_event.remove(ledger.database.engine, "before_cursor_execute", fail)
    assert answer(ledger) == []
    runner.once(command)
    assert answer(ledger) != []


@settings(few(2), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), processes=st.integers(1, 3))
def test_threshold_is_alerted_if_and_only_if_it_was_reached(ledger: Ledger, seed: int, processes: int) -> None:
    chance = Random(seed)  # noqa: S311 - repeatable, not secret
    name = f"population-{next(_numbers)}"
    limit = {"epsilon": chance.uniform(0.2, 3.0), "delta": 1e-5}
    ledger.population(name, limit=limit, planned=chance.choice([[], [{"event": event_to_dict(LOUD)}]]))
    ledger.budget("b", name, limit=limit | {"epsilon": chance.uniform(0.2, 3.0)})
    runs = [another(ledger, budget=f"{name}/b", limit=chance.choice([None, limit])) for _ in range(2)]
    runners = [CommandRunner(ledger) for _ in range(processes)]
    reached: set[tuple[str, float]] = set()
    for _ in range(12):
        run, runner = chance.choice(runs), chance.choice(runners)
        event = chance.choice([LOUD, QUIET, HUGE] if chance.random() < 0.1 else [LOUD, QUIET])
        mode = chance.choice(["authorize", "authorize", "report"])
        runner.group(request(run, (event, chance.randint(1, 120)), mode=mode))
        for each in runner.path(run):
            if each.limit is not None:
                reached |= {(each.id, threshold) for threshold in (0.5, 0.8, 1.0) if each.used() >= threshold}
    with ledger.database.read(ALL_TENANTS) as tx:
        rows = tx.execute(select(alerts).where(alerts.c.type == "account.threshold_reached")).all()
    ids = {each.id for run in runs for each in runners[0].path(run)}
    found = [(row.account_id, json.loads(row.payload)["threshold"]) for row in rows if row.account_id in ids]
    assert sorted(found) == sorted(reached)


NOW = datetime.now(UTC)


def day(number: float) -> datetime:
    return NOW + timedelta(days=number)


def write(trainer: Trainer, **values: datetime) -> None:
    with trainer.ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(accounts).values(version=accounts.c.version + 1, **values))


def charge(trainer: Trainer, count: int, at: datetime) -> None:
    """Steps that were taken at a time, by an office whose clock says so."""
    assert trainer.steps(count=count).status_code == 200
    write(trainer, updated_at=at)


def record(trainer: Trainer, at: datetime) -> int:
    return record_usage_snapshots(trainer.ledger.database, at)


def team(trainer: Trainer) -> str:
    return str(trainer.ledger.get("/v1/budgets").json()["items"][0]["id"])


def foreseen(trainer: Trainer) -> list[tuple[str, dict[str, Any]]]:
    return [(path, facts) for _, path, facts in answer(trainer.ledger, "account.exhaustion_forecast")]


def test_budget_that_ends_within_its_days_is_forecast_once(trainer: Trainer) -> None:
    write(trainer, created_at=day(-2))
    charge(trainer, 20, day(0))
    record(trainer, day(0))
    [(path, facts)] = foreseen(trainer)
    assert (path, facts["within_days"]) == ("mimic/icu-team", 30)
    assert facts["used"] == pytest.approx(20 / 219, rel=0.02)
    days = (datetime.fromisoformat(facts["exhaustion_at"]) - day(0)) / timedelta(days=1)
    assert days == pytest.approx(199 / 10, rel=0.02)
    charge(trainer, 20, day(0.5))
    record(trainer, day(0.5))
    assert len(foreseen(trainer)) == 1


@pytest.mark.parametrize(("days_old", "steps", "days"), [(2, 5, 30), (0.5, 100, 30), (2, 20, 0), (2, 20, 10)])
def test_budget_that_lasts_is_not_forecast(trainer: Trainer, days_old: float, steps: int, days: int) -> None:
    said = {"thresholds": [], "forecast_days": days}
    assert trainer.ledger.put(f"/v1/accounts/{team(trainer)}/alert-settings", said, tag=None).status_code == 200
    write(trainer, created_at=day(-days_old))
    charge(trainer, steps, day(0))
    record(trainer, day(0))
    assert foreseen(trainer) == []


def test_pace_is_that_of_the_last_seven_days(trainer: Trainer) -> None:
    write(trainer, created_at=day(-100))
    for at, steps in ((-90.0, 50), (-8.0, 10), (-3.0, 7), (-0.1, 7)):
        charge(trainer, steps, day(at))
        record(trainer, day(at))
    shown = trainer.ledger.get(f"/v1/accounts/{team(trainer)}/forecast").json()
    assert shown["used"] == pytest.approx(74 / 219, rel=0.02)
    assert shown["used_per_day"] == pytest.approx(14 / 219 / 8, rel=0.02)
    assert datetime.fromisoformat(shown["observed_since"]) == pytest.approx(day(-8), abs=timedelta(seconds=1))
    left = (datetime.fromisoformat(shown["exhaustion_at"]) - day(0)) / timedelta(days=1)
    assert left == pytest.approx(145 / (14 / 8), rel=0.02)


def test_trainer_silent_for_half_its_lease_is_alerted_once(trainer: Trainer) -> None:
    database, silent = trainer.ledger.database, alert_stale_reservations
    reservation, made = trainer.reserved((WIRED, 5), lease_seconds=600), datetime.now(UTC)
    assert [silent(database, made + timedelta(seconds=late)) for late in (290, 310, 320)] == [0, 1, 0]
    [(_, path, facts)] = answer(trainer.ledger, "reservation.stale")
    assert path.startswith("mimic/icu-team/")
    assert (facts["reservation"], facts["lease_seconds"], facts["steps_reserved"]) == (reservation, 600, 5)
    assert datetime.fromisoformat(facts["silent_since"]) == pytest.approx(made, abs=timedelta(seconds=5))
