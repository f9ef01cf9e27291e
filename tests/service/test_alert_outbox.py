"""The outbox: an alert is there if and only if its cause is."""

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
from app.persistence.tables import accounts, alerts, deliveries
from app.service.charging.groups import commit_group
from app.service.maintenance import expire_reservations
from tests.api.trainer import LOUD as WIRED
from tests.api.trainer import gaussian, hired
from tests.conftest import Ledger
from tests.service.endpoint import subscribed
from tests.service.step_commands import HUGE, LOUD, QUIET, CommandRunner, another, opened, request
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


def test_threshold_is_alerted_once_with_the_numbers_of_its_moment(ledger: Ledger) -> None:
    trainer = hired(ledger)
    while trainer.steps(count=5).status_code == 200:
        pass
    assert of_team(ledger) == [0.5, 0.8]
    [facts] = [facts for _, path, facts in answer(ledger) if (path, facts.get("threshold")) == ("mimic/icu-team", 0.8)]
    assert 0.8 <= facts["epsilon"] < 1.0
    assert (facts["epsilon_limit"], facts["delta"], facts["account_kind"]) == (1.0, 1e-5, "budget")
    with ledger.database.write(ALL_TENANTS) as tx:  # as a change of the limit does
        this = accounts.c.path == "mimic/icu-team"
        tx.execute(update(accounts).where(this).values(epsilon_limit=2.5, version=accounts.c.version + 1))
    while len(of_team(ledger)) == 2 and trainer.steps(count=20).status_code == 200:
        pass
    assert of_team(ledger) == [0.5, 0.8, 0.5]


def test_exhausted_account_is_alerted_once(ledger: Ledger) -> None:
    trainer = hired(ledger)
    assert trainer.steps(count=10**6, on_exceed="truncate").status_code == 200
    [(_, path, facts)] = answer(ledger, "account.exhausted")
    assert (path, facts["run"]) == ("mimic/icu-team", trainer.run)
    assert trainer.steps().status_code == 403
    assert len(answer(ledger, "account.exhausted")) == 1


def test_overdrawn_run_is_alerted_once(ledger: Ledger) -> None:
    trainer = hired(ledger)
    assert [trainer.steps(event=OVER, mode="report").status_code for _ in range(2)] == [200, 200]
    [(_, _, facts)] = answer(ledger, "run.overdrawn")
    assert facts["account"] == trainer.run
    assert facts["over_limit"]["account_path"] in {"mimic", "mimic/icu-team"}
    assert set(of_team(ledger)) == {0.5, 0.8, 1.0}


def test_rolled_back_charge_is_not_alerted(ledger: Ledger) -> None:
    """Nor does a charge that crosses nothing execute SQL of alerts."""
    subscribed(ledger, NOWHERE)
    runner, run = CommandRunner(ledger), opened(ledger)
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
    with pytest.raises(OperationalError):
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
                reached |= {
                    (each.id, share) for share in (0.5, 0.8, 1.0) if each.epsilon() >= share * each.limit.epsilon
                }
    with ledger.database.read(ALL_TENANTS) as tx:
        rows = tx.execute(select(alerts).where(alerts.c.type == "account.threshold_reached")).all()
    ids = {each.id for run in runs for each in runners[0].path(run)}
    found = [(row.account_id, json.loads(row.payload)["threshold"]) for row in rows if row.account_id in ids]
    assert sorted(found) == sorted(reached)


def test_forfeited_plan_is_alerted_with_its_steps(ledger: Ledger) -> None:
    trainer = hired(ledger)
    reservation = trainer.reserved((WIRED, 150))
    assert trainer.steps(count=2).status_code == 200
    assert expire_reservations(ledger.database, datetime.now(UTC) + timedelta(hours=1)) == 1
    [(_, path, facts)] = answer(ledger, "reservation.forfeited")
    assert path.startswith("mimic/icu-team/")
    assert (facts["reservation"], facts["steps_forfeited"], facts["lapsed"]) == (reservation, 148, True)
    assert 0.5 in of_team(ledger)
    trainer.reserved((WIRED, 5))
    assert trainer.act("abort").status_code == 200
    both = {(facts["steps_forfeited"], facts["lapsed"]) for _, _, facts in answer(ledger, "reservation.forfeited")}
    assert both == {(148, True), (5, False)}


def _addressed(ledger: Ledger) -> set[tuple[str, str, str]]:
    """Receiver, type and account of everything that is to be delivered."""
    found = select(deliveries.c.receiver_id, alerts.c.type, alerts.c.account_id).join(
        alerts, alerts.c.id == deliveries.c.alert_id
    )
    with ledger.database.read(ALL_TENANTS) as tx:
        return {(row.receiver_id, row.type, row.account_id) for row in tx.execute(found)}


def test_receiver_gets_the_alerts_that_it_wants(ledger: Ledger) -> None:
    trainer = hired(ledger)
    ledger.budget("other")
    hooks = {
        "all": subscribed(ledger, NOWHERE)["id"],
        "above": subscribed(ledger, NOWHERE, account="mimic")["id"],
        "beside": subscribed(ledger, NOWHERE, account="mimic/other")["id"],
        "the run": subscribed(ledger, NOWHERE, account=trainer.run)["id"],
        "another type": subscribed(ledger, NOWHERE, types=["reservation.stale"])["id"],
        "its type": subscribed(ledger, NOWHERE, types=["run.overdrawn", "account.exhausted"])["id"],
        "disabled": subscribed(ledger, NOWHERE)["id"],
    }
    assert ledger.post(f"/v1/receivers/{hooks['disabled']}/disable", None).status_code == 200
    assert trainer.steps(event=OVER, mode="report").status_code == 200
    sent = {name: {kind for hook, kind, _ in _addressed(ledger) if hook == made} for name, made in hooks.items()}
    both = {"account.threshold_reached", "account.exhausted", "run.overdrawn"}
    assert sent == {
        "all": both,
        "above": both,
        "beside": set(),
        "the run": {"run.overdrawn"},
        "another type": set(),
        "its type": {"account.exhausted", "run.overdrawn"},
        "disabled": set(),
    }
