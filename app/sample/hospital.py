"""A hospital group in the middle of its work: what `serve --sample` and the screenshots show.

Six weeks of history go through the API of an application in this process, whose clock is set by hand: populations,
budgets and runs in every state, refusals, proposals that wait, policies, reservations and sweeps.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

from app.ledger.permissions import Role
from app.sample.hospital_data import (
    BLOCKS,
    BUDGETS,
    FRAMEWORKS,
    OWNERS,
    PEOPLE,
    POPULATIONS,
    QUEUED_TRAININGS,
    SERIES,
    SHARED,
    SHARES,
    UNLOCK,
    QueuedTraining,
    Series,
)
from app.sample.in_process import InProcessApi
from app.service.alerts.forecasts import record_usage_snapshots
from app.service.auth.authentication import create_organisation
from app.service.keys.api_keys import KeyTerms, create_key
from app.service.scheduling.grants import grant_waiting

ORGANISATION: Final = "northfield-hospitals"
WEEKS: Final = 6
SHARED_DAYS: Final = 14
"""Since when a population shares out its budget among reservations."""

LIVE_BUDGET: Final = "imaging-archive/segmentation"
"""Where the background trainer's runs are registered."""

_LIVE_LIMIT: Final = {"epsilon": 0.5, "delta": 1e-7}
"""Of each of them, which ends after some minutes; then the next one begins."""

_SEED: Final = 20
"""Of the times and shares, so that each sample looks the same. It is no secret: nothing is trained here."""


@dataclass(frozen=True, slots=True)
class SampleHospital:
    """What the sample needs of the ledger that it has filled.

    Args:
        keys: of one person each, by role.
        runs: ids by path of the budget and name.
        live_run: id of the first run of the background trainer.
    """

    keys: dict[Role, str]
    runs: dict[str, str]
    live_run: str


def dp_sgd(noise: float, rate: float) -> dict[str, object]:
    """Build the event of a step of DP-SGD with Poisson sampling."""
    gaussian = {"type": "gaussian", "noise_multiplier": noise}
    return {"type": "poisson_sampled", "sampling_probability": rate, "event": gaussian}


