"""Results of a site of NVIDIA FLARE, through its filter."""

from contextlib import suppress
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_context import FLContext

from epsilon_ledger import BudgetExceededError, LedgerClient, Run, gaussian
from epsilon_ledger.nvflare import LedgerFilter
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

NOISE = 40.0


class Resumed(LedgerFilter):
    """A filter that continues a run; FLARE's own sites open a new one in each process."""

    def __init__(self, run: Run, budget: str) -> None:
        super().__init__(budget, NOISE, 1.0, unit="record")
        self._run = run


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Send results until the end."""
    run = folder.open_run(client, asked["budget"], **asked["ahead"])
    filter_, context = Resumed(run, asked["budget"]), FLContext()
    with suppress(BudgetExceededError), run:
        while (run.step or 0) < asked["steps"]:
            result = DXO(DataKind.WEIGHT_DIFF, data={"w": np.ones(8)}).to_shareable()
            try:
                filter_.process(result, context)
            except ContentBlockedException as blocked:
                raise (blocked.__cause__ or blocked) from None
            # A record moves its site's result by two clipping norms.
            folder.released(gaussian(NOISE / 2))
            if run.next_step % CHECKPOINT_STEPS == 0:
                folder.save(run)


if __name__ == "__main__":
    run_trainer(train)
