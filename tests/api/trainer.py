"""A trainer with a run of its own, and what the ledger's rows say about its accounts."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from app.accounting.curves import RdpCurve
from app.accounting.events import canonical, event_from_dict
from app.ledger.accounts import Account
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts, dp_events
from app.persistence.tables import account_ancestors
from app.service.verification import verify
from tests.clocks import stand_at
from tests.conftest import Ledger
from tests.persistence.dump import Dump, dump


def gaussian(noise: float) -> dict[str, Any]:
    return {"type": "gaussian", "noise_multiplier": noise}


LOUD, QUIET = gaussian(60.0), gaussian(90.0)
HUGE = gaussian(1e-3)
"""Two events that fit many times into a budget of epsilon 1, and one that no budget can bear."""


def counted(*items: tuple[dict[str, Any], int]) -> list[dict[str, Any]]:
    """Step events on the wire."""
    return [{"event": event, "count": count} for event, count in items]


@dataclass(frozen=True)
class Trainer:
    """Who asks for the steps of one run."""

    ledger: Ledger
    run: str

    def post(self, path: str, body: object = None, key: str | None = None) -> httpx2.Response:
        headers = {} if key is None else {"Idempotency_Key": key}
        return self.ledger.post(f"/v1/{path}", body, "trainer", **headers)

    def steps(self, key: str | None = None, *, dry_run: bool = False, **body: Any) -> httpx2.Response:  # noqa: ANN401 - JSON is anything
        return self.post(f"runs/{self.run}/steps{'?dry_run=true' if dry_run else ''}", body, key)

    def reserve(self, *items: tuple[dict[str, Any], int], key: str | None = None, **more: Any) -> httpx2.Response:  # noqa: ANN401 - as steps
        return self.post(f"runs/{self.run}/reservations", {"plan": counted(*items)} | more, key)

    def reserved(self, *items: tuple[dict[str, Any], int], **more: Any) -> str:  # noqa: ANN401 - as steps
        """A new reservation's id."""
        made = self.reserve(*items, **more)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def act(self, action: str, body: object = None) -> httpx2.Response:
        return self.post(f"runs/{self.run}/{action}", body)

    def end(self, reservation: str, how: str, executed: int | None = None) -> httpx2.Response:
        """Commit, void or renewal."""
        body = None if executed is None else {"steps_executed": executed}
        return self.post(f"reservations/{reservation}/{how}", body)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ledger.get(f"/v1/runs/{self.run}").json()
        return found

    def history(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ledger.get(f"/v1/runs/{self.run}/history").json()["points"]
        return found

    def rows(self) -> Dump:
        return dump(self.ledger.database)

    def path(self) -> list[Account]:
        """The run's account and its ancestors as they are stored, root first."""
        with self.ledger.database.read(ALL_TENANTS) as tx:
            owner = (
                select(account_ancestors.c.organisation_id).where(account_ancestors.c.account_id == self.run).limit(1)
            )
            found = accounts.path_of(tx, str(tx.execute(owner).scalar_one()), self.run)
        return [record.account for record in found]

    def price(self, *items: tuple[dict[str, Any], int]) -> RdpCurve:
        """What step events cost by the ledger's own price list, with what they use up of the plans of the path."""
        with self.ledger.database.read(ALL_TENANTS) as tx:
            listed = {kept.canonical_json: kept.curve for kept in dp_events.list_all(tx)}
        path = self.path()
        plans = {account.id: account.plan.workload for account in path if account.plan is not None}
        total = RdpCurve.zero(path[0].spent.values.size).using(
            {owner: (0,) * workload.chains.size for owner, workload in plans.items()}
        )
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

    def sound(self) -> bool:
        found = verify(self.ledger.database)
        assert found.problems == (), found.problems
        return True


def is_refused(reply: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The problem that an answer must be."""
    answer: dict[str, Any] = reply.json()
    assert (reply.status_code, answer["code"]) == (status, code), reply.text
    return answer


def within_limits(path: list[Account]) -> bool:
    """Whether spent + held of every account passes its own filter."""
    for account in path:
        if account.limit is None:
            continue
        gate, own_delta = account.bounds(), account.spent.delta + account.held.delta
        by_orders = bool((gate.left(account.spent, account.held) >= 0).any())
        if own_delta > gate.room or not (by_orders or within_plan(account)):
            return False
    return True


def within_plan(account: Account) -> bool:
    """Whether the account's plan holds all that is spent and held."""
    plan = account.plan
    if plan is None:
        return False
    used = (account.spent + account.held).used[account.id]
    return all(taken <= there for taken, there in zip(used, plan.capacity, strict=True))


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
