"""Plans of accounts in verification and exports: what they allow and what is used of them is recomputed."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from app.persistence.tables import accounts
from app.service.audit.export import export
from app.service.verification import verify
from tests.api.trainer import Trainer
from tests.conftest import Ledger
from tests.service.tampering import set_account, tampering

SCRIPT = Path(__file__).parents[2] / "examples" / "verify_export.py"
NOW = datetime(2026, 12, 2, tzinfo=UTC)
STEP = {"type": "poisson_sampled", "sampling_probability": 0.02, "event": {"type": "gaussian", "noise_multiplier": 1.5}}
QUIET = {"type": "gaussian", "noise_multiplier": 60.0}
OTHER = {"type": "laplace", "noise_multiplier": 400.0}
LIMIT = {"epsilon": 2.0, "delta": 1e-5}
TEAM = "mimic/icu-team"
ATTESTED = {"composition": "parallel", "attestation": "Each patient is in one hospital only."}


def _plan(ledger: Ledger) -> None:
    """A population and a budget with plans, three runs, one with a plan of its own, and an active reservation."""
    ledger.population(planned=[{"event": QUIET, "count": 20}, {"event": STEP}])
    ledger.budget(planned=[{"event": STEP}], limit=LIMIT)
    first, second = (Trainer(ledger, ledger.run(name=name, event=STEP)) for name in ("first", "second"))
    own = Trainer(ledger, ledger.run(name="own", event=STEP, limit=LIMIT))
    assert first.steps(count=5).status_code == 200
    assert second.steps(count=7).status_code == 200
    first.reserved((STEP, 10))
    assert first.steps(count=4).status_code == 200
    assert own.steps(count=2).status_code == 200


def _part(ledger: Ledger) -> None:
    """A population with a plan, whose partitions are two hospitals, one of them with a reservation."""
    ledger.population(planned=[{"event": QUIET, "count": 20}, {"event": STEP}], **ATTESTED)
    for name, quiet, sampled in (("one", 3, 9), ("two", 8, 2), ("three", 1, 1)):
        ledger.budget(name, limit=LIMIT)
        trainer = Trainer(ledger, ledger.run(f"mimic/{name}", name=name, event=STEP))
        assert trainer.steps(event=QUIET, count=quiet).status_code == 200
        assert trainer.steps(count=sampled).status_code == 200
        if name == "two":
            trainer.reserved((STEP, 4))
            assert trainer.steps(count=3).status_code == 200


FURNISHED = {"planned": _plan, "parted": _part}


@pytest.fixture
def planned(ledger: Ledger) -> Ledger:
    """As furnished."""
    return ledger


@pytest.fixture
def parted(ledger: Ledger) -> Ledger:
    """As furnished."""
    return ledger


def _exported(ledger: Ledger) -> list[dict[str, Any]]:
    return [json.loads(line) for line in export(ledger.database, NOW, population="mimic")]


def _found(lines: list[dict[str, Any]], folder: Path) -> str:
    file = folder / "export.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = subprocess.run([sys.executable, "-I", SCRIPT, file], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def _population_plan(ledger: Ledger) -> dict[str, Any]:
    [found] = ledger.get("/v1/populations").json()["items"]
    plan: dict[str, Any] = found["plan"]
    return plan


def test_plans_are_proven_by_verification_and_by_an_export(planned: Ledger, tmp_path: Path) -> None:
    assert verify(planned.database).problems == ()
    assert _found(_exported(planned), tmp_path).startswith("Sound: ")
    plan = _population_plan(planned)
    assert [item["steps_used"] for item in plan["items"]] == [20, 14]  # louder steps of the list stand for those before
    assert plan["steps_reserved"] == 10


def test_of_partitions_the_largest_uses_count(parted: Ledger, tmp_path: Path) -> None:
    assert verify(parted.database).problems == ()
    lines = _exported(parted)
    assert _found(lines, tmp_path).startswith("Sound: ")
    [population] = [line for line in lines if line["type"] == "account" and line["kind"] == "population"]
    spent, held = population["plan_usage"][population["id"]]
    gaussian = {line["used"][1] for line in lines if line["type"] == "plan_cost"} - {0}
    assert spent == [0, 8 * max(gaussian), 9]  # hospital two has used most of the one, hospital one of the other
    assert [one + other for one, other in zip(spent, held, strict=True)] == [0, 8 * max(gaussian), 9]


def _stored(tx: Connection, path: str, column: str) -> Any:  # noqa: ANN401 - JSON is anything
    return json.loads(tx.execute(select(accounts.c[column]).where(accounts.c.path == path)).scalar_one())


def _weights(path: str, **changes: object) -> Callable[[Connection], None]:
    def change(tx: Connection) -> None:
        weights = _stored(tx, path, "filter_weights")
        weights["plan"] |= {
            name: value(weights["plan"]) if callable(value) else value for name, value in changes.items()
        }
        set_account(tx, path, filter_weights=json.dumps(weights))

    return change


def _usage(path: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Connection], None]:
    def apply(tx: Connection) -> None:
        usage = _stored(tx, path, "plan_usage")
        change(usage)
        set_account(tx, path, plan_usage=json.dumps(usage))

    return apply


def _take_back(usage: dict[str, Any]) -> None:
    for spent, _ in usage.values():
        spent[-1] -= 1


CHANGES: dict[str, tuple[Callable[[Connection], None], str]] = {
    "more steps": (
        _weights(TEAM, steps=lambda plan: plan["steps"] + 1),
        "its limit does not allow",
    ),
    "another epsilon": (
        _weights(TEAM, epsilons=lambda plan: [each * 0.99 for each in plan["epsilons"]]),
        "its limit does not allow",
    ),
    "more delta for the plan": (_weights(TEAM, delta=9.9e-6), "its filter weights sum to more than its delta"),
    "another share": (_weights(TEAM, share=0.95), "its filter weights are not those of its planned workload"),
    "steps taken back": (_usage(TEAM, _take_back), "its spent curve is not the sum of its charges"),
    "steps of the population's plan taken back": (_usage("mimic", _take_back), "its spent curve is not the sum of"),
    "usage forgotten": (_usage(TEAM, dict.clear), "it does not count what it uses up of the plan of"),
    "a run's usage forgotten": (_usage(f"{TEAM}/own", dict.clear), "it does not count what it uses up of the plan of"),
    "a plan taken away": (
        lambda tx: set_account(tx, TEAM, planned_events="[]"),
        "it is not as it was opened: planned_sha256",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_of_a_plan_is_found(planned: Ledger, what: str) -> None:
    change, named = CHANGES[what]
    with tampering(planned.database) as tx:
        change(tx)
    assert named in " ".join(verify(planned.database).problems)


def test_what_was_changed_of_a_plan_in_an_export_is_named(planned: Ledger, tmp_path: Path) -> None:
    lines = _exported(planned)
    [cost] = [line for line in lines if line["type"] == "plan_cost" and line["used"] == [0, 0, 1]][:1]
    cost["used"] = [0, 0, 0]
    assert "of the plan of" in _found(lines, tmp_path)


def test_a_plan_that_was_left_is_proven_too(planned: Ledger, tmp_path: Path) -> None:
    trainer = Trainer(planned, planned.run(name="other", event=OTHER))
    ended = {each["account_path"] for each in trainer.steps().json()["ended_plans"]}
    assert ended == {"mimic", TEAM}
    fresh = planned.budget("fresh", planned=[{"event": STEP}], limit=LIMIT)
    assert Trainer(planned, planned.run("mimic/fresh", event=OTHER)).steps().status_code == 200
    assert planned.get(f"/v1/budgets/{fresh['id']}").json()["plan"] is None
    assert verify(planned.database).problems == ()
    assert _found(_exported(planned), tmp_path).startswith("Sound: ")
