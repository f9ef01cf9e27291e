"""Trainings in processes that are killed and restarted, and what the ledger charged for them."""

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.accounting.events import canonical, event_from_dict
from app.service.verification.verify import verify
from tests.fork_server import ForkedProcess, ForkServer, service_server
from tests.open_databases import open_database
from tests.polling import PATIENCE_SECONDS, await_true
from tests.reliability.conftest import Service
from tests.reliability.trainers import CHECKPOINT, JOURNAL
from tests.sdk.simulation import covers


@dataclass
class Job:
    """A training, whichever process it is in now."""

    folder: Path
    asked: dict[str, Any]
    processes: list[ForkedProcess] = field(default_factory=list)
    module: str = "tests.reliability.trainers"
    forks: ForkServer = field(default_factory=service_server)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def process(self) -> ForkedProcess:
        return self.processes[-1]

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            there, words = os.environ | self.environment, json.dumps(self.asked)
            self.processes.append(ForkedProcess(self.forks, self.module, words, environment=there, output=log))

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def released(self) -> Counter[bytes]:
        """What its journal says, by event."""
        journal = self.folder / JOURNAL
        lines = journal.read_text().splitlines() if journal.exists() else []
        return Counter(canonical(event_from_dict(json.loads(line))) for line in lines)

    def await_steps(self, more: int) -> None:
        """Wait until so many further steps were released, or there is nobody to release them."""
        wanted = self.released().total() + more
        await_true(lambda: self.released().total() >= wanted or self.process.poll() is not None, self.log, 0.005)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Site:
    """Trainings that share a service."""

    service: Service
    jobs: list[Job]

    def start(self) -> None:
        for job in self.jobs:
            job.start()

    def finish(self) -> None:
        for job in self.jobs:
            assert job.process.wait(PATIENCE_SECONDS) == 0, job.log()

    def is_charged(self, *, exactly: bool) -> None:
        """Compare the journals with the ledger."""
        with open_database(self.service.server.database_url) as database:
            for job in self.jobs:
                released, checkpoint = job.released(), job.folder / CHECKPOINT
                if not checkpoint.exists():  # it was killed before it could write down its run
                    assert not released
                    continue
                run = str(json.loads(checkpoint.read_text())["run"])
                assert covers(database, run, released, exactly=exactly)
            assert verify(database).problems == ()
