"""A hospital in the middle of its work: trees in every state, runs of every kind, a week of history.

It is filled through the API of an application in this process, whose clock is ours, so that there is a past.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.service.alerts.forecasts import record_usage_snapshots
from tests.clocks import stand_at
from tests.conftest import Keys, Ledger, open_ledger

DAYS = 7


def dp_sgd(noise: float, rate: float) -> dict[str, object]:
    """A step of DP-SGD with Poisson sampling."""
    return {
        "type": "poisson_sampled",
        "sampling_probability": rate,
        "event": {"type": "gaussian", "noise_multiplier": noise},
    }


@dataclass
class Clock:
    """What the application takes for the time."""

    at: datetime


@dataclass
class Hospital:
    """What tests must know of it: its folder, keys, the ids of accounts and runs by path, and the refused run."""

    folder: Path
    keys: Keys = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    refused: str = ""

    def copy(self, folder: Path) -> "Hospital":
        """Copy it to a folder, whose ledger may be changed."""
        for file in self.folder.glob("ledger.db*"):
            shutil.copy(file, folder)
        return replace(self, folder=folder)


@contextmanager
def at_past(start: datetime) -> Iterator[Clock]:
    """Let the application's time begin somewhere."""
    clock = Clock(start)
    with pytest.MonkeyPatch.context() as patch:
        stand_at(patch, lambda: clock.at)
        yield clock


def build(folder: Path) -> Hospital:
    """Fill a new SQLite file in a folder."""
    now = datetime.now(UTC)
    with at_past(now - timedelta(days=DAYS)) as clock, open_ledger(folder) as ledger:
        hospital = Hospital(folder, ledger.keys)
        _trees(ledger, hospital)
        _week(ledger, hospital, clock)
        clock.at = now
        _today(ledger, hospital)
        record_usage_snapshots(ledger.database, now)
    return hospital


def _trees(ledger: Ledger, hospital: Hospital) -> None:
    for name, epsilon, unit, size, owner in (
        ("mimic", 8.0, "patient", 46520, "Dr. Amara Osei"),
        ("stroke-registry", 3.0, "patient", 8100, "Stroke unit, extension 4410"),
        ("staff-survey", 1.0, "employee", 2300, None),
        ("imaging", 10.0, "patient", 120_000, "Radiology"),
    ):
        terms = {"limit": {"epsilon": epsilon, "delta": 1e-6}, "privacy_unit": unit, "size": size}
        about = {} if owner is None else {"owner": owner}
        hospital.ids[name] = str(ledger.population(name, **terms, **about)["id"])
    for path, epsilon in {
        "mimic/icu-team": 3.0,
        "mimic/readmission": 4.0,
        "mimic/readmission/sweep": 1.5,
        "stroke-registry/outcome-models": 2.5,
        "staff-survey/burnout": 0.8,
        "imaging/segmentation": 6.0,
        "imaging/denoising": 2.0,
    }.items():
        parent, _, name = path.rpartition("/")
        hospital.ids[path] = str(ledger.budget(name, parent, limit={"epsilon": epsilon, "delta": 1e-6})["id"])


def _week(ledger: Ledger, hospital: Hospital, clock: Clock) -> None:
    """Seven days on which three runs train every day, each time a bit more."""
    runs = {
        "mimic/icu-team": ("lstm-mortality", 1.1, 500, 3),
        "stroke-registry/outcome-models": ("transformer", 0.9, 84, 6),
        "imaging/segmentation": ("unet", 1.3, 2000, 3),
    }
    for budget, (name, noise, *_) in runs.items():
        about = {"owner": f"{name} team", "labels": {"stage": "training", "team": budget.partition("/")[0]}}
        _run(ledger, hospital, budget, name, dp_sgd(noise, 0.01), **about)
    for _ in range(DAYS):
        begun = clock.at
        for budget, (name, noise, steps, parts) in runs.items():
            for part in range(parts):
                clock.at += timedelta(minutes=37)
                calm = part < parts * 2 // 3  # the last third has more noise
                made = {"count": steps // parts, "event": dp_sgd(noise if calm else 1.25 * noise, 0.01)}
                reply = ledger.post(f"/v1/runs/{hospital.ids[f'{budget}/{name}']}/steps", made, "trainer")
                assert reply.status_code in {200, 403}, reply.text
        clock.at = begun + timedelta(days=1)
        record_usage_snapshots(ledger.database, clock.at)


def _today(ledger: Ledger, hospital: Hospital) -> None:
    """One run is refused, one waits for approval, one reserved, one is done, one went over its limit."""

    def post(path: str, body: object, status: int, role: str = "trainer", **headers: str) -> None:
        reply = ledger.post(f"/v1/{path}", body, role, **headers)
        assert reply.status_code == status, reply.text

    hospital.refused = hospital.ids["stroke-registry/outcome-models/transformer"]
    post(f"runs/{hospital.refused}/steps", {"count": 9000, "event": dp_sgd(0.6, 0.02)}, 403)
    burnout = _run(ledger, hospital, "staff-survey/burnout", "logistic-regression", dp_sgd(1.4, 0.01))
    post(f"runs/{burnout}/steps", {"count": 20}, 200)
    post(f"runs/{burnout}/steps", {"count": 60, "mode": "report"}, 200)
    done = _run(ledger, hospital, "imaging/denoising", "baseline", dp_sgd(2.0, 0.01))
    post(f"runs/{done}/steps", {"count": 1500}, 200)
    post(f"runs/{done}/complete", {}, 200)
    reserving = _run(ledger, hospital, "mimic/readmission", "gradient-boosting", dp_sgd(1.4, 0.01))
    plan = {"events": [{"event": dp_sgd(1.4, 0.01), "count": 5000}], "lease_seconds": 86_400}
    post(f"runs/{reserving}/reservations", plan, 201)
    assert ledger.set_policy({"approval_above_epsilon": 1.0}, hospital.ids["imaging"]).status_code == 200
    large = {"name": "foundation-model", "budget": "imaging/segmentation", "event": dp_sgd(1.0, 0.01)}
    post("runs", large | {"reserve": [{"event": dp_sgd(1.0, 0.01), "count": 8000}]}, 201)
    raised = {"limit": {"epsilon": 3.5, "delta": 1e-6}, "reason": "The ethics board agreed on 12 November."}
    post(f"accounts/{hospital.ids['stroke-registry/outcome-models']}/limit", raised, 201, "planner", If_Match="*")
    post("receivers", {"url": "https://alerts.example/privacy"}, 201, "admin")


def _run(ledger: Ledger, hospital: Hospital, budget: str, name: str, event: object, **terms: object) -> str:
    reply = ledger.post("/v1/runs", {"name": name, "budget": budget, "event": event} | terms, "trainer")
    assert reply.status_code == 201, reply.text
    hospital.ids[f"{budget}/{name}"] = made = str(reply.json()["id"])
    return made
