"""A training with MindSpore, whose steps are charged by the callback."""

from contextlib import suppress
from typing import Any

import numpy as np
from mindspore import dataset as ds
from mindspore import nn
from mindspore.train import Callback, Model

from epsilon_ledger import BudgetExceededError, LedgerClient, gaussian, poisson_sampled
from epsilon_ledger.mindspore import LedgerCallback
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

STEP = poisson_sampled(0.25, gaussian(20.0))


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    run = folder.open_run(client, asked["budget"], **asked["ahead"])

    class Noting(Callback):
        """Notes each step when it has been taken."""

        def on_train_step_end(self, run_context: Any) -> None:  # noqa: ANN401 - MindSpore's
            folder.released(STEP)
            if run.next_step % CHECKPOINT_STEPS == 0:
                folder.save(run)
            if (run.step or 0) >= asked["steps"]:
                run_context.request_stop()

    rows = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    dataset = ds.GeneratorDataset([(row, row[:1]) for row in rows], ["x", "y"]).batch(4)
    network = nn.Dense(4, 1)
    model = Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    callback = LedgerCallback(run, event=STEP)
    with suppress(BudgetExceededError), run:
        while (run.step or 0) < asked["steps"] and callback.refusal is None:
            model.train(1, dataset, callbacks=[callback, Noting()])


if __name__ == "__main__":
    run_trainer(train)
