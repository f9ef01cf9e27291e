"""The server dies while plans wait and are granted: none is lost, and none is granted twice or out of turn."""

import time
from random import Random

import pytest

from tests.reliability.conftest import ROUNDS, Service
from tests.reliability.waiters import Waiters, training

PLANS = 7 if ROUNDS == 1 else 24
KILLS = 2 if ROUNDS == 1 else 4


@pytest.mark.both_databases
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_kill_9_while_plans_wait_and_are_granted(service: Service, round_: int) -> None:
    chance = Random(round_)  # noqa: S311 - repeatable, not secret
    waiters = Waiters([service.server], service.open_budget(epsilon=2.0))
    with service.server.client("admin") as http:
        full = waiters.fill(http, 3)
        waiters.queue(PLANS)
        assert http.post(f"/v1/reservations/{full}/commit", json={"steps_executed": 0}).status_code == 200

    def kill() -> None:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.5, 1.6))
            service.server.kill()
            service.server.start()

    training(waiters, kill)
    waiters.check(service.server.database_url)


def test_plans_wait_on_while_nobody_serves(service: Service) -> None:
    """What was asked for before a kill is granted by the next process, though nothing changed since."""
    waiters = Waiters([service.server], service.open_budget(epsilon=2.0))
    with service.server.client("admin") as http:
        full = waiters.fill(http, 3)
        waiters.queue(2)
        assert http.post(f"/v1/reservations/{full}/void", json=None).status_code == 200
    service.server.kill()
    service.server.start()
    training(waiters, lambda: None)
    waiters.check(service.server.database_url)
