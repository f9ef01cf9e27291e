"""Reservations that wait, as who asks for them and who runs the service would have it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from app.service.scheduling.grants import expire_waiting, grant_waiting
from tests.api.trainer import LOUD, OnLedger, Trainer, audited, counted
from tests.clocks import stand_at
from tests.conftest import Ledger

START = datetime(2100, 1, 1, tzinfo=UTC)
FITTING = 219  # steps of LOUD, into a budget of epsilon 1


@dataclass
class Waiting(OnLedger):
    """A population of epsilon 3 with a team of epsilon 1, at a time that a test sets."""

    ledger: Ledger
    patch: pytest.MonkeyPatch
    ids: dict[str, str]
    now: datetime = START

    def __post_init__(self) -> None:
        stand_at(self.patch, lambda: self.now)

    def team(self, name: str, parent: str = "mimic", **terms: Any) -> str:  # noqa: ANN401 - JSON is anything
        self.ids[name] = str(self.ledger.budget(name, parent, **terms)["id"])
        return self.ids[name]

    def later(self, **ahead: float) -> None:
        self.now += timedelta(**ahead)

    def until(self, **ahead: float) -> str:
        return (self.now + timedelta(**ahead or {"days": 1})).isoformat()

    def register(self, count: int, name: str = "waits", budget: str = "mimic/icu-team", **more: Any) -> httpx2.Response:  # noqa: ANN401 - JSON
        """Register a run whose reservation waits for a day unless it fits; later ones arrive later."""
        self.later(milliseconds=1)
        event = more.pop("event", LOUD)
        body: dict[str, object] = {"name": name, "budget": budget, "event": event, "reserve": counted((event, count))}
        headers = {"Idempotency_Key": more.pop("key")} if "key" in more else {}
        body |= {"wait_until": self.until()} | more
        return self.ledger.post("/v1/runs", {k: v for k, v in body.items() if v is not None}, "trainer", **headers)

    def queued(self, count: int, name: str = "waits", **more: Any) -> "Queued":  # noqa: ANN401 - as register
        reply = self.register(count, name, **more)
        assert (reply.status_code, reply.json()["status"]) == (201, "waiting"), reply.text
        return Queued(self, reply.json()["id"], reply.json()["waiting_reservation"])

    def held(self, count: int, name: str = "holds", **more: Any) -> "Queued":  # noqa: ANN401 - as register
        reply = self.register(count, name, **{"wait_until": None, "lease_seconds": 7 * 24 * 3600} | more)
        assert (reply.status_code, reply.json()["status"]) == (201, "active"), reply.text
        return Queued(self, reply.json()["id"], reply.json()["reservation"])

    def granted(self) -> int:
        """Let the service look once, and look whether it has left nothing to do."""
        found = grant_waiting(self.ledger.database)
        assert grant_waiting(self.ledger.database) == 0
        return found

    def expired(self) -> int:
        return expire_waiting(self.ledger.database)

    def allocate(self, name: str, **allocation: Any) -> None:  # noqa: ANN401 - JSON is anything
        body = {"allocation": allocation, "reason": "the teams share"}
        assert self.ledger.put(f"/v1/accounts/{self.ids[name]}/allocation", body, "budget_admin").status_code == 200

    def events(self, action: str) -> list[dict[str, Any]]:
        return audited(self.ledger, f"action={action}")


@dataclass
class Queued:
    office: Waiting
    run: str
    plan: str

    @property
    def trainer(self) -> Trainer:
        return Trainer(self.office.ledger, self.run)

    def read(self) -> dict[str, Any]:
        return dict(self.office.ledger.get(f"/v1/reservations/{self.plan}").json())

    @property
    def status(self) -> tuple[str, str]:
        return self.read()["status"], self.trainer.read()["status"]

    def cancel(self, role: str = "admin", reason: str = "not needed") -> httpx2.Response:
        return self.office.ledger.post(f"/v1/reservations/{self.plan}/cancel", {"reason": reason}, role)

    def prioritize(self, priority: int, role: str = "admin") -> httpx2.Response:
        body = {"priority": priority, "reason": "a deadline"}
        return self.office.ledger.post(f"/v1/reservations/{self.plan}/prioritize", body, role)

    def end(self, how: str, executed: int | None = None) -> httpx2.Response:
        return self.trainer.end(self.plan, how, executed)


def furnish_office(ledger: Ledger) -> dict[str, str]:
    return {"mimic": str(ledger.population()["id"]), "icu-team": str(ledger.budget()["id"])}


@pytest.fixture
def office(made: dict[str, str], ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(ledger, monkeypatch, dict(made))
