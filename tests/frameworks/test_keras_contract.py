"""The contract of an adapter, for Keras on the JAX backend with jax-privacy."""
# ruff: noqa: ANN401 - Keras' values

from typing import Any, ClassVar

import keras
import numpy as np
from jax_privacy import keras_api
from numpy.typing import NDArray

from epsilon_ledger.keras import attach
from tests.adapter_contract import AdapterContract, Script
from tests.frameworks.test_keras import CONFIG
from tests.sdk.fake_ledger import FakeRun

RECORDS, WIDTH, MOVED = 8, 256, 4
"""Records, numbers of each, and how many of them the canary has."""


class KerasScript(Script):
    """A fit for each step, of a model of two layers, of which the second one is frozen."""

    bound = 0.5

    def __init__(self, run: FakeRun, **terms: Any) -> None:
        super().__init__(run, **terms)
        self.data = np.zeros((RECORDS, WIDTH), np.float32)
        self.data[0, :MOVED] = 1e3 * self.canary
        inputs = keras.Input((WIDTH,))
        layers = [keras.layers.Dense(1, use_bias=False, trainable=trained) for trained in (True, False)]
        self.frozen = layers[1]
        sizes = {"batch_size": RECORDS, "train_size": RECORDS, "clipping_norm": self.bound, "seed": 5}
        sizes |= {"rescale_to_unit_norm": False}
        config = keras_api.DPKerasConfig(**CONFIG | sizes | {"gradient_accumulation_steps": 1})
        # jax-privacy computes an epsilon of what is given, which takes long for little noise.
        object.__setattr__(config, "noise_multiplier", self.noise_multiplier)
        model = keras.Model(inputs, keras.layers.add([layer(inputs) for layer in layers]))
        self.model = keras_api.make_private(model, config)
        self.compile()
        self.charge = attach(self.model, run)
        self.observer = Observer(self)

    def compile(self) -> None:
        # The gradient of a record is the record.
        self.model.compile(optimizer=keras.optimizers.SGD(1.0), loss=lambda _, outputs: outputs)

    def draw(self) -> None:
        self.drawn += 1  # fit draws a sample for each step

    def step(self) -> None:
        self.model.fit(self.data, self.data[:, :1], batch_size=RECORDS, epochs=1, verbose=0, callbacks=[self.observer])
        if self.charge.refusal is not None:
            raise self.charge.refusal

    def quiet(self, release: NDArray[Any]) -> NDArray[Any]:
        return release[MOVED:WIDTH]

    def parameters(self) -> NDArray[Any]:
        return np.concatenate([np.array(layer.kernel.numpy()).ravel() for layer in self.model.layers if layer.weights])

    def repeat_noise(self) -> None:
        self.observer.brought_back = self.observer.first

    def checkpoint(self) -> object:
        return self.observer.first

    def restore(self, state: object) -> None:
        self.observer.brought_back = state

    def add_parameters(self) -> None:
        self.frozen.trainable = True
        self.compile()

    def evaluate(self) -> None:
        self.model.evaluate(self.data, self.data[:, :1], batch_size=RECORDS, verbose=0)


class Observer(keras.callbacks.Callback):
    """Callback that sees each release, and brings weights back as BackupAndRestore does."""

    def __init__(self, script: KerasScript) -> None:
        super().__init__()
        self.script = script
        self.before: Any = None
        self.first: Any = None
        self.brought_back: Any = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        if self.brought_back is not None:
            self.model.set_weights(self.brought_back)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - as above
        self.before = self.script.parameters()
        self.first = self.first or self.model.get_weights()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - as above
        assert self.model is self.script.model
        release = (self.before - self.script.parameters()) * RECORDS
        if self.script.charge.refusal is None:
            trained = [layer.kernel.numpy().size for layer in self.script.model.layers if layer.trainable_weights]
            self.script.note(release[: sum(trained)])


class TestKeras(AdapterContract):
    script = KerasScript
    seed = staticmethod(lambda: keras.utils.set_random_seed(7))
    NOT_APPLICABLE: ClassVar = {
        "test_skipped_sample_is_charged_or_stops_training": "fit draws each sample for the step that it takes at once",
        "test_repeated_record_moves_release_by_one_norm_or_stops_training": "fit draws each place of its arrays once",
    }
