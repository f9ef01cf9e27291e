"""Looks of several processes, arrivals, cancellations and ends at the same moment: each plan ends its wait once."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext

from app.persistence.database import Database
from app.service.maintenance import expire_reservations
from app.service.scheduling.grants import expire_waiting, grant_in_organisation, grant_waiting
from app.service.verification import verify
from tests.api.trainer import LOUD, Trainer, counted, within_limits
from tests.api.waiting import FITTING
from tests.conftest import Ledger
from tests.reliability.conftest import ROUNDS
from tests.service.step_commands import PATIENCE_SECONDS, organisation

pytestmark = pytest.mark.both_databases

DEADLOCK_DETECTED = "40P01"


@dataclass
class Raced:
    """A ledger that two processes look at."""

    ledger: Ledger
    other: Database
    owner: str

    @property
    def both(self) -> tuple[Database, Database]:
        return self.ledger.database, self.other

    def register(self, name: str, count: int, *, waits: bool = True, budget: str = "mimic/icu-team") -> Any:  # noqa: ANN401 - JSON
        until = {"wait_until": (datetime.now(UTC) + timedelta(days=1)).isoformat()} if waits else {}
        body = {"name": name, "budget": budget, "event": LOUD, "plan": counted((LOUD, count)), "lease_seconds": 3600}
        return self.ledger.post("/v1/runs", body | until)

    def queued(self, name: str, count: int) -> str:
        reply = self.register(name, count)
        assert reply.json()["status"] == "waiting", reply.text
        return str(reply.json()["waiting_reservation"])

    def held(self, count: int) -> str:
        reply = self.register("held", count, waits=False)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["reservation"])

    def void(self, plan: str) -> None:
        assert self.ledger.post(f"/v1/reservations/{plan}/void", None).status_code == 200

    def status(self, plan: str) -> str:
        return str(self.ledger.get(f"/v1/reservations/{plan}").json()["status"])

    def ends(self) -> Counter[str]:
        """How often each plan has ended to wait, by the audit log."""
        found: Counter[str] = Counter()
        for action in ("granted", "expired", "cancelled"):
            page = self.ledger.get(f"/v1/audit-events?limit=200&action=reservation.{action}", "admin").json()
            found.update(each["subject"] for each in page["items"])
        return found

    def within_limits(self, run: str) -> bool:
        return within_limits(Trainer(self.ledger, run).path())


@pytest.fixture
def raced(ledger: Ledger) -> Iterator[Raced]:
    other = Database(ledger.database.engine.url.render_as_string(hide_password=False))
    ledger.population()
    ledger.budget()
    yield Raced(ledger, other, organisation(ledger))
    other.dispose()
    assert verify(ledger.database).problems == ()


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Do several things at the same moment."""
    start = threading.Barrier(len(work), timeout=PATIENCE_SECONDS)

    def do(one: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it returns
        start.wait()
        return one()

    with ThreadPoolExecutor(len(work)) as pool:
        return [each.result() for each in [pool.submit(do, one) for one in work]]


def test_simultaneous_passes_grant_each_plan_once(raced: Raced) -> None:
    held = raced.held(FITTING)
    plans = [raced.queued(f"run{place}", 50) for place in range(6)]
    for database in raced.both:
        assert grant_in_organisation(database, raced.owner) == 0
    raced.void(held)
    looks = [lambda each=each: grant_in_organisation(each, raced.owner) for each in (*raced.both, *raced.both)]
    assert sum(at_once(*looks)) == FITTING // 50
    statuses = [raced.status(plan) for plan in plans]
    assert statuses == ["active"] * (FITTING // 50) + ["waiting"] * (6 - FITTING // 50)
    assert raced.ends() == Counter(plans[: FITTING // 50])


def test_plan_is_either_cancelled_or_granted(raced: Raced) -> None:
    held = raced.held(FITTING)
    plans = [raced.queued(f"run{place}", 20) for place in range(6)]
    raced.void(held)
    cancels = [
        lambda each=each: raced.ledger.post(f"/v1/reservations/{each}/cancel", {"reason": "late"}).status_code
        for each in plans[::2]
    ]
    answers = at_once(*cancels, *(lambda each=each: grant_in_organisation(each, raced.owner) for each in raced.both))
    for plan, answer in zip(plans[::2], answers, strict=False):
        assert (answer, raced.status(plan)) in {(200, "cancelled"), (409, "active")}
    assert grant_waiting(raced.ledger.database) == 0
    assert {raced.status(plan) for plan in plans[1::2]} == {"active"}
    assert raced.ends() == Counter(plans)


def test_arrival_takes_nothing_from_waiting_plans(raced: Raced) -> None:
    """An arrival at the moment of the look: it is refused, unless it fits beside all that wait."""
    for turn in range(2 * ROUNDS):
        held = raced.register(f"held{turn}", FITTING - 10, waits=False).json()["reservation"]
        waits = raced.queued(f"waits{turn}", FITTING - 40)
        raced.void(held)
        reply, _, small = at_once(
            partial(raced.register, f"late{turn}", 60, waits=False),
            lambda: grant_in_organisation(raced.other, raced.owner),
            partial(raced.register, f"small{turn}", 10, waits=False),
        )
        assert reply.json()["code"] in {"plans_waiting", "budget_exceeded"}, reply.text
        assert small.status_code == 201, small.text
        assert raced.status(waits) == "active"
        assert raced.within_limits(small.json()["id"])
        raced.void(waits)
        raced.void(small.json()["reservation"])


def test_plan_whose_lease_ends_as_it_is_claimed_is_one_or_the_other(raced: Raced) -> None:
    held = raced.held(FITTING)
    plan = raced.queued("run", 20)
    raced.void(held)
    assert grant_waiting(raced.ledger.database) == 1
    late = datetime.now(UTC) + timedelta(hours=2)
    claimed, ended = at_once(
        lambda: raced.ledger.post(f"/v1/reservations/{plan}/renew", None).status_code,
        lambda: expire_reservations(raced.other, late),
    )
    assert ended == 1
    assert (claimed, raced.status(plan)) in {(200, "forfeited"), (409, "voided")}


class _Storm:
    """Threads that do everything to one budget, until each has had its turns."""

    def __init__(self, raced: Raced) -> None:
        self.raced = raced
        self.plans: list[tuple[str, str]] = []
        self.strange: list[str] = []
        self.names = itertools.count()

    def asks(self, chance: Random) -> Any:  # noqa: ANN401 - a reply
        ledger = self.raced.ledger
        what = chance.choice(["register", "register", "steps", "commit", "void", "renew", "cancel", "queue", "limit"])
        if what == "register" or not self.plans:
            budget = chance.choice(["mimic/icu-team", "mimic/er"])
            waits = chance.random() < 0.8
            name = f"storm{next(self.names)}"
            reply = self.raced.register(name, chance.choice([5, 40, 90]), waits=waits, budget=budget)
            if reply.status_code == 201:
                made = reply.json()
                self.plans.append((made["id"], made["reservation"] or made["waiting_reservation"]))
            return reply
        run, plan = chance.choice(self.plans)
        if what == "steps":
            return ledger.post(f"/v1/runs/{run}/steps", {"count": 1})
        if what == "queue":
            return ledger.get("/v1/accounts/mimic/queue")
        if what == "limit":
            body = {"limit": {"epsilon": chance.choice([2.9, 2.8, 2.7]), "delta": 1e-5}, "reason": "narrower"}
            return ledger.post("/v1/accounts/mimic/limit", body, If_Match="*")
        bodies: dict[str, Any] = {"commit": {"steps_executed": 5}, "cancel": {"reason": "late"}}
        return ledger.post(f"/v1/reservations/{plan}/{what}", bodies.get(what))

    def rage(self, seed: int, turns: int) -> None:
        chance = Random(seed)  # noqa: S311 - repeatable, not secret
        for _ in range(turns):
            reply = self.asks(chance)
            if reply.status_code >= 500:
                self.strange.append(reply.text)

    def look(self, database: Database, turns: int) -> None:
        for _ in range(turns):
            grant_in_organisation(database, self.raced.owner)
            expire_waiting(database)
            expire_reservations(database, datetime.now(UTC))


def test_concurrent_requests_never_deadlock(raced: Raced) -> None:
    """Looks, steps, ends, arrivals and lower limits lock in one order."""
    raced.ledger.budget("er")
    storm, turns = _Storm(raced), 8 * ROUNDS
    deadlocks: list[str] = []
    for database in raced.both:
        _watch_for_deadlocks(database, deadlocks)
    at_once(
        *(lambda seed=seed: storm.rage(seed, turns) for seed in range(6)),
        *(lambda each=each: storm.look(each, turns) for each in raced.both),
    )
    assert storm.strange == []
    assert deadlocks == []
    grant_waiting(raced.ledger.database)
    ends = raced.ends()
    assert set(ends.values()) <= {1}
    for run, _ in storm.plans:
        assert raced.within_limits(run)


def _watch_for_deadlocks(database: Database, found: list[str]) -> None:
    """Note the deadlocks that a database repeats without a word."""

    def failed(context: ExceptionContext) -> None:
        if getattr(context.original_exception, "sqlstate", None) == DEADLOCK_DETECTED:
            found.append(str(context.statement))

    event.listen(database.engine, "handle_error", failed)
