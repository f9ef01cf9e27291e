"""Two replicas on one database race each other: exactly the right number is admitted."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import httpx2
import pytest

from tests.conftest import LiveServer
from tests.reliability.clients import PATIENCE_SECONDS, PAUSE_SECONDS, SAMPLED, open_budget
from tests.reliability.conftest import LONG, REPLICAS, ROUNDS
from tests.reliability.waiters import Waiters, training

pytestmark = pytest.mark.both_databases

RACES = 60 * ROUNDS if LONG else 3
"""Three thousand in `make soak`."""

GOVERNED = RACES // 5 if LONG else 1
PLANS = 30 if LONG else 5

RULE_SECONDS = 1.0
"""So long after the acknowledgement of its revocation, a key may still open."""

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
def racing(replicas: list[LiveServer]) -> Iterator[Replicas]:
    made = Replicas(replicas)
    made.made(
        "/v1/populations",
        name="mimic",
        privacy_unit="patient",
        neighboring_relation="add_or_remove_one",
        limit={"epsilon": 10_000, "delta": 0.1},
    )
    yield made
    made.close()


def test_last_step_of_a_budget_is_taken_once_when_replicas_race_for_it(racing: Replicas) -> None:
    for _ in range(RACES):
        budget = racing.budget()
        runs = [racing.run(budget) for _ in range(REPLICAS)]
        room = runs[0]["steps_remaining"]
        assert isinstance(room, int)
        assert room > 1
        paths = [f"/v1/runs/{run['id']}/steps" for run in runs]
        filled = racing.clients[0].post(paths[0], json={"count": room - 1})
        assert filled.json()["steps_remaining"] == 1
        replies = racing.race([(paths[0], {"first_step": room - 1}), (paths[1], {"first_step": 0})])
        assert sorted(reply.status_code for reply in replies) == [200, 403], [reply.text for reply in replies]
        assert {reply.json().get("code") for reply in replies} == {None, "budget_exceeded"}


def test_steps_are_taken_once_or_follow_one_another_when_replicas_race(racing: Replicas) -> None:
    run = racing.run(racing.budget(epsilon=100.0))["id"]
    for step in range(0, 3 * RACES, 3):
        replies = racing.race([(f"/v1/runs/{run}/steps", {"first_step": step})] * REPLICAS)
        assert [reply.status_code for reply in replies] == [200, 200], [reply.text for reply in replies]
        assert len({reply.content for reply in replies}) == 1
        assert sum("idempotent-replayed" in reply.headers for reply in replies) == 1
        replies = racing.race([(f"/v1/runs/{run}/steps", {})] * REPLICAS)
        assert sorted(reply.json()["first_step"] for reply in replies) == [step + 1, step + 2]


def _watched(racing: Replicas, run: str, change: Callable[[], object]) -> list[tuple[bool, httpx2.Response]]:
    """Steps that one replica is asked for while the other acts, each with whether that was answered before."""
    answered, stop = threading.Event(), threading.Event()
    seen: list[tuple[bool, httpx2.Response]] = []

    def ask() -> None:
        while not stop.is_set():
            after = answered.is_set()
            seen.append((after, racing.clients[1].post(f"/v1/runs/{run}/steps", json={})))
            if sum(later for later, _ in seen) >= 3:
                return

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            change()
            answered.set()
            asking.result(timeout=60)
        finally:
            stop.set()
    return seen


def test_policy_binds_the_other_replica_from_its_answer_on(racing: Replicas) -> None:
    budget = racing.budget(epsilon=1000.0)
    run = str(racing.run(budget)["id"])
    [account] = racing.clients[0].get(f"/v1/budgets?path={budget}").json()["items"]

    def put(policy: dict[str, object]) -> httpx2.Response:
        body = {"policy": policy, "reason": "The board has met."}
        reply = racing.clients[0].put(f"/v1/accounts/{account['id']}/policy", json=body, headers={"If-Match": "*"})
        assert reply.status_code == (200 if policy else 201), reply.text
        return reply

    def approve(proposal: str) -> None:
        with racing.servers[0].client("privacy_officer") as approver:
            reply = approver.post(f"/v1/proposals/{proposal}/approve", json={"reason": "It has."})
        assert reply.status_code == 200, reply.text

    for _ in range(GOVERNED):
        for later, reply in _watched(racing, run, lambda: put({"mechanisms": ["laplace"]})):
            if later:
                assert (reply.status_code, reply.json()["code"]) == (403, "policy_violation"), reply.text
        proposal = put({}).json()["id"]  # looser than before: another person approves it
        seen = _watched(racing, run, lambda proposal=proposal: approve(proposal))  # type: ignore[misc]
        assert all(reply.status_code == 200 for later, reply in seen if later)


def test_lowered_limit_binds_the_other_replica_from_its_answer_on(racing: Replicas) -> None:
    for _ in range(GOVERNED):
        budget = racing.budget(epsilon=1000.0)
        run = str(racing.run(budget)["id"])
        [account] = racing.clients[0].get(f"/v1/budgets?path={budget}").json()["items"]
        spent = racing.clients[0].post(f"/v1/runs/{run}/steps", json={}).json()["epsilon"]

        def lower(account: str = account["id"], spent: float = spent) -> None:
            body = {"limit": {"epsilon": spent, "delta": 1e-6}, "reason": "The study is over."}
            reply = racing.clients[0].post(f"/v1/accounts/{account}/limit", json=body, headers={"If-Match": "*"})
            assert reply.status_code == 200, reply.text

        for later, reply in _watched(racing, run, lower):
            if later:
                assert (reply.status_code, reply.json()["code"]) == (403, "budget_exceeded"), reply.text


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_waiting_plans_are_granted_once_and_in_turn_by_replicas(replicas: list[LiveServer], round_: int) -> None:
    """Another organisation goes on with its steps meanwhile."""
    replicas[0].key("admin", f"other{round_}")
    with replicas[0].client("admin") as http, replicas[1].client("admin", f"other{round_}") as others:
        waiters = Waiters(replicas, open_budget(http, f"people{round_}", epsilon=2.0))
        run = others.post("/v1/runs", json={"name": "run", "budget": open_budget(others, "p", 20.0), "event": SAMPLED})
        full = waiters.fill(http, 3)
        waiters.queue(PLANS)
        assert http.post(f"/v1/reservations/{full}/void", json=None).status_code == 200
        done = threading.Event()

        def step() -> set[int]:
            taken = set()
            while not done.is_set():
                taken.add(others.post(f"/v1/runs/{run.json()['id']}/steps", json={}).status_code)
            return taken

        with ThreadPoolExecutor(1) as pool:
            stepping = pool.submit(step)
            try:
                training(waiters, lambda: None)
            finally:
                done.set()
            assert stepping.result() == {200}
    waiters.check(replicas[0].database_url)


@pytest.mark.parametrize("pause", [PAUSE_SECONDS, RULE_SECONDS + 0.1], ids=["busy", "quiet"])
def test_revoked_key_is_refused_by_the_other_replica_within_a_second(racing: Replicas, pause: float) -> None:
    run = racing.run(racing.budget(epsilon=1000.0))["id"]
    issued = racing.made("/v1/api-keys", role="trainer")
    headers = {"Authorization": f"Bearer {issued['key']}"}
    answers: list[tuple[float, int]] = []
    revoked_at: list[float] = []

    def late() -> list[int]:
        """The answers to what was sent when the key may open no more; read after the acknowledgement, and before."""
        return [status for sent_at, status in answers if revoked_at and sent_at > revoked_at[0] + RULE_SECONDS]

    def ask_on() -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        with httpx2.Client(base_url=racing.servers[1].url, headers=headers, trust_env=False, timeout=60) as http:
            while len(late()) < 3:
                assert time.monotonic() < until, "the key was never revoked"
                sent_at = time.monotonic()
                answers.append((sent_at, http.post(f"/v1/runs/{run}/steps", json={}).status_code))
                time.sleep(pause)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_on)
        while not answers:
            assert not asking.done()
            time.sleep(PAUSE_SECONDS)
        assert racing.clients[0].post(f"/v1/api-keys/{issued['id']}/revoke").status_code == 200
        revoked_at.append(time.monotonic())
        asking.result()
    assert answers[0][1] == 200
    assert set(late()) == {401}


def test_last_use_of_a_key_is_shown_by_the_other_replica(racing: Replicas) -> None:
    issued = racing.made("/v1/api-keys", role="trainer")
    before, until = datetime.now(UTC), time.monotonic() + PATIENCE_SECONDS
    reply = racing.clients[1].get("/v1/runs", headers={"Authorization": f"Bearer {issued['key']}"})
    assert reply.status_code == 200
    while (used := racing.clients[0].get(f"/v1/api-keys/{issued['id']}").json()["last_used_at"]) is None:
        assert time.monotonic() < until, "no use was written"
        time.sleep(PAUSE_SECONDS)
    assert before <= datetime.fromisoformat(used) <= datetime.now(UTC)
