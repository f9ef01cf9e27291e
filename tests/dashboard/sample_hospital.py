"""A hospital in the middle of its work: trees in every state, runs of every kind, a week of history.

It is filled through the API of an application in this process, whose clock is ours, so that there is a past.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.persistence.database import Database
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


class Clock(datetime):
    """What the application takes for the time."""

    at = datetime.now(UTC)

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        del tz
        return cls.at


@dataclass
class Hospital:
    """What tests must know of it.

    Args:
        folder: where its SQLite file is.
        keys: by organisation and role.
        ids: of accounts and runs, by path.
        refused: the run whose last steps were refused.
    """

    folder: Path
    keys: Keys = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    refused: str = ""

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.folder / 'ledger.db'}"

    def copy(self, folder: Path) -> "Hospital":
        """Copy it to a folder, whose ledger may be changed."""
        for file in self.folder.glob("ledger.db*"):
            shutil.copy(file, folder)
        return replace(self, folder=folder)


@contextmanager
def at_past(start: datetime) -> Iterator[type[Clock]]:
    """Let the application's time begin somewhere."""
    Clock.at = start
    with pytest.MonkeyPatch.context() as patch:
        stand_at(patch, lambda: Clock.now(UTC))
        yield Clock


def build(folder: Path) -> Hospital:
    """Fill a new SQLite file in a folder."""
    now = datetime.now(UTC)
    with at_past(now - timedelta(days=DAYS)) as clock, open_ledger(folder) as ledger:
        hospital = Hospital(folder, ledger.keys)
        _trees(ledger, hospital)
        _week(ledger, hospital, clock)
        clock.at = now
        _today(ledger, hospital)
        _take_readings(ledger.database, now)
    return hospital


def _trees(ledger: Ledger, hospital: Hospital) -> None:
    for name, epsilon, unit, size, owner in (
        ("mimic", 8.0, "patient", 46520, "Dr. Amara Osei"),
        ("stroke-registry", 3.0, "patient", 8100, "Stroke unit, extension 4410"),
        ("staff-survey", 1.0, "employee", 2300, None),
        ("imaging", 10.0, "patient", 120_000, "Radiology"),
    ):
        terms = {"limit": {"epsilon": epsilon, "delta": 1e-6}, "privacy_unit": unit, "size": size}
        if owner is not None:
            terms["owner"] = owner
        hospital.ids[name] = str(ledger.population(name, **terms)["id"])
    for parent, name, epsilon in (
        ("mimic", "icu-team", 3.0),
        ("mimic", "readmission", 4.0),
        ("mimic/readmission", "sweep", 1.5),
        ("stroke-registry", "outcome-models", 2.5),
        ("staff-survey", "burnout", 0.8),
        ("imaging", "segmentation", 6.0),
        ("imaging", "denoising", 2.0),
    ):
        terms = {"limit": {"epsilon": epsilon, "delta": 1e-6}}
        hospital.ids[f"{parent}/{name}"] = str(ledger.budget(name, parent, **terms)["id"])


def _week(ledger: Ledger, hospital: Hospital, clock: type[Clock]) -> None:
    """Seven days on which three runs train every day, a bit more each day."""
    runs = {
        "mimic/icu-team": ("lstm-mortality", 1.1, 500),
        "stroke-registry/outcome-models": ("transformer", 0.9, 84),
        "imaging/segmentation": ("unet", 1.3, 2000),
    }
    for budget, (name, noise, _) in runs.items():
        about = {"owner": f"{name} team", "labels": {"stage": "training", "team": budget.partition("/")[0]}}
        _run(ledger, hospital, budget, name, dp_sgd(noise, 0.01), **about)
    for _ in range(DAYS):
        for budget, (name, noise, steps) in runs.items():
            for part in range(6):
                clock.at += timedelta(minutes=37)
                event = dp_sgd(noise if part < 4 else 1.25 * noise, 0.01)
                _steps(ledger, hospital.ids[f"{budget}/{name}"], count=steps // 6, event=event)
        clock.at += timedelta(hours=24) - 18 * timedelta(minutes=37)
        _take_readings(ledger.database, clock.at)


def _today(ledger: Ledger, hospital: Hospital) -> None:
    """One run is refused, one waits for approval, one reserved, one is done, one went over its limit."""
    stroke = hospital.ids["stroke-registry/outcome-models/transformer"]
    hospital.refused = stroke
    refused = ledger.post(f"/v1/runs/{stroke}/steps", {"count": 9000, "event": dp_sgd(0.6, 0.02)}, "trainer")
    assert refused.status_code == 403, refused.text
    burnout = _run(ledger, hospital, "staff-survey/burnout", "logistic-regression", dp_sgd(1.4, 0.01))
    _steps(ledger, burnout, count=20)
    reported = {"count": 60, "mode": "report"}
    assert ledger.post(f"/v1/runs/{burnout}/steps", reported, "trainer").status_code == 200
    done = _run(ledger, hospital, "imaging/denoising", "baseline", dp_sgd(2.0, 0.01))
    _steps(ledger, done, count=1500)
    assert ledger.post(f"/v1/runs/{done}/complete", {}, "trainer").status_code == 200
    reserving = _run(ledger, hospital, "mimic/readmission", "gradient-boosting", dp_sgd(1.4, 0.01))
    plan = {"plan": [{"event": dp_sgd(1.4, 0.01), "count": 5000}], "lease_seconds": 86_400}
    assert ledger.post(f"/v1/runs/{reserving}/reservations", plan, "trainer").status_code == 201
    policy = {"policy": {"approval_above_epsilon": 1.0}, "reason": "Large runs need a second look."}
    changed = ledger.http.put(
        f"/v1/accounts/{hospital.ids['imaging']}/policy",
        json=policy,
        headers=ledger.headers("admin") | {"If-Match": "*"},
    )
    assert changed.status_code == 200, changed.text
    large = {"name": "foundation-model", "budget": "imaging/segmentation", "event": dp_sgd(1.0, 0.01)}
    waiting = ledger.post("/v1/runs", large | {"plan": [{"event": dp_sgd(1.0, 0.01), "count": 8000}]}, "trainer")
    assert waiting.status_code == 201, waiting.text
    raised = {"limit": {"epsilon": 3.5, "delta": 1e-6}, "reason": "The ethics board agreed on 12 November."}
    path = f"/v1/accounts/{hospital.ids['stroke-registry/outcome-models']}/limit"
    proposed = ledger.post(path, raised, "planner", If_Match="*")
    assert proposed.status_code in {201, 202}, proposed.text
    assert ledger.post("/v1/receivers", {"url": "https://alerts.example/privacy"}).status_code == 201


def _run(ledger: Ledger, hospital: Hospital, budget: str, name: str, event: object, **terms: object) -> str:
    reply = ledger.post("/v1/runs", {"name": name, "budget": budget, "event": event} | terms, "trainer")
    assert reply.status_code == 201, reply.text
    made = str(reply.json()["id"])
    hospital.ids[f"{budget}/{name}"] = made
    return made


def _steps(ledger: Ledger, run: str, **asked: Any) -> httpx2.Response:  # noqa: ANN401 - fields of a body
    reply = ledger.post(f"/v1/runs/{run}/steps", asked, "trainer")
    assert reply.status_code in {200, 403}, reply.text
    return reply


def _take_readings(database: Database, now: datetime) -> None:
    record_usage_snapshots(database, now)
