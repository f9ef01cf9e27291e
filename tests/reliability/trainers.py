"""A trainer in a process of its own, which may be killed at any moment: `python -m tests.reliability.trainers JSON`.

What it releases stands in its journal before it does anything else; what it would do after a crash, in its checkpoint.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

# Nothing of the service, which takes longer to import than such a training.
from epsilon_ledger import BudgetExceededError, Event, LedgerClient, Run, RunStateConflictError, gaussian

CHECKPOINT_STEPS = 4
JOURNAL, CHECKPOINT = "journal", "checkpoint"


class TrainingFolder:
    """Journal and checkpoint of a training, which survive its processes."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._checkpoint = folder / CHECKPOINT
        self.kept: Any = {}
        """Checkpoint with which this process began: the run's state, and what else was saved."""
        self._journal = os.open(folder / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def open_run(self, client: LedgerClient, budget: str, **how: Any) -> Run:  # noqa: ANN401 - passed on
        """Resume the run of the checkpoint, or create one and save it."""
        if self._checkpoint.exists():
            self.kept = json.loads(self._checkpoint.read_text())
            return client.resume_run(self.kept, **how)
        run = client.create_run(self.name, budget=budget, **how)
        self.save(run)
        return run

    def released(self, *events: Event) -> None:
        """Note what was released, right after its release."""
        os.write(  # at once, so that nobody kills this process in the middle of it
            self._journal, "".join(json.dumps(event) + "\n" for event in events).encode()
        )

    def save(self, run: Run, **more: object) -> None:
        """Save the checkpoint."""
        fresh = self._checkpoint.with_suffix(f".{os.getpid()}")  # another process may have taken over
        fresh.write_text(json.dumps(run.state_dict() | more))
        fresh.replace(self._checkpoint)


def run_trainer(train: Callable[[TrainingFolder, LedgerClient, dict[str, Any]], None]) -> None:
    """Train to the end, as the command line asks: `budget`, `steps`, and arguments of the run, `ahead`."""
    asked = json.loads(sys.argv[1])
    # The ledger may be away for long; what ends the waiting is time, not the number of tries.
    with LedgerClient(asked["url"], asked["key"], max_attempts=10**6, give_up_after=asked["patience"]) as client:
        transport = client._transport
        transport._retry_policy = replace(transport._retry_policy, first_pause=0.01, longest_pause=0.1)
        try:
            train(TrainingFolder(Path(asked["folder"])), client, asked)
        except RunStateConflictError as error:
            if error.run_status != "completed":  # by the process before
                raise


def scheduled(step: int) -> Event:
    """What a step does: its noise fades, and every fifth one is of another kind."""
    return gaussian(55.0) if step % 5 == 4 else gaussian(50.0 - step // 10)


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Take the steps that are left; a spent budget is a normal end."""
    run = folder.open_run(client, asked["budget"], schedule=scheduled, **asked["ahead"])
    with suppress(BudgetExceededError), run:
        while (step := run.step or 0) < asked["steps"]:
            events = [gaussian(70.0), gaussian(45.0)] if step % 11 == 10 else [scheduled(step)]
            if len(events) > 1:
                run.authorize(events=[{"event": event, "count": 1} for event in events])
            else:
                run.authorize()
            folder.released(*events)
            if (run.step or 0) % CHECKPOINT_STEPS == 0:
                folder.save(run)


if __name__ == "__main__":
    run_trainer(train)
