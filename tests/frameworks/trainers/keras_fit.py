"""A fit of Keras, of a model that jax-privacy made private."""

from contextlib import suppress
from typing import Any

import keras
import numpy as np
from jax_privacy import keras_api

from epsilon_ledger import BudgetExceededError, LedgerClient, Run, gaussian, poisson_sampled
from epsilon_ledger.keras import attach
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

RECORDS, BATCH, NOISE = 64, 16, 20.0


class Releases(keras.callbacks.Callback):
    """Callback that notes a release when the parameters have moved, and saves the run."""

    def __init__(self, folder: TrainingFolder, run: Run, steps: int) -> None:
        super().__init__()
        self._folder = folder
        self._run = run
        self._steps = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - Keras' signature
        """Note the release, unless the step was refused."""
        if self.model.stop_training:
            return
        self._folder.released(poisson_sampled(BATCH / RECORDS, gaussian(NOISE)))
        if self._run.next_step % CHECKPOINT_STEPS == 0:
            self._folder.save(self._run)
        if (self._run.step or 0) >= self._steps:
            self.model.stop_training = True


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end."""
    run = folder.open_run(client, asked["budget"], **asked["ahead"])
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    config = keras_api.DPKerasConfig(
        epsilon=10.0,
        delta=1e-5,
        clipping_norm=1.0,
        batch_size=BATCH,
        gradient_accumulation_steps=1,
        train_steps=100,
        train_size=RECORDS,
        noise_multiplier=NOISE,
        poisson_sampling_in_fit=True,
    )
    model = keras_api.make_private(model, config)
    model.compile(optimizer="sgd", loss="mse")
    attach(model, run)
    x = np.random.default_rng(0).normal(size=(RECORDS, 4)).astype(np.float32)
    with suppress(BudgetExceededError), run:
        if (run.step or 0) < asked["steps"]:
            model.fit(
                x,
                x.sum(axis=1),
                batch_size=BATCH,
                epochs=asked["steps"],
                verbose=0,
                callbacks=[Releases(folder, run, asked["steps"])],
            )


if __name__ == "__main__":
    run_trainer(train)
