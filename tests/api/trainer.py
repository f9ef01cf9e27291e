"""A trainer with a run of its own, what the ledger's rows say about its accounts, and requests of many tests."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from app.accounting.curves import RdpCurve
from app.accounting.events import canonical, event_from_dict
from app.ledger.accounts.account import Account
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts, dp_events, organisations
from app.service.verification.verify import verify
from tests.clocks import stand_at
from tests.conftest import Ledger
from tests.persistence.dump import Dump, dump


def gaussian(noise: float) -> dict[str, Any]:
    return {"type": "gaussian", "noise_multiplier": noise}


LOUD, QUIET, HUGE = gaussian(60.0), gaussian(90.0), gaussian(1e-3)
"""Two events that fit many times into a budget of epsilon 1, and one that no budget can bear."""


def counted(*items: tuple[dict[str, Any], int]) -> list[dict[str, Any]]:
    return [{"event": event, "count": count} for event, count in items]


def issue(ledger: Ledger, name: str, role: str, scope: str | None = None, by: str = "admin") -> dict[str, Any]:
    """Issue a key, with which `ledger` asks as a role of this name."""
    made = ledger.post("/v1/api-keys", {"role": role, "scope": scope}, by).raise_for_status()
    ledger.keys["hospital", name] = made.json()["key"]
    return dict(made.json())


def audited(ledger: Ledger, query: str = "") -> list[dict[str, Any]]:
    reply = ledger.get(f"/v1/audit-events?order=oldest&limit=200&{query}", "auditor")
    return list(reply.json()["items"])


def approve(ledger: Ledger, proposed: httpx2.Response, role: str = "privacy_officer") -> None:
    assert proposed.status_code in {201, 202}, proposed.text
    ledger.post(f"/v1/proposals/{proposed.json()['id']}/approve", {}, role).raise_for_status()


class OnLedger:
    """What the rows of a test's ledger say."""

    ledger: Ledger

    def rows(self) -> Dump:
        return dump(self.ledger.database)

    def sound(self) -> bool:
        assert verify(self.ledger.database).problems == ()
        return True


@dataclass(frozen=True)
class Trainer(OnLedger):
    ledger: Ledger
    run: str

    def post(self, path: str, body: object = None, key: str | None = None) -> httpx2.Response:
        headers = {} if key is None else {"Idempotency_Key": key}
        return self.ledger.post(f"/v1/{path}", body, "trainer", **headers)

    def steps(self, key: str | None = None, *, dry_run: bool = False, **body: Any) -> httpx2.Response:  # noqa: ANN401 - JSON is anything
        return self.post(f"runs/{self.run}/steps{'?dry_run=true' if dry_run else ''}", body, key)

    def reserve(self, *items: tuple[dict[str, Any], int], key: str | None = None, **more: Any) -> httpx2.Response:  # noqa: ANN401 - as steps
        return self.post(f"runs/{self.run}/reservations", {"events": counted(*items)} | more, key)

    def reserved(self, *items: tuple[dict[str, Any], int], **more: Any) -> str:  # noqa: ANN401 - as steps
        return str(self.reserve(*items, **more).raise_for_status().json()["id"])

    def act(self, action: str, body: object = None) -> httpx2.Response:
        return self.post(f"runs/{self.run}/{action}", body)

    def end(self, reservation: str, how: str, executed: int | None = None) -> httpx2.Response:
        body = None if executed is None else {"steps_executed": executed}
        return self.post(f"reservations/{reservation}/{how}", body)

    def read(self) -> dict[str, Any]:
        return dict(self.ledger.get(f"/v1/runs/{self.run}").json())

    def history(self) -> list[dict[str, Any]]:
        return list(self.ledger.get(f"/v1/runs/{self.run}/history").json()["points"])

    def path(self) -> list[Account]:
        """The run's account and its ancestors as they are stored, root first."""
        with self.ledger.database.read(ALL_TENANTS) as tx:
            owner = organisations.find_organisation(tx, "hospital")
            return [record.account for record in accounts.path_of(tx, str(owner), self.run)]

    def price(self, *items: tuple[dict[str, Any], int]) -> RdpCurve:
        """What step events cost by the ledger's own price list, with what they use up of the plans of the path."""
        with self.ledger.database.read(ALL_TENANTS) as tx:
            listed = {kept.canonical_json: kept.curve for kept in dp_events.list_all(tx)}
        path = self.path()
        plans = {account.id: account.plan.workload for account in path if account.plan is not None}
        unused = {owner: (0,) * workload.chains.size for owner, workload in plans.items()}
        total = RdpCurve.zero(path[0].spent.values.size).using(unused)
        for event, count in items:
            used = {owner: workload.cost(event_from_dict(event)) for owner, workload in plans.items()}
            total = total + listed[canonical(event_from_dict(event))].using(used).times(count)
        return total

    def costs(self, *items: tuple[dict[str, Any], int]) -> list[RdpCurve]:
        """What step events cost each account of the path, root first: with usage of the plans that it counts."""
        price = self.price(*items)
        return [account.counting(price) for account in self.path()]

    def balance(self) -> list[tuple[RdpCurve, RdpCurve]]:
        """Spent and held of every account of the path, root first."""
        return [(account.spent, account.held) for account in self.path()]


def is_refused(reply: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    answer: dict[str, Any] = reply.json()
    assert (reply.status_code, answer["code"]) == (status, code), reply.text
    return answer


def within_limits(path: list[Account]) -> bool:
    """Whether spent + held of every account passes its own filter, or its plan holds all of it."""
    for account in path:
        if account.limit is None:
            continue
        gate, own_delta = account.bounds(), account.spent.delta + account.held.delta
        fits = bool((gate.left(account.spent, account.held) >= 0).any())
        if account.plan is not None and not fits:
            used = (account.spent + account.held).used[account.id]
            fits = all(taken <= there for taken, there in zip(used, account.plan.capacity, strict=True))
        if own_delta > gate.room or not fits:
            return False
    return True


class Clock(datetime):
    """The service's clock, which a test moves."""

    ahead = timedelta()

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]  # noqa: ANN401
        return datetime.now(tz) + cls.ahead


def moved(monkeypatch: pytest.MonkeyPatch, **ahead: float) -> datetime:
    """Let every further request come so much later; returns that moment."""
    monkeypatch.setattr(Clock, "ahead", timedelta(**ahead))
    stand_at(monkeypatch, lambda: Clock.now(UTC))
    return Clock.now(UTC)


def hired(ledger: Ledger, **terms: Any) -> Trainer:  # noqa: ANN401 - JSON is anything
    """A population with epsilon 3, a budget with epsilon 1, and a trainer with a run there; LOUD is its default."""
    ledger.population()
    ledger.budget()
    return Trainer(ledger, ledger.run(**({"event": LOUD} | terms)))
