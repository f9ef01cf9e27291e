"""A fit of Keras on the torch backend, whose model adds noise itself.

This module is also its program, in a process with that backend, which prints what the ledger and the model show.
"""

# ruff: noqa: ANN401 - Keras' values

import os
import sys
from typing import Any

import keras
import numpy as np

from epsilon_ledger import gaussian, poisson_sampled
from epsilon_ledger.keras import attach
from tests import programs
from tests.fork_server import ROOT
from tests.sdk.fake_ledger import FakeRun

STEP = poisson_sampled(0.25, gaussian(1.5))


class Noisy(keras.Model):
    """A model whose step adds noise to the mean gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.zero_grad()
        loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        loss.backward()
        weights = list(self.trainable_weights)
        gradients = [
            weight.value.grad + 0.1 * weight.value.grad.new_empty(weight.shape).normal_() for weight in weights
        ]
        self.optimizer.apply(gradients, weights)
        return {"loss": loss}


def main() -> None:
    """Fit until the refusal."""
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    model = Noisy()
    model.compile(optimizer="sgd", loss="mse")
    run = FakeRun(capacity=5)
    callback = attach(model, run, event=STEP)
    after: list[Any] = []
    seen = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: after.append(
            [np.array(weight.value.detach()) for weight in model.trainable_weights]
        )
    )
    model.fit(x, x.sum(axis=1), batch_size=10, epochs=3, verbose=0, callbacks=[seen])
    unchanged = all(map(np.array_equal, after[4], after[-1]))
    sys.stdout.write(f"{len(run.asked)} {callback.refusal is not None} {unchanged}\n")


def test_torch_backend_asks_too() -> None:
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.frameworks.test_keras_torch"]
    done = programs.run(command, cwd=ROOT, env=os.environ | {"KERAS_BACKEND": "torch"}, timeout=None)
    assert done.stdout.split() == ["5", "True", "True"]


if __name__ == "__main__":
    main()
