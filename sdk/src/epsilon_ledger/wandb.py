"""Weights & Biases logging of a ledger run's epsilon.

    with wandb.init(), EpsilonLogger(run, client=ledger) as logger, run:
        for batch in batches:
            run.authorize()
            train_one_noisy_step(batch)
            logger.log()

logs `epsilon`, `used` and `steps_remaining` over the ledger's steps, the ledger's run and its page in the
configuration, and at the end its privacy statement as a file. The ledger's run gets a label with the W&B run, and a
link to it unless that is offline. Needs `pip install "epsilon-ledger-client[wandb]"`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import wandb

from epsilon_ledger._run.provenance import WANDB_LABEL, wandb_link
from epsilon_ledger._run_logger import STATEMENT, RunLogger
from epsilon_ledger._wire.metadata import Link

__all__ = ["STATEMENT", "EpsilonLogger"]

_STEP: Final = "epsilon_ledger/step"


class EpsilonLogger(RunLogger):
    """Logger of a ledger run to the W&B run that is active on entry of the `with` block.

    Its numbers join the open row of W&B's own step, so that `wandb.log` of the training keeps its steps.

    Args:
        run: to log.
        client: adds its decisions and the ledger's warnings to the statement, and the W&B run to the metadata of the
            ledger's; optional.
        every: interval of logged steps, at least 1.
        url: the ledger's address, for the configuration; by default EPSILON_LEDGER_URL.
    """

    _label = WANDB_LABEL
    _failures = (wandb.Error,)
    _wandb_run: Any = None
    _row = -1

    def _open(self) -> tuple[str, Link | None]:
        active = wandb.run
        if active is None:
            raise ValueError("Which W&B run? Call `wandb.init()` first.")
        self._wandb_run = active
        active.define_metric(_STEP, hidden=True)
        for name in ("epsilon", "used", "steps_remaining"):
            active.define_metric(name, step_metric=_STEP)
        return active.id, wandb_link(active)

    def _is_open(self) -> bool:
        return self._wandb_run is not None

    def _describe(self, facts: Mapping[str, str]) -> None:
        config = self._wandb_run.config
        config.update({"epsilon_ledger": {**config.get("epsilon_ledger", {}), **facts}}, allow_val_change=True)

    def _write(self, numbers: Mapping[str, float], step: int) -> None:
        if self._wandb_run.step == self._row:  # nobody else has closed the row of the last numbers
            self._wandb_run.log({}, commit=True)
        self._wandb_run.log({**numbers, _STEP: step}, commit=False)
        self._row = self._wandb_run.step

    def _keep(self, statement: Mapping[str, Any]) -> None:
        path = Path(self._wandb_run.dir) / STATEMENT
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(statement, indent=2), encoding="utf-8")
        self._wandb_run.save(str(path), base_path=self._wandb_run.dir, policy="now")