def live_run(number: int) -> dict[str, object]:
    """Build the registration of a run of the background trainer, by its number."""
    event = dp_sgd(1.2, 0.003)
    return {"name": f"live-segmentation-{number}", "budget": LIVE_BUDGET, "event": event, "limit": _LIVE_LIMIT}


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
        admin = create_key(db, ORGANISATION, KeyTerms(Role.ADMIN, PEOPLE[0][0]), now).key
        self.keys[Role.ADMIN] = admin
        for each in POPULATIONS:
            limit = {"epsilon": each.epsilon, "delta": each.delta}
            terms = {"name": each.name, "privacy_unit": each.unit, "neighboring_relation": "add_or_remove_one"}
            about = {"size": each.size, "limit": limit, "owner": OWNERS[each.name]}
            self.api.made("/v1/populations", admin, terms | about | each.more)
        delta = {each.name: each.delta for each in POPULATIONS}
        for parent, name, epsilon in BUDGETS:
            population = parent.partition("/")[0]
            limit = {"epsilon": epsilon, "delta": delta[population]}
            about = {"limit": limit, "owner": OWNERS[population]}
            self.api.made("/v1/budgets", admin, about | {"name": name, "parent": parent})
        for name, start, end in BLOCKS:
            block = {"data_from": f"{start}T00:00:00Z", "data_to": f"{end}T00:00:00Z"}
            limit = {"epsilon": 2.0, "delta": 1e-6}
            self.api.made("/v1/budgets", admin, {"name": name, "parent": "wearables", "limit": limit, "block": block})
        for name, role, scope in PEOPLE[
            1:
        ]:  # from the command line: of keys that one person issues none approves another's
            self.keys[role] = create_key(db, ORGANISATION, KeyTerms(role, name, scope), now).key

    def work(self) -> None:
        """Let the runs train in the order of time, and take readings for the forecasts."""
        begin = self.until - timedelta(weeks=WEEKS)
        times: list[tuple[datetime, Iterator[None]]] = []
        for series in SERIES:
            for number, name in enumerate(series.names):
                training = self._training(series, number, name)
                times += [(at, training) for at in self._times(begin, number, len(series.names))]
        for queued in QUEUED_TRAININGS:
            waiting = self._queued(queued)
            at = self.until - timedelta(days=queued.days)
            times += [(at, waiting), (min(at + timedelta(days=1), self.until - timedelta(minutes=20)), waiting)]
        times.append((self.until - timedelta(days=SHARED_DAYS), self._shared()))
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

    def _shared(self) -> Iterator[None]:
        """Let a population unlock its limit day by day, and promise parts to its budgets."""
        names = ("account", "minimum", "maximum", "weight")
        shares = [dict(zip(names, (f"{SHARED}/{name}", *share), strict=True)) for name, *share in SHARES]
        allocation = {"rule": "smallest_share", "unlock": UNLOCK, "shares": shares}
        body = {"allocation": allocation, "reason": "Two teams share the archive until the year ends."}
        officer = self.keys[Role.PRIVACY_OFFICER]
        self.api.call("PUT", f"/v1/accounts/{self._account(SHARED)}/allocation", officer, body, If_Match="*")
        yield

    def _queued(self, queued: QueuedTraining) -> Iterator[None]:
        """Play a run whose reservation waits until it fits; a part of it is executed, or it stays reserved."""
        trainer, event = self.keys[Role.TRAINER], dp_sgd(queued.noise, 0.004)
        until = (self.until + timedelta(days=21)).isoformat()
        body = {"name": queued.name, "budget": f"{SHARED}/{queued.budget}", "event": event, "owner": OWNERS[SHARED]}
        reserved = {
            "reserve": [{"event": event, "count": queued.steps}],
            "lease_seconds": 7 * 86_400,
            "wait_until": until,
        }
        run = self.api.made("/v1/runs", trainer, body | reserved)
        self.runs[f"{SHARED}/{queued.budget}/{queued.name}"] = str(run["id"])
        if queued.priority:
            moved = {"priority": queued.priority, "reason": "The newborn screening cannot wait for the others."}
            waiting = f"/v1/reservations/{run['waiting_reservation']}/prioritize"
            self.api.made(waiting, self.keys[Role.PRIVACY_OFFICER], moved)
        grant_waiting(self.api.database)
        yield
        grant_waiting(self.api.database)
        if queued.executed is not None:
            done = {"steps_executed": int(queued.executed * queued.steps)}
            self.api.made(f"/v1/runs/{run['id']}/complete", trainer, done)
        yield

    def _training(self, series: Series, number: int, name: str) -> Iterator[None]:
        """Play one run, an action at each of its times: it begins, takes its share in parts, and ends."""
        trainer, event = self.keys[Role.TRAINER], dp_sgd(series.noise, series.rate)
        population, study = series.budget.partition("/")[0], series.budget.rpartition("/")[2]
        labels = {"study": study, "framework": FRAMEWORKS[number % len(FRAMEWORKS)]}
        about = {"owner": OWNERS[population], "labels": labels}
        body = {"name": name, "budget": series.budget, "event": event} | about
        run = str(self.api.made("/v1/runs", trainer, body)["id"])
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
        """Leave open what people have to decide: limits, a run, a policy; and steps that stay reserved, and sweeps."""
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
        self.api.made("/v1/runs", trainer, waiting | {"reserve": [{"event": large, "count": 20_000}]})
        event = dp_sgd(1.4, 0.004)
        reserving = {"name": "nightly-retraining", "budget": "cardiology-registry/ecg-foundation", "event": event}
        run = self.api.made("/v1/runs", trainer, reserving)["id"]
        reserved = {"events": [{"event": event, "count": 3000}], "lease_seconds": 86_400}
        self.api.made(f"/v1/runs/{run}/reservations", trainer, reserved)
        for name, mode in (("learning-rates", "each_run"), ("widths", "each_run")):
            body = {"name": name, "budget": "emergency-visits/sepsis-alert", "charging_mode": mode}
            self.api.made("/v1/experiments", trainer, body)
            path = f"emergency-visits/sepsis-alert/{name}"
            for number in range(3):
                trial = {"name": f"trial-{number + 1}", "budget": path, "event": dp_sgd(1.5 + number / 4, 0.002)}
                found = self.api.made("/v1/runs", trainer, trial)["id"]
                self.api.made(f"/v1/runs/{found}/steps", trainer, {"count": 120 * (number + 1)})
        for name, start, _ in BLOCKS:
            used = {"name": f"gait-{start[:7]}", "budget": f"wearables/{name}", "event": dp_sgd(1.2, 0.01)}
            found = self.api.made("/v1/runs", trainer, used)["id"]
            self.api.made(f"/v1/runs/{found}/steps", trainer, {"count": 300})
        receiver = {"kind": "webhook", "url": "https://alerts.northfield.example/privacy"}
        made = self.api.made("/v1/receivers", officer, receiver)["id"]
        self.api.made(f"/v1/receivers/{made}/disable", officer, None)  # the address does not exist
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
    api.clock.at = until
    live = str(api.made("/v1/runs", builder.keys[Role.TRAINER], live_run(1))["id"])
    return SampleHospital(builder.keys, builder.runs, live)
