"""Random histories on trees with disjoint parts, through the service; in the end every balance is proven twice."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.service.auth.authentication import CLI_ACTOR
from app.service.charging.requests import StepResult
from app.service.maintenance import expire_reservations
from app.service.verification import verify
from app.service.verification.requests import apply_quarantines
from tests.api.trainer import Trainer, is_refused
from tests.conftest import SAMPLED, Ledger
from tests.service.export_script import exported, verified
from tests.service.prepared_ledgers import ATTESTED, compose
from tests.service.quarantine_lifts import lift
from tests.service.step_commands import LOUD, CommandRunner, request
from tests.service.tampering import set_balance, tampering
from tests.soak import thinned

EVENTS: list[dict[str, Any]] = [
    {"type": "gaussian", "noise_multiplier": 40.0},
    {"type": "gaussian", "noise_multiplier": 90.0},
    {"type": "laplace", "noise_multiplier": 60.0},
    {"type": "epsilon_delta", "epsilon": 0.01, "delta": 1e-9},
    SAMPLED,
]
BUDGETS: list[tuple[str, str, float, dict[str, Any]]] = [
    *((name, "sites", 1.0, {}) for name in ("north", "south", "east")),
    ("wards", "sites/east", 0.8, ATTESTED),
    *((name, "sites/east/wards", 0.9, {}) for name in ("one", "two")),
    ("team", "clinic", 1.0, {}),
    ("villages", "clinic/team", 0.7, ATTESTED),
    *((name, "clinic/team/villages", 0.7, {}) for name in ("up", "down")),
]
CHARGED = [
    ["sites/north"],
    ["sites/south", "sites/east"],
    ["sites/east/wards/one"],
    ["sites/east/wards/two", "clinic/team"],
    ["sites/north", "sites/south", "clinic/team/villages/up"],
    ["clinic/team/villages/down"],
]


def trainers(ledger: Ledger) -> list[Trainer]:
    """Two populations, one of them parallel, parts within parts, and runs that charge one budget or several."""
    ledger.population("sites", limit={"epsilon": 1.5, "delta": 1e-5}, **ATTESTED, max_partitions_per_unit=2)
    ledger.population("clinic", limit={"epsilon": 1.2, "delta": 1e-5})
    for name, parent, epsilon, more in BUDGETS:
        ledger.budget(name, parent, limit={"epsilon": epsilon, "delta": 1e-5}, **more)
    made = [ledger.post("/v1/runs", {"name": "model", "budgets": each, "event": EVENTS[0]}) for each in CHARGED]
    return [Trainer(ledger, reply.json()["id"]) for reply in made]


def live(ledger: Ledger, chance: random.Random, steps: int) -> set[str]:
    """Do something at random, again and again; how it went."""
    seen, staff = set(), trainers(ledger)
    plans: dict[str, tuple[str, dict[str, Any]]] = {}
    for _ in range(steps):
        trainer, event = chance.choice(staff), chance.choice(EVENTS)
        count = chance.choice([1, 3, 20, 150])
        match chance.choice(["steps", "steps", "report", "reserve", "use", "end", "lapse"]):
            case "steps":
                reply = trainer.steps(event=event, count=count, on_exceed=chance.choice(["refuse", "truncate"]))
            case "report":
                reply = trainer.steps(event=event, count=1, mode="report")
            case "reserve":
                reply = trainer.reserve((event, count), (EVENTS[0], 2))
                if reply.status_code == 201:
                    plans[trainer.run] = (reply.json()["id"], event)
            case "use" if trainer.run in plans:
                reply = trainer.steps(event=plans[trainer.run][1], count=1)
            case "end" if trainer.run in plans:
                plan, _ = plans.pop(trainer.run)
                used = ledger.get(f"/v1/reservations/{plan}").json()["steps_authorized"]
                reply = trainer.end(plan, "commit", used + chance.choice([0, 1]))
                if reply.status_code == 422:
                    reply = trainer.end(plan, "commit", used)
            case "lapse" if chance.random() < 0.3:
                expire_reservations(ledger.database, datetime.now(UTC) + timedelta(days=40))
                plans.clear()
                continue
            case _:
                continue
        assert reply.status_code in {200, 201, 403, 409}, reply.text
        seen.add(reply.json().get("decision") or reply.json().get("status") or reply.json().get("code"))
    return seen


@pytest.mark.parametrize("seed", thinned(range(3), 3))
def test_every_balance_follows_from_its_charges(ledger: Ledger, tmp_path: Path, seed: int) -> None:
    seen = live(ledger, random.Random(seed), steps=50)  # noqa: S311 - a history, no secret
    assert {"admitted", "refused"} <= seen
    assert verify(ledger.database).problems == ()
    for population in ("sites", "clinic"):
        said = verified(exported(ledger.database, population=population), tmp_path)
        assert said.status == 0, said


@pytest.mark.both_databases
def test_threads_on_sibling_parts_never_get_past_the_whole(ledger: Ledger) -> None:
    """Each with a memory of its own, as processes have; each part may get what there is, and not one step more."""
    ledger.population(limit={"epsilon": 0.5, "delta": 1e-5}, **ATTESTED, max_partitions_per_unit=2)
    names = ("north", "south", "east")
    for name in names:
        ledger.budget(name, limit={"epsilon": 4.0, "delta": 1e-5})
    runs = [ledger.run(f"mimic/{name}", event={"type": "gaussian", "noise_multiplier": 60.0}) for name in names]

    def train(run: str) -> int:
        runner, admitted = CommandRunner(ledger), 0
        for _ in range(20):
            [outcome] = runner.group(request(run, (LOUD, 9)))
            assert isinstance(outcome, StepResult), outcome
            admitted += outcome.decision.admitted
        return admitted

    with ThreadPoolExecutor(3) as pool:
        taken = list(pool.map(train, runs))
    first, second, _ = sorted(taken, reverse=True)
    alone = CommandRunner(ledger).charged(request(runs[taken.index(first)], (LOUD, 1)))
    assert not alone.admitted or alone.steps_remaining < 9
    assert 0 < first + second < 20
    assert verify(ledger.database).sound


def test_part_that_is_not_proven_stops_the_others(ledger: Ledger) -> None:
    """What the whole has lost depends on it; it goes on when the row is restored."""
    compose(ledger)
    [run] = [each["id"] for each in ledger.get("/v1/runs").json()["items"] if each["path"] == "group/south/both"]
    trainer = Trainer(ledger, run)
    with tampering(ledger.database) as tx:
        set_balance(tx, "group/north", spent_delta=1)
    apply_quarantines(ledger.database, verify(ledger.database), CLI_ACTOR, datetime.now(UTC))
    assert "group/north" in is_refused(trainer.steps(), 409, "account_quarantined")["detail"]
    with tampering(ledger.database) as tx:
        set_balance(tx, "group/north", spent_delta=0)
    lift(ledger, "group/north")
    assert trainer.steps().json()["decision"] == "admitted"
