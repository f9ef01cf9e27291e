"""Reservations that arrive, wait, are granted and end in any order: the rule decides, once, and never past a limit."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from sqlalchemy import Connection

from app.ledger.runs.run import RunStatus
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import accounts
from app.persistence.repositories.audit import all_entries
from app.service.auth.request_context import service_context
from app.service.maintenance import expire_reservations
from app.service.scheduling.grants import expire_waiting, grant_in_organisation
from app.service.scheduling.queue_snapshots import BEGINS, QueueSnapshot, WaitingReservations, grants_in, with_runs
from tests.api.trainer import LOUD, QUIET, counted, within_limits
from tests.clocks import stand_at
from tests.conftest import Ledger
from tests.service.test_reservation_machine import Machine, Way, limit, run_machine, way

ACCOUNTS = ("people", "people/a", "people/b", "people/a/sub")

places = st.integers(0, 7)
counts = st.sampled_from([5, 20, 60, 120, 200])
UNLOCKS = [None, {"type": "over_time", "over_seconds": 400, "parts": 4}, {"type": "by_reservations", "reservations": 6}]
TERMS: dict[str, list[Any]] = {"rule": ["first_come", "smallest_share", "most_packed"], "aging_seconds": [None, 0, 120]}
TERMS |= {"unlock": UNLOCKS, "minimum": [0.0, 0.0, 0.3], "maximum": [1.0, 1.0, 0.5], "weight": [1.0, 3.0]}
ALLOCATIONS = st.none() | st.fixed_dictionaries({name: st.sampled_from(values) for name, values in TERMS.items()})

BUDGETS = st.sampled_from([(1,), (1,), (2,), (3,), (3,), (1, 2), (3, 2)])
EVENTS = st.sampled_from([LOUD, LOUD, QUIET])
WAITS = st.sampled_from([None, 90, 900, 9000, 9000])
ENDS = st.sampled_from(["commit", "void", "void", "claim", "renew", "steps"])
TURNS = st.sampled_from(["cancel", "cancel", "prioritize", "pause", "resume", "abort", "attempts"])
WAYS: dict[str, Way] = {
    "arrive": way(8, budgets=BUDGETS, count=counts, event=EVENTS, waits=WAITS, lease=st.sampled_from([60, 9000])),
    "again": way(2, place=places, count=counts, waits=st.sampled_from([None, 9000])),
    "settle": way(5, place=places, how=ENDS),
    "snapshot": way(4),
    "limit": way(2, account=st.integers(0, 3), epsilon=st.sampled_from([0.3, 0.6, 1.0, 1.5])),
    "allocate": way(2, account=st.integers(0, 3), terms=ALLOCATIONS),
    "pass_time": way(3, seconds=st.sampled_from([1, 61, 100, 1000])),
    "turn": way(4, place=places, how=TURNS, priority=st.sampled_from([-1, 0, 2])),
}
"""What may happen, how often, and with what; one rule, since hypothesis leaves out rules at random."""


@dataclass
class Asked:
    """A run, and the reservation that it has asked for last."""

    run: str
    plan: str


class Scheduling(Machine):
    """Two processes snapshot in turns."""

    ways = WAYS
    patch: pytest.MonkeyPatch
    replicas: list[Database]

    @initialize(terms=ALLOCATIONS)
    def opened(self, terms: dict[str, Any] | None) -> None:
        stand_at(self.patch, lambda: self.now)
        self.founded()
        self.ids = [self.population()]
        for path in ACCOUNTS[1:]:
            parent, _, own = path.rpartition("/")
            self.ids.append(self.made("budgets", name=own, parent=parent, limit=limit(0.7)))
        self.asked: list[Asked] = []
        self.allocate(0, terms)

    def arrive(
        self, budgets: tuple[int, ...], count: int, event: dict[str, Any], waits: int | None, lease: int
    ) -> None:
        body: dict[str, Any] = {"name": f"run{len(self.asked)}", "budgets": [ACCOUNTS[each] for each in budgets]}
        body |= {"reserve": counted((event, count)), "lease_seconds": lease}
        reply = self.sent("runs", body | self.until(waits))
        if reply.status_code == 201:
            run = reply.json()
            self.asked.append(Asked(run["id"], run["reservation"] or run["waiting_reservation"]))
            self.fits_if_held(run["id"], held=run["status"] == "active")
        else:
            assert reply.json()["code"] in {"budget_exceeded", "reservations_waiting"}, reply.text

    def until(self, waits: int | None) -> dict[str, str]:
        return {} if waits is None else {"wait_until": (self.now + timedelta(seconds=waits)).isoformat()}

    def fits_if_held(self, run: str, *, held: bool) -> None:
        """What was let in at this time is within all limits."""
        if held:
            with self.ledger.database.read(ALL_TENANTS) as tx:
                path = accounts.path_of(tx, self.owner, run)
            assert within_limits([each.account for each in path])

    def picked(self, place: int) -> Asked | None:
        return self.asked[place % len(self.asked)] if self.asked else None

    def again(self, place: int, count: int, waits: int | None) -> None:
        if (one := self.picked(place)) is None:
            return
        body = {"events": counted((LOUD, count)), "lease_seconds": 9000}
        attempt = self.read("runs", one.run)["attempt"]
        reply = self.sent(f"runs/{one.run}/reservations", body | {"attempt": attempt} | self.until(waits))
        if reply.status_code in {201, 202}:
            one.plan = reply.json()["id"]
            self.fits_if_held(one.run, held=reply.status_code == 201)

    def read(self, kind: str, which: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ledger.http.get(f"/v1/{kind}/{which}", headers=self.headers).json()
        return found

    def settle(self, place: int, how: str) -> None:
        if (one := self.picked(place)) is None:
            return
        if how == "steps":
            self.sent(f"runs/{one.run}/steps", {"events": counted((LOUD, 5)), "attempt": 1})
        else:
            self.sent(f"reservations/{one.plan}/{how}", {"steps_executed": 5} if how == "commit" else None)

    def limit(self, account: int, epsilon: float) -> None:
        body = {"limit": limit(epsilon), "reason": "as the office wishes"}
        self.approved(self.sent(f"accounts/{self.ids[account]}/limit", body, **{"If-Match": "*"}))

    def approved(self, reply: httpx2.Response) -> None:
        """What loosens a protection waits for another person: here it is approved at once."""
        if reply.status_code == 201:
            other = self.ledger.headers("privacy_officer", self.organisation)
            path = f"/v1/proposals/{reply.json()['id']}/approve"
            assert self.ledger.http.post(path, json={"reason": "as well"}, headers=other).status_code == 200

    def allocate(self, account: int, terms: dict[str, Any] | None) -> None:
        allocation = None
        if terms is not None:
            allocation = {name: terms[name] for name in ("rule", "aging_seconds", "unlock")}
            allocation["rule"] = terms["rule"] if account == 0 else None
            share = {name: terms[name] for name in ("minimum", "maximum", "weight")}
            children = {0: "people/a", 1: "people/a/sub"}
            allocation["shares"] = [{"account": children[account]} | share] if account in children else []
        body, path = {"allocation": allocation, "reason": "the teams share"}, f"/v1/accounts/{self.ids[account]}"
        reply = self.ledger.http.put(f"{path}/allocation", json=body, headers=self.headers | {"If-Match": "*"})
        assert reply.status_code in {200, 201}, reply.text
        self.approved(reply)

    def pass_time(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        expire_reservations(self.ledger.database, self.now)
        expire_waiting(self.ledger.database)

    def turn(self, place: int, how: str, priority: int) -> None:
        """A reservation loses its turn or gets another, while all is settled: those behind it may be let in."""
        waiting = [one for one in self.asked if self.read("reservations", one.plan)["status"] == "waiting"]
        if not waiting:
            return
        self.snapshot()
        one = waiting[place % len(waiting)]
        bodies = {"cancel": {"reason": "not needed"}, "prioritize": {"priority": priority, "reason": "a deadline"}}
        if how in bodies:
            self.sent(f"reservations/{one.plan}/{how}", bodies[how])
        else:
            self.sent(f"runs/{one.run}/{how}", {} if how in {"abort", "attempts"} else None)
        self.snapshot()

    def snapshot(self) -> None:
        """A pass grants what who knows nothing of earlier ones would grant, in this order, and leaves nothing over."""
        expire_waiting(self.ledger.database)
        expected, before = self.expected(), self.granted()
        self.replicas.reverse()
        assert grant_in_organisation(self.replicas[0], self.owner) == len(expected)
        granted = self.granted()[len(before) :]
        assert [each["subject"] for each in granted] == expected
        for each in granted:
            self.fits_if_held(each["after"]["run"], held=True)
        assert self.expected() == []
        self.nothing_that_fits_is_left()

    @contextmanager
    def fresh_look(self) -> Iterator[tuple[Connection, QueueSnapshot]]:
        """What a process sees that has just started."""
        context, fresh = service_context(self.ledger.database, self.owner), WaitingReservations(self.owner)
        with self.ledger.database.read(self.owner) as tx:
            yield tx, fresh.snapshot(tx, context.now, context.lapsed_by)

    def expected(self) -> list[str]:
        """The reservations to grant now, in their order."""
        with self.fresh_look() as (tx, snapshot):
            grants = grants_in(tx, self.owner, snapshot, set(snapshot.states), set(snapshot.rows))
        return [each.standing.reservation.id for each in grants]

    def nothing_that_fits_is_left(self) -> None:
        """No reservation fits that may be granted, unless one that has waited for long holds it up."""
        with self.fresh_look() as (tx, snapshot):
            for line in snapshot.lines.values():
                with_runs(tx, self.owner, snapshot.ledgers, line.reservations.values())
                if any(snapshot.rows[each.reservation.id].run_status in BEGINS for each in line.aged(snapshot.now)):
                    continue
                for plan in line.reservations.values():
                    row = snapshot.rows[plan.id]
                    assert row.run_status not in BEGINS or snapshot.ledgers.hold(plan) is None

    def granted(self) -> list[dict[str, Any]]:
        return [each for each in self.events() if each["action"] == "reservation.granted"]

    def events(self) -> list[dict[str, Any]]:
        """All that was recorded of reservations, oldest first."""
        with self.ledger.database.read(self.owner) as tx:
            rows = list(all_entries(tx, self.owner))
        found = [(str(each.action), each.subject, json.loads(each.after or "null")) for each in rows]
        names = ("action", "subject", "after")
        return [dict(zip(names, each, strict=True)) for each in found if each[0].startswith("reservation.")]

    def teardown(self) -> None:
        if hasattr(self, "asked"):
            self.snapshot()
        super().teardown()

    def verified(self) -> None:
        super().verified()
        happened = Counter((each["subject"], _act(each["action"])) for each in self.events())
        assert all(count == 1 for (_, act), count in happened.items() if act in {"queued", "ended"}), happened
        ended, queued = ({plan for plan, act in happened if act == wanted} for wanted in ("ended", "queued"))
        assert ended <= queued
        for plan in queued:
            status = self.read("reservations", plan)["status"]
            assert (status == "waiting") == (plan not in ended)
        for one in self.asked:
            run = self.read("runs", one.run)
            assert (run["status"] == str(RunStatus.WAITING)) <= (run["waiting_reservation"] is not None)


def _act(action: str) -> str:
    ends = {"reservation.granted", "reservation.expired", "reservation.cancelled"}
    return "ended" if action in ends else action.removeprefix("reservation.")


@pytest.mark.both_databases
def test_sequence_passes_no_limit_and_leaves_no_reservation_that_fits(
    ledger: Ledger, replica: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scheduling.patch, Scheduling.replicas = monkeypatch, [ledger.database, replica]
    run_machine(ledger, Scheduling)
