"""Real fits of Keras, on the JAX backend with jax-privacy, whose steps the ledger admits or refuses."""

# ruff: noqa: ANN401 - Keras' values

from typing import Any

import keras
import numpy as np
import pytest
from jax_privacy import keras_api

from epsilon_ledger import BudgetExceededError, gaussian, poisson_sampled
from epsilon_ledger.keras import UnsupportedTrainingError, attach
from tests.sdk.fake_ledger import FakeRun

N, BATCH, NOISE, STEPS = 40, 10, 1.5, 4
"""Records, their expected number in a sample, noise multiplier, steps of an epoch."""
X = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
STEP = poisson_sampled(BATCH / N, gaussian(NOISE))


CONFIG: dict[str, Any] = {"epsilon": 1e6, "delta": 1e-5, "clipping_norm": 1.0, "batch_size": BATCH, "train_size": N}
CONFIG |= {"train_steps": 1_000, "noise_multiplier": NOISE, "poisson_sampling_in_fit": True}


def private(*, steps_per_execution: int = 1, accumulation: int = 1, **changed: Any) -> Any:
    """Make a model private, as jax-privacy's documentation does."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    config = keras_api.DPKerasConfig(**CONFIG | {"gradient_accumulation_steps": accumulation} | changed)
    model = keras_api.make_private(model, config)
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=None if accumulation == 1 else accumulation)
    model.compile(optimizer=optimizer, loss="mse", steps_per_execution=steps_per_execution)
    return model


def fit(model: Any, epochs: int = 1, **how: Any) -> Any:
    return model.fit(X, Y, batch_size=BATCH, epochs=epochs, verbose=0, **how)


def weights(model: Any) -> list[Any]:
    return [np.array(weight.numpy()) for weight in model.trainable_weights]


def taken(model: Any) -> int:
    """Return the number of steps that jax-privacy has counted."""
    return int(model.non_trainable_weights[1].numpy().item())


def is_unchanged(model: Any, before: list[Any]) -> bool:
    return all(map(np.array_equal, before, weights(model)))


class Recorder(keras.callbacks.Callback):
    """Callback that keeps the weights after each step, and the logs of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.after: list[list[Any]] = []
        self.epochs: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        self.after.append(weights(self.model))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras' signature
        self.epochs.append(logs)


def test_every_step_of_fit_asks(run: FakeRun) -> None:
    model = private()
    before, seen = weights(model), Recorder()
    callback = attach(model, run)
    history = fit(model, 2, callbacks=[seen])
    assert run.asked == [STEP] * 2 * STEPS
    assert not is_unchanged(model, before)
    assert history.history["epsilon"] == [logs["epsilon"] for logs in seen.epochs] == [1.0, 2.0]
    assert history.history["used"] == [logs["used"] for logs in seen.epochs] == [0.004, 0.008]
    assert callback.refusal is None
    # Each fit asks, with or without callbacks, and a second attach changes nothing.
    assert attach(model, run) is callback
    fit(model, callbacks=seen)
    fit(model, callbacks=keras.callbacks.CallbackList([], add_history=True, model=model, epochs=1, steps=STEPS))
    assert run.asked == [STEP] * 4 * STEPS
    assert taken(model) == 4 * STEPS


@pytest.mark.parametrize("capacity", [0, 6])
def test_refusal_ends_fit_and_leaves_parameters(run: FakeRun, capacity: int) -> None:
    run.ledger.capacity = capacity
    model = private()
    before, seen = weights(model), Recorder()
    callback = attach(model, run)
    history = fit(model, 3, callbacks=[seen])
    assert run.asked == [STEP] * capacity
    assert isinstance(callback.refusal, BudgetExceededError)
    assert is_unchanged(model, [before, *seen.after][capacity])
    assert len(history.history["epsilon"]) == capacity // STEPS + 1
    if capacity % STEPS:
        assert np.isfinite(history.history["loss"]).all()
    assert taken(model) == capacity
    # Asked again, refused again; and with more budget the fit goes on.
    fit(model)
    assert (len(run.asked), callback.refusal is None) == (capacity, False)
    run.ledger.capacity = capacity + STEPS
    fit(model)
    assert len(run.asked) == capacity + STEPS
    assert attach(model, run).refusal is None


def test_execution_of_several_steps_and_accumulated_batches_are_charged_each(run: FakeRun) -> None:
    model = private(steps_per_execution=3)
    run.ledger.capacity = STEPS + 3
    callback = attach(model, run)
    fit(model)
    assert [body["count"] for body in run.ledger.bodies] == [3, 1]
    fit(model)
    assert [body["count"] for body in run.ledger.bodies] == [3, 1, 3, 1]
    assert callback.refusal is not None
    model, run = private(accumulation=4), FakeRun()
    attach(model, run)
    fit(model)
    assert run.asked == [poisson_sampled(BATCH / N, gaussian(NOISE / 2))] * STEPS


