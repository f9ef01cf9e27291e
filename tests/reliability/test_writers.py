"""Many writers, one budget, real processes: exactly what fits is admitted, and what was acknowledged stays."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from app.persistence.engine import Database
from app.service.verification import verify
from tests.conftest import LiveServer

WRITERS = 16
ROUNDS = int(os.environ.get("EPSILON_LEDGER_TORTURE", "1"))
EVENT = {
    "type": "poisson_sampled",
    "sampling_probability": 0.05,
    "event": {"type": "gaussian", "noise_multiplier": 2.0},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    started = LiveServer(tmp_path)
    started.start()
    yield started
    if started.process is not None and started.process.poll() is None:
        started.stop()


def open_budget(server: LiveServer, name: str, epsilon: float) -> None:
    """A population and, beneath it, a narrower budget."""
    with server.client("admin") as http:
        population = {
            "name": name,
            "privacy_unit": "patient",
            "neighboring_relation": "add_or_remove_one",
            "limit": {"epsilon": epsilon * 4, "delta": 1e-5},
        }
        http.post("/v1/populations", json=population).raise_for_status()
        budget = {"name": "team", "parent": name, "limit": {"epsilon": epsilon, "delta": 1e-5}}
        http.post("/v1/budgets", json=budget).raise_for_status()


def register(http: httpx2.Client, population: str) -> dict[str, object]:
    reply = http.post("/v1/runs", json={"name": "model", "budget": f"{population}/team", "event": EVENT})
    reply.raise_for_status()
    made: dict[str, object] = reply.json()
    return made


def together(workers: int, work: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_sixteen_writers_admit_exactly_what_fits(server: LiveServer, round_: int) -> None:
    """Each writer has a run of its own; all runs share one budget."""
    population = f"shared{round_}"
    open_budget(server, population, 1.2)
    with server.client("trainer") as http:
        room = register(http, population)["steps_remaining"]
    assert isinstance(room, int)
    assert 40 < room < 2000
    start = threading.Barrier(WRITERS, timeout=60)
    server.key("trainer")

    def write(_: int) -> int:
        admitted = 0
        with server.client("trainer") as http:
            run = register(http, population)["id"]
            start.wait()
            while True:
                reply = http.post(f"/v1/runs/{run}/steps", json={"first_step": admitted})
                if reply.status_code == 403:
                    assert reply.json()["code"] == "budget_exceeded"
                    return admitted
                assert reply.status_code == 200, reply.text
                admitted += 1

    admitted = together(WRITERS, write)
    assert sum(int(str(count)) for count in admitted) == room
    check(server, population, room)


def test_sixteen_writers_of_one_run_take_each_step_once(server: LiveServer) -> None:
    """They race for the same step numbers: one effect each, the others get the first answer."""
    open_budget(server, "raced", 1.2)
    with server.client("trainer") as http:
        run = register(http, "raced")["id"]
    start = threading.Barrier(WRITERS, timeout=60)
    fresh = itertools.count()

    def write(_: int) -> None:
        with server.client("trainer") as http:
            start.wait()
            for step in range(20):
                reply = http.post(f"/v1/runs/{run}/steps", json={"first_step": step})
                assert reply.status_code == 200, reply.text
                assert reply.json()["next_step"] == step + 1
                if "idempotent-replayed" not in reply.headers:
                    next(fresh)

    together(WRITERS, write)
    assert next(fresh) == 20
    check(server, "raced", 20)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_what_was_acknowledged_survives_kill_9(server: LiveServer, round_: int) -> None:
    """The server dies at a random moment under load, again and again; clients repeat what was not answered."""
    population = f"killed{round_}"
    open_budget(server, population, 1.2)
    with server.client("trainer") as http:
        room = register(http, population)["steps_remaining"]
    done = threading.Event()

    def write(_: int) -> int:
        admitted = 0
        with server.client("trainer") as http:
            run = patiently(
                lambda: http.post("/v1/runs", json={"name": "model", "budget": f"{population}/team", "event": EVENT})
            ).json()["id"]
            while True:
                body = {"first_step": admitted}
                reply = patiently(lambda body=body: http.post(f"/v1/runs/{run}/steps", json=body))  # type: ignore[misc]
                if reply.status_code == 403:
                    return admitted
                assert reply.status_code == 200, reply.text
                admitted += 1

    def patiently(send: Callable[[], httpx2.Response]) -> httpx2.Response:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                reply = send()
            except httpx2.TransportError:
                done.wait(0.05)
                continue
            if reply.status_code != 503:
                return reply
        raise AssertionError("the server did not come back")

    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write, index) for index in range(8)]
        for pause in (0.15, 0.4, 0.3):
            done.wait(pause)
            server.kill()
            server.start()
        admitted = sum(writer.result(timeout=120) for writer in writers)
    assert admitted == room
    check(server, population, admitted)


def check(server: LiveServer, population: str, admitted: int) -> None:
    """The ledger verifies, and holds exactly what was acknowledged."""
    database = Database(f"sqlite:///{server.database}")
    found = verify(database)
    database.dispose()
    assert found.sound, found.problems
    with server.client("viewer") as http:
        budget = http.get("/v1/budgets", params={"path": f"{population}/team"}).json()["items"][0]
        runs = http.get("/v1/runs", params={"budget": f"{population}/team", "limit": 200}).json()["items"]
    assert sum(run["next_step"] for run in runs) == admitted
    assert budget["epsilon"] <= budget["limit"]["epsilon"]
