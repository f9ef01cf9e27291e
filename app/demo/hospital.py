"""A hospital group in the middle of its work: what `serve --demo` and the screenshots show.

Six weeks of history go through the API of an application in this process, whose clock is set by hand: populations,
budgets and runs in every state, refusals, proposals that wait, policies, reserved plans and sweeps.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

from app.demo.in_process import InProcessApi
from app.ledger.permissions import Role
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.auth.authentication import create_organisation
from app.service.governance.api_keys import KeyTerms, create_key

ORGANISATION: Final = "northfield-hospitals"
WEEKS: Final = 6

LIVE_BUDGET: Final = "imaging-archive/segmentation"
"""Where the background trainer's runs are registered."""

_SEED: Final = 20
"""Of the times and shares, so that each demo looks the same. It protects nobody: nothing is trained here."""


@dataclass(frozen=True, slots=True)
class _Population:
    name: str
    epsilon: float
    delta: float
    unit: str
    size: int
    more: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Series:
    """Runs under one budget; each takes a share of the steps that fit when it begins.

    Args:
        noise: noise multiplier of DP-SGD.
        rate: sampling probability.
        shares: of the steps that remain, for each run.
        ends: how each run ends: completed, aborted, paused, active, refused or overdrawn.
    """

    budget: str
    names: tuple[str, ...]
    noise: float
    rate: float
    shares: tuple[float, ...]
    ends: tuple[str, ...]


_POPULATIONS: Final = (
    _Population("cardiology-registry", 8.0, 1e-6, "patient", 46_520),
    _Population("stroke-registry", 4.0, 1e-5, "patient", 8_100),
    _Population("imaging-archive", 10.0, 1e-6, "patient", 120_000),
    _Population("emergency-visits", 6.0, 1e-6, "patient", 210_000),
    _Population("insurance-claims", 3.0, 1e-7, "insured person", 480_000),
    _Population("staff-survey", 1.0, 1e-5, "employee", 2_300),
    _Population(
        "wearables",
        5.0,
        1e-6,
        "device user",
        15_000,
        {"composition": "parallel", "attestation": "By month of recording."},
    ),
)

_BUDGETS: Final = (
    ("cardiology-registry", "mortality", 3.0),
    ("cardiology-registry", "readmission", 4.0),
    ("cardiology-registry/readmission", "weekly-model", 1.5),
    ("cardiology-registry/readmission", "research", 2.0),
    ("cardiology-registry", "ecg-foundation", 5.0),
    ("stroke-registry", "outcome-models", 2.5),
    ("stroke-registry", "thrombolysis", 1.5),
    ("stroke-registry", "statistics", 0.5),
    ("imaging-archive", "segmentation", 6.0),
    ("imaging-archive", "denoising", 2.0),
    ("imaging-archive", "triage", 3.0),
    ("imaging-archive/triage", "chest-x-ray", 1.5),
    ("imaging-archive/triage", "head-ct", 1.5),
    ("emergency-visits", "arrival-forecast", 2.0),
    ("emergency-visits", "sepsis-alert", 4.0),
    ("emergency-visits", "vendor-evaluation", 1.0),
    ("insurance-claims", "cost-model", 2.0),
    ("insurance-claims", "fraud", 1.0),
    ("staff-survey", "burnout", 0.8),
    ("staff-survey", "annual-report", 0.4),
)

