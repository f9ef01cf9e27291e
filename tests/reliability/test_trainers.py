"""Trainers are killed, stopped and restarted, the line fails, the server dies: each released step is charged.

Each trainer is a process with a journal of its releases, written right after `authorize` has returned.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.reliability.clients import PATIENCE_SECONDS
from tests.reliability.conftest import LONG, ROUNDS, Service
from tests.reliability.jobs import Job, Site
from tests.reliability.proxy import Fault, FaultProxy, at_random

WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "grants": {"authorize_every": 6},
    "background": {"authorize_every": 6, "background": True},
}
STEPS = 24
KILLS = 2 if LONG else 1
"""Of each trainer."""


@contextmanager
def site(
    service: Service, folder: Path, seed: int, ways: dict[str, dict[str, Any]], epsilon: float
) -> Iterator[tuple[Site, FaultProxy]]:
    """Trainings that share a budget, behind a line that fails."""
    budget, key = service.open_budget(epsilon), service.server.key("trainer")
    with FaultProxy(service.server.port, at_random(seed, 0.25), seed) as proxy:
        jobs = []
        for name, ahead in ways.items():
            (folder / name).mkdir()
            asked = {"url": proxy.url, "key": key, "budget": budget, "steps": STEPS, "ahead": ahead}
            asked |= {"patience": PATIENCE_SECONDS, "folder": str(folder / name)}
            jobs.append(Job(folder / name, asked))
        try:
            yield Site(service, jobs), proxy
        finally:
            for process in [process for job in jobs for process in job.processes]:
                process.kill()
                process.wait()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_training_is_charged_exactly_when_the_line_fails_and_the_server_dies(
    service: Service, tmp_path: Path, round_: int
) -> None:
    with site(service, tmp_path, round_, WAYS, epsilon=3.0) as (trainings, proxy):
        trainings.start()
        trainings.jobs[round_ % 3].await_steps(STEPS // 3)
        trainings.restart_server()
        trainings.finish()
        assert all(job.released().total() >= STEPS for job in trainings.jobs)
        assert sum(proxy.counts[fault] for fault in Fault if fault is not Fault.PASS) > 3
        trainings.is_charged(exactly=True)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_released_steps_are_charged_when_trainers_are_killed_and_restarted(
    service: Service, tmp_path: Path, round_: int
) -> None:
    """Near the end of their budget, so that some of them are refused."""
    chance = Random(round_)  # noqa: S311 - repeatable, not secret
    with site(service, tmp_path, 1000 + round_, WAYS, epsilon=0.6) as (trainings, _):
        trainings.start()
        kills = [job for job in trainings.jobs for _ in range(KILLS)]
        chance.shuffle(kills)
        for number, job in enumerate(kills):
            job.await_steps(chance.randint(1, 7))
            if job.process.poll() is None:
                job.kill()
                if number == 0:
                    trainings.is_charged(exactly=False)
                if number == len(kills) // 2:
                    trainings.restart_server()
                job.start()
        trainings.finish()
        trainings.is_charged(exactly=False)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_released_steps_are_charged_when_a_replaced_trainer_wakes_up(
    service: Service, tmp_path: Path, round_: int
) -> None:
    """It is taken for dead, another process goes on from its checkpoint, and then it continues."""
    chance = Random(round_)  # noqa: S311 - as above
    ways = {name: WAYS[name] for name in ("grants", "background")}
    with site(service, tmp_path, 2000 + round_, ways, epsilon=3.0) as (trainings, _):
        for job in trainings.jobs:
            job.start()
            job.await_steps(chance.randint(2, 12))
            asleep = job.process
            asleep.send_signal(signal.SIGSTOP)
            job.start()
            job.await_steps(chance.randint(1, 4))
            asleep.send_signal(signal.SIGCONT)
            job.finished(asleep)
        trainings.finish()
        trainings.is_charged(exactly=False)
