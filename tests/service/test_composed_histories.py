"""Random histories on trees with disjoint parts, through the service; in the end every balance is proven twice."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.service.audit.export import export
from app.service.charging.requests import StepResult
from app.service.maintenance import expire_reservations
from app.service.verification import verify
from tests.conftest import SAMPLED, Ledger
from tests.service.step_commands import LOUD, CommandRunner, request
from tests.soak import thinned

SCRIPT = Path(__file__).parents[2] / "examples/verify_export.py"
ATTESTED = {"composition": "parallel", "attestation": "each patient is treated at one site"}
EVENTS: list[dict[str, Any]] = [
    {"type": "gaussian", "noise_multiplier": 40.0},
    {"type": "gaussian", "noise_multiplier": 90.0},
    {"type": "laplace", "noise_multiplier": 60.0},
    {"type": "epsilon_delta", "epsilon": 0.01, "delta": 1e-9},
    SAMPLED,
]


def composed(ledger: Ledger) -> list[str]:
    """Two populations, one of them parallel, parts within parts, and runs that charge one budget or several."""
    ledger.population("sites", limit={"epsilon": 1.5, "delta": 1e-5}, **ATTESTED, max_partitions_per_unit=2)
    for name in ("north", "south", "east"):
        ledger.budget(name, "sites", limit={"epsilon": 1.0, "delta": 1e-5})
    ledger.budget("wards", "sites/east", limit={"epsilon": 0.8, "delta": 1e-5}, **ATTESTED)
    for name in ("one", "two"):
        ledger.budget(name, "sites/east/wards", limit={"epsilon": 0.9, "delta": 1e-5})
    ledger.population("clinic", limit={"epsilon": 1.2, "delta": 1e-5})
    ledger.budget("team", "clinic", limit={"epsilon": 1.0, "delta": 1e-5})
    ledger.budget("villages", "clinic/team", limit={"epsilon": 0.7, "delta": 1e-5}, **ATTESTED)
    for name in ("up", "down"):
        ledger.budget(name, "clinic/team/villages", limit={"epsilon": 0.7, "delta": 1e-5})
    charged = [
        ["sites/north"],
        ["sites/south", "sites/east"],
        ["sites/east/wards/one"],
        ["sites/east/wards/two", "clinic/team"],
        ["sites/north", "sites/south", "clinic/team/villages/up"],
        ["clinic/team/villages/down"],
    ]
    return [_registered(ledger, budgets) for budgets in charged]


def _registered(ledger: Ledger, budgets: list[str]) -> str:
    made = ledger.post("/v1/runs", {"name": "model", "budgets": budgets, "event": EVENTS[0]})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def live(ledger: Ledger, runs: list[str], chance: random.Random, steps: int) -> set[str]:
    """Do something at random, again and again; how it went."""
    seen = set()
    open_plans: dict[str, tuple[str, dict[str, Any]]] = {}
    for _ in range(steps):
        run, event = chance.choice(runs), chance.choice(EVENTS)
        count = chance.choice([1, 3, 20, 150])
        match chance.choice(["steps", "steps", "report", "reserve", "use", "end", "lapse"]):
            case "steps":
                asked = {"event": event, "count": count, "on_exceed": chance.choice(["refuse", "truncate"])}
                reply = ledger.post(f"/v1/runs/{run}/steps", asked)
            case "report":
                reply = ledger.post(f"/v1/runs/{run}/steps", {"event": event, "count": 1, "mode": "report"})
            case "reserve":
                reply = ledger.post(
                    f"/v1/runs/{run}/reservations",
                    {"plan": [{"event": event, "count": count}, {"event": EVENTS[0], "count": 2}]},
                )
                if reply.status_code == 201:
                    open_plans[run] = (reply.json()["id"], event)
            case "use" if run in open_plans:
                reply = ledger.post(f"/v1/runs/{run}/steps", {"event": open_plans[run][1], "count": 1})
            case "end" if run in open_plans:
                plan, _ = open_plans.pop(run)
                used = ledger.get(f"/v1/reservations/{plan}").json()["steps_authorized"]
                reply = ledger.post(f"/v1/reservations/{plan}/commit", {"steps_executed": used + chance.choice([0, 1])})
                if reply.status_code == 422:
                    reply = ledger.post(f"/v1/reservations/{plan}/commit", {"steps_executed": used})
            case "lapse" if chance.random() < 0.3:
                expire_reservations(ledger.database, datetime.now(UTC) + timedelta(days=40))
                open_plans.clear()
                continue
            case _:
                continue
        assert reply.status_code in {200, 201, 403, 409}, reply.text
        seen.add(reply.json().get("decision") or reply.json().get("status") or reply.json().get("code"))
    return seen


def proven(ledger: Ledger) -> None:
    """By the ledger itself, and by the script that knows nothing of it."""
    assert verify(ledger.database).problems == ()
    for population in ("sites", "clinic"):
        text = "\n".join(export(ledger.database, datetime.now(UTC), population=population))
        answer = subprocess.run(
            [sys.executable, str(SCRIPT), "-"], input=text, text=True, capture_output=True, timeout=120, check=False
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("seed", thinned(range(3), 3))
def test_whatever_happens_every_balance_follows_from_its_charges(ledger: Ledger, seed: int) -> None:
    runs = composed(ledger)
    seen = live(ledger, runs, random.Random(seed), steps=50)  # noqa: S311 - a history, no secret
    assert {"admitted", "refused"} <= seen
    proven(ledger)


def test_threads_on_sibling_parts_never_get_past_the_whole(ledger: Ledger) -> None:
    """Each with a memory of its own, as processes have; each part may get what there is, and not one step more."""
    ledger.population(limit={"epsilon": 0.5, "delta": 1e-5}, **ATTESTED, max_partitions_per_unit=2)
    names = ("north", "south", "east")
    for name in names:
        ledger.budget(name, limit={"epsilon": 4.0, "delta": 1e-5})
    runs = [ledger.run(f"mimic/{name}", event={"type": "gaussian", "noise_multiplier": 60.0}) for name in names]

    def train(run: str) -> int:
        runner, admitted = CommandRunner(ledger), 0
        for _ in range(60):
            [outcome] = runner.group(request(run, (LOUD, 3)))
            assert isinstance(outcome, StepResult), outcome
            admitted += outcome.decision.admitted
        return admitted

    with ThreadPoolExecutor(3) as pool:
        taken = list(pool.map(train, runs))
    first, second, _ = sorted(taken, reverse=True)
    alone = CommandRunner(ledger).charged(request(runs[taken.index(first)], (LOUD, 1)))
    assert not alone.admitted or alone.steps_remaining < 3
    assert 0 < first + second < 60
    assert verify(ledger.database).sound