_SERIES: Final = (
    _Series(
        "cardiology-registry/mortality",
        ("lstm-mortality", "lstm-mortality-v2", "transformer-mortality", "calibration", "lstm-mortality-v3"),
        *(1.1, 0.01, (0.25, 0.2, 0.5, 0.1, 0.3)),
        ("completed", "aborted", "completed", "completed", "active"),
    ),
    _Series(
        "cardiology-registry/readmission/weekly-model",
        tuple(f"week-{week}" for week in range(40, 47)),
        *(1.4, 0.005, (0.2, 0.2, 0.25, 0.25, 0.3, 0.4, 0.3)),
        ("completed", "completed", "completed", "completed", "completed", "completed", "active"),
    ),
    _Series(
        "cardiology-registry/readmission/research",
        ("gradient-boosting", "tabnet", "logistic-baseline"),
        *(1.6, 0.01, (0.2, 0.15, 0.1)),
        ("completed", "paused", "completed"),
    ),
    _Series(
        "cardiology-registry/ecg-foundation",
        ("ecg-encoder-small", "ecg-encoder-base"),
        *(1.2, 0.004, (0.1, 0.3)),
        ("completed", "active"),
    ),
    _Series(
        "stroke-registry/outcome-models",
        ("transformer", "transformer-long", "ordinal-regression", "mrs-90-days"),
        *(0.9, 0.01, (0.35, 0.4, 0.5, 0.97)),
        ("completed", "aborted", "completed", "refused"),
    ),
    _Series(
        "stroke-registry/thrombolysis",
        ("door-to-needle", "door-to-needle-v2"),
        *(1.3, 0.01, (0.5, 0.8)),
        ("completed", "active"),
    ),
    _Series("stroke-registry/statistics", ("monthly-counts",), 4.0, 0.05, (0.6,), ("active",)),
    _Series(
        "imaging-archive/segmentation",
        ("unet", "unet-attention", "swin-unetr", "unet-3d"),
        *(1.3, 0.002, (0.15, 0.1, 0.2, 0.1)),
        ("completed", "aborted", "completed", "paused"),
    ),
    _Series("imaging-archive/denoising", ("baseline", "diffusion"), 2.0, 0.003, (0.3, 0.2), ("completed", "active")),
    _Series(
        "imaging-archive/triage/chest-x-ray",
        ("densenet-121", "densenet-121-finetune", "vit-small", "vit-base"),
        *(1.1, 0.004, (0.3, 0.4, 0.5, 0.96)),
        ("completed", "completed", "aborted", "refused"),
    ),
    _Series(
        "imaging-archive/triage/head-ct",
        ("bleed-detector", "bleed-detector-v2", "midline-shift"),
        *(1.2, 0.003, (0.2, 0.3, 0.2)),
        ("completed", "active", "paused"),
    ),
    _Series(
        "emergency-visits/arrival-forecast",
        ("seasonal-arima", "prophet", "deep-ar", "deep-ar-holidays"),
        *(1.5, 0.002, (0.2, 0.2, 0.3, 0.2)),
        ("completed", "aborted", "completed", "active"),
    ),
    _Series(
        "emergency-visits/sepsis-alert",
        ("sepsis-lstm", "sepsis-tcn", "sepsis-tcn-v2"),
        *(1.0, 0.003, (0.2, 0.3, 0.4)),
        ("completed", "completed", "active"),
    ),
    _Series(
        "emergency-visits/vendor-evaluation",
        ("vendor-a", "vendor-b", "vendor-c"),
        *(2.2, 0.004, (0.3, 0.5, 0.99)),
        ("completed", "completed", "refused"),
    ),
    _Series(
        "insurance-claims/cost-model",
        ("glm-frequency", "glm-severity", "neural-cost"),
        *(1.3, 0.001, (0.2, 0.25, 0.5)),
        ("completed", "completed", "active"),
    ),
    _Series(
        "insurance-claims/fraud", ("isolation-forest", "autoencoder"), 1.8, 0.001, (0.4, 0.6), ("completed", "paused")
    ),
    _Series("staff-survey/burnout", ("logistic-regression",), 1.4, 0.01, (0.9,), ("overdrawn",)),
    _Series("staff-survey/annual-report", ("tables-2026",), 6.0, 0.2, (0.5,), ("completed",)),
)

_BLOCKS: Final = (("2026-08", "2026-08-01", "2026-09-01"), ("2026-09", "2026-09-01", "2026-10-01"))

_PEOPLE: Final = (
    ("Ines Okafor", Role.ADMIN, None),
    ("Dr. Jana Weber", Role.PRIVACY_OFFICER, None),
    ("Tomás Herrera", Role.BUDGET_ADMIN, None),
    ("Aiko Lindqvist", Role.PLANNER, "stroke-registry"),
    ("Audit and Risk", Role.AUDITOR, None),
    ("trainer of the cluster", Role.TRAINER, None),
    ("Wall dashboard", Role.VIEWER, None),
)


@dataclass(frozen=True, slots=True)
class SampleHospital:
    """What the demo needs of the ledger that it has filled.

    Args:
        keys: of one person each, by role.
        runs: ids by path of the budget and name.
    """

    keys: dict[Role, str]
    runs: dict[str, str]


def dp_sgd(noise: float, rate: float) -> dict[str, object]:
    """Build the event of a step of DP-SGD with Poisson sampling."""
    gaussian = {"type": "gaussian", "noise_multiplier": noise}
    return {"type": "poisson_sampled", "sampling_probability": rate, "event": gaussian}


