"""Two replicas on one database race each other: exactly the right number is admitted."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from app.persistence.database import Database
from app.service.verification import verify
from tests.conftest import LiveServer
from tests.reliability.clients import SAMPLED
from tests.reliability.conftest import REPLICAS, ROUNDS, replicated

RACES = 8 if ROUNDS == 1 else 60 * ROUNDS
"""Three thousand in `make soak`."""

GOVERNED = max(3, RACES // 5)

_numbers = itertools.count()


class Replicas:
    """Clients of two servers on one database, each in a thread of its own."""

    def __init__(self, servers: list[LiveServer]) -> None:
        self.servers = servers
        self.clients = [server.client("admin") for server in servers]
        self._start = threading.Barrier(REPLICAS, timeout=60)
        self._pool = ThreadPoolExecutor(REPLICAS)

    def close(self) -> None:
        self._pool.shutdown()
        for client in self.clients:
            client.close()

    def made(self, path: str, **body: object) -> dict[str, object]:
        reply = self.clients[0].post(path, json=body)
        assert reply.status_code == 201, reply.text
        made: dict[str, object] = reply.json()
        return made

    def budget(self, epsilon: float = 0.6) -> str:
        """A budget of its own; returns its path."""
        name = f"budget{next(_numbers)}"
        self.made("/v1/budgets", name=name, parent="mimic", limit={"epsilon": epsilon, "delta": 1e-6})
        return f"mimic/{name}"

    def run(self, budget: str) -> dict[str, object]:
        return self.made("/v1/runs", name="model", budget=budget, event=SAMPLED)

    def race(self, requests: list[tuple[str, dict[str, object]]]) -> list[httpx2.Response]:
        """Send one request to each replica at the same moment."""

        def send(number: int) -> httpx2.Response:
            path, body = requests[number]
            self._start.wait()
            return self.clients[number].post(path, json=body)

        return list(self._pool.map(send, range(REPLICAS)))


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Replicas]:
    with replicated(tmp_path_factory, module_database_url) as servers:
        racing = Replicas(servers)
        racing.made(
            "/v1/populations",
            name="mimic",
            privacy_unit="patient",
            neighboring_relation="add_or_remove_one",
            limit={"epsilon": 10_000, "delta": 0.1},
        )
        yield racing
        racing.close()


@pytest.fixture(autouse=True)
def sound(replicas: Replicas) -> Iterator[None]:
    """Afterwards the ledger agrees with its charges."""
    yield
    database = Database(replicas.servers[0].database_url)
    found = verify(database)
    database.dispose()
    assert found.sound, found.problems


def test_one_of_two_gets_the_last_step_of_a_budget(replicas: Replicas) -> None:
    for _ in range(RACES):
        budget = replicas.budget()
        runs = [replicas.run(budget) for _ in range(REPLICAS)]
        room = runs[0]["steps_remaining"]
        assert isinstance(room, int)
        assert room > 1
        paths = [f"/v1/runs/{run['id']}/steps" for run in runs]
        filled = replicas.clients[0].post(paths[0], json={"count": room - 1})
        assert filled.json()["steps_remaining"] == 1
        replies = replicas.race([(paths[0], {"first_step": room - 1}), (paths[1], {"first_step": 0})])
        assert sorted(reply.status_code for reply in replies) == [200, 403], [reply.text for reply in replies]
        assert {reply.json().get("code") for reply in replies} == {None, "budget_exceeded"}


def test_one_of_two_takes_a_step_and_the_other_gets_its_answer(replicas: Replicas) -> None:
    run = replicas.run(replicas.budget(epsilon=100.0))["id"]
    for step in range(RACES):
        replies = replicas.race([(f"/v1/runs/{run}/steps", {"first_step": step})] * REPLICAS)
        assert [reply.status_code for reply in replies] == [200, 200], [reply.text for reply in replies]
        assert len({reply.content for reply in replies}) == 1
        assert sum("idempotent-replayed" in reply.headers for reply in replies) == 1


def test_two_that_leave_the_number_to_the_server_follow_one_another(replicas: Replicas) -> None:
    run = replicas.run(replicas.budget(epsilon=100.0))["id"]
    for race in range(RACES):
        replies = replicas.race([(f"/v1/runs/{run}/steps", {})] * REPLICAS)
        assert sorted(reply.json()["first_step"] for reply in replies) == [2 * race, 2 * race + 1]


def test_one_of_two_gets_a_name_and_the_other_is_told(replicas: Replicas) -> None:
    for _ in range(RACES):
        name = f"raced{next(_numbers)}"
        body: dict[str, object] = {"name": name, "parent": "mimic", "limit": {"epsilon": 1.0, "delta": 1e-6}}
        replies = replicas.race([("/v1/budgets", body)] * REPLICAS)
        assert sorted(reply.status_code for reply in replies) == [201, 409], [reply.text for reply in replies]


def _watched(replicas: Replicas, run: str, audit_event: Callable[[], None]) -> list[tuple[bool, httpx2.Response]]:
    """Steps that one replica is asked for while the other acts, each with whether that was answered before."""
    answered, stop = threading.Event(), threading.Event()
    seen: list[tuple[bool, httpx2.Response]] = []

    def ask() -> None:
        while not stop.is_set():
            after = answered.is_set()
            seen.append((after, replicas.clients[1].post(f"/v1/runs/{run}/steps", json={})))
            if sum(later for later, _ in seen) >= 3:
                return

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            audit_event()
            answered.set()
            asking.result(timeout=60)
        finally:
            stop.set()
    return seen


def test_what_a_policy_forbids_is_refused_by_the_other_replica_from_its_answer_on(replicas: Replicas) -> None:
    budget = replicas.budget(epsilon=1000.0)
    run = str(replicas.run(budget)["id"])
    [account] = replicas.clients[0].get(f"/v1/budgets?path={budget}").json()["items"]

    proposals: list[str] = []
    approver = replicas.servers[0].client("privacy_officer")

    def put(policy: dict[str, object]) -> None:
        body = {"policy": policy, "reason": "The board has met."}
        reply = replicas.clients[0].put(f"/v1/accounts/{account['id']}/policy", json=body, headers={"If-Match": "*"})
        assert reply.status_code == (200 if policy else 201), reply.text
        if not policy:  # looser than before: another person approves it
            proposals.append(reply.json()["id"])

    def approve() -> None:
        reply = approver.post(f"/v1/proposals/{proposals[-1]}/approve", json={"reason": "It has."})
        assert reply.status_code == 200, reply.text

    for _ in range(GOVERNED):
        for later, reply in _watched(replicas, run, lambda: put({"mechanisms": ["laplace"]})):
            if later:
                assert (reply.status_code, reply.json()["code"]) == (403, "policy_violation"), reply.text
        put({})
        assert all(r.status_code == 200 for later, r in _watched(replicas, run, approve) if later)
    approver.close()


def test_a_lowered_limit_binds_the_other_replica_from_its_answer_on(replicas: Replicas) -> None:
    for _ in range(GOVERNED):
        budget = replicas.budget(epsilon=1000.0)
        run = str(replicas.run(budget)["id"])
        [account] = replicas.clients[0].get(f"/v1/budgets?path={budget}").json()["items"]
        spent = replicas.clients[0].post(f"/v1/runs/{run}/steps", json={}).json()["epsilon"]

        def lower(account: str = account["id"], spent: float = spent) -> None:
            body = {"limit": {"epsilon": spent, "delta": 1e-6}, "reason": "The study is over."}
            reply = replicas.clients[0].post(f"/v1/accounts/{account}/limit", json=body, headers={"If-Match": "*"})
            assert reply.status_code == 200, reply.text

        for later, reply in _watched(replicas, run, lower):
            if later:
                assert (reply.status_code, reply.json()["code"]) == (403, "budget_exceeded"), reply.text
