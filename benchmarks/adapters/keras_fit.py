"""Keras: a linear model that jax-privacy made private; its fit runs in a thread, in step with the caller."""

from collections.abc import Iterator
from threading import Semaphore, Thread
from typing import Any

import keras
import numpy as np
from jax_privacy import keras_api

from epsilon_ledger import Run
from epsilon_ledger.keras import attach

RECORDS, BATCH, NOISE = 1_000, 10, 10.0


class _InStep(keras.callbacks.Callback):
    """Callback that waits after each step until the next one is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted, self.taken = Semaphore(0), Semaphore(0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - Keras' signature
        """Wait."""
        self.wanted.acquire()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - as above
        """Let the caller go on."""
        np.asarray(logs["loss"])
        self.taken.release()


def steps(run: Run | None) -> Iterator[None]:
    """Train, and yield after each step."""
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    x = np.random.default_rng(0).normal(size=(RECORDS, 64)).astype(np.float32)
    return train(run, model, "mse", x, x[:, :10], BATCH)


def train(run: Run | None, model: keras.Model, loss: str, x: Any, y: Any, batch: int) -> Iterator[None]:  # noqa: ANN401 - arrays
    """Make a model private and train it, and yield after each step."""
    config = keras_api.DPKerasConfig(
        epsilon=1e5,
        delta=1e-5,
        clipping_norm=1.0,
        batch_size=batch,
        gradient_accumulation_steps=1,
        train_steps=1_000_000,
        train_size=len(x),
        noise_multiplier=NOISE,
        poisson_sampling_in_fit=True,
        seed=1,
    )
    model = keras_api.make_private(model, config)
    model.compile(optimizer="sgd", loss=loss)
    if run is not None:
        attach(model, run)
    in_step = _InStep()
    given: dict[str, Any] = {
        "batch_size": batch,
        "steps_per_epoch": 100,
        "epochs": 1_000,
        "verbose": 0,
        "callbacks": [in_step],
    }
    Thread(target=model.fit, args=(x, y), kwargs=given, daemon=True).start()
    while True:
        in_step.wanted.release()
        in_step.taken.acquire()
        yield