class _Builder:
    """Fills a new ledger; its times end before `until`."""

    def __init__(self, api: InProcessApi, until: datetime) -> None:
        self.api = api
        self.until = until
        self.chance = random.Random(_SEED)  # noqa: S311 - no secrets
        self.keys: dict[Role, str] = {}
        self.runs: dict[str, str] = {}

    def found(self) -> None:
        """Create the organisation, its trees and its people."""
        self.api.clock.at = self.until - timedelta(weeks=WEEKS, days=1)
        db, now = self.api.database, self.api.clock.at
        create_organisation(db, ORGANISATION, now)
        admin = create_key(db, ORGANISATION, KeyTerms(Role.ADMIN, _PEOPLE[0][0]), now).key
        self.keys[Role.ADMIN] = admin
        for each in _POPULATIONS:
            limit = {"epsilon": each.epsilon, "delta": each.delta}
            terms = {"name": each.name, "privacy_unit": each.unit, "neighboring_relation": "add_or_remove_one"}
            self.api.made("/v1/populations", admin, terms | {"size": each.size, "limit": limit} | each.more)
        delta = {each.name: each.delta for each in _POPULATIONS}
        for parent, name, epsilon in _BUDGETS:
            limit = {"epsilon": epsilon, "delta": delta[parent.partition("/")[0]]}
            self.api.made("/v1/budgets", admin, {"name": name, "parent": parent, "limit": limit})
        for name, start, end in _BLOCKS:
            block = {"data_from": f"{start}T00:00:00Z", "data_to": f"{end}T00:00:00Z"}
            limit = {"epsilon": 2.0, "delta": 1e-6}
            self.api.made("/v1/budgets", admin, {"name": name, "parent": "wearables", "limit": limit, "block": block})
        for name, role, scope in _PEOPLE[1:]:
            body = {"name": name, "role": str(role)} | ({"scope": scope} if scope else {})
            self.keys[role] = str(self.api.made("/v1/api-keys", admin, body)["key"])
        officer = self.keys[Role.PRIVACY_OFFICER]
        self.api.made("/v1/webhooks", officer, {"url": "https://alerts.northfield.example/privacy"})

    def work(self) -> None:
        """Let the runs train in the order of time, and take readings for the forecasts."""
        begin = self.until - timedelta(weeks=WEEKS)
        times: list[tuple[datetime, Iterator[None]]] = []
        for series in _SERIES:
            for number, name in enumerate(series.names):
                training = self._training(series, number, name)
                times += [(at, training) for at in self._times(begin, number, len(series.names))]
        day = begin
        for at, training in sorted(times, key=lambda each: each[0]):
            while day < at:
                self.api.clock.at = day
                record_usage_snapshots(self.api.database, day)
                day += timedelta(days=1 if day > self.until - timedelta(days=8) else 4)
            self.api.clock.at = at
            next(training, None)

    def _times(self, begin: datetime, number: int, of: int) -> list[datetime]:
        """Choose the times of a run's actions: one run of a series after the other, the last one until today."""
        length = timedelta(weeks=WEEKS) / of
        start, last = begin + number * length, number == of - 1
        end = min(start + length * (1.0 if last else 0.9), self.until - timedelta(minutes=20))
        parts = sorted(self.chance.uniform(0.03, 1.0) for _ in range(6))
        return [start + (end - start) * part for part in (0.0, *parts[:-1], 1.0)]

    def _training(self, series: _Series, number: int, name: str) -> Iterator[None]:
        """Play one run, an action at each of its times: it begins, takes its share in parts, and ends."""
        trainer, event = self.keys[Role.TRAINER], dp_sgd(series.noise, series.rate)
        run = str(self.api.made("/v1/runs", trainer, {"name": name, "budget": series.budget, "event": event})["id"])
        self.runs[f"{series.budget}/{name}"] = run
        steps = f"/v1/runs/{run}/steps"
        status, answer = self.api.call("POST", steps, trainer, {"count": 1})
        left = answer.get("steps_remaining") or 0 if status == HTTPStatus.OK else 0
        share = int(left * series.shares[number])
        yield
        for part in range(5):
            if share >= 5:  # noqa: PLR2004 - one step for each part
                noisier = dp_sgd(1.25 * series.noise, series.rate) if part == 3 else event  # noqa: PLR2004 - the fourth
                self.api.call("POST", steps, trainer, {"count": share // 5, "event": noisier})
            yield
        self._end(series.ends[number], run, event)
        yield

    def _end(self, how: str, run: str, event: dict[str, object]) -> None:
        trainer, path = self.keys[Role.TRAINER], f"/v1/runs/{run}"
        if how == "completed":
            self.api.made(f"{path}/complete", trainer, {})
        elif how == "aborted":
            self.api.made(f"{path}/abort", trainer, {})
        elif how == "paused":
            self.api.made(f"{path}/pause", trainer, {})
        elif how == "refused":
            self.api.call("POST", f"{path}/steps", trainer, {"count": 50_000, "event": event})
        elif how == "overdrawn":
            self.api.made(f"{path}/steps", trainer, {"count": 400, "event": event, "mode": "report"})

    def govern(self) -> None:
        """Leave open what people have to decide: limits, a run, a policy; and reserve plans and sweeps."""
        self.api.clock.at = self.until - timedelta(minutes=15)
        trainer, planner = self.keys[Role.TRAINER], self.keys[Role.PLANNER]
        raised = {"limit": {"epsilon": 3.5, "delta": 1e-5}, "reason": "The ethics board agreed to the follow-up study."}
        account = self._account("stroke-registry/outcome-models")
        self.api.made(f"/v1/accounts/{account}/limit", planner, raised, If_Match="*")
        more = {"limit": {"epsilon": 1.5, "delta": 1e-6}, "reason": "A fourth vendor is to be evaluated."}
        account = self._account("emergency-visits/vendor-evaluation")
        self.api.made(f"/v1/accounts/{account}/limit", self.keys[Role.BUDGET_ADMIN], more, If_Match="*")
        policy = {"policy": {"approval_above_epsilon": 1.0}, "reason": "Large runs need a second look."}
        imaging, officer = self._account("imaging-archive/segmentation"), self.keys[Role.PRIVACY_OFFICER]
        self.api.call("PUT", f"/v1/accounts/{imaging}/policy", officer, policy, If_Match="*")
        large = dp_sgd(1.0, 0.002)
        waiting = {"name": "foundation-model", "budget": "imaging-archive/segmentation", "event": large}
        self.api.made("/v1/runs", trainer, waiting | {"plan": [{"event": large, "count": 20_000}]})
        event = dp_sgd(1.4, 0.004)
        reserving = {"name": "nightly-retraining", "budget": "cardiology-registry/ecg-foundation", "event": event}
        run = self.api.made("/v1/runs", trainer, reserving)["id"]
        plan = {"plan": [{"event": event, "count": 3000}], "lease_seconds": 86_400}
        self.api.made(f"/v1/runs/{run}/reservations", trainer, plan)
        for name, mode in (("learning-rates", "each_run"), ("widths", "each_run")):
            body = {"name": name, "budget": "emergency-visits/sepsis-alert", "charging_mode": mode}
            self.api.made("/v1/experiments", trainer, body)
            path = f"emergency-visits/sepsis-alert/{name}"
            for number in range(3):
                trial = {"name": f"trial-{number + 1}", "budget": path, "event": dp_sgd(1.5 + number / 4, 0.002)}
                found = self.api.made("/v1/runs", trainer, trial)["id"]
                self.api.made(f"/v1/runs/{found}/steps", trainer, {"count": 120 * (number + 1)})
        for name, start, _ in _BLOCKS:
            used = {"name": f"gait-{start[:7]}", "budget": f"wearables/{name}", "event": dp_sgd(1.2, 0.01)}
            found = self.api.made("/v1/runs", trainer, used)["id"]
            self.api.made(f"/v1/runs/{found}/steps", trainer, {"count": 300})
        self.api.made("/v1/checkpoints", self.keys[Role.AUDITOR], None)
        self.api.made("/v1/verifications", self.keys[Role.AUDITOR], None)
        record_usage_snapshots(self.api.database, self.api.clock.at)

    def _account(self, path: str) -> str:
        """Find an account's id by its path."""
        _, answer = self.api.call("GET", "/v1/budgets" if "/" in path else "/v1/populations", self.keys[Role.ADMIN])
        found: list[dict[str, Any]] = answer["items"]
        return next(str(each["id"]) for each in found if each["path"] == path)


def fill(api: InProcessApi, until: datetime) -> SampleHospital:
    """Fill an empty, migrated ledger with the hospital group's last weeks, which end just before `until`."""
    builder = _Builder(api, until)
    builder.found()
    builder.work()
    builder.govern()
    return SampleHospital(builder.keys, builder.runs)
