"""The server dies at the worst moments: what was acknowledged is in the ledger, once, and the others go on."""

import signal
import time
from random import Random

import pytest

from tests.reliability.conftest import ROUNDS, Service, at_work

CLIENTS = 32 if ROUNDS > 1 else 12
KILLS = 2 if ROUNDS > 1 else 1
LONGEST_LIFE_SECONDS = 0.4


@pytest.mark.both_databases
@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("where", ["before insert", "before commit", "after commit"])
def test_kill_9_at_a_failpoint(service: Service, where: str, round_: int) -> None:
    chance = Random(f"{where}/{round_}")  # noqa: S311 - repeatable, not secret
    assert service.server.process is not None
    with at_work(service, CLIENTS):
        for _ in range(KILLS):
            service.breaks(die=where, writes=chance.randint(1, 20))
            assert service.server.process.wait(60) == -signal.SIGKILL
            assert not service.faults.exists(), "it did not die at the failpoint"
            service.server.start()
    service.check()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_kill_9_at_any_moment(service: Service, round_: int) -> None:
    chance = Random(round_)  # noqa: S311 - repeatable, not secret
    with at_work(service, CLIENTS):
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.05, LONGEST_LIFE_SECONDS))
            service.server.kill()
            service.server.start()
    service.check()
