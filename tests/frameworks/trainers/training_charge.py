"""Trainings with one charge each: some repeat their noise after a restart, some are suspended, and steps between them.

A charge pays for one release of each of its steps. So its event is journaled once, with the first release; and a step
that is released again must be the same release.
"""

import json
import os
import secrets
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from epsilon_ledger import BudgetExceededError, ChargedAgainWarning, Event, LedgerClient, Run, TrainingCharge, gaussian
from tests.reliability.trainers import JOURNAL, TrainingFolder, run_trainer

STEP: Final[Event] = gaussian(60.0)
TRAINING: Final[Event] = gaussian(40.0)
LOCAL_STEPS: Final = 3
KINDS: Final = ("reproducible", "suspended", "step")


class Releases:
    """What was released under each charge, in a file.

    Args:
        folder: of the job.
        journal: of the job.
    """

    def __init__(self, folder: Path, journal: TrainingFolder) -> None:
        self._path = folder / "releases"
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._journal = journal
        self._drawn: dict[str, dict[int, str]] = {}
        for line in self._path.read_text().splitlines():
            charge, step, draw = json.loads(line)
            self._drawn.setdefault(charge, {})[step] = draw
        # A process that was killed between the two notes has made only the first.
        journaled = (folder / JOURNAL).read_text().splitlines().count(json.dumps(TRAINING))
        journal.released(*[TRAINING] * (len(self._drawn) - journaled))

    def add(self, charge: TrainingCharge, draw: str) -> None:
        """Note a release of the charge's last step."""
        drawn = self._drawn.setdefault(charge.id, {})
        first = not drawn
        known = drawn.setdefault(charge.step, draw)
        assert known == draw, f"step {charge.step} of {charge.id} was released before, with other noise"
        os.write(self._file, (json.dumps([charge.id, charge.step, draw]) + "\n").encode())
        if first:
            self._journal.released(TRAINING)


class Job:
    """A job of trainings and steps, one after another.

    Args:
        folder: its journal and checkpoint.
        client: of the ledger.
        asked: as the command line has it.
    """

    def __init__(self, folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
        self.folder = folder
        self.client = client
        self.ahead = asked["ahead"]
        self.run: Run = folder.open_run(client, asked["budget"], **self.ahead)
        self.releases = Releases(Path(asked["folder"]), folder)
        self.training = folder.kept.get("training")
        self.phase = folder.kept.get("phase", 0)

    def next_phase(self) -> None:
        """Take a step, or all steps of a training."""
        kind = KINDS[self.phase % len(KINDS)]
        if kind == "step":
            self.run.authorize(event=STEP)
            self.folder.released(STEP)
        elif kind == "reproducible":
            self.repeat_noise()
        else:
            self.stop_and_go()
        self.phase += 1
        self.save(None)

    def repeat_noise(self) -> None:
        """Train with noise that is a function of the step."""
        charge = self.charge(reproducible=True)
        while charge.remaining:
            self.save(charge.state_dict())
            charge.authorize()
            self.releases.add(charge, f"noise {charge.step}")

    def stop_and_go(self) -> None:
        """Train with fresh noise, and go on in a new attempt after each step."""
        charge = self.charge(reproducible=False)
        while charge.remaining:
            charge.authorize()
            self.releases.add(charge, secrets.token_hex(8))
            self.save(charge.suspend())
            self.run = self.client.resume_run(self.run.state_dict(), **self.ahead)
            charge = self.charge(reproducible=False)

    def charge(self, *, reproducible: bool) -> TrainingCharge:
        """Charge a training, or take up that of the checkpoint."""
        return self.run.charge_training(TRAINING, steps=LOCAL_STEPS, resume=self.training, reproducible=reproducible)

    def save(self, training: Any) -> None:  # noqa: ANN401 - a state, or None
        """Save the checkpoint."""
        self.training = training
        self.folder.save(self.run, training=training, phase=self.phase)


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    warnings.simplefilter("ignore", ChargedAgainWarning)
    job = Job(folder, client, asked)
    with suppress(BudgetExceededError):
        while job.phase < asked["steps"]:
            job.next_phase()
    job.run.complete()


if __name__ == "__main__":
    run_trainer(train)
