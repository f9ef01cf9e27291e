"""Trainers are killed, stopped and restarted, the line fails, the server dies: what was released is charged.

Each trainer is a process with a journal of what it released, written right after `authorize` has returned.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.accounting.events import canonical, event_from_dict
from app.persistence.database import Database
from app.service.verification import verify
from tests.fork_server import ForkedProcess, service_server
from tests.reliability import trainers
from tests.reliability.clients import PATIENCE_SECONDS
from tests.reliability.conftest import ROUNDS, Service
from tests.reliability.proxy import Fault, FaultProxy, at_random
from tests.reliability.trainers import CHECKPOINT, JOURNAL
from tests.sdk.charges import charged_and_held, within_limits

WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "grants": {"authorize_every": 6},
    "background": {"authorize_every": 6, "background": True},
}
STEPS = 24
KILLS = 2 if ROUNDS > 1 else 1
"""Of each trainer."""


@dataclass
class Job:
    """A training, whichever process it is in now."""

    folder: Path
    asked: dict[str, Any]
    processes: list[ForkedProcess] = field(default_factory=list)

    @property
    def process(self) -> ForkedProcess:
        return self.processes[-1]

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            module, asked = trainers.__name__, json.dumps(self.asked)
            self.processes.append(
                ForkedProcess(service_server(), module, asked, environment=dict(os.environ), output=log)
            )

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def released(self) -> Counter[bytes]:
        """What its journal says, by event."""
        journal = self.folder / JOURNAL
        lines = journal.read_text().splitlines() if journal.exists() else []
        return Counter(canonical(event_from_dict(json.loads(line))) for line in lines)

    def await_steps(self, more: int) -> None:
        """Wait until so many further steps were released, or there is nobody to release them."""
        wanted, until = self.released().total() + more, time.monotonic() + PATIENCE_SECONDS
        while self.released().total() < wanted and self.process.poll() is None:
            assert time.monotonic() < until, self.log()
            time.sleep(0.005)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finished(self, process: ForkedProcess | None = None) -> int:
        """How a process ended: by default the last one."""
        return (process or self.process).wait(PATIENCE_SECONDS)

    @property
    def run(self) -> str | None:
        """Its id; None: it was killed before it could write it down."""
        checkpoint = self.folder / CHECKPOINT
        return str(json.loads(checkpoint.read_text())["run"]) if checkpoint.exists() else None


@dataclass
class Site:
    """Trainings that share a budget, behind a line that fails."""

    service: Service
    proxy: FaultProxy
    jobs: list[Job]

    def start(self) -> None:
        for job in self.jobs:
            job.start()

    def finish(self) -> None:
        for job in self.jobs:
            assert job.finished() == 0, job.log()

    def restart_server(self) -> None:
        """As after a power cut."""
        self.service.server.kill()
        self.service.server.start()

    def is_charged(self, *, exactly: bool) -> None:
        """Compare the journals with the ledger."""
        database = Database(self.service.server.database_url)
        try:
            for job in self.jobs:
                released, run = job.released(), job.run
                if run is None:
                    assert not released
                    continue
                charged, held = charged_and_held(database, run)
                assert released <= charged + held, f"{job.folder}: {released - charged - held} is not charged"
                assert within_limits(database, run)
                if exactly:
                    assert (charged, held) == (released, Counter())
            assert verify(database).problems == ()
        finally:
            database.dispose()


@contextmanager
def site(service: Service, folder: Path, seed: int, ways: dict[str, dict[str, Any]], epsilon: float) -> Iterator[Site]:
    budget, key = service.open_budget(epsilon), service.server.key("trainer")
    with FaultProxy(service.server.port, at_random(seed, 0.25), seed) as proxy:
        jobs = []
        for name, ahead in ways.items():
            (folder / name).mkdir()
            asked = {"url": proxy.url, "key": key, "budget": budget, "steps": STEPS, "ahead": ahead}
            asked["patience"] = PATIENCE_SECONDS
            jobs.append(Job(folder / name, asked | {"folder": str(folder / name)}))
        made = Site(service, proxy, jobs)
        try:
            yield made
        finally:
            for process in [process for job in jobs for process in job.processes]:
                process.kill()
                process.wait()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_whatever_fails_a_training_that_ends_well_is_charged_for_what_it_released(
    service: Service, tmp_path: Path, round_: int
) -> None:
    with site(service, tmp_path, round_, WAYS, epsilon=3.0) as trainings:
        trainings.start()
        trainings.jobs[round_ % 3].await_steps(STEPS // 3)
        trainings.restart_server()
        trainings.finish()
        assert all(job.released().total() >= STEPS for job in trainings.jobs)
        assert sum(trainings.proxy.counts[fault] for fault in Fault if fault is not Fault.PASS) > 3
        trainings.is_charged(exactly=True)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_trainers_that_are_killed_and_restarted(service: Service, tmp_path: Path, round_: int) -> None:
    """Near the end of their budget, so that some of them are refused."""
    chance = Random(round_)  # noqa: S311 - repeatable, not secret
    with site(service, tmp_path, 1000 + round_, WAYS, epsilon=0.6) as trainings:
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
def test_a_trainer_that_was_only_asleep(service: Service, tmp_path: Path, round_: int) -> None:
    """It is taken for dead, another process goes on from its checkpoint, and then it wakes up."""
    chance = Random(round_)  # noqa: S311 - as above
    ways = {name: WAYS[name] for name in ("grants", "background")}
    with site(service, tmp_path, 2000 + round_, ways, epsilon=3.0) as trainings:
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
