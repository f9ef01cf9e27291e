"""Plans that wait, as who asks for them and who runs the service would have it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from app.service.maintenance import expire_reservations
from app.service.scheduling.grants import expire_waiting, grant_waiting
from app.service.verification import verify
from tests.api.trainer import LOUD, Trainer, counted
from tests.clocks import stand_at
from tests.conftest import Ledger

START = datetime(2100, 1, 1, tzinfo=UTC)
LIMIT = {"epsilon": 1.0, "delta": 1e-5}
FITTING = 219
"""Steps of LOUD that fit into a budget of epsilon 1."""


@dataclass
class Waiting:
    """A population of epsilon 3 with a team of epsilon 1, at a time that a test sets."""

    ledger: Ledger
    patch: pytest.MonkeyPatch
    now: datetime = START
    ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stand_at(self.patch, lambda: self.now)
        self.ids["mimic"] = str(self.ledger.population()["id"])
        self.team("icu-team")

    def team(self, name: str, parent: str = "mimic", **terms: Any) -> str:  # noqa: ANN401 - JSON is anything
        self.ids[name] = str(self.ledger.budget(name, parent, **terms)["id"])
        return self.ids[name]

    def later(self, **ahead: float) -> None:
        self.now += timedelta(**ahead)

    def until(self, **ahead: float) -> str:
        return (self.now + timedelta(**ahead or {"days": 1})).isoformat()

    def register(
        self,
        count: int,
        name: str = "waits",
        budget: str = "mimic/icu-team",
        event: dict[str, Any] = LOUD,
        **more: Any,  # noqa: ANN401 - JSON is anything
    ) -> httpx2.Response:
        """Register a run whose plan waits for a day unless it fits; later ones arrive later."""
        self.later(milliseconds=1)
        body: dict[str, object] = {"name": name, "budget": budget, "event": event, "plan": counted((event, count))}
        key = more.pop("key", None)
        headers = {} if key is None else {"Idempotency_Key": key}
        body |= {"wait_until": self.until()} | more
        return self.ledger.post("/v1/runs", {k: v for k, v in body.items() if v is not None}, "trainer", **headers)

    def queued(self, count: int, name: str = "waits", **more: Any) -> "Queued":  # noqa: ANN401 - as register
        """A run that waits for its plan."""
        reply = self.register(count, name, **more)
        assert (reply.status_code, reply.json()["status"]) == (201, "waiting"), reply.text
        return Queued(self, reply.json()["id"], reply.json()["waiting_reservation"])

    def held(self, count: int, name: str = "holds", **more: Any) -> "Queued":  # noqa: ANN401 - as register
        """A run whose plan was set aside at once."""
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

    def lapsed(self) -> int:
        return expire_reservations(self.ledger.database, self.now)

    def limit(self, name: str, epsilon: float, delta: float = 1e-5) -> None:
        """Change a limit; two persons decide about a higher one."""
        body = {"limit": {"epsilon": epsilon, "delta": delta}, "reason": "as the office wishes"}
        reply = self.ledger.post(f"/v1/accounts/{self.ids[name]}/limit", body, "budget_admin", If_Match="*")
        if reply.status_code == 201:
            proposal = reply.json()["id"]
            reply = self.ledger.post(f"/v1/proposals/{proposal}/approve", {"reason": "as well"}, "privacy_officer")
        assert reply.status_code == 200, reply.text

    def put(self, name: str, allocation: dict[str, Any] | None, tag: str | None = "*", **who: str) -> httpx2.Response:
        body = {"allocation": allocation, "reason": "the teams share"}
        headers = self.ledger.headers(**{"role": "budget_admin"} | who) | ({} if tag is None else {"If-Match": tag})
        reply: httpx2.Response = self.ledger.http.put(f"/v1/accounts/{name}/allocation", json=body, headers=headers)
        return reply

    def allocate(self, name: str, **allocation: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON is anything
        reply = self.put(self.ids[name], allocation)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def queue(self, account: str = "mimic") -> list[str]:
        """The names of the runs that wait, the next one first."""
        answer = self.ledger.get(f"/v1/accounts/{self.ids[account]}/queue").json()
        assert [each["reservation"]["waiting"]["position"] for each in answer["items"]] == list(
            range(1, answer["plans"] + 1)
        )
        return [each["run_path"].rpartition("/")[2] for each in answer["items"]]

    def events(self, action: str) -> list[dict[str, Any]]:
        """The audit events of an action, oldest first."""
        found = self.ledger.get(f"/v1/audit-events?order=oldest&limit=200&action={action}", "admin").json()["items"]
        return [each for each in found if each["action"] == action]

    def sound(self) -> bool:
        found = verify(self.ledger.database)
        assert found.problems == (), found.problems
        return True


@dataclass
class Queued:
    """A run and its plan."""

    office: Waiting
    run: str
    plan: str

    @property
    def trainer(self) -> Trainer:
        return Trainer(self.office.ledger, self.run)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = self.office.ledger.get(f"/v1/reservations/{self.plan}").json()
        return found

    @property
    def status(self) -> tuple[str, str]:
        """Of the plan, and of the run."""
        return self.read()["status"], self.trainer.read()["status"]

    def cancel(self, role: str = "admin", reason: str = "not needed") -> httpx2.Response:
        return self.office.ledger.post(f"/v1/reservations/{self.plan}/cancel", {"reason": reason}, role)

    def prioritize(self, priority: int, role: str = "admin") -> httpx2.Response:
        body = {"priority": priority, "reason": "a deadline"}
        return self.office.ledger.post(f"/v1/reservations/{self.plan}/prioritize", body, role)

    def end(self, how: str, executed: int | None = None) -> httpx2.Response:
        return self.trainer.end(self.plan, how, executed)

    def lacks(self) -> list[tuple[str, str]]:
        """The accounts that do not hold the plan, and why."""
        return [(each["account_path"], each["reason"]) for each in self.read()["waiting"]["lacks"]]
