"""What random scripts of Keras do: `HONEST` what they may, `HOSTILE` what goes wrong."""
# ruff: noqa: ANN401 - scripts

from random import Random
from typing import Any, Final

import keras
import numpy as np

from tests import random_scripts
from tests.frameworks.test_keras_contract import RECORDS
from tests.random_scripts import Action, Actions


def fit(script: Any, epochs: int = 1, *callbacks: Any) -> None:
    """Fit, with an epoch for each step."""
    how = {"batch_size": RECORDS, "epochs": epochs, "verbose": 0, "callbacks": [script.observer, *callbacks]}
    script.model.fit(script.data, script.data[:, :1], **how)
    script.drawn += epochs


# Honest.


def epochs(script: Any, dice: Random) -> None:
    fit(script, dice.randrange(2, 4))


def stop_early(script: Any, _: Random) -> None:
    """Leave a fit after its first epoch, as EarlyStopping does."""

    def stop(*_: Any) -> None:
        script.model.stop_training = True

    fit(script, 3, keras.callbacks.LambdaCallback(on_epoch_end=stop))
    script.drawn -= 2


def evaluate_within(script: Any, _: Random) -> None:
    """Evaluate and predict in a callback."""

    def look(*_: Any) -> None:
        script.evaluate()
        script.model.predict(script.data, verbose=0)

    fit(script, 1, keras.callbacks.LambdaCallback(on_epoch_begin=look, on_epoch_end=look))


def schedule(script: Any, _: Random) -> None:
    """Set the learning rate by a callback; it is the same, to see the sums."""
    fit(script, 1, keras.callbacks.LearningRateScheduler(lambda _: 1.0))


def keep_weights(script: Any, _: Random) -> None:
    script.model.set_weights(script.model.get_weights())


def compile_again(script: Any, _: Random) -> None:
    script.compile()


HONEST: Final[Actions] = random_scripts.HONEST | {
    "epochs": Action(epochs, 3),
    "stop early": Action(stop_early),
    "evaluate within": Action(evaluate_within),
    "schedule": Action(schedule),
    "weights": Action(keep_weights),
    "compile": Action(compile_again),
}

# Hostile.


def on_batch(script: Any, _: Random) -> None:
    """Train on a batch of the script's own."""
    before = script.parameters()
    charged = len(script.run.asked)
    try:
        script.model.train_on_batch(script.data, script.data[:, :1])
    finally:
        after = script.parameters()
        if not np.array_equal(before, after):
            release = (before - after) * RECORDS
            assert len(script.run.asked) > charged, "trained on a batch, and not charged"
            script.note(release[release != 0])


def plain_function(script: Any, _: Random) -> None:
    """Let Keras make its function anew."""
    script.model.train_function = None
    fit(script)


def plain_fit(script: Any, _: Random) -> None:
    """Call the fit of the class."""
    plain = type(script.model).fit
    how = {"batch_size": RECORDS, "epochs": 1, "verbose": 0, "callbacks": [script.observer]}
    plain(script.model, script.data, script.data[:, :1], **how)


def keys_within(script: Any, _: Random) -> None:
    """Set all weights to their first ones between steps of a fit."""

    def bring_back(*_: Any) -> None:
        if script.observer.first is not None:
            script.model.set_weights(script.observer.first)

    fit(script, 3, keras.callbacks.LambdaCallback(on_epoch_begin=bring_back))


def less_noise(script: Any, dice: Random) -> None:
    """Change the noise or the clipping norm of the configuration."""
    config = script.model._dp_params
    name = dice.choice(("noise_multiplier", "clipping_norm"))
    object.__setattr__(config, name, getattr(config, name) * dice.choice((0.1, 0.5, 2.0, 10.0)))
    fit(script, 2)


def plain_step(script: Any, _: Random) -> None:
    """Put Keras' own step in the place of the private one, for a fit."""
    private = script.model.train_step
    script.model.train_step = keras.Model.train_step.__get__(script.model)
    try:
        if script.model.train_function is not None and script.dice.random() < 0.5:
            script.model.train_function = None
        fit(script)
    finally:
        script.model.train_step = private


def stop_by_data(script: Any, _: Random) -> None:
    """Leave a fit by its loss."""

    def stop(_: int, logs: Any) -> None:
        script.model.stop_training = script.model.stop_training or logs["loss"] != 0

    fit(script, 3, keras.callbacks.LambdaCallback(on_epoch_end=stop))
    script.drawn -= 2


def other_batch_size(script: Any, _: Random) -> None:
    how = {"batch_size": RECORDS // 2, "epochs": 1, "verbose": 0, "callbacks": [script.observer]}
    script.model.fit(script.data, script.data[:, :1], **how)


def repeated_data(script: Any, _: Random) -> None:
    """Fit data that have each record twice."""
    data = script.data
    script.data = np.concatenate([data, data])
    try:
        fit(script)
    finally:
        script.data = data


HOSTILE: Final[Actions] = (
    {name: action for name, action in HONEST.items() if name not in random_scripts.HONEST}
    | {
        name: action
        for name, action in random_scripts.HOSTILE.items()
        if name not in {"skip", "step twice", "step again"}
    }
    | {
        "on batch": Action(on_batch),
        "plain function": Action(plain_function),
        "plain fit": Action(plain_fit),
        "keys within": Action(keys_within, 2),
        "less noise": Action(less_noise, 2),
        "plain step": Action(plain_step),
        "stop by data": Action(stop_by_data),
        "other batch size": Action(other_batch_size),
        "repeated data": Action(repeated_data),
    }
)