def test_batches_of_fixed_size_are_turned_away_unless_it_is_said_how_to_charge_them(run: FakeRun) -> None:
    model = private(poisson_sampling_in_fit=False)
    with pytest.raises(UnsupportedTrainingError, match=r"no Poisson samples.*poisson_sampling_in_fit=True"):
        attach(model, run)
    with pytest.raises(UnsupportedTrainingError, match="pushes others out of their batches"):
        attach(model, run, sampling_probability=1.0)
    with pytest.raises(ValueError, match=r"can only be 1\.0"):
        attach(model, run, sampling_probability=0.25)
    run.hear(neighboring_relation="replace_special")
    attach(model, run, sampling_probability=1.0)
    fit(model)
    model.train_on_batch(X[:BATCH], Y[:BATCH])
    assert run.asked == [gaussian(NOISE)] * (STEPS + 1)
    with pytest.raises(ValueError, match="sampling is read"):
        attach(private(), run, sampling_probability=1.0)


def test_batches_from_outside_of_fit_are_turned_away(run: FakeRun) -> None:
    model = private()
    attach(model, run)
    before = weights(model)
    with pytest.raises(UnsupportedTrainingError, match="train_on_batch takes any batch"):
        model.train_on_batch(X[:BATCH], Y[:BATCH])
    with pytest.raises(UnsupportedTrainingError, match="train_on_batch takes any batch"):
        keras.Model.fit(model, X, Y, batch_size=BATCH, verbose=0)
    assert (run.asked, is_unchanged(model, before)) == ([], True)
    # Compiled anew, it still asks, and for samples of fit only.
    model.compile(optimizer="sgd", loss="mse")
    own = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: model.train_on_batch(X[:BATCH], Y[:BATCH]))
    with pytest.raises(UnsupportedTrainingError, match="train_on_batch takes any batch"):
        fit(model, callbacks=[own])
    assert run.asked == [STEP] * STEPS


def test_no_fit_repeats_samples_or_noise_of_another(run: FakeRun) -> None:
    seeds = []
    for _ in range(2):
        keras.utils.set_random_seed(3)  # as scripts begin
        model = private(seed=5)
        attach(model, run)
        for _ in range(2):
            fit(model)
            key = model.non_trainable_weights[0].numpy()
            seeds += [model._dp_params.seed, *key.tolist()]
    assert len(set(seeds)) == len(seeds)


def test_uncharged_steps_from_before_are_found(run: FakeRun) -> None:
    model = private(seed=5)
    fit(model)
    attach(model, run)
    with pytest.raises(UnsupportedTrainingError, match=f"took {STEPS} steps, and the run was asked for 0"):
        fit(model)
    model = private(seed=5)
    fit(model)
    attach(model, run, earlier_steps="charged")
    fit(model)
    assert run.asked == [STEP] * STEPS


class Noisy(keras.Model):
    """A model whose own step adds noise."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_step_of_users_own_is_charged_by_its_word(run: FakeRun) -> None:
    model = Noisy()
    model.compile(optimizer="sgd", loss="mse")
    with pytest.raises(UnsupportedTrainingError, match="What noise this model adds is not known"):
        attach(model, run)
    attach(model, run, event=STEP)
    run.ledger.capacity = STEPS + 1
    fit(model)
    model.train_on_batch(X[:BATCH], Y[:BATCH])
    before = weights(model)
    with pytest.raises(BudgetExceededError):
        model.train_on_batch(X[:BATCH], Y[:BATCH])
    assert is_unchanged(model, before)
    assert run.asked == [STEP] * (STEPS + 1)


def test_arguments_that_do_not_fit_together(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    model = private()
    with pytest.raises(ValueError, match="leave event out"):
        attach(model, run, event=STEP)
    with pytest.raises(ValueError, match="event or sampling_probability"):
        attach(Noisy(), run, event=STEP, sampling_probability=1.0)
    attach(model, run)
    with pytest.raises(ValueError, match="charged to run_1"):
        attach(model, FakeRun(id="run_2"))

    model.train_step = lambda *_: None
    with pytest.raises(UnsupportedTrainingError, match="no more the one of make_private"):
        fit(model)
    twice = keras_api.make_private(private(), private()._dp_params)
    twice.train_step = lambda *_: None
    with pytest.raises(UnsupportedTrainingError, match="no more the one of make_private"):
        attach(twice, run)
    other = private()
    monkeypatch.setattr(other.non_trainable_variables[0], "_name", "moved")
    with pytest.raises(UnsupportedTrainingError, match="first two non-trainable variables"):
        attach(other, run)
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    with pytest.raises(UnsupportedTrainingError, match="set KERAS_BACKEND"):
        attach(private, run)
