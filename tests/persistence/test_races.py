"""Races between replicas of the service on one database: one wins, and the others are told the truth."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import httpx2
import pytest
from sqlalchemy import Connection

from app.ledger.admission.counted_accounts import CountedAccount
from app.ledger.errors import NameTakenError
from app.persistence.database import Database
from app.persistence.repositories import balances
from app.persistence.schema import upgrade
from app.service.auth import authentication
from app.service.verification.verify import verify
from tests import postgres
from tests.api.trainer import hired
from tests.conftest import Ledger, open_ledger

pytestmark = pytest.mark.both_databases

T = TypeVar("T")
RACERS = 4
LIMIT = {"limit": {"epsilon": 1.0, "delta": 1e-5}}
POPULATION = {"name": "raced", "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"} | LIMIT
BUDGET = {"name": "raced", "parent": "mimic"} | LIMIT


@dataclass(frozen=True)
class Replicas:
    """Two applications on one database."""

    both: tuple[Ledger, Ledger]

    @property
    def one(self) -> Ledger:
        return self.both[0]

    def race(self, ask: Callable[[Ledger, int], T]) -> list[T]:
        """What racers get who ask at the same moment, each of its replica."""
        start = threading.Barrier(RACERS, timeout=60)

        def run(number: int) -> T:
            start.wait()
            return ask(self.both[number % 2], number)

        with ThreadPoolExecutor(RACERS) as pool:
            return list(pool.map(run, range(RACERS)))


FURNISHED = {"replicas": hired, "training": hired}


@pytest.fixture
def replicas(tmp_path: Path, database_url: str) -> Iterator[Replicas]:
    with open_ledger(tmp_path, database_url) as one, open_ledger(tmp_path, database_url) as two:
        for ledger in (one, two):
            # FastAPI builds its routes at the first request, which no two applications of a process may do at once.
            assert ledger.get("/v1/nowhere").status_code == 404
        yield Replicas((one, two))
        assert verify(one.database).sound


def _run(ledger: Ledger) -> str:
    return str(ledger.get("/v1/runs").json()["items"][0]["id"])


def _statuses(replies: list[httpx2.Response]) -> Counter[int]:
    return Counter(reply.status_code for reply in replies)


def test_name_is_given_once_when_requests_race_for_it(replicas: Replicas) -> None:
    for path, body in (("/v1/populations", POPULATION), ("/v1/budgets", BUDGET)):
        replies = replicas.race(lambda ledger, _, path=path, body=body: ledger.post(path, body))  # type: ignore[misc]
        assert _statuses(replies) == {201: 1, 409: RACERS - 1}
        assert {reply.json()["code"] for reply in replies if reply.status_code == 409} == {"name_taken"}
        assert len(replicas.one.get(path).json()["items"]) == 2


@pytest.mark.parametrize("same", [True, False])
def test_answer_is_one_when_requests_race_with_one_key(replicas: Replicas, *, same: bool) -> None:
    bodies = [POPULATION | ({} if same else {"name": f"p{number}"}) for number in range(RACERS)]
    replies = replicas.race(
        lambda ledger, number: ledger.post("/v1/populations", bodies[number], Idempotency_Key="k-1")
    )
    assert _statuses(replies) == ({201: RACERS} if same else {201: 1, 422: RACERS - 1})
    made = [reply for reply in replies if reply.status_code == 201]
    assert len({reply.content for reply in made}) == 1
    assert sum("idempotent-replayed" not in reply.headers for reply in made) == 1
    assert len(replicas.one.get("/v1/populations").json()["items"]) == 2


def test_organisation_is_made_once_when_databases_race_for_it(database_url: str) -> None:
    """No row is there yet that they could lock: the losers learn it from the unique name, and look again."""
    databases = [Database(database_url) for _ in range(4)]
    upgrade(databases[0])
    start = threading.Barrier(4, timeout=60)

    def found(database: Database) -> bool:
        start.wait()
        try:
            authentication.create_organisation(database, "raced", datetime.now(UTC))
        except NameTakenError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(found, databases)) == [False, False, False, True]
    for database in databases:
        database.dispose()


def test_reader_of_new_runs_misses_none_when_many_are_registered(replicas: Replicas) -> None:
    first, done = _run(replicas.one), threading.Event()
    seen = [first]

    def follow() -> None:
        last = False
        while not last:
            last = done.is_set()  # one look more, behind the last registration
            listed = [run["id"] for run in replicas.one.get("/v1/runs?limit=200").json()["items"]]
            seen.extend(reversed(listed[: listed.index(seen[-1])]))
            time.sleep(0.01)

    follower = threading.Thread(target=follow)
    follower.start()

    def register(ledger: Ledger, number: int) -> list[str]:
        return [ledger.run(name=f"run {number}.{turn}") for turn in range(2)]

    made = [run for runs in replicas.race(register) for run in runs]
    done.set()
    follower.join(60)
    assert sorted(seen) == sorted([first, *made])
    assert seen == sorted(seen)


def test_last_step_of_a_budget_is_taken_once_when_runs_race_for_it(replicas: Replicas) -> None:
    runs = [_run(replicas.one), *(replicas.one.run(name=f"run {racer}") for racer in range(1, RACERS))]
    room = replicas.one.get(f"/v1/runs/{runs[0]}").json()["steps_remaining"]
    assert replicas.one.post(f"/v1/runs/{runs[0]}/steps", {"count": room - 1}).status_code == 200
    replies = replicas.race(lambda ledger, racer: ledger.post(f"/v1/runs/{runs[racer]}/steps", {}))
    assert _statuses(replies) == {200: 1, 403: RACERS - 1}
    assert {reply.json()["code"] for reply in replies if reply.status_code == 403} == {"budget_exceeded"}


def test_step_is_taken_once_when_requests_race_for_its_number(replicas: Replicas) -> None:
    run = _run(replicas.one)
    replies = replicas.race(lambda ledger, _: ledger.post(f"/v1/runs/{run}/steps", {"first_step": 0}))
    assert _statuses(replies) == {200: RACERS}
    assert sum("idempotent-replayed" not in reply.headers for reply in replies) == 1
    assert replicas.one.get(f"/v1/runs/{run}").json()["next_step"] == 1


def test_run_ends_in_one_way_when_requests_race_to_end_it(replicas: Replicas) -> None:
    run = _run(replicas.one)
    actions = ("complete", "abort")
    replies = replicas.race(lambda ledger, racer: ledger.post(f"/v1/runs/{run}/{actions[racer // 2 % 2]}", {}))
    assert _statuses(replies) == {200: RACERS // 2, 409: RACERS // 2}
    ended = {reply.json()["status"] for reply in replies if reply.status_code == 200}
    assert ended == {replicas.one.get(f"/v1/runs/{run}").json()["status"]}


@pytest.fixture
def training(ledger: Ledger) -> tuple[Ledger, str]:
    """A ledger, and a run that took a step."""
    run = _run(ledger)
    assert ledger.post(f"/v1/runs/{run}/steps", {"first_step": 0}).status_code == 200
    return ledger, run


@pytest.mark.postgresql
def test_step_is_answered_when_every_idle_session_was_ended(training: tuple[Ledger, str]) -> None:
    (ledger, run), cluster = training, postgres.shared()
    name = str(ledger.database.engine.url.database)
    for step in (1, 2):  # the second one in a pipeline
        assert cluster.terminate_backends(name) > 0
        assert ledger.post(f"/v1/runs/{run}/steps", {"first_step": step}).status_code == 200
        assert cluster.terminate_backends(name) > 0
        assert ledger.get(f"/v1/runs/{run}").json()["next_step"] == step + 1


@pytest.mark.postgresql
@pytest.mark.parametrize("before", [True, False], ids=["before the last write", "before the commit"])
def test_step_is_503_and_decided_once_when_its_session_is_ended(
    training: tuple[Ledger, str], monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    (ledger, run), cluster, save = training, postgres.shared(), balances.save
    name = str(ledger.database.engine.url.database)

    def save_and_die(tx: Connection, changed: Sequence[tuple[str, CountedAccount]]) -> None:
        if not before:
            save(tx, changed)
        assert cluster.terminate_backends(name) > 0
        if before:
            save(tx, changed)

    with monkeypatch.context() as patched:
        patched.setattr(balances, "save", save_and_die)
        reply = ledger.post(f"/v1/runs/{run}/steps", {"first_step": 1}, Idempotency_Key="k-1")
    assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable")
    assert int(reply.headers["retry-after"]) >= 1
    again = ledger.post(f"/v1/runs/{run}/steps", {"first_step": 1}, Idempotency_Key="k-1")
    assert (again.status_code, again.json()["next_step"]) == (200, 2)
    assert "idempotent-replayed" not in again.headers
    assert verify(ledger.database).sound
