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
from tests.conftest import Ledger
from tests.service.endpoint import subscribed
from tests.service.step_commands import HUGE, LOUD, QUIET, CommandRunner, another, opened, request

_numbers = itertools.count()

NOWHERE = "https://alerts.example/privacy"


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


def steps(ledger: Ledger, run: str, **asked: object) -> int:
    return int(ledger.post(f"/v1/runs/{run}/steps", asked, "trainer").status_code)


def test_threshold_is_alerted_once_with_the_numbers_of_its_moment(ledger: Ledger) -> None:
    run = opened(ledger)
    while steps(ledger, run, count=5) == 200:
        pass
    assert thresholds(ledger).count(("mimic/icu-team", 0.5)) == 1
    assert [share for path, share in thresholds(ledger) if path == "mimic/icu-team"] == [0.5, 0.8]
    [facts] = [facts for _, path, facts in answer(ledger) if (path, facts.get("threshold")) == ("mimic/icu-team", 0.8)]
    assert 0.8 <= facts["epsilon"] < 1.0
    assert (facts["epsilon_limit"], facts["delta"], facts["account_kind"]) == (1.0, 1e-5, "budget")


def test_exhausted_account_is_alerted_once(ledger: Ledger) -> None:
    run = opened(ledger)
    assert steps(ledger, run, count=10**6, on_exceed="truncate") == 200
    [(_, path, facts)] = answer(ledger, "account.exhausted")
    assert (path, facts["run"]) == ("mimic/icu-team", run)
    assert steps(ledger, run) == 403
    assert len(answer(ledger, "account.exhausted")) == 1


def test_overdrawn_run_is_alerted_once(ledger: Ledger) -> None:
    run = opened(ledger)
    huge = {"type": "gaussian", "noise_multiplier": 0.5}
    assert steps(ledger, run, event=huge, mode="report") == 200
    assert steps(ledger, run, event=huge, mode="report") == 200
    [(_, _, facts)] = answer(ledger, "run.overdrawn")
    assert facts["account"] == run
    assert facts["over_limit"]["account_path"] in {"mimic", "mimic/icu-team"}
    assert {share for path, share in thresholds(ledger) if path == "mimic/icu-team"} == {0.5, 0.8, 1.0}


def test_rolled_back_charge_is_not_alerted(ledger: Ledger) -> None:
    subscribed(ledger, NOWHERE)
    runner, run = CommandRunner(ledger), opened(ledger)
    command = runner.command(request(run, (LOUD, 200)))
    runner._prepare(command)

    def fail(_: object, __: object, statement: str, *___: object) -> None:
        if "INSERT INTO deliveries" in statement:
            raise OperationalError(statement, {}, Exception("disk full"))

    sql_event.listen(ledger.database.engine, "before_cursor_execute", fail)
    with pytest.raises(OperationalError):
        commit_group(ledger.database, runner.memory, [command])
    sql_event.remove(ledger.database.engine, "before_cursor_execute", fail)
    assert answer(ledger) == []
    runner.once(command)
    assert answer(ledger) != []


def test_charge_that_crosses_nothing_executes_no_sql_of_alerts(ledger: Ledger) -> None:
    runner, run = CommandRunner(ledger), opened(ledger)
    runner.charged(request(run, (QUIET, 1)))
    asked: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        asked.append(statement)

    sql_event.listen(ledger.database.engine, "before_cursor_execute", note)
    runner.charged(request(run, (QUIET, 1)))
    sql_event.remove(ledger.database.engine, "before_cursor_execute", note)
    assert not [statement for statement in asked if any(name in statement for name in ("alerts", "receivers"))]


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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


def test_threshold_of_a_new_limit_is_alerted_anew(ledger: Ledger) -> None:
    run = opened(ledger)
    assert steps(ledger, run, count=200) == 200
    before = thresholds(ledger).count(("mimic/icu-team", 0.5))
    with ledger.database.write(ALL_TENANTS) as tx:  # as a change of the limit does
        this = accounts.c.path == "mimic/icu-team"
        tx.execute(update(accounts).where(this).values(epsilon_limit=2.5, version=accounts.c.version + 1))
    while thresholds(ledger).count(("mimic/icu-team", 0.5)) == before and steps(ledger, run, count=20) == 200:
        pass
    assert (before, thresholds(ledger).count(("mimic/icu-team", 0.5))) == (1, 2)


def _reserved(ledger: Ledger, run: str, lease: int = 600, count: int = 5) -> str:
    event = {"type": "gaussian", "noise_multiplier": 60.0}
    plan = {"plan": [{"event": event, "count": count}], "lease_seconds": lease}
    return str(ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer").json()["id"])


def test_forfeited_plan_is_alerted_with_its_steps(ledger: Ledger) -> None:
    run = opened(ledger)
    reservation = _reserved(ledger, run)
    assert steps(ledger, run, count=2) == 200
    assert expire_reservations(ledger.database, datetime.now(UTC) + timedelta(hours=1)) == 1
    [(_, path, facts)] = answer(ledger, "reservation.forfeited")
    assert path.startswith("mimic/icu-team/")
    assert (facts["reservation"], facts["steps_forfeited"], facts["lapsed"]) == (reservation, 3, True)


def _addressed(ledger: Ledger) -> set[tuple[str, str, str]]:
    """Receiver, type and account of everything that is to be delivered."""
    found = select(deliveries.c.receiver_id, alerts.c.type, alerts.c.account_id).join(
        alerts, alerts.c.id == deliveries.c.alert_id
    )
    with ledger.database.read(ALL_TENANTS) as tx:
        return {(row.receiver_id, row.type, row.account_id) for row in tx.execute(found)}


def test_receiver_gets_the_alerts_that_it_wants(ledger: Ledger) -> None:
    run = opened(ledger)
    ledger.budget("other")
    hooks = {
        "all": subscribed(ledger, NOWHERE)["id"],
        "above": subscribed(ledger, NOWHERE, account="mimic")["id"],
        "beside": subscribed(ledger, NOWHERE, account="mimic/other")["id"],
        "the run": subscribed(ledger, NOWHERE, account=run)["id"],
        "another type": subscribed(ledger, NOWHERE, types=["reservation.stale"])["id"],
        "its type": subscribed(ledger, NOWHERE, types=["run.overdrawn", "account.exhausted"])["id"],
        "disabled": subscribed(ledger, NOWHERE)["id"],
    }
    assert ledger.post(f"/v1/receivers/{hooks['disabled']}/disable", None).status_code == 200
    huge = {"type": "gaussian", "noise_multiplier": 0.5}
    assert steps(ledger, run, event=huge, mode="report") == 200
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
