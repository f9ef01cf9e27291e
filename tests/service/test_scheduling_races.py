"""Looks, arrivals, cancellations and ends at the same moment: each reservation ends its wait once."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import httpx2
import pytest
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext

from app.persistence.database import Database
from app.service.maintenance import expire_reservations
from app.service.scheduling.grants import expire_waiting, grant_in_organisation, grant_waiting
from tests.api.trainer import Trainer, within_limits
from tests.api.waiting import FITTING, Waiting, furnish_office
from tests.conftest import Ledger
from tests.reliability.conftest import ROUNDS
from tests.service.step_commands import PATIENCE_SECONDS, organisation

pytestmark = pytest.mark.both_databases

DEADLOCK_DETECTED = "40P01"


@dataclass
class Raced:
    """An office whose ledger two processes look at."""

    office: Waiting
    other: Database
    owner: str

    @property
    def ledger(self) -> Ledger:
        return self.office.ledger

    @property
    def both(self) -> tuple[Database, Database]:
        return self.ledger.database, self.other

    def snapshot(self, database: Database) -> int:
        return grant_in_organisation(database, self.owner)

    def ends(self) -> Counter[str]:
        """How often each reservation has ended to wait, by the audit log."""
        actions = ("granted", "expired", "cancelled")
        return Counter(each["subject"] for how in actions for each in self.office.events(f"reservation.{how}"))

    def within_limits(self, run: str) -> bool:
        return within_limits(Trainer(self.ledger, run).path())


@pytest.fixture
def raced(ledger: Ledger, replica: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Raced]:
    made = Raced(Waiting(ledger, monkeypatch, furnish_office(ledger)), replica, organisation(ledger))
    yield made
    assert made.office.sound()


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Do several things at the same moment."""
    start = threading.Barrier(len(work), timeout=PATIENCE_SECONDS)

    def do(one: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it returns
        start.wait()
        return one()

    with ThreadPoolExecutor(len(work)) as pool:
        return [each.result() for each in [pool.submit(do, one) for one in work]]


def test_simultaneous_passes_grant_each_reservation_once(raced: Raced) -> None:
    held = raced.office.held(FITTING)
    plans = [raced.office.queued(50, f"run{place}") for place in range(6)]
    assert [raced.snapshot(database) for database in raced.both] == [0, 0]
    held.end("void")
    fitting = FITTING // 50
    assert sum(at_once(*(partial(raced.snapshot, each) for each in (*raced.both, *raced.both)))) == fitting
    assert [each.status[0] for each in plans] == ["active"] * fitting + ["waiting"] * (6 - fitting)
    assert raced.ends() == Counter(each.plan for each in plans[:fitting])


def test_reservation_is_either_cancelled_or_granted(raced: Raced) -> None:
    held = raced.office.held(FITTING)
    plans = [raced.office.queued(20, f"run{place}") for place in range(4)]
    held.end("void")
    looks = (partial(raced.snapshot, each) for each in raced.both)
    answers = at_once(*(each.cancel for each in plans[::2]), *looks)
    for plan, answer in zip(plans[::2], answers, strict=False):
        assert (answer.status_code, plan.status[0]) in {(200, "cancelled"), (409, "active")}
    assert grant_waiting(raced.ledger.database) == 0
    assert {plan.status[0] for plan in plans[1::2]} == {"active"}
    assert raced.ends() == Counter(each.plan for each in plans)


def test_arrival_takes_nothing_from_waiting_reservations(raced: Raced) -> None:
    """At the moment of the snapshot it is refused, unless it fits beside all that wait."""
    for turn in range(ROUNDS):
        held = raced.office.held(FITTING - 10, f"held{turn}")
        waits = raced.office.queued(FITTING - 40, f"waits{turn}")
        held.end("void")
        behind = raced.office.queued(60, f"behind{turn}")  # it would fit, but another reservation is before it
        assert behind.cancel().status_code == 200
        late, _, small = at_once(
            partial(raced.office.register, 60, f"late{turn}", wait_until=None),
            partial(raced.snapshot, raced.other),
            partial(raced.office.register, 10, f"small{turn}", wait_until=None),
        )
        assert late.json()["code"] in {"reservations_waiting", "budget_exceeded"}, late.text
        assert (small.status_code, waits.status[0]) == (201, "active"), small.text
        assert raced.within_limits(small.json()["id"])
        waits.end("void")
        assert raced.ledger.post(f"/v1/reservations/{small.json()['reservation']}/void", None).status_code == 200


def test_reservation_whose_lease_ends_as_it_is_claimed_is_one_or_the_other(raced: Raced) -> None:
    held = raced.office.held(FITTING)
    plan = raced.office.queued(20, lease_seconds=3600)
    held.end("void")
    assert grant_waiting(raced.ledger.database) == 1
    raced.office.later(minutes=30)
    late = raced.office.now.replace(day=2)
    claimed, ended = at_once(partial(plan.end, "claim"), partial(expire_reservations, raced.other, late))
    assert ended == 1
    assert (claimed.status_code, plan.status[0]) in {(200, "forfeited"), (409, "voided")}


class Storm:
    """Threads that do everything to one budget, until each has had its turns."""

    def __init__(self, raced: Raced) -> None:
        self.raced = raced
        self.plans: list[tuple[str, str]] = []
        self.strange: list[str] = []
        self.names = itertools.count()

    def ask(self, chance: Random) -> httpx2.Response:
        ledger = self.raced.ledger
        what = chance.choice(
            ["register", "register", "steps", "commit", "void", "claim", "renew", "cancel", "queue", "limit"]
        )
        if what == "register" or not self.plans:
            more: dict[str, Any] = {} if chance.random() < 0.8 else {"wait_until": None}
            budget = chance.choice(["mimic/icu-team", "mimic/er"])
            reply = self.raced.office.register(chance.choice([5, 40, 90]), f"storm{next(self.names)}", budget, **more)
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
        replies = [self.ask(chance) for _ in range(turns)]
        self.strange += [reply.text for reply in replies if reply.status_code >= 500]

    def snapshot(self, database: Database, turns: int) -> None:
        for _ in range(turns):
            self.raced.snapshot(database)
            expire_waiting(database)
            expire_reservations(database, self.raced.office.now)


def test_concurrent_requests_never_deadlock(raced: Raced) -> None:
    """Looks, steps, ends, arrivals and lower limits lock in one order."""
    raced.office.team("er")
    storm, turns = Storm(raced), 5 * ROUNDS
    deadlocks: list[str] = []

    def failed(context: ExceptionContext) -> None:
        """Note the deadlocks that a database repeats without a word."""
        if getattr(context.original_exception, "sqlstate", None) == DEADLOCK_DETECTED:
            deadlocks.append(str(context.statement))

    for database in raced.both:
        event.listen(database.engine, "handle_error", failed)
    at_once(
        *(partial(storm.rage, seed, turns) for seed in range(4)),
        *(partial(storm.snapshot, each, turns) for each in raced.both),
    )
    assert (storm.strange, deadlocks) == ([], [])
    grant_waiting(raced.ledger.database)
    assert set(raced.ends().values()) <= {1}
    assert all(raced.within_limits(run) for run, _ in storm.plans)
