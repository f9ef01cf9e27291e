"""A trainer of the tests, in a process of its own that may be killed at any moment and started again.

It takes steps until its budget is spent. As soon as a step is authorised it writes it into its journal: it is released.
"""

import argparse
import json
import os
from pathlib import Path
from random import Random
from typing import Any

from epsilon_ledger import BudgetExceededError, LedgerClient, Run, gaussian

EVENT = gaussian(60.0)
EVERY = 20
MODES: dict[str, dict[str, Any]] = {
    "per step": {},
    "grants": {"authorize_every": EVERY},
    "background": {"authorize_every": EVERY, "background": True},
}


def save(checkpoint: Path, run: Run) -> None:
    """Write a checkpoint whole, or leave the old one as it is."""
    new = checkpoint.with_suffix(".new")
    new.write_text(json.dumps(run.state_dict()))
    new.replace(checkpoint)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    for name in ("url", "budget", "mode"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    asked = parser.parse_args()
    how, checkpoint = MODES[asked.mode], asked.folder / "checkpoint.json"
    journal = os.open(asked.folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    chance = Random()  # noqa: S311 - when a checkpoint is written is no secret
    with LedgerClient(asked.url, timeout=5.0, max_attempts=1000) as ledger:
        if checkpoint.exists():
            run = ledger.resume_run(json.loads(checkpoint.read_text()), **how)
        else:
            run = ledger.register_run(asked.mode, budget=asked.budget, event=EVENT, **how)
            save(checkpoint, run)
        try:
            while True:
                run.authorize()
                os.write(journal, f"{run.id}\n".encode())
                if chance.random() < 0.1:
                    save(checkpoint, run)
        except BudgetExceededError:
            run.complete()


if __name__ == "__main__":
    main()
