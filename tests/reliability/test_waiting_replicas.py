"""Two replicas grant the plans that wait at one database: each once, and in the order of the rule."""

import threading
from collections.abc import Iterator

import pytest

from tests.conftest import LiveServer
from tests.reliability.clients import SAMPLED, open_budget
from tests.reliability.conftest import ROUNDS, replicated
from tests.reliability.waiters import Waiters, training

PLANS = 8 if ROUNDS == 1 else 30


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[list[LiveServer]]:
    with replicated(tmp_path_factory, module_database_url) as servers:
        yield servers


@pytest.mark.both_databases
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_replicas_grant_each_plan_once_and_in_its_turn(replicas: list[LiveServer], round_: int) -> None:
    """Another organisation goes on with its steps meanwhile."""
    replicas[0].key("admin", f"other{round_}")
    replicas[1].keys |= replicas[0].keys
    with replicas[0].client("admin") as http, replicas[1].client("admin", f"other{round_}") as others:
        waiters = Waiters(replicas, open_budget(http, f"people{round_}", epsilon=2.0))
        run = others.post("/v1/runs", json={"name": "run", "budget": open_budget(others, "p", 20.0), "event": SAMPLED})
        full = waiters.fill(http, 3)
        waiters.queue(PLANS)
        assert http.post(f"/v1/reservations/{full}/void", json=None).status_code == 200
        done = threading.Event()
        taken: list[int] = []

        def step() -> None:
            while not done.is_set():
                taken.append(others.post(f"/v1/runs/{run.json()['id']}/steps", json={}).status_code)

        stepping = threading.Thread(target=step)
        stepping.start()
        try:
            training(waiters, lambda: None)
        finally:
            done.set()
            stepping.join()
        assert set(taken) == {200}
    waiters.check(replicas[0].database_url)
