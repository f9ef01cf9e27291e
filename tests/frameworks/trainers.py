"""Trainers of each framework, as processes that may be killed: `python -m tests.frameworks.trainers JSON`.

Each notes a release where the framework itself makes it: when the parameters have moved, or an aggregate is handed on.
"""

# ruff: noqa: PLC0415 - each process imports its own framework
# ruff: noqa: ANN401 - values of frameworks

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from epsilon_ledger import BudgetExceededError, Event, LedgerClient, Run, gaussian, poisson_sampled
from tests.reliability.trainers import CHECKPOINT_STEPS, TrainingFolder, run_trainer

RECORDS, BATCH, NOISE = 64, 16, 20.0
STEP: Final = poisson_sampled(BATCH / RECORDS, gaussian(NOISE))
FEATURES: Final = np.random.default_rng(0).normal(size=(RECORDS, 4)).astype(np.float32)


class Training:
    """A training whose journal and checkpoint survive its processes.

    Args:
        folder: with both.
        client: of the ledger.
        asked: as the command line has it.
    """

    def __init__(self, folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
        self.folder, self.client, self.asked = folder, client, asked

    @cached_property
    def run(self) -> Run:
        return self.folder.open_run(self.client, self.asked["budget"], **self.asked["ahead"])

    @property
    def goes_on(self) -> bool:
        return bool((self.run.step or 0) < self.asked["steps"])

    def note(self, *_: object, event: Event = STEP) -> None:
        """Note a release, and save what the next process goes on with."""
        self.folder.released(event)
        self.save()

    def save(self) -> None:
        if self.run.next_step % CHECKPOINT_STEPS == 0:
            self.folder.save(self.run)


def numpy_optimizer(training: Training) -> None:
    from epsilon_ledger.mechanisms import DpSgd, GaussianNoise, PoissonSampler

    noise, sampler = GaussianNoise(NOISE, clipping_norm=1.0), PoissonSampler(RECORDS, BATCH / RECORDS)
    optimizer = DpSgd(np.zeros(4), noise=noise, sampler=sampler, run=training.run, learning_rate=0.1)
    while training.goes_on:
        optimizer.step(FEATURES[optimizer.sample()])
        training.note()


def opacus(training: Training) -> None:
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    from epsilon_ledger.opacus import attach

    model: Any = torch.nn.Linear(4, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    # Opacus calls it after the noise: here the parameters have moved.
    sgd.register_step_post_hook(lambda *_: training.folder.released(STEP))
    engine = PrivacyEngine()
    attach(engine, training.run, public_size=RECORDS)
    data = DataLoader(TensorDataset(torch.tensor(FEATURES)), BATCH)
    terms: dict[str, Any] = {"noise_multiplier": NOISE, "max_grad_norm": 1.0}
    model, optimizer, loader = engine.make_private(module=model, optimizer=sgd, data_loader=data, **terms)
    while training.goes_on:
        for (features,) in loader:
            if training.goes_on:
                optimizer.zero_grad()
                model(features).sum().backward()
                optimizer.step()
                training.save()


def transformers_trainer(training: Training) -> None:
    """Train from the Trainer's own last checkpoint."""
    import torch
    from transformers import Trainer, TrainingArguments

    from epsilon_ledger.transformers import last_checkpoint, make_private, run_state
    from tests.frameworks.language_models import gpt2, sentences

    output, asked = str(Path(training.asked["folder"]) / "trainer"), training.asked
    checkpoint = last_checkpoint(output)
    if checkpoint:
        training.run = training.client.resume_run(run_state(checkpoint), **asked["ahead"])
    model: Any = gpt2()
    sgd = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    sgd.register_step_post_hook(lambda *_: training.folder.released(STEP))
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": CHECKPOINT_STEPS, "save_total_limit": 2}
    given |= {"per_device_train_batch_size": BATCH // 2, "gradient_accumulation_steps": 2, "max_steps": asked["steps"]}
    given |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    trainer = Trainer(model, TrainingArguments(output, **given), train_dataset=sentences(), optimizers=(sgd, None))
    make_private(trainer, training.run, noise_multiplier=NOISE, max_grad_norm=1.0, public_size=RECORDS)
    trainer.train(resume_from_checkpoint=checkpoint)


def jax_optax(training: Training) -> None:
    """Train with Optax's noise on padded Poisson samples."""
    import jax
    import jax.numpy as jnp
    import optax

    from epsilon_ledger.jax import authorized, secret_key

    noise = optax.contrib.differentially_private_aggregate(1.0, NOISE, key=secret_key())
    optimizer = optax.chain(noise, optax.sgd(0.1))

    def update(params: Any, state: Any, x: Any, weights: Any) -> Any:
        one = jax.grad(lambda params, x, weight: weight * (x @ params) ** 2)
        updates, state = optimizer.update(jax.vmap(one, in_axes=(None, 0, 0))(params, x, weights), state)
        return optax.apply_updates(params, updates), state

    probability = BATCH / RECORDS
    step = authorized(jax.jit(update, donate_argnums=(0, 1)), training.run, noise=optimizer, batches=probability)
    params = jnp.zeros(4)
    state = optimizer.init(params)
    for indices in step.batch_iterator(RECORDS):
        if not training.goes_on:
            return
        weights = (np.arange(RECORDS) < len(indices)).astype(np.float32)
        params, state = step(params, state, FEATURES[np.pad(indices, (0, RECORDS - len(indices)))], weights)
        params.block_until_ready()  # here it is released
        training.note()


def keras_fit(training: Training) -> None:
    """Fit a model that jax-privacy made private."""
    import keras
    from jax_privacy import keras_api

    from epsilon_ledger.keras import attach

    def stepped(*_: object, **__: object) -> None:
        if not model.stop_training:
            training.note()
            model.stop_training = not training.goes_on

    terms: dict[str, Any] = {"epsilon": 10.0, "delta": 1e-5, "clipping_norm": 1.0, "gradient_accumulation_steps": 1}
    terms |= {"batch_size": BATCH, "train_size": RECORDS, "train_steps": 100, "noise_multiplier": NOISE}
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model = keras_api.make_private(model, keras_api.DPKerasConfig(**terms, poisson_sampling_in_fit=True))
    model.compile(optimizer="sgd", loss="mse")
    attach(model, training.run)
    if training.goes_on:
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=stepped)
        how = {"epochs": training.asked["steps"], "verbose": 0, "callbacks": [callback]}
        model.fit(FEATURES, FEATURES.sum(axis=1), batch_size=BATCH, **how)


def flower_server(training: Training) -> None:
    """Train in rounds, with clients within this process."""
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    from epsilon_ledger.flower import charge_rounds
    from tests.frameworks.flower_grid import LocalGrid, arrays, shifted_by

    class Noted(FedAvg):
        """Gets what a round has released."""

        def aggregate_train(self, *arguments: Any, **named: Any) -> Any:
            training.folder.released(poisson_sampled(0.5, gaussian(NOISE)))
            return super().aggregate_train(*arguments, **named)

    wrapper = DifferentialPrivacyServerSideFixedClipping(Noted(), NOISE, 1.0, 4)
    strategy = charge_rounds(wrapper, training.run, unit="client", sampling_probability=0.5)
    if training.goes_on:
        grid = LocalGrid(shifted_by(lambda _: 0.1), 4)
        rounds = training.asked["steps"] - (training.run.step or 0)
        strategy.start(
            grid,
            arrays(np.zeros(8)),
            num_rounds=rounds,
            evaluate_fn=lambda number, _: training.save() if number else None,
        )


def nvflare_filter(training: Training) -> None:
    """Send results of a site through its filter."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.filter import ContentBlockedException
    from nvflare.apis.fl_context import FLContext

    from epsilon_ledger.nvflare import LedgerFilter

    filter_, context = LedgerFilter(training.asked["budget"], 2 * NOISE, 1.0, unit="record"), FLContext()
    filter_._run = training.run  # FLARE's own sites open a new one in each process
    while training.goes_on:
        try:
            filter_.process(DXO(DataKind.WEIGHT_DIFF, data={"w": np.ones(8)}).to_shareable(), context)
        except ContentBlockedException as blocked:
            raise (blocked.__cause__ or blocked) from None
        training.note(event=gaussian(NOISE))  # a record moves its site's result by two clipping norms


TRAINERS: Final[dict[str, Callable[[Training], None]]] = {
    each.__name__: each
    for each in (numpy_optimizer, opacus, transformers_trainer, jax_optax, keras_fit, flower_server, nvflare_filter)
}


def train(folder: TrainingFolder, client: LedgerClient, asked: dict[str, Any]) -> None:
    """Train until the end; a spent budget is a normal end."""
    training = Training(folder, client, asked)
    with suppress(BudgetExceededError):
        TRAINERS[asked["trainer"]](training)
    training.run.complete()


if __name__ == "__main__":
    run_trainer(train)
