"""A trainer in a process of its own, which may be killed at any moment: `python -m tests.reliability.trainers JSON`.

What it releases stands in its journal before it does anything else; what it would do after a crash, in its checkpoint.
"""

import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

# Nothing of the service, which takes longer to import than such a training.
from epsilon_ledger import BudgetExceededError, Event, LedgerClient, Run, RunStateConflictError, gaussian

CHECKPOINT_STEPS = 4
JOURNAL, CHECKPOINT = "journal", "checkpoint"


def scheduled(step: int) -> Event:
    """What a step does: its noise fades, and every fifth one is of another kind."""
    return gaussian(55.0) if step % 5 == 4 else gaussian(50.0 - step // 10)


class Training:
    """A training that goes on from its last checkpoint.

    Args:
        folder: of journal and checkpoint.
        client: where the ledger is.
        asked: budget, how many steps, and how far to ask ahead.
    """

    def __init__(self, folder: Path, client: LedgerClient, asked: dict[str, Any]) -> None:
        self._checkpoint = folder / CHECKPOINT
        self._journal = os.open(folder / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._steps: int = asked["steps"]
        ahead = {"schedule": scheduled, **asked["ahead"]}
        if self._checkpoint.exists():
            self.run: Run = client.resume_run(json.loads(self._checkpoint.read_text()), **ahead)
        else:
            self.run = client.create_run(folder.name, budget=asked["budget"], **ahead)
            self._save()

    def train(self) -> None:
        """Take the steps that are left; a spent budget is a normal end."""
        with suppress(BudgetExceededError), self.run:
            while (step := self._step) < self._steps:
                if step % 11 == 10:
                    several: list[Event] = [gaussian(70.0), gaussian(45.0)]
                    self.run.authorize(events=[{"event": event, "count": 1} for event in several])
                    self._released(several)
                else:
                    self.run.authorize()
                    self._released([scheduled(step)])
                if self._step % CHECKPOINT_STEPS == 0:
                    self._save()

    @property
    def _step(self) -> int:
        step = self.run.step
        assert step is not None, "it was registered, or resumed from a checkpoint"
        return step

    def _released(self, events: list[Event]) -> None:
        # In one write, so that nobody kills this process in the middle of it.
        os.write(self._journal, "".join(json.dumps(event) + "\n" for event in events).encode())

    def _save(self) -> None:
        # Another process may have taken over, and write its own.
        fresh = self._checkpoint.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(self.run.state_dict()))
        fresh.replace(self._checkpoint)


def main() -> None:
    """Train until the end."""
    asked = json.loads(sys.argv[1])
    # The ledger may be away for long; what ends the waiting is time, not the number of tries.
    with LedgerClient(asked["url"], asked["key"], max_attempts=10**6, give_up_after=asked["patience"]) as client:
        transport = client._transport
        transport._retry_policy = replace(transport._retry_policy, first_pause=0.01, longest_pause=0.1)
        try:
            training = Training(Path(asked["folder"]), client, asked)
        except RunStateConflictError as error:
            if error.run_status != "completed":  # so far the process before has got, if not to its own end
                raise
        else:
            training.train()


if __name__ == "__main__":
    main()
